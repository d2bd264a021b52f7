"""Whatever is called and however a runner ends: no process, descriptor or memory stays."""

from __future__ import annotations

import gc
import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from resilience.model import UDF_OUTCOMES, EngineConfig, UdfCall, UdfOutcome
from resilience.sandbox.runner import SandboxRunner
from tests.sandbox.bodies import BAD, GOOD, HANG
from tests.sandbox.patience import PATIENT_MS

Open = Callable[..., SandboxRunner]
Call = Callable[..., UdfCall]

MIXED = {
    "good": GOOD, "bad": BAD, "hang": HANG,
    "spin": "def spin(ctx):\n    while True: pass\n",
    "deep": "def deep(ctx):\n    t = ()\n    for i in range(200000): t = (t,)\n    {t: 1}\n",
    "hog": "def hog(ctx):\n    x = []\n    while True: x.append('a' * 3000000)\n",
    "huge": "def huge(ctx):\n    return {'actions': [{'type': 'x' * 999999}] * 9}\n",
    "nan": "def nan(ctx):\n    return {'actions': [], 'state': float('nan')}\n",
    "deny": "def deny(ctx):\n    return ctx.nothing\n",
    "log": "def log(ctx):\n    for i in range(99): print('x' * 999)\n    return {'actions': []}\n",
    "sink": "import os\ndef sink(ctx): pass\n",
}
ENDLESS = frozenset({"hang", "spin", "deep", "hog"})
FREE = EngineConfig(udf_quarantine_after=0)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _children() -> int:
    return len(_descendants(os.getpid()))


def _descendants(root: int) -> set[int]:
    """Processes that descend from `root`."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.parent.name)] = int(fields[1])
    ours = {root}
    for _ in range(4):
        ours |= {pid for pid, parent in parents.items() if parent in ours}
    return ours - {root}


def _memory_kb() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


def test_a_thousand_hostile_calls_leave_nothing_behind(open_runner: Open, call: Call) -> None:
    runner = open_runner({f"{n}.py": text for n, text in MIXED.items()}, FREE, spares=2, parallel=4)
    seed = 20261129
    names = random.Random(seed).choices(
        list(MIXED), weights=[60 if n in ("good", "bad", "deny") else 1 for n in MIXED], k=1_000)

    def some(chosen: list[str]) -> Sequence[UdfOutcome]:
        calls = [call(n, {"n": 1}, 300 if n in ENDLESS else PATIENT_MS) for n in chosen]
        return runner.run(calls, deadline_ms=PATIENT_MS)

    def have_spares() -> None:
        while runner.spares_ready() < 2:
            runner.run([call("good", {"n": 1})], deadline_ms=PATIENT_MS)

    some(list(MIXED) * 2)
    have_spares()
    gc.collect()
    before = (_open_files(), _children(), _memory_kb())
    outcomes: list[UdfOutcome] = []
    for start in range(0, 1_000, 50):
        outcomes += some(names[start:start + 50])
    assert {o.outcome for o in outcomes} <= set(UDF_OUTCOMES)
    for name, outcome in zip(names, outcomes, strict=True):
        if name == "good":
            assert outcome.outcome == "ok", (seed, outcome)
    have_spares()
    gc.collect()
    # A spare more or less; a worker that has ended is there until its parent has looked.
    _until(lambda: _open_files() <= before[0] + 3 and _children() <= before[1] + 3)
    assert _memory_kb() < before[2] + 8_192


def _until(holds: Callable[[], bool], within_s: float = 60.0) -> None:
    ends_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < ends_s, (_open_files(), _children())
        time.sleep(0.01)


def test_close_ends_every_process_and_descriptor(call: Call) -> None:
    files, children = _open_files(), _children()
    for _ in range(5):
        runner = SandboxRunner({"u.py": GOOD})
        runner.run([call("good", {"n": 1})], deadline_ms=PATIENT_MS)
        runner.close()
    # What the test before has just closed may have been counted, too.
    _until(lambda: _open_files() <= files and _children() <= children)


ENGINE = """
import sys, threading
sys.path[:0] = sys.argv[1].split(":")
from resilience.model import UdfCall
from resilience.sandbox.runner import SandboxRunner
runner = SandboxRunner({"h.py": sys.argv[2]})
print(runner._pool.zygote._process.pid, flush=True)
runner.run([UdfCall("p", "i", "0", "hang", 30_000, {})] * 3, deadline_ms=60_000)
"""


@pytest.mark.parametrize("thread", [False, True], ids=["main thread", "thread that ends"])
def test_an_engine_that_is_killed_leaves_no_process(thread: bool) -> None:
    source = ENGINE if not thread else ENGINE.replace(
        'runner = SandboxRunner({"h.py": sys.argv[2]})',
        'box = []\nt = threading.Thread(target=lambda: box.append('
        'SandboxRunner({"h.py": sys.argv[2]})))\nt.start(); t.join(); runner = box[0]')
    paths = ":".join(path for path in sys.path if path)
    engine = subprocess.Popen(
        [sys.executable, "-c", source, paths, HANG], stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    launcher = int(engine.stdout.readline())
    before = _descendants(launcher)
    assert before
    engine.kill()
    engine.wait()
    engine.stdout.close()
    for pid in {launcher, *before}:
        _wait_gone(pid)


def _wait_gone(pid: int) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(60_000), f"process {pid} outlived its engine"
    os.close(pidfd)
