"""The locked worker against plain Python in it: the language layer is not there to help."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from resilience.model import EngineConfig, UdfCall
from resilience.sandbox import bpf
from resilience.sandbox.limits import REPLY_BYTES_MAX
from resilience.sandbox.runner import SandboxRunner
from resilience.sandbox.syscalls import TABLES, machine
from tests.sandbox.patience import PATIENT_MS

Open = Callable[..., SandboxRunner]
Call = Callable[..., UdfCall]
HERE = str(Path(__file__).resolve().parent)
RAW = {"module": "raw_zygote", "paths": (HERE,)}

SYSCALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def f(ctx):
    result = libc.syscall(ctypes.c_long(ctx["number"]), 0, 0, 0, 0, 0, 0)
    return {"actions": [], "note": "%d %d" % (result, ctypes.get_errno())}
"""


# uretprobe and uprobe: the kernel lets them past every filter, and refuses them itself where no
# probe stands, with SIGILL or an error.
PROBES = (335, 336) if machine() == "x86_64" else ()


def test_every_system_call_number_is_tried(open_runner: Open, call: Call) -> None:
    name = machine()
    assert name is not None
    numbers = {number: n for n, number in TABLES[name][1].items()}
    runner = open_runner({"s.py": SYSCALL}, EngineConfig(udf_quarantine_after=0), **RAW)
    tried = [*range(480), 0x40000000 + 39, 0x40000000 + 59, 511, 512, 547, 1 << 20]
    may_survive = {*bpf.WORKER_ALLOWED, *bpf.WORKER_REFUSED, "mmap", "mprotect", "madvise"}
    calls = [call("f", {"number": n}, 500 if numbers.get(n) in may_survive else PATIENT_MS)
             for n in tried]
    outcomes = runner.run(calls, deadline_ms=5 * PATIENT_MS)
    for number, outcome in zip(tried, outcomes, strict=True):
        known = numbers.get(number)
        if number in PROBES:
            assert outcome.outcome == "CRASH" or outcome.result["note"].startswith("-1 ")
        elif outcome.outcome == "ok":
            assert known in may_survive, (number, known, outcome.result)
            if known in bpf.WORKER_REFUSED:
                assert outcome.result["note"] == "-1 1", (number, known)
        else:
            expected = {"CRASH", "TIMEOUT"} if known in may_survive else {"SECCOMP_KILL"}
            assert outcome.outcome in expected, (number, known, outcome)


LIES = {
    "second frame": "b'\\0\\0\\0\\2{}' + b'\\0\\0\\0\\2{}'",
    "one byte too many": "b'\\0\\0\\0\\2{}x'",
    "not JSON": "b'\\0\\0\\0\\3{x}'",
    "not UTF-8": "b'\\0\\0\\0\\2\\xff\\xfe'",
    "truncated": "b'\\0\\0\\0\\x20{}'",
    "endless length": "b'\\xff\\xff\\xff\\xff'",
    "deep": "b'\\0\\4\\0\\0' + b'[' * 0x40000",
    "no keys": "b'\\0\\0\\0\\2{}'",
    "long number": "b'\\0\\0\\x20\\0' + b'9' * 0x2000",
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_worker_that_lies_is_found_out(open_runner: Open, call: Call, lie: str) -> None:
    source = f"import os\ndef f(ctx):\n    os.write(3, {lie})\n    os._exit(0)\n"
    runner = open_runner({"l.py": source}, **RAW)
    outcome = runner.run([call("f", {})], deadline_ms=PATIENT_MS)[0]
    assert outcome.outcome in ("BAD_RESULT", "OUTPUT_LIMIT", "CRASH")
    assert outcome.result is None


FORGED = """
import os, json
def f(ctx):
    body = json.dumps(ctx["body"]).encode()
    os.write(3, len(body).to_bytes(4, "big") + body)
    os._exit(0)
"""
GOOD: dict[str, Any] = {"outcome": "ok", "result": {"actions": []}, "detail": None, "log": ""}


@pytest.mark.parametrize("body", [
    {**GOOD, "outcome": "QUARANTINED"}, {**GOOD, "outcome": ["ok"]}, {**GOOD, "more": 1},
    {**GOOD, "result": None}, {**GOOD, "result": {"actions": [{}]}}, {**GOOD, "log": 1},
    {**GOOD, "result": {"actions": [], "state": 2**53 + 1}},
    {**GOOD, "result": {"actions": [{"type": "t"}] * 33}},
    {**GOOD, "result": {"actions": [], "__proto__": 1}}, [GOOD], "ok", None,
], ids=repr)
def test_a_forged_answer_is_checked_like_any_other(
    open_runner: Open, call: Call, body: Any
) -> None:
    runner = open_runner({"l.py": FORGED}, **RAW)
    outcome = runner.run([call("f", {"body": body})], deadline_ms=PATIENT_MS)[0]
    assert (outcome.outcome, outcome.result) == ("BAD_RESULT", None)


ENDINGS = {
    "closes its pipe and spins": "os.close(3)\n    while True: pass",
    "closes its pipe and leaves": "os.close(3)\n    os._exit(0)",
    "floods": "\n    while True: os.write(3, b'x' * 65536)",
    "drips": "\n    os.write(3, b'\\0\\0\\1\\0')\n    while True: os.write(3, b' ')",
    "is silent": "\n    while True: pass",
    "aborts": "os.abort()",
    "leaves with an answer half sent": "os.write(3, b'\\0\\0')\n    os._exit(0)",
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_however_a_worker_ends_the_call_ends(
    open_runner: Open, call: Call, ending: str
) -> None:
    runner = open_runner({"e.py": f"import os\ndef f(ctx):\n    {ending}\n"}, **RAW)
    outcome = runner.run([call("f", {}, 700)], deadline_ms=PATIENT_MS)[0]
    assert outcome.outcome in ("CRASH", "TIMEOUT", "OUTPUT_LIMIT", "BAD_RESULT", "SECCOMP_KILL")
    assert outcome.duration_ms < PATIENT_MS / 2
    assert len(outcome.detail or "") < REPLY_BYTES_MAX


CANARY = """
import gc
def f(ctx):
    found = [o for o in gc.get_objects() if type(o) is dict and "CANARY-1" in map(str, o.values())]
    return {"actions": [], "note": str(len([o for o in found if o is not ctx]))}
"""


@pytest.mark.parametrize("spares", [0, 2])
def test_no_worker_finds_what_an_earlier_call_was_given(
    open_runner: Open, call: Call, spares: int
) -> None:
    runner = open_runner({"c.py": CANARY}, **{**RAW, "spares": spares})
    for _ in range(5):
        runner.run([call("f", {"secret": "CANARY-1"})], deadline_ms=PATIENT_MS)
    outcome = runner.run([call("f", {"other": 1})], deadline_ms=PATIENT_MS)[0]
    assert (outcome.outcome, outcome.result["note"]) == ("ok", "0"), outcome.detail


def test_memory_holds_no_sources_of_the_engines_environment(
    open_runner: Open, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESILIENCE_SECRET", "hunter2")
    source = ("import os\ndef f(ctx):\n"
              "    return {'actions': [], 'note': str(sorted(os.environ))}\n")
    outcome = open_runner({"e.py": source}, **RAW).run([call("f", {})], deadline_ms=PATIENT_MS)[0]
    assert outcome.result["note"] == "[]"


def test_the_raw_mode_is_not_in_the_product() -> None:
    package = Path(str(bpf.__file__)).parent
    assert not [p for p in package.glob("*.py") if "raw_zygote" in p.read_text()]
    assert os.path.exists(Path(HERE) / "raw_zygote.py")


def test_attack_helpers_know_a_success(attacks: ModuleType) -> None:
    attack = attacks.Attack("a.py", "", "", frozenset({"CONTAINED"}), False)
    outcome = attacks.UdfOutcome("p", "i", "0", "f", "ok", {"actions": [], "pwned": 1})
    assert not attacks.as_expected(attack, outcome)
