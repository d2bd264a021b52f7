"""Attack files: their header, how they run, and what their outcome means."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilience.model import UdfCall, UdfOutcome
from resilience.sandbox.answer import Rules
from resilience.sandbox.bpf import WRITE_FD
from resilience.sandbox.limits import words
from resilience.sandbox.runner import SandboxRunner, Settings

HERE = Path(__file__).resolve().parent
CORPUS_ACTIONS = frozenset(words(
    "noop scale shed annotate set weights drain order cooldown retry restart"))
# The corpus' attacks return `pwned` when they succeed, so here that key is let through.
KEYS = Rules().keys | {"pwned"}
TIMEOUT_MS = 3_000      # of what may end by it
PATIENT_MS = 120_000    # of what ends by itself, also on a machine that stands still for a while
REFUSED = frozenset({"COMPILE_DENIED", "RUNTIME_DENIED"})
CANARY_SOURCE = "def canary(ctx):\n    return {'actions': []}\n"
DENIED = frozenset({"RUNTIME_DENIED", "SECCOMP_KILL", "CRASH", "MEMORY", "BAD_RESULT", "TIMEOUT"})


@dataclass(frozen=True, slots=True)
class Attack:
    """One file of the corpus' format: a header of `# key: value` lines, then a `recover(ctx)`."""

    name: str
    text: str
    technique: str
    expect: frozenset[str]
    kernel: bool
    check: str | None = None  # of a benign file: an expression over the result `r`, or DENIED


def read_attack(path: Path) -> Attack:
    """Read one file; its header is optional but for `expect`."""
    text = path.read_bytes().decode("utf-8", "surrogateescape")  # the sandbox refuses such text
    header = dict(re.findall(r"^# (\w+): (.*)$", text[:2_000], re.MULTILINE))
    return Attack(
        path.name, text, header.get("technique", path.stem),
        frozenset(header.get("expect", "DENIED").split("|")), header.get("mode") == "kernel",
        header.get("check"),
    )


def kernel_context(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return the context of attacks on the kernel layer: what an insider would know."""
    return {**context, "resp_fd": WRITE_FD, "engine_pid": os.getpid(), "heap_kb": 1024}


def settings(kernel: bool, spares: int = 1, skip: frozenset[str] = frozenset()) -> Settings:
    """Return how attacks run: the product's worker, without the language layer if `kernel`."""
    rules = Rules(CORPUS_ACTIONS, KEYS)
    if not kernel:
        return Settings(rules, spares, skip=skip)
    return Settings(rules, spares, skip=skip, module="raw_zygote", paths=(str(HERE),))


def run_all(
    attacks: list[Attack], context: Mapping[str, Any], skip: frozenset[str] = frozenset()
) -> dict[str, UdfOutcome]:
    """Run every attack in its own runner call and return name -> outcome."""
    outcomes: dict[str, UdfOutcome] = {}
    limits = {a.name: TIMEOUT_MS if a.expect & {"TIMEOUT", "DENIED", "CONTAINED"} else PATIENT_MS
              for a in attacks}
    for kernel in (False, True):
        chosen = {a.name: renamed(a) for a in attacks if a.kernel is kernel}
        if not chosen:
            continue
        sources = {n: text for n, (_, text) in chosen.items()} | {"canary.py": CANARY_SOURCE}
        runner = SandboxRunner(sources, settings=settings(kernel, skip=skip))
        try:
            for name, (function, _) in chosen.items():
                runner.run([_canary(context)], deadline_ms=PATIENT_MS)
                body = kernel_context(context) if kernel else dict(context)
                call = UdfCall("policy", "instance", name, function, limits[name], body)
                outcomes[name] = runner.run([call], deadline_ms=PATIENT_MS)[0]
        finally:
            runner.close()
    return outcomes


def _canary(context: Mapping[str, Any]) -> UdfCall:
    """An earlier call of somebody else, whose context no attack may find."""
    canary = {**context, "secret": "CANARY-PREVIOUS-CALL"}
    return UdfCall("policy", "instance", "canary", "canary", PATIENT_MS, canary)


def renamed(attack: Attack) -> tuple[str, str]:
    """Return (function, text) with a name of its own, as one bundle has each name once."""
    function = "recover_" + re.sub(r"\W", "_", attack.name.removesuffix(".py"))
    return function, re.sub(r"\brecover\b", function, attack.text)


def as_expected(attack: Attack, outcome: UdfOutcome) -> bool:
    """Return whether `outcome` is one that the header of `attack` accepts."""
    if isinstance(outcome.result, dict) and "pwned" in outcome.result:
        return False
    if attack.check is not None:
        return _behaves(attack.check, outcome)
    if outcome.outcome in attack.expect:
        return True
    if "CONTAINED" in attack.expect and outcome.outcome == "ok":
        return True
    return "DENIED" in attack.expect and (outcome.outcome in DENIED or outcome.outcome == "ok")


def _behaves(check: str, outcome: UdfOutcome) -> bool:
    if check == "DENIED":
        return outcome.outcome in REFUSED
    return outcome.outcome == "ok" and bool(eval(check, {"r": outcome.result}))
