"""The gate's own series, in the registry that the server already exports.

All series of the configured tiers exist from the start at zero, so that a rate over them is idle
and not blind. `prometheus_client` is imported on use: this package is read by tools without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

OUTCOMES = ("ok", "client_error", "server_error", "refused", "disconnected", "error")
TTFT_BUCKETS_S = (
    0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0,
    60.0,
)
REQUEST_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0)


class GateMetrics:
    """Counters, gauges and histograms with the prefix `resilience_gate_`."""

    def __init__(self, registry: Any = None) -> None:
        from prometheus_client import REGISTRY, Counter, Gauge, Histogram

        where: Any = REGISTRY if registry is None else registry
        self._requests = Counter(
            "resilience_gate_requests", "Requests by tier and how they ended",
            ("tier", "outcome"), registry=where)
        self._refused = Counter(
            "resilience_gate_refused", "Requests refused with 429, by the policy that ruled",
            ("tier", "policy"), registry=where)
        self._failed_open = Counter(
            "resilience_gate_failed_open", "Requests let through because the gate itself failed",
            ("stage",), registry=where)
        self._rerouted = Counter(
            "resilience_gate_rerouted", "Requests sent to another served model",
            ("tier", "model", "policy"), registry=where)
        self._skipped = Counter(
            "resilience_gate_reroute_skipped", "Requests that a route could not rewrite",
            ("reason",), registry=where)
        self._inflight = Gauge(
            "resilience_gate_inflight", "Requests in flight", ("tier",), registry=where)
        self._ttft = Histogram(
            "resilience_gate_ttft_seconds", "Time to the first chunk of a stream", ("tier",),
            buckets=TTFT_BUCKETS_S, registry=where)
        self._seconds = Histogram(
            "resilience_gate_request_seconds", "Time of a whole answer", ("tier",),
            buckets=REQUEST_BUCKETS_S, registry=where)
        self._fallback = Counter(
            "service_fallback", "Requests served by a fallback", ("service", "method", "reason"),
            registry=where)
        self._outcomes: dict[tuple[str, str], Any] = {}

    def prepare(self, tiers: Iterable[str], inflight: Callable[[str], int]) -> None:
        """Create the series of `tiers` at zero; the gauge reads `inflight` when it is scraped."""
        for tier in tiers:
            for outcome in OUTCOMES:
                self._outcomes[tier, outcome] = self._requests.labels(tier, outcome)
            self._ttft.labels(tier)
            self._seconds.labels(tier)
            self._inflight.labels(tier).set_function(lambda tier=tier: inflight(tier))
        for stage in ("admit", "route", "observe", "release"):
            self._failed_open.labels(stage)

    def ended(self, tier: str, outcome: str, seconds: float) -> None:
        self._outcomes[tier, outcome].inc()
        if outcome == "ok":
            self._seconds.labels(tier).observe(seconds)

    def refused(self, tier: str, policy: str) -> None:
        self._outcomes[tier, "refused"].inc()
        self._refused.labels(tier, policy).inc()

    def first_chunk(self, tier: str, seconds: float) -> None:
        self._ttft.labels(tier).observe(seconds)

    def failed_open(self, stage: str) -> None:
        self._failed_open.labels(stage).inc()

    def rerouted(self, tier: str, model: str, policy: str, service: str, method: str) -> None:
        self._rerouted.labels(tier, model, policy).inc()
        self._fallback.labels(service, method, "policy").inc()

    def skipped(self, reason: str) -> None:
        self._skipped.labels(reason).inc()


@cache
def shared_metrics() -> GateMetrics:
    """Return the process's one set of series; the default registry refuses a second."""
    return GateMetrics()
