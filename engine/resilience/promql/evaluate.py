"""Plans to answers: `instant` for many plans at one time, `range_query` for one plan over steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from resilience.arrays import np
from resilience.errors import PromQLError
from resilience.promql import windows
from resilience.promql.evaluation import STEPS_MAX, Evaluation, Observer, Options
from resilience.promql.plan import Node, Plan, Selector, Subquery
from resilience.promql.recent import Recent
from resilience.promql.storage import Bools, Floats, Ints, Storage
from resilience.promql.vector import (
    Grid,
    Scalar,
    Text,
    Value,
    Vec,
    drop_marked,
    evaluation_error,
    unique,
)
from resilience.samples import Labels, QueryResult, RangeSample, Sample

DEFAULT = Options()


@dataclass(frozen=True, slots=True, eq=False)
class RangeResult:
    """A range query's answer: sorted by labels, `times_ms` int64[K], `values` float64[S, K].

    `present` bool[S, K] says where a series has a value; None if everywhere. A scalar is one
    series with no labels.
    """

    times_ms: Ints
    labels: tuple[Labels, ...]
    values: Floats
    present: Bools | None = None

    def series(self) -> tuple[RangeSample, ...]:
        """Return the points series by series, as the HTTP API lists them."""
        return tuple(self._one(i) for i in range(len(self.labels)))

    def _one(self, i: int) -> RangeSample:
        times, values = self.times_ms, self.values[i]
        if self.present is not None:
            times, values = times[self.present[i]], values[self.present[i]]
        return RangeSample(self.labels[i], tuple(times.tolist()), tuple(values.tolist()))


def instant(
    plans: Sequence[Plan], storage: Storage, t_ms: int, lookback_ms: int = 300_000, *,
    options: Options | None = None, recent: Recent | None = None,
) -> list[QueryResult]:
    """Return one QueryResult for each plan, in order; equal subexpressions are evaluated once.

    An evaluation error of one plan is in its `error`, the others go on. `recent` holds the last
    answers over the same series with the same options, for those that still stand.
    """
    chosen = options or Options(lookback_ms)
    evaluation = Evaluation(storage, Grid(t_ms, t_ms, 0), chosen)
    with np.errstate(all="ignore"):
        return [_answer(plan, evaluation, recent) for plan in plans]


def _answer(plan: Plan, evaluation: Evaluation, recent: Recent | None) -> QueryResult:
    evaluation.begin()
    try:
        if plan.type == "matrix":
            return QueryResult(plan.text, "matrix", ranges=_matrix(plan, evaluation))
        if recent is None:
            return _evaluated(plan, evaluation)
        return recent.answer(plan, evaluation, lambda: _evaluated(plan, evaluation))
    except PromQLError as error:
        part = error.part or plan.text
        return QueryResult(plan.text, plan.type, error=error.message, failed=part)
    except RecursionError:
        return QueryResult(plan.text, plan.type, error="the expression is nested too deep")


def _evaluated(plan: Plan, evaluation: Evaluation) -> QueryResult:
    return _instant_result(plan, evaluation.value(plan, evaluation.grid))


def _instant_result(plan: Plan, value: Value) -> QueryResult:
    if isinstance(value, Text):
        return QueryResult(plan.text, "string", text=value.value)
    if isinstance(value, Scalar):
        return QueryResult(plan.text, "scalar", (Sample((), float(value.values[0])),))
    vec = _finished(value)
    values = vec.values[:, 0].tolist()
    samples = [Sample(labels, v) for labels, v in zip(vec.labels, values, strict=True)]
    if not vec.ranked and len(samples) > 1:
        samples.sort(key=lambda s: s.labels)
    return QueryResult(plan.text, "vector", tuple(samples))


def _finished(vec: Vec) -> Vec:
    """Take off the names that are to go at the end."""
    return vec if vec.drop is None else drop_marked(vec)


def _matrix(plan: Node, evaluation: Evaluation) -> tuple[RangeSample, ...]:
    """Return the samples of a range selector or subquery as they are stored."""
    assert isinstance(plan, Selector | Subquery)
    reach = evaluation.reach(plan, evaluation.grid, plan.range_ms)
    found: list[RangeSample] = []
    charge = evaluation.budget.charge
    for window in windows.windows(evaluation.blocks(plan, reach), reach, evaluation.memo, charge):
        a, b = int(window.lo[0]), int(window.hi[0])
        if b > a:
            times = tuple(window.times[a:b].tolist())
            for labels, row in zip(window.labels, window.values[:, a:b].tolist(), strict=True):
                found.append(RangeSample(labels, times, tuple(row)))
    return tuple(sorted(found, key=lambda s: s.labels))


def range_query(
    plan: Plan, storage: Storage, start_ms: int, end_ms: int, step_ms: int, *,
    options: Options = DEFAULT, observer: Observer | None = None,
) -> RangeResult:
    """Evaluate a vector or scalar plan at start, start + step, … up to end.

    Raises PromQLError of kind `evaluation`, or `type` for a range vector or a string.
    """
    checked_type(plan)
    grid = _checked_grid(start_ms, end_ms, step_ms)
    evaluation = Evaluation(storage, grid, options, observer)
    with np.errstate(all="ignore"):
        return _ranged(plan, evaluation)


def range_queries(
    plans: Sequence[Plan], storage: Storage, start_ms: int, end_ms: int, step_ms: int, *,
    options: Options = DEFAULT,
) -> list[RangeResult | PromQLError]:
    """Evaluate many plans over the same steps; equal subexpressions are evaluated once.

    An evaluation error of one plan stands in its place, the others go on.
    """
    grid = _checked_grid(start_ms, end_ms, step_ms)
    evaluation = Evaluation(storage, grid, options)
    with np.errstate(all="ignore"):
        return [_range_or_error(plan, evaluation) for plan in plans]


def _range_or_error(plan: Plan, evaluation: Evaluation) -> RangeResult | PromQLError:
    evaluation.begin()
    try:
        checked_type(plan)
        return _ranged(plan, evaluation)
    except PromQLError as error:
        return error


def _ranged(plan: Plan, evaluation: Evaluation) -> RangeResult:
    grid = evaluation.grid
    try:
        return _range_result(grid, evaluation.value(plan, grid))
    except PromQLError as error:
        error.part = error.part or plan.text  # found while the result was put together
        raise


def checked_type(plan: Plan) -> None:
    """Raise PromQLError for what has no value at each step: a range vector, a string."""
    if plan.type not in ("vector", "scalar"):
        raise PromQLError("a range query needs an instant vector or a scalar", kind="type")


def _checked_grid(start_ms: int, end_ms: int, step_ms: int) -> Grid:
    if step_ms <= 0:
        raise evaluation_error("the step must be longer than 0")
    if end_ms < start_ms:
        raise evaluation_error("the end lies before the start")
    if (end_ms - start_ms) // step_ms >= STEPS_MAX:
        raise evaluation_error(f"more than {STEPS_MAX} steps, use a longer step")
    return Grid(start_ms, end_ms, step_ms)


def _range_result(grid: Grid, value: Value) -> RangeResult:
    assert not isinstance(value, Text)
    if isinstance(value, Scalar):
        return RangeResult(grid.times, ((),), value.values[None])
    vec = unique(_finished(value))
    order = sorted(range(len(vec.labels)), key=lambda i: vec.labels[i])
    if order != list(range(len(order))):
        vec = vec.take(order)
    return RangeResult(grid.times, tuple(vec.labels), vec.values, vec.present)
