"""The PromQL of an objective: share of bad requests, load, exclusions, trigger and resolve."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from resilience.model import Json, format_duration, parse_duration
from resilience.policy.histograms import le_values
from resilience.policy.slo_burn import Burn
from resilience.promql.parser import parse
from resilience.promql.plan import Matcher, Selector
from resilience.promql.text import format_number

WHERE = ("cluster", "namespace", "job", "pod", "instance")
EXCLUSION_DEFAULT_MS = 120_000
STEPS = 5


@dataclass(frozen=True, slots=True)
class Indicator:
    """Bad of all: `part` counts bad events, or with `part_is_good` good ones, of `total`."""

    part: Selector
    total: Selector
    part_is_good: bool
    by: tuple[str, ...]

    @property
    def where(self) -> tuple[str, ...]:
        """Return the labels that series about the server itself have too."""
        return tuple(name for name in self.by if name in WHERE)

    def rate(self, selector: Selector, window_ms: int) -> str:
        ranged = Selector(selector.metric_name, selector.matchers, window_ms, selector.offset_ms)
        return f"sum by ({', '.join(self.by)}) (rate({ranged.text}))"

    def total_rate(self, window_ms: int) -> str:
        return self.rate(self.total, window_ms)

    def bad_share(self, window_ms: int) -> str:
        """Return the share of bad events; a counter that nobody has raised yet counts as 0."""
        total = self.total_rate(window_ms)
        share = f"({self.rate(self.part, window_ms)} or 0 * {total}) / {total}"
        return f"1 - {share}" if self.part_is_good else share


def ratio(raw: Mapping[str, Json], tier: str | None, by: tuple[str, ...]) -> Indicator:
    """Return the indicator of two counters; the selectors have been checked."""
    part_is_good = "good" in raw
    part = selector_of(raw["good" if part_is_good else "bad"])
    total = selector_of(raw["total"])
    assert part is not None and total is not None
    return Indicator(_with_tier(part, tier), _with_tier(total, tier), part_is_good, by)


def latency(
    raw: Mapping[str, Json], bound_s: float, tier: str | None, by: tuple[str, ...]
) -> Indicator:
    """Return the indicator of the requests under the bucket's bound, of all."""
    labels = tuple(Matcher(k, "=", v) for k, v in raw.get("labels", {}).items())
    total = _with_tier(_series(f"{raw['histogram']}_count", labels), tier)
    values = le_values(bound_s)
    le = Matcher("le", "=", values[0]) if len(values) == 1 else \
        Matcher("le", "=~", "|".join(re.escape(v) for v in values))
    part = _series(f"{raw['histogram']}_bucket", (*total.matchers[1:], le))
    return Indicator(part, total, True, by)


def _series(name: str, labels: tuple[Matcher, ...]) -> Selector:
    return Selector(name, (Matcher("__name__", "=", name), *labels))


def selector_of(text: str) -> Selector | None:
    """Return the plain instant selector with a name that `text` is, or None; raises PromQLError."""
    plan = parse(text)
    plain = isinstance(plan, Selector) and plan.metric_name and not plan.range_ms
    return plan if isinstance(plan, Selector) and plain and plan.at is None else None


def _with_tier(selector: Selector, tier: str | None) -> Selector:
    if tier is None or any(m.name == "tier" for m in selector.matchers):
        return selector
    matchers = (*selector.matchers, Matcher("tier", "=", tier))
    return Selector(selector.metric_name, matchers, 0, selector.offset_ms)


# --- trigger and resolve -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Terms:
    """What an objective is judged by, besides the burn rate. `allowed`: share of bad requests."""

    indicator: Indicator
    allowed: float
    load: Mapping[str, Json]
    exclusions: tuple[Mapping[str, Json], ...]


def trigger(terms: Terms, burn: Burn) -> str:
    """Return: the budget burns too fast over both windows, at a load that is promised, outside
    exclusions. An exclusion lasts until the short window holds nothing of it any more."""
    indicator = terms.indicator
    limit = f"{format_number(burn.factor)} * {format_number(terms.allowed)}"
    parts = [f"{indicator.bad_share(burn.long_ms)} > {limit}",
             f"and {_on(indicator.by)} {indicator.bad_share(burn.short_ms)} > {limit}"]
    rate = terms.load.get("rate", {})
    for key, op in (("min", ">="), ("max", "<=")):
        if key in rate:
            parts.append(f"and {_on(indicator.by)} {indicator.total_rate(burn.short_ms)} {op} "
                         f"{format_number(float(rate[key]))}")
    if "prompt_tokens" in terms.load:
        parts.append(_input_size(indicator, terms.load["prompt_tokens"]["max"], burn.short_ms))
    parts += [_unless(indicator, exclusion, burn.short_ms) for exclusion in terms.exclusions]
    return "\n".join(parts)


def resolve(terms: Terms, burn: Burn) -> str:
    """Return: over the short window it is within what is allowed, or nobody asks."""
    indicator = terms.indicator
    limit = format_number(min(1.0, burn.factor) * terms.allowed)
    return (f"{indicator.bad_share(burn.short_ms)} < {limit}\nor {_on(indicator.by)} "
            f"{indicator.total_rate(burn.short_ms)} == 0")


def _on(labels: tuple[str, ...]) -> str:
    return f"on ({', '.join(labels)})"


def _input_size(indicator: Indicator, most: float, window_ms: int) -> str:
    by, window = ", ".join(indicator.where), format_duration(window_ms)
    tokens, requests = (
        f"sum by ({by}) (rate(vllm:request_prompt_tokens_{part}[{window}]))"
        for part in ("sum", "count")
    )
    return f"and {_on(indicator.where)} {tokens} / {requests} <= {format_number(float(most))}"


def _unless(indicator: Indicator, raw: Mapping[str, Json], short_ms: int) -> str:
    after = {"warm_start": EXCLUSION_DEFAULT_MS, "weight_reload": EXCLUSION_DEFAULT_MS}
    kind = raw["type"]
    for_ms = parse_duration(str(raw["for"])) if "for" in raw else after.get(kind, 0)
    window_ms = for_ms + short_ms
    if kind == "when":
        step = format_duration(max(1_000, window_ms // STEPS // 1_000 * 1_000))
        window = format_duration(window_ms)
        return f"unless on () count(count_over_time(({raw['expr']})[{window}:{step}])) > 0"
    by = ", ".join(indicator.where)
    if kind == "warm_start":
        started = f"max by ({by}) (process_start_time_seconds)"
        body = f"time() - {started} < {format_number(window_ms / 1_000)}"
    else:
        awake = f'vllm:engine_sleep_state{{sleep_state="awake"}}[{format_duration(window_ms)}]'
        body = f"min by ({by}) (min_over_time({awake})) < 1"
    return f"unless {_on(indicator.where)} {body}"
