"""The gate's own series, in the registry that the server already exports.

All series of the configured tiers exist from the start at zero, so that a rate over them is idle
and not blind. `prometheus_client` is imported on use: this package is read by tools without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, partial
from typing import Any, Protocol

from resilience.gate.breaker import STATES, Change
from resilience.gate.causes import CAUSES, Cause
from resilience.gate.series import TierCollector, TierSeries

DUPLICATES = ("kept", "waited", "in_vain", "conflict", "crowded")
OUTCOMES = (
    "ok", "client_error", "server_error", "refused", "disconnected", "error", "expired",
)
TTFT_BUCKETS_S = (
    0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0,
    60.0,
)
REQUEST_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0)
QUEUE_BUCKETS_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
TOKEN_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0)
METHODS = frozenset({
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings",
})
STAGES = ("admit", "body", "route", "observe", "release")


class View(Protocol):
    """What the gauges read when somebody scrapes."""

    def inflight(self, tier: str) -> float: ...
    def waiting(self, tier: str) -> float: ...
    def inflation(self, tier: str) -> float: ...
    def compliance(self, tier: str) -> float: ...
    def amplification(self, tier: str) -> float: ...
    def share(self, cause: Cause) -> float: ...
    def limit(self) -> float: ...
    def latency_slope(self) -> float: ...
    def breakers(self) -> Mapping[str, str]: ...


BOUNDS = {
    "ttft": TTFT_BUCKETS_S, "seconds": REQUEST_BUCKETS_S, "queued": QUEUE_BUCKETS_S,
    "per_token": TOKEN_BUCKETS_S,
}


class GateMetrics:
    """Counters, gauges and histograms with the prefix `resilience_gate_`."""

    def __init__(self, registry: Any = None) -> None:
        from prometheus_client import REGISTRY

        self._where: Any = REGISTRY if registry is None else registry
        self._tiers: dict[str, TierSeries] = {}
        self._causes: dict[tuple[str, str], Any] = {}
        self._where.register(TierCollector(self._tiers))
        self._begin_requests()
        self._begin_budgets()
        self._begin_tokens()
        self._begin_state()

    def _counter(self, name: str, text: str, *labels: str) -> Any:
        from prometheus_client import Counter

        return Counter(name, text, labels, registry=self._where)

    def _gauge(self, name: str, text: str, *labels: str) -> Any:
        from prometheus_client import Gauge

        return Gauge(name, text, labels, registry=self._where)

    def _begin_requests(self) -> None:
        self._refused = self._counter(
            "resilience_gate_refused", "Requests refused, by the policy that ruled",
            "tier", "policy")
        self._by_cause = self._counter(
            "resilience_gate_causes", "Failed and refused requests by their one cause",
            "tier", "cause")
        self._tenants = self._counter(
            "resilience_gate_tenant_requests", "Requests by tenant and how they ended",
            "tenant", "outcome")
        self._failed_open = self._counter(
            "resilience_gate_failed_open", "Requests let through because the gate itself failed",
            "stage")
        self._rerouted = self._counter(
            "resilience_gate_rerouted", "Requests sent to another served model",
            "tier", "model", "policy")
        self._skipped = self._counter(
            "resilience_gate_reroute_skipped", "Requests that a route could not rewrite", "reason")
        self._fallback = self._counter(
            "service_fallback", "Requests served by a fallback", "service", "method", "reason")
        self._rungs = self._counter(
            "resilience_gate_rungs", "Requests by rung of the ladder: served, or why not",
            "rung", "outcome")

    def _begin_budgets(self) -> None:
        self._duplicates = self._counter(
            "resilience_gate_duplicates",
            "Requests whose id another had, by what became of them", "tier", "result")
        self._amplification = self._gauge(
            "resilience_gate_amplification",
            "Attempts at the server for each request of the last minute", "tier")

    def _begin_tokens(self) -> None:
        self._tokens = self._counter(
            "resilience_gate_tokens", "Tokens of requests whose tokens were counted",
            "tier", "kind")
        self._clamped = self._counter(
            "resilience_gate_output_clamped", "Requests whose output was cut to a limit",
            "tier", "policy")
        self._error = self._counter(
            "resilience_gate_token_estimate_error_tokens",
            "Sum of |estimated - actual| prompt tokens", "tier")
        self._checked = self._counter(
            "resilience_gate_token_estimate_checked_tokens",
            "Actual prompt tokens of the requests whose estimate was checked", "tier")
        self._slow_growth = self._counter(
            "resilience_gate_token_latency_warnings",
            "First tokens that came while latency grew over 0.3 ms per token in the window")
        self._slope = self._gauge(
            "resilience_gate_latency_slope_ms_per_token",
            "Growth of first-token latency with the tokens in the window")

    def _begin_state(self) -> None:
        self._inflight = self._gauge("resilience_gate_inflight", "Requests in flight", "tier")
        self._waiting = self._gauge(
            "resilience_gate_waiting", "Requests in the gate's queue", "tier")
        self._inflation = self._gauge(
            "resilience_gate_wait_inflation",
            "Time with waiting over time without, of the last requests", "tier")
        self._compliance = self._gauge(
            "resilience_gate_compliance",
            "Share of the last minute's requests within their tier's objectives", "tier")
        self._shares = self._gauge(
            "resilience_gate_cause_share", "Share among the last failed and refused requests",
            "cause")
        self._limit = self._gauge(
            "resilience_gate_adaptive_limit", "Requests in flight that the limiter allows")
        self._transitions = self._counter(
            "resilience_gate_breaker_transitions", "Changes of a breaker's state",
            "name", "from", "to")

    def prepare(self, tiers: Iterable[str], view: View) -> None:
        """Create the series of `tiers` at zero; the gauges ask `view` when they are scraped."""
        for tier in tiers:
            self._prepare_tier(tier)
            self._inflight.labels(tier).set_function(lambda tier=tier: view.inflight(tier))
            self._waiting.labels(tier).set_function(lambda tier=tier: view.waiting(tier))
            self._inflation.labels(tier).set_function(lambda tier=tier: view.inflation(tier))
            self._amplification.labels(tier).set_function(
                lambda tier=tier: view.amplification(tier))
            self._compliance.labels(tier).set_function(lambda tier=tier: view.compliance(tier))
        for cause in CAUSES:
            self._shares.labels(cause).set_function(partial(view.share, cause))
        for stage in STAGES:
            self._failed_open.labels(stage)
        self._limit.set_function(view.limit)
        self._slope.set_function(view.latency_slope)

    def _prepare_tier(self, tier: str) -> None:
        self._tiers.setdefault(tier, TierSeries(OUTCOMES, BOUNDS))
        for cause in CAUSES:
            self._causes[tier, cause] = self._by_cause.labels(tier, cause)
        for result in DUPLICATES:
            self._duplicates.labels(tier, result)

    def series(self, tier: str) -> TierSeries:
        """Return the hot series of a tier that was prepared."""
        return self._tiers[tier]

    def watch_breakers(self, view: View) -> None:
        """Export the breakers' states; they come and go with the policies."""
        self._where.register(_Breakers(view))

    def ended(
        self, tier: str, tenant: str, outcome: str, seconds: float | None, trace_id: str = ""
    ) -> None:
        series = self._tiers[tier]
        series.outcomes[outcome] += 1
        if outcome == "ok" and seconds is not None:
            series.seconds.observe(seconds, trace_id)
        if tenant:
            self._tenants.labels(tenant, outcome).inc()

    def refused(self, tier: str, tenant: str, policy: str) -> None:
        self._tiers[tier].outcomes["refused"] += 1
        self._refused.labels(tier, policy or "none").inc()
        if tenant:
            self._tenants.labels(tenant, "refused").inc()

    def duplicate(self, tier: str, result: str) -> None:
        self._duplicates.labels(tier, result).inc()

    def caused(self, tier: str, cause: Cause) -> None:
        self._causes[tier, cause].inc()

    def first_chunk(self, tier: str, seconds: float, trace_id: str = "") -> None:
        self._tiers[tier].ttft.observe(seconds, trace_id)

    def waited(self, tier: str, seconds: float, trace_id: str = "") -> None:
        self._tiers[tier].queued.observe(seconds, trace_id)

    def per_token(self, tier: str, seconds: float, trace_id: str = "") -> None:
        self._tiers[tier].per_token.observe(seconds, trace_id)

    def tokens(self, tier: str, prompt: int, output: int) -> None:
        self._tokens.labels(tier, "prompt").inc(prompt)
        self._tokens.labels(tier, "output").inc(output)

    def estimated(self, tier: str, estimate: int, actual: int) -> None:
        self._error.labels(tier).inc(abs(estimate - actual))
        self._checked.labels(tier).inc(actual)

    def clamped(self, tier: str, policy: str) -> None:
        self._clamped.labels(tier, policy or "none").inc()

    def latency_grows(self) -> None:
        self._slow_growth.inc()

    def failed_open(self, stage: str) -> None:
        self._failed_open.labels(stage).inc()

    def rerouted(self, tier: str, model: str, policy: str, service: str, path: str) -> None:
        self._fell_back(tier, model, policy, service, path, "policy")

    def stood_in(
        self, tier: str, rung: str, policy: str, service: str, path: str, reason: str
    ) -> None:
        self._rungs.labels(rung, "served").inc()
        self._fell_back(tier, rung, policy, service, path, reason)

    def _fell_back(
        self, tier: str, to: str, policy: str, service: str, path: str, reason: str
    ) -> None:
        method = path if path in METHODS else "other"
        self._rerouted.labels(tier, to, policy).inc()
        self._fallback.labels(service, method, reason).inc()

    def passed_over(self, rung: str, reason: str) -> None:
        self._rungs.labels(rung, reason).inc()

    def skipped(self, reason: str) -> None:
        self._skipped.labels(reason).inc()

    def changed(self, change: Change) -> None:
        self._transitions.labels(change.name, change.from_state, change.to_state).inc()


class _Breakers:
    """1 for the state that each breaker is in."""

    def __init__(self, view: View) -> None:
        self._view = view

    def describe(self) -> Iterable[Any]:
        return [self._family()]

    def collect(self) -> Iterable[Any]:
        family = self._family()
        for name, state in self._view.breakers().items():
            for known in STATES:
                family.add_metric((name, known), float(known == state))
        return [family]

    def _family(self) -> Any:
        from prometheus_client.core import GaugeMetricFamily

        return GaugeMetricFamily(
            "resilience_gate_breaker_state", "1 for the state the breaker is in",
            labels=("name", "state"))


@cache
def shared_metrics() -> GateMetrics:
    """Return the process's one set of series; the default registry refuses a second."""
    return GateMetrics()
