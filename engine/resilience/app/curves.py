"""The curves of triggers for the page: evaluated over a recording's samples, or its answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resilience.app.bundles import intervals
from resilience.app.prefetch import MAX_AGE_SCRAPES
from resilience.arrays import np
from resilience.errors import PromQLError
from resilience.model import Bundle, Json, Labels, Policy, labels_of
from resilience.promql.evaluate import range_queries
from resilience.promql.evaluation import Options
from resilience.promql.parser import parse_checked
from resilience.promql.plan import Number, Plan
from resilience.report.history import History
from resilience.report.lines import Comparison, Floats, Plot, Thinner, comparisons
from resilience.report.masked import Shown

if TYPE_CHECKING:
    from resilience.promql.storage import Storage
    from resilience.sources.recording import Recording

# The page: numbers in all, and for one curve. A week of 100 policies stays below 6 MB.
POINTS_TOTAL = 600_000
POINTS_MAX = 2_000
POINTS_MIN = 120
BLOCK_STEPS = 4_096


def curves(
    bundle: Bundle, recording: Recording, history: History
) -> dict[str, tuple[Plot, ...]]:
    """Return the curves of every trigger by policy, thinned to what a page can hold."""
    answers = [e for e in recording.events if e["type"] == "query"]
    show = Shown.configured(bundle.config, history).of
    found: dict[str, tuple[Plot, ...]] = {}
    curves = sum(len(list(comparisons(parse_checked(p.trigger.expr)))) for p in bundle.policies)
    points = min(POINTS_MAX, max(POINTS_MIN, POINTS_TOTAL // 2 // max(1, curves)))
    for interval_ms in intervals(bundle):
        policies = [
            p for p in bundle.policies if p.interval_ms == interval_ms and p.mode != "off"
        ]
        start_ms = -(-(history.start_ms or 0) // interval_ms) * interval_ms
        steps = max(1, (history.end_ms - start_ms) // interval_ms)
        curver = _Curves(
            recording.store.view(), Options(_shown_ms(policies, recording)), start_ms,
            interval_ms, steps, max(1, -(-steps // points)), answers, show,
        )
        found.update(curver.draw(policies))
    return found


def _shown_ms(policies: Sequence[Policy], recording: Recording) -> int:
    """Return how long a sample is drawn: PromQL would show it for minutes after the last scrape,
    where the trigger is blind already."""
    from resilience.sources.recording import RecordingSource

    default_ms = MAX_AGE_SCRAPES * RecordingSource(recording).scrape_interval_ms
    longest_ms = max((p.trigger.max_age_ms or default_ms for p in policies), default=default_ms)
    return min(recording.meta.lookback_ms, longest_ms)


@dataclass(frozen=True, slots=True)
class _Curves:
    storage: Storage
    options: Options
    start_ms: int
    interval_ms: int
    steps: int
    per: int
    answers: Sequence[Json]
    show: Callable[[Labels], Labels]

    def draw(self, policies: Sequence[Policy]) -> dict[str, tuple[Plot, ...]]:
        parts = {p.name: list(comparisons(parse_checked(p.trigger.expr))) for p in policies}
        plans: dict[str, Plan] = {}
        for found in parts.values():
            for one in found:
                for plan in (one.value, one.threshold):
                    if plan is not None:
                        plans[plan.text] = plan
        thin, errors = self._answered(plans) if self.answers else self._thinned(plans)
        return {
            p.name: tuple(self._plot(p, one, thin, errors) for one in parts[p.name])
            for p in policies
        }

    def _thinned(self, plans: dict[str, Plan]) -> tuple[dict[str, Thinner], dict[str, str]]:
        """Evaluate block by block, so that a week of many series never is in memory at once."""
        buckets = -(-self.steps // self.per)
        thin = {text: Thinner(self.per, buckets) for text in plans}
        errors: dict[str, str] = {}
        block = max(1, BLOCK_STEPS // self.per) * self.per
        for first in range(0, self.steps, block):
            last = min(first + block, self.steps) - 1
            answers = range_queries(
                list(plans.values()), self.storage, self.start_ms + first * self.interval_ms,
                self.start_ms + last * self.interval_ms, self.interval_ms, options=self.options,
            )
            for text, answer in zip(plans, answers, strict=True):
                if isinstance(answer, PromQLError):
                    errors[text] = answer.message
                else:
                    thin[text].add(first, answer.labels, answer.values, answer.present)
        return thin, errors

    def _answered(self, plans: Mapping[str, Plan]) -> tuple[dict[str, Thinner], dict[str, str]]:
        """Take what a Prometheus answered live: such a recording holds no samples."""
        buckets = -(-self.steps // self.per)
        rows = self._rows(plans)
        thin: dict[str, Thinner] = {}
        for text, plan in plans.items():
            thin[text] = Thinner(self.per, buckets)
            found = rows[text]
            if isinstance(plan, Number):
                found = {(): np.full(self.steps, plan.value)}
            if found:
                thin[text].add(0, list(found), np.stack(list(found.values())), None)
        return thin, {}

    def _rows(self, plans: Mapping[str, Plan]) -> dict[str, dict[Labels, Floats]]:
        """Return by expression and series one value for each step, NaN for none."""
        rows: dict[str, dict[Labels, Floats]] = {text: {} for text in plans}
        for t_ms, expr, samples in _results(self.answers):
            step = (t_ms - self.start_ms) // self.interval_ms
            if expr not in rows or not 0 <= step < self.steps:
                continue
            for labels, value in samples:
                key = labels_of(labels)
                if key not in rows[expr]:
                    rows[expr][key] = np.full(self.steps, np.nan)
                rows[expr][key][step] = float(value)
        return rows

    def _plot(
        self, policy: Policy, one: Comparison, thin: dict[str, Thinner], errors: dict[str, str]
    ) -> Plot:
        value = thin[one.value.text]
        limit = thin[one.threshold.text] if one.threshold is not None else None
        constant = limit.constant() if limit is not None else None
        moving = limit.lines(self.show) if limit is not None and constant is None else ()
        return Plot(
            expr=one.value.text, op=one.op, start_ms=self.start_ms,
            bucket_ms=self.per * self.interval_ms, lines=value.lines(self.show),
            more=len(value.others), threshold=constant, threshold_lines=moving,
            resolve=_resolve(policy, one), thinned=self.per > 1,
            error=errors.get(one.value.text),
        )


def _resolve(policy: Policy, one: Comparison) -> tuple[str, float] | None:
    """Return the resolve threshold, where it is one number against the same value."""
    if policy.trigger.resolve is None:
        return None
    for other in comparisons(parse_checked(policy.trigger.resolve.expr)):
        limit = other.threshold
        if other.value == one.value and other.op and isinstance(limit, Number):
            return (other.op, limit.value) if math.isfinite(limit.value) else None
    return None


def _results(answers: Iterable[Json]) -> Iterator[tuple[int, str, Json]]:
    for event in answers:
        for result in event["results"]:
            yield event["t_ms"], result["expr"], result["samples"]
