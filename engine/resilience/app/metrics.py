"""The engine's own metrics and health, in the shape of Prometheus' rule metrics.

What happened is counted as it happens; what is, is read from the engine when somebody scrapes.
The gauges that `metric_emit` claims are exported under their own names while the claim lives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from resilience.app.bus import BusView
from resilience.app.reaction import Reaction
from resilience.model import Claim, Execution, Json, Policy

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OWN_PREFIX = "resilience_"
REACTION_SECONDS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Picture:
    """What the gauges show: instances counted by (policy, state), claims, the bus, the sandbox.

    `udf_calls` counts by (function, outcome); `udfs` are the functions that policies call.
    """

    version: str
    revision: str
    states: Mapping[tuple[str, str], int] = field(default_factory=dict)
    claims: Sequence[Claim] = ()
    bus: BusView = BusView()
    series: int = 0
    lines_dropped: int = 0
    layers: Mapping[str, bool] = field(default_factory=dict)
    udf_calls: Mapping[tuple[str, str], int] = field(default_factory=dict)
    quarantined: Collection[str] = ()
    udfs: Collection[str] = ()
    notifications: Sequence[Json] = ()
    canary: Json = None
    inputs_dropped: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    history_dropped: int = 0
    journal_failing: bool = False


class EngineMetrics:
    """Counters of one engine, with its own registry; `picture` is asked at each scrape."""

    def __init__(self, picture: Callable[[], Picture]) -> None:
        self.registry = CollectorRegistry()
        self.evaluations = self._counter(
            "resilience_policy_evaluations", "evaluations of a policy", "policy")
        self.failures = self._counter(
            "resilience_policy_evaluation_failures", "evaluations without an answer", "policy")
        self.missed = self._counter(
            "resilience_policy_iterations_missed", "ticks that were too late", "interval")
        self.decisions = self._counter(
            "resilience_decisions", "decisions by the state they led to", "policy", "to")
        self.executions = self._counter(
            "resilience_executions", "reports of the bus: ok or error", "outcome")
        self.errors = self._counter(
            "resilience_errors", "errors inside the engine by the part that had them", "part")
        self.scrapes = self._counter("resilience_scrapes", "scrapes of the server", "outcome")
        self.tick_seconds = Histogram(
            "resilience_tick_duration_seconds", "from the start of a tick to its end",
            ["interval"], buckets=SECONDS, registry=self.registry)
        self.enforce_seconds = Histogram(
            "resilience_enforcement_seconds", "from the tick's time to the read-back that is equal",
            buckets=SECONDS, registry=self.registry)
        self.lag_seconds = Histogram(
            "resilience_tick_lag_seconds", "from a tick's time on the grid to its start",
            ["interval"], buckets=SECONDS, registry=self.registry)
        self.reaction = Reaction(
            self._histogram("resilience_breach_to_detection_seconds",
                            "from the sample that breached to the decision that saw it").observe,
            self._histogram("resilience_breach_to_enforcement_seconds",
                            "from the sample that breached to the core's equal read-back, with the "
                            "policy's `for`").observe)
        self._last: dict[str, int] = {}
        self.registry.register(_Gauges(picture, self._last))

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, buckets=REACTION_SECONDS, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def evaluated(self, policies: Iterable[Policy], failures: Iterable[str], t_ms: int) -> None:
        """Count one tick of `policies`; `failures` names those without an answer."""
        names = {p.name for p in policies}
        for name in names:
            self.evaluations.labels(name).inc()
            self._last[name] = t_ms
        for name in names.intersection(failures):
            self.failures.labels(name).inc()

    def executed(self, executions: Sequence[Execution], now_ms: int) -> None:
        self.reaction.executed(executions, now_ms)
        for execution in executions:
            self.executions.labels("error" if execution.error else "ok").inc()
            if execution.decision_id is not None and execution.error is None:
                self.enforce_seconds.observe(max(0, now_ms - execution.t_ms) / 1000)

    def forget(self, keep: Iterable[str]) -> None:
        """Drop the times of policies that are gone, as Prometheus does with a removed rule."""
        kept = set(keep)
        for name in [n for n in self._last if n not in kept]:
            del self._last[name]

    def exposition(self) -> bytes:
        """Return the text that a scraper gets."""
        text: bytes = generate_latest(self.registry)
        return text


class _Gauges:
    """Reads the engine at each scrape, so that no gauge can be stale."""

    def __init__(self, picture: Callable[[], Picture], last: Mapping[str, int]) -> None:
        self._picture = picture
        self._last = last

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        now = self._picture()
        yield _family(
            "resilience_build_info", "version and active revision",
            {("version", "revision"): {(now.version, now.revision): 1.0}})
        yield _family(
            "resilience_policy_last_evaluation_timestamp_seconds", "time of the newest evaluation",
            {("policy",): {(name,): t / 1000 for name, t in list(self._last.items())}})
        yield _family(
            "resilience_policy_state", "instances of a policy in a state",
            {("policy", "state"): {key: float(n) for key, n in now.states.items()}})
        yield _family(
            "resilience_policy_series_without_instance",
            "series of a policy that cannot fire, because there is no room for more instances",
            {("policy",): {(name,): float(n) for name, n in now.left_out.items()}})
        yield _family(
            "resilience_claim_active", "1 while a policy claims a knob",
            {("policy", "knob"): {(c.policy, c.knob): 1.0 for c in now.claims}})
        yield from _bus_gauges(now.bus)
        yield from _udf_metrics(now)
        yield from _notification_metrics(now.notifications)
        yield from _canary_metrics(now.canary)
        yield _single("resilience_store_series", "series in the memory store", now.series)
        yield _single("resilience_journal_failing", "1 while nothing can be written to the journal",
                      now.journal_failing)
        yield _dropped(now)
        yield _family(
            "resilience_queue_depth", "what waits inside the engine",
            {("queue",): {
                ("impulses",): float(now.bus.impulses_pending),
                ("notifications",): float(sum(r["queued"] for r in now.notifications)),
                ("candidate",): float(now.canary["behind"]) if now.canary else 0.0,
            }})
        for name, value in sorted(now.bus.metrics.items()):
            if not name.startswith(OWN_PREFIX):
                yield _single(name, "set by a policy", value)


def _dropped(now: Picture) -> CounterMetricFamily:
    """Return what was not kept: lines on disk, inputs of decisions that were too large, rows of
    the history that a full disk kept waiting for too long."""
    dropped = CounterMetricFamily(
        "resilience_records_dropped", "records that were not kept", labels=("record",))
    dropped.add_metric(("line",), now.lines_dropped)
    dropped.add_metric(("inputs",), now.inputs_dropped)
    dropped.add_metric(("history",), now.history_dropped)
    return dropped


def _bus_gauges(bus: BusView) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
    if bus.lease_remaining_ms is not None:
        yield _single(
            "resilience_lease_remaining_seconds", "how long the core keeps the first claim to end",
            bus.lease_remaining_ms / 1000)
    yield _single("resilience_bus_in_sync", "1 when the core holds what is claimed", bus.in_sync)
    yield _single("resilience_bus_fenced", "1 when another engine took over", bus.fenced)
    yield _single("resilience_bus_epoch", "epoch of this engine", bus.epoch)
    yield _single("resilience_bus_released", "1 while an operator has released the core",
                  bus.released is not None)
    drifts = CounterMetricFamily(
        "resilience_drifts", "times that the core was not as claimed", labels=("outcome",))
    drifts.add_metric(("corrected",), bus.drifts - bus.drifts_left)
    drifts.add_metric(("left",), bus.drifts_left)
    yield drifts
    yield _single("resilience_drift", "1 while the core is not as claimed and is left so",
                  bus.drift is not None)
    yield _single("resilience_bus_refused_claims", "claims that the core refused", len(bus.refused))
    yield _single("resilience_impulses_pending", "impulses on their way", bus.impulses_pending)
    yield CounterMetricFamily(
        "resilience_impulses_dropped", "impulses for which there was no room",
        value=bus.impulses_dropped)


def _udf_metrics(now: Picture) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
    yield _family(
        "resilience_sandbox_layer", "1 while the layer holds the UDFs",
        {("layer",): {(name,): float(engaged) for name, engaged in now.layers.items()}})
    yield _family(
        "resilience_udf_quarantined", "1 when the function failed in a row and is not run",
        {("function",): {(name,): float(name in now.quarantined) for name in now.udfs}})
    calls = CounterMetricFamily(
        "resilience_udf_calls", "calls by their outcome", labels=("function", "outcome"))
    for key, count in sorted(now.udf_calls.items()):
        calls.add_metric(key, count)
    yield calls


def _notification_metrics(
    receivers: Sequence[Json],
) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
    yield _family(
        "resilience_notifications_queued", "alerts that wait to be told",
        {("receiver",): {(r["receiver"],): float(r["queued"]) for r in receivers}})
    told = CounterMetricFamily(
        "resilience_notifications", "alerts by what became of them; retried counts tries",
        labels=("receiver", "outcome"))
    for receiver in receivers:
        for outcome in ("sent", "retried", "failed"):
            told.add_metric((receiver["receiver"], outcome), receiver[outcome])
    yield told


def _canary_metrics(canary: Json) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
    if canary is None:
        return
    yield _family(
        "resilience_canary_info", "1 while a candidate decides in shadow",
        {("revision",): {(canary["revision"],): 1.0}})
    yield _single("resilience_canary_ticks_behind", "ticks that wait for the candidate",
                  canary["behind"])
    ticks = CounterMetricFamily(
        "resilience_canary_ticks", "ticks of the candidate", labels=("outcome",))
    ticks.add_metric(("done",), canary["ticks"])
    ticks.add_metric(("dropped",), canary["ticks_dropped"])
    yield ticks


def _single(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float(value))


def _family(
    name: str, text: str, by_labels: Mapping[tuple[str, ...], Mapping[tuple[str, ...], float]]
) -> GaugeMetricFamily:
    ((labels, values),) = by_labels.items()
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(key, value)
    return family
