"""What one request may spend, across queue, retry and fallback: a deadline and a few attempts.

Pure: it is told the time (monotonic ms) and draws chance from its caller.
"""

from __future__ import annotations

from collections.abc import Callable

from resilience.gate.causes import Cause
from resilience.model import BudgetSettings

# What another attempt can mend. 500 is among them: an engine that failed one request, by an
# allocation say, often serves the next.
RETRIED = frozenset({500, 502, 503, 504})
HOPELESS: frozenset[Cause] = frozenset({"engine_dead"})
RESERVE_SHARE = 20
RESERVE_MAX_MS = 400
CALL_SHARE = 0.75


class Budget:
    """One request's deadline and attempts. An attempt ends some time before the deadline, so that
    the client still gets an answer that says why."""

    __slots__ = ("_deadline_ms", "_ends_ms", "_settings", "attempts", "patience_ms")

    def __init__(self, settings: BudgetSettings, arrived_ms: int, patience_ms: int) -> None:
        self._settings = settings
        self._deadline_ms = arrived_ms + patience_ms
        self.patience_ms = patience_ms
        self.attempts = 0
        self._ends_ms = self._deadline_ms  # of the attempt under way

    def left_ms(self, now_ms: int) -> int:
        """Return the time until the deadline, never below 0."""
        return max(0, self._deadline_ms - now_ms)

    def begin(self, now_ms: int) -> int:
        """Count an attempt; returns the ms it may take, always less than what is left."""
        self.attempts += 1
        left = self.left_ms(now_ms)
        most = left - min(RESERVE_MAX_MS, left // RESERVE_SHARE) - 1
        own = self._settings.attempt_ms
        attempt_ms = max(0, most if own is None else min(own, most))
        self._ends_ms = now_ms + attempt_ms
        return attempt_ms

    def call_ms(self, own_ms: int, now_ms: int) -> int:
        """Return the time-out of a call within an attempt, after which there is something else to
        try: its own, or a share of what the attempt has left."""
        return min(own_ms, int(CALL_SHARE * max(0, self._ends_ms - now_ms)))

    def is_short(self, attempt_ms: int) -> bool:
        """Say whether the queue and earlier attempts have left an attempt less than half of the
        time that it is meant to have."""
        return attempt_ms < self.half_ms

    @property
    def half_ms(self) -> float:
        """Half of the time that an attempt is meant to have."""
        own = self._settings.attempt_ms
        return (self.patience_ms if own is None else min(own, self.patience_ms)) / 2

    def pause_ms(self, now_ms: int, chance: Callable[[], float]) -> int | None:
        """Return how long to wait before another attempt: exponential, with full jitter.

        None: no attempt is left, or its time would be over before it began.
        """
        if self.attempts >= self._settings.attempts:
            return None
        ceiling = self._settings.backoff_ms * 2 ** max(0, self.attempts - 1)
        pause = int(chance() * ceiling)
        return pause if pause < self.left_ms(now_ms) else None


def is_retried(status: int, cause: Cause | None) -> bool:
    """Say whether another attempt may mend a failure; never the client's own."""
    return status in RETRIED and cause not in HOPELESS
