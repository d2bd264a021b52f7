"""In which unit an expression is, as far as the catalogue and plain arithmetic can tell."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from resilience.policy import catalogue, lint_shares
from resilience.policy.lint_numbers import number_of
from resilience.policy.lint_shares import TIMES
from resilience.policy.lint_view import RATES
from resilience.promql.plan import (
    COMPARISONS,
    SET_OPERATORS,
    Aggregate,
    Binary,
    Call,
    Node,
    Selector,
    Subquery,
    walk,
)

_VALUE_KEEPERS = frozenset({
    "max_over_time", "min_over_time", "avg_over_time", "last_over_time", "first_over_time",
    "quantile_over_time", "sort", "sort_desc", "clamp", "clamp_max", "clamp_min", "round", "abs",
    "ceil", "floor", "label_replace", "label_join", "scalar",
})
# What they make of a share can be below 0 or above 1.
_DIFFERENCES = frozenset({"delta", "idelta", "predict_linear"})
_ONE_OF_MANY = frozenset({"max", "min", "avg", "quantile", "topk", "bottomk"})
_ADDABLE = TIMES | {"bytes", "mebibytes"}
# (unit, operator, number) -> unit: what people multiply by to see another unit.
_SCALED = {
    ("fraction", "*", 100.0): "percent", ("percent", "/", 100.0): "fraction",
    ("percent", "*", 0.01): "fraction",
    ("seconds", "*", 1000.0): "milliseconds", ("milliseconds", "/", 1000.0): "seconds",
    ("seconds", "*", 1e6): "microseconds", ("milliseconds", "*", 1000.0): "microseconds",
    ("microseconds", "/", 1000.0): "milliseconds", ("microseconds", "/", 1e6): "seconds",
    ("milliseconds", "*", 0.001): "seconds", ("microseconds", "*", 0.001): "milliseconds",
    ("microseconds", "*", 1e-6): "seconds",
}
WHOLE = {"fraction": 1.0, "percent": 100.0}
# 1 less a share is a share, also where names alone say that it is one.
_TAKEN_FROM = {**WHOLE, "ratio": 1.0}


@dataclass(frozen=True, slots=True)
class Measured:
    """What an expression measures, as a message names it, its unit, and the metric it is the value
    of (None for a share that is computed)."""

    what: str
    unit: str
    metric: str | None = None


@lru_cache(maxsize=2_048)                        # each part is asked for at each level above it
def measured(node: Node) -> Measured | None:
    """Return what `node` measures; None when its unit is not known."""
    of_kind = _OF_KIND.get(type(node))
    return None if of_kind is None else of_kind(node)


def _of_selector(node: Selector) -> Measured | None:
    known = catalogue.lookup(node.metric_name or "")
    if known is None or known.part != "value" or known.metric.grows or not known.metric.unit:
        return None
    return Measured(f"`{node.metric_name}`", known.metric.unit, known.metric.name)


def _of_aggregate(node: Aggregate) -> Measured | None:
    if node.op in _ONE_OF_MANY:
        return measured(node.expr)
    inner = measured(node.expr) if node.op == "sum" else None
    return inner if inner is not None and inner.unit == "microseconds" else None


def _of_subquery(node: Subquery) -> Measured | None:
    return measured(node.expr)


def _of_call(node: Call) -> Measured | None:
    if node.function == "histogram_quantile":
        return _of_buckets(node.args[1])
    if node.function == "histogram_fraction":
        return Measured(f"`{node.text}`", "fraction")
    kept = next((arg for arg in node.args if arg.type in ("vector", "matrix")), None)
    if kept is None:
        return None
    if node.function in RATES:
        return _of_growth(kept)
    if node.function in _DIFFERENCES:
        inner = measured(kept)
        share = inner is not None and inner.unit == "fraction"
        return Measured(f"`{node.text}`", "ratio") if share else None
    if node.function in ("clamp", "clamp_min"):
        return _raised(measured(kept), number_of(node.args[1]))
    return measured(kept) if node.function in _VALUE_KEEPERS else None


def _raised(value: Measured | None, least: float | None) -> Measured | None:
    """Return what a value measures that is at least `least`: a share may be none any more."""
    whole = math.inf if value is None else WHOLE.get(value.unit, math.inf)
    return value if whole == math.inf or least is not None and least <= whole else None


def _of_growth(node: Node) -> Measured | None:
    """A counter of microseconds grows by millions a second: no other is taken for something else.
    """
    known = catalogue.lookup(node.metric_name or "") if isinstance(node, Selector) else None
    if known is None or not known.metric.grows or known.metric.unit != "microseconds":
        return None
    return Measured(f"the growth of `{known.metric.name}`", "microseconds", known.metric.name)


def _of_buckets(node: Node) -> Measured | None:
    """Return the histogram whose quantile is taken: its buckets are in the metric's own unit."""
    for inner in walk(node):
        if isinstance(inner, Selector) and inner.metric_name:
            known = catalogue.lookup(inner.metric_name)
            if known is None or known.part != "bucket" or not known.metric.unit:
                return None
            return Measured(f"`{known.metric.name}`", known.metric.unit, known.metric.name)
    return None


def _of_binary(node: Binary) -> Measured | None:
    if node.op in COMPARISONS:
        return _of_comparison(node)
    if node.op in ("and", "unless"):
        return measured(node.lhs)
    return _scaled(node) or (_quotient(node) if node.op == "/" else _combined(node))


def _of_comparison(node: Binary) -> Measured | None:
    """A comparison keeps what it compares; with `bool` it is 0 or 1."""
    if node.bool_result:
        return Measured(f"`{node.text}`", "fraction")
    return measured(node.rhs if node.lhs.type == "scalar" else node.lhs)


def _scaled(node: Binary) -> Measured | None:
    """Return `x * 100` and the like, and what is left of a whole: `1 - x`."""
    for side, other in ((node.lhs, node.rhs), (node.rhs, node.lhs)):
        number = number_of(other)
        if number is None or (side is node.rhs and node.op == "/"):
            continue
        value = measured(side)
        if value is None:
            return None
        if node.op == "-" and side is node.rhs and _TAKEN_FROM.get(value.unit) == number:
            return value
        unit = _SCALED.get((value.unit, node.op, number))
        return None if unit is None else Measured(value.what, unit, value.metric)
    return None


def _combined(node: Binary) -> Measured | None:
    """Return the unit of a sum, a difference, or one or the other, of two of the same unit."""
    if node.op == "*":
        return _annotated(node)
    left, right = measured(node.lhs), measured(node.rhs)
    if left is None or right is None or left.unit != right.unit:
        return None
    if node.op == "or" or (node.op in "+-" and left.unit in _ADDABLE):
        return left
    if node.op == "-" and left.unit == "fraction":
        return Measured(f"`{node.text}`", "ratio")
    return None


def _annotated(node: Binary) -> Measured | None:
    """Multiplied by an info metric, which is 1, a value has more labels and is what it was."""
    for side, other in ((node.lhs, node.rhs), (node.rhs, node.lhs)):
        only = {n.metric_name or "" for n in walk(other) if isinstance(n, Selector)}
        if only and all(name.endswith(("_info", "_labels")) or name == "up" for name in only) \
                and all(_stays_one(n) for n in walk(other)):
            return measured(side)
    return None


def _stays_one(node: Node) -> bool:
    """Whether `node` makes 1 of 1: how many there are may be any number."""
    if isinstance(node, Aggregate):
        return node.op in _ONE_OF_MANY or node.op == "group"
    if isinstance(node, Call):
        return node.function in _VALUE_KEEPERS
    if isinstance(node, Binary):
        joined = node.lhs.type == node.rhs.type == "vector"
        return node.op in COMPARISONS or joined and node.op in ("*", *SET_OPERATORS)
    return True


def _quotient(node: Binary) -> Measured | None:
    """Return the unit of a mean, or of a share of a whole."""
    mean = lint_shares.mean_of(node)
    if mean is not None:
        inner = None if mean.values is None else measured(mean.values)
        unit = mean.unit or (inner.unit if inner is not None else "")
        return Measured(f"the mean of {mean.what}", unit) if unit else None
    share = lint_shares.share_of(node)
    return None if share is None else Measured(*share)


_OF_KIND: dict[type, Callable[[Any], Measured | None]] = {
    Selector: _of_selector, Aggregate: _of_aggregate, Subquery: _of_subquery, Call: _of_call,
    Binary: _of_binary,
}
