"""The sandbox of the active bundle: opened before a server starts, replaced with the bundle."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from resilience.errors import FindingsError, SandboxError
from resilience.model import (
    Action,
    Bundle,
    EngineConfig,
    Finding,
    Policy,
    UdfCall,
    UdfOutcome,
    UdfRunner,
)

if TYPE_CHECKING:
    from resilience.sandbox.layers import Layer
    from resilience.sandbox.runner import SandboxRunner, Settings, Staged

COUNTED_MAX = 10_000  # pairs of function and outcome that the metric holds


class ClosableRunner(UdfRunner, Protocol):
    def close(self) -> None: ...


def needs_sandbox(bundle: Bundle) -> bool:
    """Return whether any action of the bundle calls a UDF."""
    return bool(called(bundle.policies))


def called(policies: Sequence[Policy]) -> set[str]:
    """Return the names of the functions that `policies` call."""
    return {a.udf.function for p in policies for a in _actions(p) if a.udf is not None}


def _actions(policy: Policy) -> Iterator[Action]:
    yield from policy.actions
    for stage in policy.escalation:
        yield from stage.actions


# --- checking, where authors work: the files are read in this process ---------------------------


def check_udfs(policies: Sequence[Policy], roots: Sequence[Mapping[str, str]]) -> list[Finding]:
    """Return what is wrong with the UDF files that `policies` use; `roots` in order of lookup."""
    from resilience.policy.context import index_functions

    functions = index_functions(roots)
    texts = {file: text for root in reversed(roots) for file, text in root.items()}
    used = dict[str, set[str]]()
    for name in called(policies):
        for file in functions.files(name):
            used.setdefault(file, set()).add(name)
    return [f for file in sorted(used) for f in _check_file(file, texts[file], used[file])]


def unreadable(
    findings: Iterable[Finding], roots: Iterable[Mapping[str, str]]
) -> list[Finding]:
    """Return why files cannot be parsed, if `findings` say that a function was not found: it may
    stand in one of them."""
    if not any(f.code == "udf-missing" for f in findings):
        return []
    from resilience.sandbox.source import Refused, parse

    out: list[Finding] = []
    for file, text in sorted(item for root in roots for item in root.items()):
        try:
            parse(text)
        except Refused as refused:
            d = refused.denial
            out.append(Finding(
                file, d.line, d.column, "error", f"udf-{d.code}", d.message, d.suggestion))
    return out


def _check_file(file: str, text: str, used: set[str]) -> list[Finding]:
    from resilience.sandbox.compile import check_source, wrong_arguments

    return check_source(file, text) or wrong_arguments(file, text, used)


# --- running ------------------------------------------------------------------------------------


def _settings() -> Settings:
    from resilience.app.bundles import propose
    from resilience.sandbox.answer import Rules
    from resilience.sandbox.runner import Settings

    generic = Action("0", "udf_call")
    return Settings(Rules(judge=lambda result: propose(result, generic)))


def open_runner(bundle: Bundle) -> SandboxRunner | None:
    """Return a sandbox with the bundle's UDFs, or None when none is called.

    Raises SandboxError where the sandbox cannot start or lacks a layer that the bundle requires,
    FindingsError for files that it refuses.
    """
    if not needs_sandbox(bundle):
        return None
    from resilience.sandbox.runner import SandboxRunner

    runner = SandboxRunner(dict(bundle.udfs), bundle.config, _settings())
    try:
        _insist(runner.current())
    except (SandboxError, FindingsError):
        runner.close()
        raise
    return runner


def _insist(staged: Staged) -> None:
    refusal = staged.refusal()
    if refusal is not None:
        raise SandboxError(f"UDFs are refused: {refusal}")
    findings = staged.findings()
    if findings:
        raise FindingsError(findings)


@dataclass(frozen=True, slots=True)
class Swap:
    """The sandbox of a bundle that may become the active one: call one of the two, once."""

    commit: Callable[[], None]
    discard: Callable[[], None]


class Udfs:
    """model.UdfRunner that always asks the sandbox of the active bundle.

    `say` gets one line for each layer that the machine lacks, once, when a bundle has UDFs.
    """

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        self.say = say
        self._runner: SandboxRunner | None = None
        self._probed: tuple[Layer, ...] | None = None
        self._said: set[str] = set()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def run(self, calls: Sequence[UdfCall], *, deadline_ms: int) -> Sequence[UdfOutcome]:
        """Run `calls`; never longer than `deadline_ms`, whatever is swapped in meanwhile."""
        runner = self._runner
        if runner is None:
            outcomes: Sequence[UdfOutcome] = [_no_sandbox(call) for call in calls]
        else:
            outcomes = runner.run(calls, deadline_ms=deadline_ms)
        with self._lock:
            for outcome in outcomes:
                key = (outcome.function, outcome.outcome)
                if key in self._counts or len(self._counts) < COUNTED_MAX:
                    self._counts[key] += 1
        return outcomes

    # --- the active bundle ---

    def prepare(self, bundle: Bundle) -> Swap:
        """Start the sandbox of `bundle` beside the one that runs; nothing changes before `commit`.

        What is in quarantine stays there where its file is the same. Raises as `open_runner`.
        """
        old = self._runner
        if old is None or not needs_sandbox(bundle):
            fresh = open_runner(bundle)
            return Swap(lambda: self._use(fresh), fresh.close if fresh else lambda: None)
        staged = old.stage(dict(bundle.udfs), bundle.config)
        try:
            _insist(staged)
        except (SandboxError, FindingsError):
            staged.close()
            raise
        return Swap(lambda: old.adopt(staged), staged.close)

    def adopt(self, bundle: Bundle) -> None:
        """Use the UDFs of `bundle` from now on; raises as `open_runner`."""
        self.prepare(bundle).commit()

    def _use(self, runner: SandboxRunner | None) -> None:
        old, self._runner = self._runner, runner
        if old is not None:
            old.close()
        if runner is not None:
            self._warn(runner.layers())

    def _warn(self, layers: tuple[Layer, ...]) -> None:
        from resilience.sandbox.layers import warnings

        for line in warnings(layers):
            if line not in self._said:
                self._said.add(line)
                self.say(line)

    def close(self) -> None:
        """End the sandbox; calls find none from now on."""
        self._use(None)

    # --- what is shown ---

    def quarantined(self) -> Mapping[str, str]:
        """Return function -> why, for those that are no longer run."""
        runner = self._runner
        return {} if runner is None else runner.quarantined()

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Return (function, outcome) -> calls since the start."""
        with self._lock:
            return dict(self._counts)

    def layers(self) -> tuple[Layer, ...]:
        """Return the kernel layers: of the sandbox that runs, else of one started to find out."""
        runner = self._runner
        if runner is not None:
            return runner.layers()
        if self._probed is None:
            from resilience.sandbox.layers import probe

            self._probed = probe(EngineConfig())
        return self._probed


def _no_sandbox(call: UdfCall) -> UdfOutcome:
    return UdfOutcome(
        call.policy, call.instance, call.action, call.function, "CRASH",
        detail="no sandbox runs for this bundle",
    )
