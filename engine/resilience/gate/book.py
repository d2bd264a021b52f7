"""What the gate remembers of one tier: how the last minute went, and the last answers' times."""

from __future__ import annotations

import math
from collections import deque

from resilience.gate.series import TierSeries
from resilience.gate.windows import Window

MINUTE_MS = 60_000
TIMES_MAX = 256


class TierBook:
    """One tier's counts and times. `series` are its counters, which never start over; `times` are
    what the last served requests took, in ms: with their wait, and without.
    """

    __slots__ = ("_minute", "series", "times")

    def __init__(self, series: TierSeries) -> None:
        self.series = series
        self._minute = Window(MINUTE_MS)  # attempts, requests, judged, good
        self.times: deque[tuple[int, int]] = deque(maxlen=TIMES_MAX)

    def ended(self, now_ms: int, attempts: int | None, good: bool | None) -> None:
        """Count a request that has ended: how often it was given to the server (None: it did not
        come so far), and for or against the tier's objectives (None: they do not apply)."""
        series, is_good = self.series, good is True
        self._minute.add(now_ms, attempts or 0, attempts is not None, good is not None, is_good)
        series.attempts += attempts or 0
        if good is not None:
            series.judged += 1
            series.good += is_good

    def inflation(self) -> float:
        """Return time with waiting over time without, of the last requests."""
        times = list(self.times)
        served = sum(t[1] for t in times)
        return sum(t[0] for t in times) / served if served else 1.0

    def amplification(self, now_ms: int) -> float:
        """Return the attempts for each request of the last minute, NaN if there was none."""
        attempts, requests, *_ = self._minute.totals(now_ms)
        return attempts / requests if requests else math.nan

    def compliance(self, now_ms: int) -> float:
        """Return the share of the last minute's judged requests within their objectives."""
        *_, judged, good = self._minute.totals(now_ms)
        return good / judged if judged else math.nan
