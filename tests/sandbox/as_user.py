"""Run as another user or in a bare pod by test_users.py: a few calls, printed as JSON lines.

    python as_user.py PATHS MODE        MODE: plain, pod (no namespaces, no change of user),
                                        closed (descriptors 0-2 are closed at the start)
"""

from __future__ import annotations

import json
import os
import sys

sys.path[:0] = json.loads(sys.argv[1])

from resilience.model import UdfCall  # noqa: E402
from resilience.sandbox import bpf, kernel  # noqa: E402
from resilience.sandbox.runner import SandboxRunner  # noqa: E402
from resilience.sandbox.syscalls import machine  # noqa: E402

PATIENT_MS = 120_000  # more than a call that ends by itself takes on a busy machine
SOURCE = """
from collections import Counter
from datetime import datetime, timezone
import statistics
def f(ctx):
    top = Counter(ctx["xs"]).most_common(1)[0][0]
    day = datetime.fromtimestamp(0, timezone.utc).strftime("%A")
    return {"actions": [], "state": [top, day, statistics.median(ctx["xs"])], "note": "é ü"}
def spin(ctx):
    t = ()
    for i in range(60): t = (t, t)
    {t: 1}
"""


def as_in_a_pod() -> None:
    """Refuse new namespaces, as a container's own profile does."""
    name = machine()
    assert name is not None
    kernel.no_new_privs()
    assert kernel.seccomp(bpf.assemble(name, [bpf.Rule("unshare", bpf.EPERM)], bpf.ALLOW))


def main() -> None:
    """Run the calls and print what came, then the layers."""
    mode = sys.argv[2]
    out = os.dup(1)
    if mode == "pod":
        as_in_a_pod()
    if mode == "closed":
        os.closerange(0, 3)
    runner = SandboxRunner({"udfs/u.py": SOURCE})
    calls = [UdfCall("p", "i", "0", name, time_ms, {"xs": [1, 2, 2]})
             for name, time_ms in (("f", PATIENT_MS), ("spin", 500), ("f", PATIENT_MS))]
    outcomes = runner.run(calls, deadline_ms=PATIENT_MS)
    body = {
        "outcomes": [[o.outcome, o.result] for o in outcomes],
        "layers": {layer.name: layer.engaged for layer in runner.layers()},
        "uid": os.getuid(),
    }
    runner.close()
    os.write(out, json.dumps(body).encode())


if __name__ == "__main__":
    main()
