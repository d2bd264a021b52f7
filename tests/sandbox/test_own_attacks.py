"""Our own attacks on both layers, each in the real sandbox."""

from __future__ import annotations

import platform
from types import ModuleType
from typing import Any

import pytest

from resilience.model import EngineConfig, UdfCall, UdfOutcome
from resilience.sandbox.runner import SandboxRunner, Settings
from tests.sandbox.patience import PATIENT_MS

NEVER = EngineConfig(udf_quarantine_after=0)
POD = frozenset({"namespaces", "empty_root", "uid"})
EPERM = {"open", "openat_mem", "openat_engine", "ioctl_tiocsti", "ioctl_fionbio", "fcntl_dupfd",
         "set_robust_list"}


def run_each(
    sources: dict[str, str], settings: Settings, context: Any, timeout_ms: int
) -> dict[str, UdfOutcome]:
    """Run `f_NAME` of each source, one after the other; none gets the worker of another."""
    runner = SandboxRunner({f"{n}.py": text for n, text in sources.items()}, NEVER, settings)
    try:
        return {
            name: runner.run([UdfCall("p", "i", name, f"f_{name}", timeout_ms, context)],
                             deadline_ms=timeout_ms + 3_000)[0]
            for name in sources
        }
    finally:
        runner.close()


def function(name: str, lines: str, head: str = "") -> str:
    body = "".join(f"    {line}\n" for line in lines.strip("\n").split("\n"))
    return f"{head}def f_{name}(ctx):\n{body}"


def failed(outcomes: dict[str, UdfOutcome], wanted: dict[str, str]) -> dict[str, UdfOutcome]:
    return {
        name: outcome for name, outcome in outcomes.items()
        if outcome.outcome not in wanted[name].split()
        or (outcome.outcome == "ok" and "pwned" in outcome.result)
    }


def test_the_language_layer_ends_each_as_expected(
    own: Any, attacks: ModuleType, context: dict[str, Any]
) -> None:
    cases: dict[str, tuple[str, str]] = own[0].LANGUAGE
    quick = {n: c for n, c in cases.items() if "TIMEOUT" not in c[0].split()}
    for chosen, timeout_ms in ((quick, PATIENT_MS), (cases.keys() - quick.keys(), 600)):
        sources = {}
        for name in chosen:
            head, _, body = cases[name][1].rpartition("---\n")
            sources[name] = function(name, body, head.lstrip("\n"))
        outcomes = run_each(sources, attacks.settings(False, spares=2), context, timeout_ms)
        assert failed(outcomes, {n: cases[n][0] for n in chosen}) == {}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are of x86-64")
@pytest.mark.parametrize("skip", [frozenset[str](), POD], ids=["full", "pod"])
def test_no_other_system_call_passes(
    own: Any, attacks: ModuleType, skip: frozenset[str]
) -> None:
    kernel = own[1]
    found: dict[str, UdfOutcome] = {}
    names = list(kernel.CALLS)
    for part in (names[:150], names[150:]):  # a bundle has up to 256 files
        sources = {
            n: function(n, f"{kernel.PRELUDE}r = sc({kernel.CALLS[n]})\n"
                           "return {'actions': [], 'pwned': r}") for n in part
        }
        found |= run_each(sources, attacks.settings(True, spares=2, skip=skip),
                          attacks.kernel_context({}), PATIENT_MS)
    wanted = {n: "RUNTIME_DENIED" if n in EPERM else "SECCOMP_KILL" for n in names}
    assert failed(found, {**wanted, "uretprobe": "CRASH SECCOMP_KILL"}) == {}


def test_what_else_a_process_may_try_ends_as_expected(own: Any, attacks: ModuleType) -> None:
    kernel = own[1]
    sources = {n: function(n, kernel.PRELUDE + c[1].strip("\n")) for n, c in kernel.CODE.items()}
    endless = {n for n, c in kernel.CODE.items() if "TIMEOUT" in c[0].split()}
    outcomes: dict[str, UdfOutcome] = {}
    for chosen, timeout_ms in ((sources.keys() - endless, PATIENT_MS), (endless, 1_500)):
        outcomes |= run_each(
            {n: sources[n] for n in chosen}, attacks.settings(True, spares=2),
            attacks.kernel_context({}), timeout_ms)
    assert failed(outcomes, {n: c[0] for n, c in kernel.CODE.items()}) == {}
