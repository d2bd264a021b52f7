"""How long the engine takes, measured on itself: from a breach to its detection and enforcement.

A breach begins with the newest sample under the trigger at the tick that first saw it true. It is
detected when that tick has decided, and enforced when the core's read-back equals the claims that
the firing made; a `for` lies between the two and counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

from resilience.model import Decision, Execution, State

KEPT_MAX = 1_000
Key = TypeVar("Key")
Seconds: TypeAlias = Callable[[float], object]


class Reaction:
    """Follows breaches through decisions and executions. Not thread-safe but for its dictionaries:
    the tick and the lease job may both report executions."""

    def __init__(self, detected: Seconds, enforced: Seconds) -> None:
        """`detected` and `enforced` take seconds, as a histogram's `observe` does."""
        self._detected, self._enforced = detected, enforced
        self._breaches: dict[tuple[str, str], int] = {}
        self._waiting: dict[str, int] = {}

    def decided(self, decisions: Iterable[Decision], now_ms: int) -> None:
        """Take the decisions of a tick that ended at `now_ms`."""
        for decision in decisions:
            key = (decision.policy, decision.instance)
            if decision.from_state is State.INACTIVE and _begins(decision):
                self._begin(key, decision, now_ms)
            if decision.to_state in (State.INACTIVE, State.SUSPENDED):
                self._breaches.pop(key, None)
            elif _claims(decision) and key in self._breaches:
                _put(self._waiting, decision.id, self._breaches.pop(key))

    def _begin(self, key: tuple[str, str], decision: Decision, now_ms: int) -> None:
        times = [i.sample_ms for i in decision.inputs if i.sample_ms is not None]
        if times:
            _put(self._breaches, key, max(times))
            self._detected(max(0, now_ms - max(times)) / 1000)

    def executed(self, executions: Iterable[Execution], now_ms: int) -> None:
        """Take what the bus did; an execution without an error has an equal read-back."""
        for execution in executions:
            if execution.error is None and execution.decision_id is not None:
                breach_ms = self._waiting.pop(execution.decision_id, None)
                if breach_ms is not None:
                    self._enforced(max(0, now_ms - breach_ms) / 1000)


def _begins(decision: Decision) -> bool:
    return decision.mode == "enforce" and decision.to_state in (State.PENDING, State.FIRING)


def _claims(decision: Decision) -> bool:
    return decision.to_state is State.FIRING and decision.claims_before != decision.claims_after


def _put(kept: dict[Key, int], key: Key, value: int) -> None:
    kept[key] = value
    while len(kept) > KEPT_MAX:
        kept.pop(next(iter(kept)), None)
