"""The core's own series, read from the newest pulse whenever the server's metrics are scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, get_args

from resilience.cores.health import CODES, Verdict, Vitals
from resilience.cores.memory import Free
from resilience.cores.second_engine import State
from resilience.model import Json

RESIDENCE_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class CoreCollector:
    """A collector for prometheus_client; before the first pulse it tells of health alone."""

    def __init__(
        self, vitals: Vitals, verdict: Callable[[], Verdict], free: Callable[[], Free | None]
    ) -> None:
        self._vitals = vitals
        self._verdict = verdict
        self._free = free

    def collect(self) -> Iterator[Any]:
        """Yield every family; called by the registry."""
        yield self._health()
        yield from self._allocation()
        yield from self._memory()
        yield self._second()
        pulse = self._vitals.pulse
        if pulse is not None:
            yield from _progress(pulse)
            yield from _pool(pulse)

    def _health(self) -> Any:
        status = self._verdict().status
        family = _gauge("health", "1 for the status that the core has", ("status",))
        for name in CODES:
            family.add_metric([name], float(name == status))
        return family

    def _allocation(self) -> Iterator[Any]:
        family = _gauge("allocation_seconds", "Time to allocate one KV block", ("place",))
        for place, seconds in self._vitals.allocation_s.items():
            family.add_metric([place], seconds)
        yield family

    def _second(self) -> Any:
        family = _gauge("second_engine", "1 for the state that the engine of a rung has",
                        ("rung", "state"))
        for rung, (now, _) in self._vitals.second.items():
            for state in get_args(State):
                family.add_metric([rung, state], float(state == now))
        return family

    def _memory(self) -> Iterator[Any]:
        free = self._free()
        if free is None:
            return
        family = _gauge("memory_bytes", "Memory that the server may use", ("state",))
        family.add_metric(["available"], float(free.available))
        family.add_metric(["total"], float(free.total))
        yield family
        kills = _counter("oom_kills", "Processes of this control group that the kernel ended", ())
        kills.add_metric([], float(free.oom_kills))
        yield kills


def metrics_text(registry: Any = None) -> str:
    """Return all metrics of a registry as text, by default of this process's."""
    from prometheus_client import REGISTRY, generate_latest

    return str(generate_latest(REGISTRY if registry is None else registry), "utf-8")


def _progress(pulse: Json) -> Iterator[Any]:
    for name, key, text in (
        ("steps", "steps", "Steps that the scheduler took"),
        ("scheduled_tokens", "tokens", "Tokens that the scheduler gave to the model"),
        ("preempted", "preempted", "Sequences that a lever preempted"),
    ):
        family = _counter(name, text, ())
        family.add_metric([], float(pulse[key]))
        yield family
    own = _gauge("own_claims", "Claims that the core holds on itself", ())
    own.add_metric([], float(len(pulse["own"])))
    yield own
    for name, text in (
        ("seats", "Sequences that may run at once without any claim"),
        ("longest_sequences", "Sequences of the greatest length that the KV pool holds at once"),
    ):
        family = _gauge(name, text, ())
        family.add_metric([], float(pulse[name]))
        yield family


def _pool(pulse: Json) -> Iterator[Any]:
    blocks = _gauge("kv_blocks", "Blocks of the KV pool; held ones are taken out by a claim",
                    ("state",))
    for state, count in pulse["blocks"].items():
        blocks.add_metric([state], float(count))
    yield blocks
    empty = _gauge("kv_fragmentation_ratio",
                   "Empty share of the token slots that running sequences hold", ("length",))
    for length, share in pulse["fragmentation"].items():
        empty.add_metric([length], share)
    yield empty
    yield _residence(pulse["residence"])


def _residence(residence: Json) -> Any:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(
        "resilience_core_kv_residence_seconds",
        "Time that a sequence held its KV blocks", labels=("length",),
    )
    for length, found in residence.items():
        total, buckets = 0, []
        for le, count in zip((*map(str, RESIDENCE_S), "+Inf"), found["counts"], strict=True):
            total += count
            buckets.append((le, float(total)))
        family.add_metric([length], buckets, found["sum_s"])
    return family


def _gauge(name: str, text: str, labels: tuple[str, ...]) -> Any:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(f"resilience_core_{name}", text, labels=labels)


def _counter(name: str, text: str, labels: tuple[str, ...]) -> Any:
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(f"resilience_core_{name}", text, labels=labels)
