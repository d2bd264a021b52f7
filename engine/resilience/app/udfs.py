"""The sandbox of the active bundle: one runner, replaced together with the bundle."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Protocol

from resilience.model import Action, Bundle, Policy, UdfCall, UdfOutcome, UdfRunner


class ClosableRunner(UdfRunner, Protocol):
    def close(self) -> None: ...


def needs_sandbox(bundle: Bundle) -> bool:
    """Return whether any action of the bundle calls a UDF."""
    return any(action.udf is not None for policy in bundle.policies for action in _actions(policy))


def _actions(policy: Policy) -> Iterator[Action]:
    yield from policy.actions
    for stage in policy.escalation:
        yield from stage.actions


def open_runner(bundle: Bundle) -> ClosableRunner | None:
    """Return a sandbox with the bundle's UDFs, or None when none is called; raises SandboxError."""
    if not needs_sandbox(bundle):
        return None
    from resilience.sandbox.runner import SandboxRunner

    runner: ClosableRunner = SandboxRunner(dict(bundle.udfs), bundle.config)
    return runner


class Udfs:
    """model.UdfRunner that always asks the runner of the active bundle."""

    def __init__(self) -> None:
        self._runner: ClosableRunner | None = None
        self._lock = threading.Lock()

    def run(self, calls: Sequence[UdfCall], *, deadline_ms: int) -> Sequence[UdfOutcome]:
        with self._lock:
            if self._runner is None:
                return [_no_sandbox(call) for call in calls]
            return self._runner.run(calls, deadline_ms=deadline_ms)

    def adopt(self, runner: ClosableRunner | None) -> None:
        """Use `runner` from now on and close the former one."""
        with self._lock:
            old, self._runner = self._runner, runner
        if old is not None:
            old.close()

    def close(self) -> None:
        self.adopt(None)


def _no_sandbox(call: UdfCall) -> UdfOutcome:
    return UdfOutcome(
        call.policy, call.instance, call.action, call.function, "CRASH",
        detail="no sandbox runs for this bundle",
    )
