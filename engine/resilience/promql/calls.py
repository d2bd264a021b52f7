"""Every function call: arguments from the evaluation, the work in the module of its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from resilience.arrays import np
from resilience.promql import (
    elementwise,
    histogram,
    overtime,
    rates,
    regression,
    relabel,
)
from resilience.promql.plan import Call, Selector
from resilience.promql.signatures import SIGNATURES
from resilience.promql.storage import Bools, Floats
from resilience.promql.vector import (
    Grid,
    Scalar,
    Value,
    Vec,
    empty,
    merged,
    unique,
    unnamed,
)
from resilience.promql.windows import RangeFunction

if TYPE_CHECKING:
    from resilience.promql.evaluation import Evaluation

Handler: TypeAlias = Callable[["Evaluation", Call, Grid], Value]

RANGE_FUNCTIONS: dict[str, RangeFunction] = {
    **overtime.RANGE_FUNCTIONS, **rates.RANGE_FUNCTIONS, **regression.RANGE_FUNCTIONS,
}
KEEP_NAME = frozenset({"last_over_time", "first_over_time"})


# --- functions of range vectors ---


def _over_range(
    evaluation: Evaluation, node: Call, grid: Grid, place: int, function: RangeFunction
) -> Vec:
    vec = evaluation.over_range(node.args[place], grid, function)
    if node.function in KEEP_NAME:
        return vec
    named = unnamed(vec, evaluation.options.delayed_names)
    return named if evaluation.options.delayed_names else unique(named)


def _range(evaluation: Evaluation, node: Call, grid: Grid) -> Value:
    return _over_range(evaluation, node, grid, 0, RANGE_FUNCTIONS[node.function])


def _quantile_over_time(evaluation: Evaluation, node: Call, grid: Grid) -> Value:
    q = evaluation.scalar(node.args[0], grid)
    return _over_range(evaluation, node, grid, 1, overtime.quantile_over_time(q))


def _predict_linear(evaluation: Evaluation, node: Call, grid: Grid) -> Value:
    seconds = evaluation.scalar(node.args[1], grid)
    return _over_range(evaluation, node, grid, 0, regression.predict_linear(seconds))


def _smoothing(evaluation: Evaluation, node: Call, grid: Grid) -> Value:
    level = evaluation.scalar(node.args[1], grid)
    trend = evaluation.scalar(node.args[2], grid)
    function = regression.double_exponential_smoothing(level, trend)
    return _over_range(evaluation, node, grid, 0, function)


# --- functions of instant vectors ---


def _computed(evaluation: Evaluation, vec: Vec, values: Floats) -> Vec:
    """Return new values without names; equal label sets may only follow one another."""
    return merged(unnamed(vec.with_values(values), evaluation.options.delayed_names))


def _mathematics(evaluation: Evaluation, node: Call, grid: Grid) -> Value:
    vec = evaluation.vec(node.args[0], grid)
    with np.errstate(all="ignore"):
        return _computed(evaluation, vec, elementwise.MATHEMATICS[node.function](vec.values))


def _calendar(evaluation: Evaluation, node: Call, grid: Grid) -> Value:
    if not node.args:
        return Vec([()], elementwise.calendar(node.function, grid.times / 1000.0)[None])
    vec = evaluation.vec(node.args[0], grid)
    return _computed(evaluation, vec, elementwise.calendar(node.function, vec.values))


def _clamp(evaluation: Evaluation, node: Call, grid: Grid) -> Value:
    vec = evaluation.vec(node.args[0], grid)
    bounds = [evaluation.scalar(a, grid) for a in node.args[1:]]
    low = None if node.function == "clamp_max" else bounds[0]
    high = None if node.function == "clamp_min" else bounds[-1]
    if low is not None and high is not None and (high < low).any():
        vec = vec.kept(vec.mask() & ~(high < low))  # first: what is gone cannot be equal
    return _computed(evaluation, vec, elementwise.clamped(vec.values, low, high))


def _round(evaluation: Evaluation, node: Call, grid: Grid) -> Value:
    vec = evaluation.vec(node.args[0], grid)
    nearest = evaluation.scalar(node.args[1], grid) if len(node.args) > 1 else np.ones(grid.size)
    with np.errstate(all="ignore"):
        return _computed(evaluation, vec, elementwise.rounded(vec.values, nearest))


def _timestamp(evaluation: Evaluation, node: Call, grid: Grid) -> Value:
    inner = node.args[0]
    if isinstance(inner, Selector):
        vec = evaluation.latest(inner, grid, times=True)
        return _computed(evaluation, vec, vec.values)
    vec = evaluation.vec(inner, grid)
    return _computed(evaluation, vec, np.broadcast_to(grid.times / 1000.0, vec.values.shape))


def _absent(evaluation: Evaluation, node: Call, grid: Grid) -> Value:
    vec = evaluation.vec(node.args[0], grid)
    return _missing(node, np.asarray(vec.mask().any(axis=0)), grid)


def _absent_over_time(evaluation: Evaluation, node: Call, grid: Grid) -> Value:
    vec = evaluation.over_range(node.args[0], grid, overtime.present_over_time)
    return _missing(node, np.asarray(vec.mask().any(axis=0)), grid)


def _missing(node: Call, there: Bools, grid: Grid) -> Vec:
    if there.all():
        return empty(grid.size)
    labels = relabel.absent_labels(node.args[0])
    return Vec([labels], np.ones((1, grid.size))).kept(~there[None])


def _scalar(evaluation: Evaluation, node: Call, grid: Grid) -> Value:
    vec = evaluation.vec(node.args[0], grid)
    if not vec.labels:
        return Scalar(np.full(grid.size, np.nan))
    mask = vec.mask()
    found = np.take_along_axis(vec.values, np.argmax(mask, axis=0)[None], axis=0)[0]
    return Scalar(np.where(mask.sum(axis=0) == 1, found, np.nan))


def _vector(evaluation: Evaluation, node: Call, grid: Grid) -> Value:
    return Vec([()], evaluation.scalar(node.args[0], grid)[None])


def _time(_: Evaluation, node: Call, grid: Grid) -> Value:
    return Scalar(grid.times / 1000.0)


def _pi(_: Evaluation, node: Call, grid: Grid) -> Value:
    return Scalar(np.full(grid.size, np.pi))


# --- functions of labels ---


def _label_replace(evaluation: Evaluation, node: Call, grid: Grid) -> Value:
    vec = evaluation.vec(node.args[0], grid)
    target, template, source, pattern = (evaluation.text(a, grid) for a in node.args[1:])
    evaluation.charge_labels(len(vec.labels) * template.count("$"))
    return merged(relabel.label_replace(vec, target, template, source, pattern))


def _label_join(evaluation: Evaluation, node: Call, grid: Grid) -> Value:
    vec = evaluation.vec(node.args[0], grid)
    target, separator, *sources = (evaluation.text(a, grid) for a in node.args[1:])
    evaluation.charge_labels(len(vec.labels) * len(sources))
    return merged(relabel.label_join(vec, target, separator, sources))


def _sort(evaluation: Evaluation, node: Call, grid: Grid) -> Value:
    return relabel.by_value(evaluation.vec(node.args[0], grid), node.function == "sort_desc")


def _sort_by_label(evaluation: Evaluation, node: Call, grid: Grid) -> Value:
    names = [evaluation.text(a, grid) for a in node.args[1:]]
    descending = node.function == "sort_by_label_desc"
    vec = evaluation.vec(node.args[0], grid)
    evaluation.charge_labels(len(vec.labels) * len(names))
    return relabel.by_label(vec, names, descending)


# --- histograms ---


def _histogram_quantile(evaluation: Evaluation, node: Call, grid: Grid) -> Value:
    q = evaluation.scalar(node.args[0], grid)
    found = histogram.quantile(evaluation.vec(node.args[1], grid), q)
    return _computed(evaluation, found, found.values)


def _histogram_fraction(evaluation: Evaluation, node: Call, grid: Grid) -> Value:
    lower, upper = (evaluation.scalar(a, grid) for a in node.args[:2])
    found = histogram.fraction(evaluation.vec(node.args[2], grid), lower, upper)
    return _computed(evaluation, found, found.values)


def _no_native_histograms(evaluation: Evaluation, node: Call, grid: Grid) -> Value:
    """These look at native histograms only; floats give nothing."""
    evaluation.vec(node.args[0], grid)
    return empty(grid.size)


CALLS: dict[str, Handler] = {
    **dict.fromkeys(RANGE_FUNCTIONS, _range),
    **dict.fromkeys(elementwise.MATHEMATICS, _mathematics),
    **dict.fromkeys(elementwise.CALENDAR_NAMES, _calendar),
    **dict.fromkeys([n for n in SIGNATURES if n.startswith("histogram_")], _no_native_histograms),
    "absent": _absent,
    "absent_over_time": _absent_over_time,
    "clamp": _clamp,
    "clamp_max": _clamp,
    "clamp_min": _clamp,
    "double_exponential_smoothing": _smoothing,
    "histogram_fraction": _histogram_fraction,
    "histogram_quantile": _histogram_quantile,
    "label_join": _label_join,
    "label_replace": _label_replace,
    "pi": _pi,
    "predict_linear": _predict_linear,
    "quantile_over_time": _quantile_over_time,
    "round": _round,
    "scalar": _scalar,
    "sort": _sort,
    "sort_by_label": _sort_by_label,
    "sort_by_label_desc": _sort_by_label,
    "sort_desc": _sort,
    "time": _time,
    "timestamp": _timestamp,
    "vector": _vector,
}
