"""Which values an expression can have at all: what `up`, `absent` and `hour` leave to compare."""

from __future__ import annotations

import math
from functools import lru_cache

from resilience.policy.lint_numbers import number_of
from resilience.policy.lint_shares import can_be_negative, is_itself, is_never_negative
from resilience.policy.lint_units import WHOLE, measured
from resilience.promql.plan import (
    COMPARISONS,
    Aggregate,
    Binary,
    Call,
    Negate,
    Node,
    Selector,
    Subquery,
)

_ANY = (-math.inf, math.inf)
_CLAMPS = frozenset({"clamp", "clamp_max", "clamp_min"})
FLAGS = frozenset({"up", "probe_success"})
# They pick one of the values that there are.
_PICK = frozenset({
    "max", "min", "topk", "bottomk", "max_over_time", "min_over_time", "last_over_time",
    "first_over_time", "sort", "sort_desc", "label_replace", "label_join",
})
# 1 where there is something, and not there where there is nothing.
_PRESENCE = frozenset({"absent", "absent_over_time", "present_over_time", "group"})
_BOUNDS = {
    "hour": (0.0, 23.0), "minute": (0.0, 59.0), "day_of_week": (0.0, 6.0),
    "day_of_month": (1.0, 31.0), "day_of_year": (1.0, 366.0), "days_in_month": (28.0, 31.0),
    "month": (1.0, 12.0), "sgn": (-1.0, 1.0), "sin": (-1.0, 1.0), "cos": (-1.0, 1.0),
    "tanh": (-1.0, 1.0),
}


def is_presence(node: Node) -> bool:
    """Return whether `node` is 1 wherever it has a series."""
    return _name(node) in _PRESENCE


@lru_cache(maxsize=2_048)                        # several rules ask, each at several levels
def few_values(node: Node) -> tuple[float, ...] | None:
    """Return all values that `node` can have, when these are one or two; None for any other."""
    name = _name(node)
    if name in _PRESENCE:
        return (1.0,)
    if isinstance(node, Selector):
        return (0.0, 1.0) if node.metric_name in FLAGS else None
    if is_itself(node):
        return (1.0,)
    if isinstance(node, Binary) and node.op in COMPARISONS:
        if node.bool_result:
            return (0.0, 1.0)
        return few_values(node.rhs if node.lhs.type == "scalar" else node.lhs)
    if isinstance(node, Binary) and node.op in ("and", "unless"):
        return few_values(node.lhs)
    if isinstance(node, Subquery):
        return few_values(node.expr)
    kept = [c for c in node.children if c.type in ("vector", "matrix")] if name in _PICK else []
    return few_values(kept[0]) if kept else None


@lru_cache(maxsize=2_048)
def value_range(node: Node) -> tuple[float, float]:
    """Return the least and the greatest value that `node` can have; infinite where not known."""
    values = few_values(node)
    if values is not None:
        return min(values), max(values)
    if isinstance(node, Aggregate) and node.op == "count":
        return 1.0, math.inf
    if isinstance(node, Negate):
        low, high = value_range(node.expr)
        return 0.0 - high, 0.0 - low
    if isinstance(node, Call) and node.function in _CLAMPS:
        return _clamped(node)
    low, high = _BOUNDS.get(_name(node), _ANY)
    value = measured(node)
    if value is not None and value.unit in WHOLE and not can_be_negative(value.metric):
        return max(low, 0.0), min(high, WHOLE[value.unit])
    return max(low, 0.0 if is_never_negative(node) else -math.inf), high


def _clamped(node: Call) -> tuple[float, float]:
    """Return what is left of the range of a vector between bounds; one that is no plain number may
    be anything."""
    low, high = value_range(node.args[0])
    numbers = [number_of(bound) for bound in node.args[1:]]
    known = sorted(n for n in numbers if n is not None and math.isfinite(n))
    if len(known) != len(numbers):
        return (-math.inf if node.function != "clamp_min" else low,
                math.inf if node.function != "clamp_max" else high)
    least = -math.inf if node.function == "clamp_max" else known[0]
    most = math.inf if node.function == "clamp_min" else known[-1]
    return min(max(low, least), most), min(max(high, least), most)


def _name(node: Node) -> str:
    if isinstance(node, Aggregate):
        return node.op
    return node.function if isinstance(node, Call) else ""
