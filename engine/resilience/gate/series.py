"""The series that every request touches, as plain numbers that a collector shows when scraped.

The client library's counters take a lock and several calls each; here an increment is one addition,
because only the event loop counts. What a scrape in another thread sees is at most one request old.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any


class Counts:
    """How many values fell into which bucket, their sum, and each bucket's newest trace."""

    __slots__ = ("_bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.exemplars: dict[int, tuple[str, float, float]] = {}
        self.total = 0.0

    def observe(self, value: float, trace_id: str = "") -> None:
        bucket = bisect_left(self._bounds, value)
        self.counts[bucket] += 1
        self.total += value
        if trace_id:
            self.exemplars[bucket] = (trace_id, value, time.time())

    def buckets(self) -> list[tuple[Any, ...]]:
        """Return Prometheus' cumulative buckets: (bound, count) and, where there is one, exemplar.
        """
        from prometheus_client.samples import Exemplar

        found: list[tuple[Any, ...]] = []
        seen = 0
        bounds = (*self._bounds, None)
        for index, (bound, count) in enumerate(zip(bounds, self.counts, strict=True)):
            seen += count
            shown: tuple[Any, ...] = ("+Inf" if bound is None else str(float(bound)), float(seen))
            newest = self.exemplars.get(index)
            if newest is not None:
                shown = (*shown, Exemplar({"trace_id": newest[0]}, newest[1], newest[2]))
            found.append(shown)
        return found


class TierSeries:
    """The hot series of one tier."""

    __slots__ = (
        "attempts", "good", "judged", "outcomes", "per_token", "queued", "seconds", "ttft",
    )

    def __init__(self, outcomes: Iterable[str], bounds: Mapping[str, tuple[float, ...]]) -> None:
        self.outcomes = dict.fromkeys(outcomes, 0)
        self.attempts = 0
        self.good = 0
        self.judged = 0
        self.ttft = Counts(bounds["ttft"])
        self.seconds = Counts(bounds["seconds"])
        self.queued = Counts(bounds["queued"])
        self.per_token = Counts(bounds["per_token"])


HISTOGRAMS = {
    "ttft": ("resilience_gate_ttft_seconds", "Time to the first chunk of a stream"),
    "seconds": ("resilience_gate_request_seconds", "Time of a whole answer"),
    "queued": (
        "resilience_gate_queue_seconds", "Time in the gate's queue of who waited there"),
    "per_token": (
        "resilience_gate_time_per_token_seconds", "Mean gap between a stream's output tokens"),
}
COUNTERS = {
    "attempts": ("resilience_gate_attempts", "Times that requests were given to the server"),
    "good": ("resilience_gate_slo_good", "Judged requests within their tier's objectives"),
    "judged": ("resilience_gate_slo_requests", "Requests judged by their tier's objectives"),
}


class TierCollector:
    """Shows the hot series of all tiers."""

    def __init__(self, tiers: Mapping[str, TierSeries]) -> None:
        self._tiers = tiers

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        tiers = list(self._tiers.items())
        requests = CounterMetricFamily(
            "resilience_gate_requests", "Requests by tier and how they ended",
            labels=("tier", "outcome"))
        for tier, series in tiers:
            for outcome, count in series.outcomes.items():
                requests.add_metric((tier, outcome), count)
        yield requests
        for attribute, (name, text) in COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=("tier",))
            for tier, series in tiers:
                counter.add_metric((tier,), getattr(series, attribute))
            yield counter
        for attribute, (name, text) in HISTOGRAMS.items():
            histogram = HistogramMetricFamily(name, text, labels=("tier",))
            for tier, series in tiers:
                counts: Counts = getattr(series, attribute)
                histogram.add_metric((tier,), counts.buckets(), counts.total)
            yield histogram
