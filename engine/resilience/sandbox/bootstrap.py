"""The first code of the zygote's process: leaves the machine's namespaces before all imports.

Arguments: the descriptors of control socket, bundle and hello; the engine's pid; layers to skip
(comma separated); the module whose `main` becomes the zygote.
"""

from __future__ import annotations

import importlib
import os
import sys

from resilience.sandbox import kernel
from resilience.sandbox.lock import Lock
from resilience.sandbox.wire import frame, write_all


def main() -> None:
    """Fork into the new pid namespace where there is one; the parent only waits."""
    control, bundle, hello, engine_pid = (int(a) for a in sys.argv[1:5])
    skip = frozenset(sys.argv[5].split(","))
    os.environ.clear()
    try:
        engine = os.pidfd_open(engine_pid)
        if os.getppid() != engine_pid:
            os._exit(1)
        lock = Lock(skip)
        if lock.leave_machine():
            pid = os.fork()
            if pid:
                _wait(pid, skip)
        module = importlib.import_module(sys.argv[6])
        sys.path.clear()
        module.main(control, bundle, hello, engine, lock)
    except Exception as error:  # the engine shows it: this process has no standard error
        write_all(hello, frame({"error": f"{type(error).__name__}: {error}"}))
        os._exit(1)
    os._exit(0)


def _wait(pid: int, skip: frozenset[str]) -> None:
    """Be nobody with nothing, and end when the zygote ends."""
    kernel.close_from(3)
    waiting = Lock(skip | {"empty_root"})
    waiting.engaged["namespaces"] = False
    waiting.zygote()
    os.waitpid(pid, 0)
    os._exit(0)
