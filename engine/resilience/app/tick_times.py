"""When each interval ticked last, how late, and whether the clockwork still goes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from resilience.model import Clock, Json

FRESH_TICKS = 3
FRESH_SLACK_MS = 10_000


@dataclass
class TickTimes:
    """All by interval in milliseconds. `lock` is that of the ticks: what a swap takes away must
    not come back with a tick that has begun before."""

    clock: Clock
    lock: threading.Lock
    last_ms: dict[int, int] = field(default_factory=dict[int, int])
    _ticked_at: dict[int, int] = field(default_factory=dict[int, int])
    _began_at: int = 0
    _missed: dict[int, int] = field(default_factory=dict[int, int])
    _lag_ms: dict[int, int] = field(default_factory=dict[int, int])

    def __post_init__(self) -> None:
        self._began_at = self.clock.monotonic_ms()

    def ticked(self, interval_ms: int, t_ms: int, missed: int, lag_ms: int) -> None:
        """Note a tick; the caller holds the lock."""
        self.last_ms[interval_ms], self._ticked_at[interval_ms] = t_ms, self.clock.monotonic_ms()
        self._missed[interval_ms] = self._missed.get(interval_ms, 0) + missed
        self._lag_ms[interval_ms] = lag_ms

    def follow(self, intervals_ms: Iterable[int]) -> None:
        """Forget other intervals; ticks of one that is new are expected from now on."""
        kept = set(intervals_ms)
        with self.lock:
            for times in (self.last_ms, self._ticked_at, self._missed, self._lag_ms):
                for interval_ms in times.keys() - kept:
                    del times[interval_ms]
            now = self.clock.monotonic_ms()
            self._ticked_at.update(dict.fromkeys(kept - self._ticked_at.keys(), now))

    def standstill(self, intervals_ms: Iterable[int]) -> str | None:
        """Say which of these intervals has not ticked lately, or return None."""
        now = self.clock.monotonic_ms()
        for interval_ms in intervals_ms:
            gone_ms = now - self._ticked_at.get(interval_ms, self._began_at)
            if gone_ms > FRESH_TICKS * interval_ms + FRESH_SLACK_MS:
                return f"no tick of interval {interval_ms} ms for {gone_ms} ms"
        return None

    def view(self) -> list[Mapping[str, Json]]:
        return [
            {"interval_ms": i, "last_ms": t, "missed": self._missed.get(i, 0),
             "lag_ms": self._lag_ms.get(i, 0)}
            for i, t in sorted(self.last_ms.items())
        ]
