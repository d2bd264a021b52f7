"""The engine's side: order, deadlines, quarantine, reload, storms and layers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from resilience.errors import SandboxError
from resilience.model import EngineConfig, UdfCall
from resilience.sandbox import layers
from resilience.sandbox.answer import Rules
from resilience.sandbox.runner import SandboxRunner
from tests.sandbox.bodies import BAD, GOOD, HANG
from tests.sandbox.patience import PATIENT_MS

Open = Callable[..., SandboxRunner]
Call = Callable[..., UdfCall]
FREE = EngineConfig(udf_quarantine_after=0)


def wait_for_spares(runner: SandboxRunner, within_s: float = 60.0) -> None:
    ends_s = time.monotonic() + within_s
    while runner.spares_ready() < 2:
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def test_outcomes_come_in_the_order_of_the_calls(open_runner: Open, call: Call) -> None:
    runner = open_runner({"u.py": GOOD}, spares=2, parallel=3)
    calls = [call("good", {"n": n}) for n in range(20)]
    outcomes = runner.run(calls, deadline_ms=PATIENT_MS)
    assert [o.result["state"] for o in outcomes] == list(range(20))
    assert {o.key for o in outcomes} == {("policy", "instance", "0")}


def test_no_calls_no_outcomes(open_runner: Open) -> None:
    assert open_runner({}).run([], deadline_ms=1_000) == []


def test_a_hang_ends_at_its_time_out_and_others_go_on(open_runner: Open, call: Call) -> None:
    runner = open_runner({"a.py": HANG, "b.py": GOOD}, parallel=4)
    outcomes = runner.run(
        [call("hang", {}, 300), call("good", {"n": 1}), call("hang", {}, 300)],
        deadline_ms=PATIENT_MS)
    assert [o.outcome for o in outcomes] == ["TIMEOUT", "ok", "TIMEOUT"]
    assert max(o.duration_ms for o in outcomes) < PATIENT_MS / 2


def test_the_deadline_of_all_bounds_each(open_runner: Open, call: Call) -> None:
    runner = open_runner({"a.py": HANG}, FREE, parallel=1)
    outcomes = runner.run([call("hang", {}, PATIENT_MS) for _ in range(3)], deadline_ms=400)
    assert [o.outcome for o in outcomes] == ["TIMEOUT"] * 3
    assert sum(o.duration_ms for o in outcomes) < PATIENT_MS


def test_a_call_that_got_no_time_is_not_to_blame(open_runner: Open, call: Call) -> None:
    runner = open_runner({"a.py": HANG, "b.py": GOOD}, EngineConfig(udf_quarantine_after=1),
                         parallel=1, spares=2)
    wait_for_spares(runner)
    calls = [call("hang", {}, PATIENT_MS), call("good", {"n": 1})]
    outcomes = runner.run(calls, deadline_ms=2_000)
    assert [o.outcome for o in outcomes] == ["TIMEOUT", "TIMEOUT"]
    assert "no worker was free in time" in (outcomes[1].detail or "")
    assert set(runner.quarantined()) == {"hang"}


def test_a_judge_that_fails_keeps_no_worker(open_runner: Open, call: Call) -> None:
    def judge(_: Any) -> None:
        raise KeyError("a bug of the engine")

    runner = open_runner({"u.py": GOOD}, FREE, rules=Rules(judge=judge), parallel=2)
    for _ in range(3):
        with pytest.raises(KeyError):
            runner.run([call("good", {"n": 1})] * 2, deadline_ms=PATIENT_MS)


def test_a_function_that_fails_in_a_row_is_quarantined(open_runner: Open, call: Call) -> None:
    source = "def f(ctx):\n    return {'actions': []} if ctx['ok'] else 1\n"
    runner = open_runner({"u.py": source}, EngineConfig(udf_quarantine_after=3))

    def outcome(ok: bool) -> str:
        return runner.run([call("f", {"ok": ok})], deadline_ms=PATIENT_MS)[0].outcome

    assert [outcome(x) for x in (False, False, True, False, False)] == [
        "BAD_RESULT", "BAD_RESULT", "ok", "BAD_RESULT", "BAD_RESULT"]
    assert runner.quarantined() == {}
    assert [outcome(x) for x in (False, True, True)] == ["BAD_RESULT", "QUARANTINED", "QUARANTINED"]
    assert runner.quarantined() == {"f": "failed 3 times in a row, last with BAD_RESULT"}
    assert runner.release("f") and not runner.release("f")
    assert outcome(True) == "ok"


def test_reload_forgives_only_what_changed(open_runner: Open, call: Call) -> None:
    runner = open_runner({"a.py": BAD, "b.py": BAD.replace("bad", "worse")},
                         EngineConfig(udf_quarantine_after=1))
    runner.run([call("bad", {}), call("worse", {})], deadline_ms=PATIENT_MS)
    assert set(runner.quarantined()) == {"bad", "worse"}
    runner.reload({"a.py": BAD, "b.py": "def worse(ctx):\n    return {'actions': []}\n"})
    assert set(runner.quarantined()) == {"bad"}
    assert runner.run([call("worse", {})], deadline_ms=PATIENT_MS)[0].outcome == "ok"


def test_reload_loses_no_call_in_flight(open_runner: Open, call: Call) -> None:
    source = ("def f(ctx):\n    n = 0\n    for i in range(200000): n += 1\n"
              "    return {'actions': [], 'state': VERSION}\n")
    runner = open_runner({"u.py": "VERSION = 0\n" + source}, spares=2)
    seen: list[str] = []
    stop = threading.Event()

    def ask() -> None:
        while True:
            seen.extend(o.outcome if o.outcome != "ok" else f"v{o.result['state']}"
                        for o in runner.run([call("f", {})] * 2, deadline_ms=PATIENT_MS))
            if stop.is_set():
                return

    thread = threading.Thread(target=ask)
    thread.start()
    for version in range(1, 5):
        runner.reload({"u.py": f"VERSION = {version}\n" + source})
    stop.set()
    thread.join()
    assert seen and set(seen) <= {f"v{n}" for n in range(5)}
    assert runner.run([call("f", {})], deadline_ms=PATIENT_MS)[0].result["state"] == 4


def test_many_threads_share_the_bounded_workers(open_runner: Open, call: Call) -> None:
    runner = open_runner({"u.py": GOOD}, parallel=2, spares=2)
    results: list[Any] = []

    def ask(n: int) -> None:
        results.extend(runner.run([call("good", {"n": n})] * 5, deadline_ms=PATIENT_MS))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 40 and {o.outcome for o in results} == {"ok"}


def test_a_killed_zygote_is_replaced(open_runner: Open, call: Call) -> None:
    runner = open_runner({"u.py": GOOD})
    assert runner.run([call("good", {"n": 1})], deadline_ms=PATIENT_MS)[0].outcome == "ok"
    killed = runner._pool.zygote
    killed._process.kill()
    killed._process.wait()
    while runner._pool.zygote is killed:  # the thread that keeps the spares starts a new one
        outcome = runner.run([call("good", {"n": 1})], deadline_ms=PATIENT_MS)[0]
        assert outcome.outcome in ("ok", "CRASH")
    assert runner.run([call("good", {"n": 1})], deadline_ms=PATIENT_MS)[0].outcome == "ok"
    assert runner.quarantined() == {}


def test_a_zygote_that_stands_still_for_a_moment_is_waited_for(
    open_runner: Open, call: Call
) -> None:
    runner = open_runner({"u.py": GOOD}, spares=0)
    still = runner._pool.zygote
    os.kill(still._process.pid, signal.SIGSTOP)
    timer = threading.Timer(2.0, os.kill, (still._process.pid, signal.SIGCONT))
    timer.start()
    outcome = runner.run([call("good", {"n": 1})], deadline_ms=PATIENT_MS)[0]
    timer.join()
    assert outcome.outcome == "ok" and runner._pool.zygote is still


LOOKUPS = [
    ("nobody", "no UDF file defines `nobody`"),
    ("two", "`two` is defined in `udfs/a.py` and `udfs/b.py`"),
    ("none", "udfs/a.py:2:1: `none` must take one argument"),
    ("pair", "udfs/a.py:3:1: `pair` must take one argument"),
    ("broken", "udfs/c.py:1:1: the module `os` is not available"),
]


@pytest.mark.parametrize(("function", "detail"), LOOKUPS)
def test_a_function_that_cannot_be_called_says_why(
    open_runner: Open, call: Call, function: str, detail: str
) -> None:
    runner = open_runner({
        "udfs/a.py": "def two(ctx): pass\ndef none(): pass\ndef pair(a, b): pass\n",
        "udfs/b.py": "def two(ctx): pass\n",
        "udfs/c.py": "import os\ndef broken(ctx): pass\n",
    })
    outcome = runner.run([call(function, {})], deadline_ms=PATIENT_MS)[0]
    assert outcome.outcome == "COMPILE_DENIED"
    assert (outcome.detail or "").startswith(detail)


def test_a_users_function_hides_a_shipped_one(open_runner: Open, call: Call) -> None:
    mine = "def f(ctx): return {'actions': [], 'state': 'mine'}\n"
    theirs = "def f(ctx): return {'actions': []}\ndef g(ctx): return {'actions': []}\n"
    runner = open_runner({"shipped/f.py": theirs, "udfs/f.py": mine})
    outcomes = runner.run([call("f", {}), call("g", {})], deadline_ms=PATIENT_MS)
    assert [o.outcome for o in outcomes] == ["ok", "ok"]
    assert outcomes[0].result["state"] == "mine"


@pytest.mark.parametrize("text", [
    "def f(ctx):\n    return " + "(" * 5_000 + "1" + ")" * 5_000,
    "def f(ctx):\n    return " + "not " * 9_000 + "1",
    "def f(ctx):\n    return " + "-" * 9_000 + "1",
    "def f(ctx):\n    return " + "a." * 9_000 + "b", "def f(ctx):\n" + "".join(
        " " * i + "if 1:\n" for i in range(1, 150)), "\x00def f(ctx): pass", "def f(ctx): '\udcff'",
    "def f(ctx):\n    return f'" + "{1:" * 200 + "}" * 200 + "'", "é = 1\ndef f(ctx): pass",
    "def f(ctx):\n    lambda: " + "lambda: " * 3_000 + "1", "def f(ctx):\n\treturn 1\n        x",
])
def test_a_source_that_troubles_the_parser_is_refused(
    open_runner: Open, call: Call, text: str
) -> None:
    runner = open_runner({"u.py": text, "v.py": GOOD})
    outcomes = runner.run([call("f", {}), call("good", {"n": 1})], deadline_ms=PATIENT_MS)
    assert [o.outcome for o in outcomes] == ["COMPILE_DENIED", "ok"]
    assert len(outcomes[0].detail or "") < 400


def test_a_context_that_is_too_large_or_no_json_is_not_sent(open_runner: Open, call: Call) -> None:
    runner = open_runner({"u.py": GOOD})
    for context in ({"n": "x" * 2**21}, {"n": float("nan")}, {"n": object()}):
        outcome = runner.run([call("good", context)], deadline_ms=PATIENT_MS)[0]
        assert outcome.outcome == "RUNTIME_DENIED" and "context" in (outcome.detail or "")


def test_a_context_larger_than_a_pipe_arrives(open_runner: Open, call: Call) -> None:
    source = "def f(ctx):\n    return {'actions': [], 'state': len(ctx['x'])}\n"
    runner = open_runner({"u.py": source})
    outcome = runner.run([call("f", {"x": "y" * 900_000})], deadline_ms=PATIENT_MS)[0]
    assert (outcome.outcome, outcome.result["state"]) == ("ok", 900_000)


@pytest.mark.parametrize(("returned", "detail"), [
    ("None", "a UDF returns a mapping"), ("[]", "a UDF returns a mapping"),
    ("{}", "no list `actions`"),
    ("{'actions': None}", "no list `actions`"), ("{'actions': [1]}", "action 0 is not a mapping"),
    ("{'actions': [{'type': 'b'}]}", "unknown type `b`; known: a"),
    ("{'actions': [], 'foo': 1}", "unknown key `foo`; known are actions, note, state"),
    ("{'actions': [{'type': 'a'}] * 33}", "33 actions, at most 32"),
    ("{'actions': [], 'note': 1}", "`note` of the result is a text"),
    ("{'actions': [], 'state': {1: 2}}", "keys of a result are texts"),
    ("{'actions': [], 'state': {1}}", "a set cannot be part"),
    ("{'actions': [], 'state': 2**60}", "not finite or too large"),
])
def test_a_bad_result_says_what_is_wrong(run_source: Any, returned: str, detail: str) -> None:
    outcome = run_source(f"def f(ctx):\n    return {returned}\n", rules=Rules({"a"}))
    assert outcome.outcome == "BAD_RESULT"
    assert detail in outcome.detail


def test_the_log_and_the_place_of_an_error_come_back(run_source: Any) -> None:
    outcome = run_source("def f(ctx):\n    print('a', 1)\n    return ctx['nothing']\n")
    assert (outcome.outcome, outcome.log) == ("RUNTIME_DENIED", "a 1\n")
    assert outcome.detail == "udf.py:3:12: KeyError: 'nothing'"


# --- layers ---


def test_every_layer_is_reported_and_the_required_ones_hold() -> None:
    found = {layer.name: layer for layer in layers.probe()}
    assert all(found[name].engaged for name in ("seccomp", "no_new_privs", "rlimits")), found
    assert layers.warnings(tuple(found.values())) == [
        f"the sandbox layer `{n}` is missing: {found[n].meaning}"
        for n in found if not found[n].engaged]


@pytest.mark.parametrize("missing", ["seccomp", "no_new_privs", "rlimits"])
def test_without_a_required_layer_udfs_are_refused_unless_allowed(
    open_runner: Open, call: Call, missing: str
) -> None:
    skip = frozenset({missing})
    runner = open_runner({"u.py": GOOD}, skip=skip)
    outcome = runner.run([call("good", {"n": 1})], deadline_ms=PATIENT_MS)[0]
    assert outcome.outcome == "COMPILE_DENIED"
    assert f"`{missing}`" in (outcome.detail or "") and "allow_weak" in (outcome.detail or "")
    assert next(la for la in runner.layers() if la.name == missing).engaged is False
    weak = open_runner({"u.py": GOOD}, EngineConfig(sandbox_allow_weak=True), skip=skip)
    assert weak.run([call("good", {"n": 1})], deadline_ms=PATIENT_MS)[0].outcome == "ok"


def test_an_operator_may_require_more(open_runner: Open, call: Call) -> None:
    config = EngineConfig(sandbox_require=("seccomp", "landlock"))
    runner = open_runner({"u.py": GOOD}, config, skip=frozenset({"landlock"}))
    outcome = runner.run([call("good", {"n": 1})], deadline_ms=PATIENT_MS)[0]
    assert "`landlock`" in (outcome.detail or "")


def test_the_engine_does_not_load_what_only_workers_need() -> None:
    asked = ("import sys; sys.path[:0] = sys.argv[1].split(':'); import resilience.sandbox.runner;"
             "print([m for m in ('RestrictedPython', 'ctypes', 'statistics') if m in sys.modules])")
    paths = ":".join(path for path in sys.path if path)
    done = subprocess.run([sys.executable, "-S", "-c", asked, paths], capture_output=True,
                          text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_runner_that_cannot_start_says_so() -> None:
    with pytest.raises(SandboxError, match="at most"):
        SandboxRunner({f"{n}.py": "" for n in range(300)})
