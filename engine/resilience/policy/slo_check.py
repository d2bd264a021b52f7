"""Objectives that no metric can prove: each is an error, with a code of its own.

A rule is a function from an Objective to its complaints, and a line in RULES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

from resilience.errors import PromQLError
from resilience.model import Severity, format_duration, parse_duration
from resilience.policy import catalogue, histograms
from resilience.policy.context import Context
from resilience.policy.slo_burn import WORKBOOK, Burn, burn_of
from resilience.policy.slo_expr import selector_of
from resilience.policy.words import did_you_mean, listed, quoted
from resilience.promql.plan import Selector

BAD_SHARE_MIN = 0.999e-9  # a float of 99.9999999 % is a little off
SCRAPES_MIN = 4
Path: TypeAlias = tuple[str | int, ...]
_MEANING: dict[str, str] = {
    "end_to_end": "the whole request", "first_token": "the time to the first token",
    "inter_token": "the time between tokens", "queue": "the time in the queue",
    "prefill": "the prefill", "decode": "the decode",
    "inference": "the time in the model, without the queue",
}


@dataclass(frozen=True, slots=True)
class Complaint:
    """What is wrong at `path` below `spec`."""

    path: Path
    code: str
    message: str
    suggestion: str | None = None
    severity: Severity = "error"


@dataclass(frozen=True, slots=True)
class Objective:
    """The `spec` of an SLO that fits its schema, and the surroundings that it must fit."""

    spec: Mapping[str, Any]
    context: Context

    @property
    def share(self) -> float | None:
        """Return the objective as a share; None: it is no number, or none between 0 and 1."""
        return share_between(self.spec["objective"])

    @property
    def window_ms(self) -> int | None:
        return parse_duration(str(self.spec["window"])) if "window" in self.spec else None

    @property
    def ratio(self) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self.spec["indicator"].get("ratio")
        return found

    @property
    def latency(self) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self.spec["indicator"].get("latency")
        return found

    @property
    def bounds_s(self) -> tuple[float, ...] | None:
        """Return the bounds of the latency's buckets, as far as somebody says them."""
        latency = self.latency or {}
        if "buckets" in latency:
            return tuple(sorted(float(bound) for bound in latency["buckets"]))
        known = histograms.known().get(latency.get("histogram", ""))
        return known.bounds_s if known else None

    def burns(self) -> Iterator[tuple[str, Burn | str]]:
        """Yield the alerts with their burn rate, or with what they lack."""
        window_ms = self.window_ms
        if window_ms is not None:
            for name, raw in self.spec["alerts"].items():
                yield name, burn_of(name, raw, window_ms)


def share_between(value: str | int | float) -> float | None:
    """Return a share strictly between 0 and 1 from `0.999` or `99.9%`, else None."""
    text = str(value)
    try:
        number = Decimal(text.removesuffix("%"))
    except InvalidOperation:
        return None
    share = float(number / 100 if text.endswith("%") else number)
    return share if 0 < share < 1 else None


def complaints(objective: Objective) -> Iterator[Complaint]:
    """Yield everything for which no metric can prove this objective."""
    for rule in RULES:
        yield from rule(objective)


# --- the rules -----------------------------------------------------------------------------------


def _share(objective: Objective) -> Iterator[Complaint]:
    if objective.share is None:
        shown = quoted(objective.spec["objective"])
        yield Complaint(
            ("objective",), "slo-objective",
            f"the objective {shown} is not between 0 and 100 %, so it is missed at once or never",
            "write a share below 1, as `99.9%` or `0.999`",
        )
    elif 1 - objective.share < BAD_SHARE_MIN:
        shown = quoted(objective.spec["objective"])
        yield Complaint(
            ("objective",), "slo-objective",
            f"the objective {shown} leaves less than one bad request in a thousand million: once "
            "missed, no share that counters give is ever below that", "write `99.9999999%` or less",
        )


def _window(objective: Objective) -> Iterator[Complaint]:
    if objective.window_ms is None:
        yield Complaint(
            (), "slo-no-window", "spec.window is missing: a share without a time is no objective",
            "write for example `window: 30d`",
        )


def _one_indicator(objective: Objective) -> Iterator[Complaint]:
    if (objective.ratio is None) == (objective.latency is None):
        yield Complaint(("indicator",), "slo-indicator",
                        "spec.indicator needs one of `ratio` and `latency`")
        return
    if objective.ratio is not None and ("good" in objective.ratio) == ("bad" in objective.ratio):
        yield Complaint(("indicator", "ratio"), "slo-indicator",
                        "spec.indicator.ratio needs one of `good` and `bad`, beside `total`")


def _load(objective: Objective) -> Iterator[Complaint]:
    """A latency means something at a load: any server is fast enough with one request an hour."""
    load = objective.spec.get("load", {})
    said = load.get("prompt_tokens") or load.get("rate")
    if objective.latency is not None and not said:
        yield Complaint(
            ("load",) if "load" in objective.spec else ("indicator", "latency"), "slo-no-load",
            "a latency without a load condition cannot be tested: nobody says at which rate or "
            "input size it is promised",
            "write `load: {rate: {min: 0.1, max: 20}}`, or `prompt_tokens`",
        )
    rate = load.get("rate", {})
    if rate.get("min", 0) > rate.get("max", float("inf")):
        yield Complaint(("load", "rate"), "slo-no-load", "spec.load.rate: no rate is both at "
                        "least `min` and at most `max`", "make `min` the smaller one")


def _exclusions(objective: Objective) -> Iterator[Complaint]:
    """An availability says what does not count, or starts and reloads will miss it."""
    if objective.ratio is not None and "exclusions" not in objective.spec:
        yield Complaint(
            ("indicator", "ratio"), "slo-no-exclusions",
            "an availability without exclusion windows cannot be tested: nobody says whether "
            "starts and reloads count",
            "write `exclusions: [{type: warm_start, for: 2m}]`, or `exclusions: []`",
        )
    for index, raw in enumerate(objective.spec.get("exclusions", ())):
        if (raw["type"] == "when") != ("expr" in raw):
            yield Complaint(("exclusions", index), "slo-exclusion",
                            f"spec.exclusions[{index}]: `expr` belongs to `type: when`, and only "
                            "there")


def _measure(objective: Objective) -> Iterator[Complaint]:
    """What is promised must be what the histogram measures."""
    latency = objective.latency
    if latency is None:
        return
    name, wanted = latency["histogram"], latency["measures"]
    path = ("indicator", "latency", "histogram")
    if "cpu" in name.lower().split("_"):
        yield Complaint(
            path, "slo-measure", f"`{name}` is CPU time: what waits in the queue, on a device or "
            f"for a kernel to start is not in it, so it cannot prove {_MEANING[wanted]}",
            _histogram_for(wanted),
        )
        return
    known = histograms.known().get(name)
    if known is not None and known.measure != wanted:
        yield Complaint(
            path, "slo-measure", f"`{name}` measures {_MEANING[known.measure]}, and the objective "
            f"is about {_MEANING[wanted]}", _histogram_for(wanted),
        )
    found = catalogue.lookup(name)
    if found is not None and found.metric.type != "histogram":
        yield Complaint(path, "slo-measure", f"`{name}` is a {found.metric.type}, not a histogram: "
                        "it has no buckets to count requests in", _histogram_for(wanted))


def _histogram_for(measure: str) -> str | None:
    names = [name for name, known in histograms.known().items() if known.measure == measure]
    return f"use {listed(names)}" if names else None


def _bucket(objective: Objective) -> Iterator[Complaint]:
    """The share of requests within a time can only be read where a bucket ends."""
    bounds = objective.bounds_s
    if objective.latency is None:
        return
    if bounds is None:
        if histograms.known().get(objective.latency["histogram"]) is None:
            yield Complaint(
                ("indicator", "latency", "histogram"), "slo-bucket",
                f"nobody says where the buckets of `{objective.latency['histogram']}` end",
                "add `buckets: [0.5, 1, 2.5]`, in seconds",
            )
        return
    threshold = parse_duration(str(objective.latency["threshold"])) / 1_000
    if threshold not in bounds:
        near = sorted(sorted(bounds, key=lambda b: abs(b - threshold))[:2])
        yield Complaint(
            ("indicator", "latency", "threshold"), "slo-bucket",
            f"`{objective.latency['threshold']}` is finer than the histogram's buckets: no bucket "
            "ends there",
            f"the nearest end at {' and '.join(format_duration(round(b * 1_000)) for b in near)}",
        )


def _selectors(objective: Objective) -> Iterator[Complaint]:
    for key, text in (objective.ratio or {}).items():
        path = ("indicator", "ratio", key)
        try:
            selector = selector_of(text)
        except PromQLError as error:
            yield Complaint(path, "promql-syntax", f"spec.indicator.ratio.{key}: PromQL: "
                            f"{error.message}", error.suggestion)
            continue
        if selector is None:
            yield Complaint(path, "slo-indicator", f"spec.indicator.ratio.{key} is no plain "
                            "selector of a counter",
                            "write only the series, as `http_requests_total{status=~\"5..\"}`")
        else:
            yield from _no_counter(path, selector)


def _no_counter(path: Path, selector: Selector) -> Iterator[Complaint]:
    found = catalogue.lookup(selector.metric_name or "")
    if found is not None and found.metric.type == "gauge":
        yield Complaint(path, "slo-indicator", f"`{selector.metric_name}` is a gauge: events are "
                        "counted by a counter", "use a name that ends in `_total` or `_count`")


def _tier(objective: Objective) -> Iterator[Complaint]:
    tier = objective.spec.get("tier")
    if tier is None:
        return
    tiers = objective.context.tiers
    if tier not in tiers:
        yield Complaint(("tier",), "unknown-tier", f"tier {quoted(tier)} is not defined",
                        did_you_mean(tier, tiers) or f"known are {listed(tiers)}")
    for path, name in _names(objective):
        found = catalogue.lookup(name)
        if found is not None and found.metric.stack != "gate":
            yield Complaint(path, "slo-no-tier", f"`{name}` does not tell tiers apart, so it "
                            f"proves nothing about {quoted(tier)}",
                            "use a metric of the gate, `resilience_gate_…`")


def _names(objective: Objective) -> Iterator[tuple[Path, str]]:
    """Yield the series that the indicator reads; what is no selector has been reported."""
    if objective.latency is not None:
        yield ("indicator", "latency", "histogram"), f"{objective.latency['histogram']}_count"
    for key, text in (objective.ratio or {}).items():
        try:
            selector = selector_of(text)
        except PromQLError:
            continue
        if selector is not None and selector.metric_name:
            yield ("indicator", "ratio", key), selector.metric_name


def _alerts(objective: Objective) -> Iterator[Complaint]:
    if not objective.spec["alerts"]:
        yield Complaint(("alerts",), "slo-alert", "spec.alerts is empty: nothing is ever done",
                        f"write at least one of {listed(WORKBOOK)}")
    for name, burn in objective.burns():
        path = ("alerts", name)
        if isinstance(burn, str):
            yield Complaint(path, "slo-alert", f"spec.alerts.{name} {burn}")
            continue
        yield from _too_short(objective.context, path, burn)
        share = objective.share
        if share is not None and burn.factor * (1 - share) >= 1:
            yield Complaint(
                path, "slo-burn", f"spec.alerts.{name} can never fire: even if every request is "
                f"bad the budget burns only {1 / (1 - share):.4g} times too fast, and it waits "
                f"for {burn.factor:g}", "leave it out, or set a smaller `burn`",
            )
        elif burn.factor < 1:
            yield Complaint(
                path, "slo-early", f"spec.alerts.{name} fires while the objective is kept: from "
                f"{burn.factor:g} of the pace at which the whole budget is spent in the window",
                "set `burn` to 1 or more, or a larger `budget`", "warning",
            )


def _too_short(context: Context, path: Path, burn: Burn) -> Iterator[Complaint]:
    least = SCRAPES_MIN * context.interval_ms
    if burn.short_ms < least:
        yield Complaint(
            path, "slo-window", f"{'.'.join(('spec', *map(str, path)))}: its short window "
            f"{format_duration(burn.short_ms)} holds fewer than {SCRAPES_MIN} scrapes of "
            f"{format_duration(context.interval_ms)}",
            f"use a longer `window`, or `short: {format_duration(least)}`",
        )
    kept = context.retention_ms
    if kept is not None and burn.long_ms > kept:
        yield Complaint(
            path, "slo-retention", f"{'.'.join(('spec', *map(str, path)))}: its long window "
            f"{format_duration(burn.long_ms)} is longer than the engine keeps samples: without a "
            f"Prometheus it is judged over {format_duration(kept)}",
            "raise `scrape.retention`, or configure `prometheus`", "warning",
        )


RULES: tuple[Callable[[Objective], Iterator[Complaint]], ...] = (
    _share, _window, _one_indicator, _selectors, _load, _exclusions, _measure, _bucket, _tier,
    _alerts,
)
