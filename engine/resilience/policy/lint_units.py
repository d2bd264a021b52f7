"""In which unit an expression is, as far as the catalogue and plain arithmetic can tell."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

from resilience.policy import catalogue
from resilience.promql.plan import Aggregate, Binary, Call, Negate, Node, Number, Selector, walk

_VALUE_KEEPERS = frozenset({
    "max_over_time", "min_over_time", "avg_over_time", "last_over_time", "quantile_over_time",
    "sort", "sort_desc", "clamp_max", "label_replace",
})
_CAN_BE_NEGATIVE = frozenset({"vllm:gpu_prefix_cache_hit_rate", "vllm:cpu_prefix_cache_hit_rate",
                              "sglang:cache_hit_rate"})
_NEVER_NEGATIVE = frozenset({
    "rate", "increase", "irate", "histogram_quantile", "abs", "max_over_time", "min_over_time",
    "avg_over_time", "sum_over_time", "last_over_time", "quantile_over_time", "count_over_time",
    "resets", "changes",
})
# (unit, operator, number) -> unit: what people multiply by to see another unit.
_SCALED = {
    ("fraction", "*", 100.0): "percent", ("percent", "/", 100.0): "fraction",
    ("seconds", "*", 1000.0): "milliseconds", ("milliseconds", "/", 1000.0): "seconds",
    ("microseconds", "/", 1000.0): "milliseconds", ("microseconds", "/", 1e6): "seconds",
}
_WHOLE = {"fraction": 1.0, "percent": 100.0}
# 1 less a share is a share, also where names alone say that it is one.
_TAKEN_FROM = _WHOLE | {"ratio": 1.0}


@dataclass(frozen=True, slots=True)
class Measured:
    """What an expression measures, as a message names it, its unit, and the metric it is the value
    of (None for a share that is computed)."""

    what: str
    unit: str
    metric: str | None = None


def number_of(node: Node) -> float | None:
    """Return the number that `node` is, with its sign; None for anything else."""
    if isinstance(node, Negate):
        inner = number_of(node.expr)
        return None if inner is None else -inner
    if isinstance(node, Binary) and node.type == "scalar":
        return _computed(node.op, number_of(node.lhs), number_of(node.rhs))
    return node.value if isinstance(node, Number) else None


def _computed(op: str, left: float | None, right: float | None) -> float | None:
    """Return `95 / 100`, and None for what is not plain arithmetic."""
    if left is None or right is None:
        return None
    if op == "/":
        return left / right if right else None
    return {"+": left + right, "-": left - right, "*": left * right}.get(op)


def measured(node: Node) -> Measured | None:
    """Return what `node` measures; None when its unit is not known."""
    if isinstance(node, Aggregate) and node.op in (
        "max", "min", "avg", "quantile", "topk", "bottomk"
    ):
        return measured(node.expr)
    if isinstance(node, Call):
        if node.function == "histogram_quantile":
            return _of_buckets(node.args[1])
        if node.function in _VALUE_KEEPERS:
            kept = [arg for arg in node.args if arg.type in ("vector", "matrix")]
            return measured(kept[0]) if kept else None
        return None
    if isinstance(node, Binary):
        return _scaled(node) or _quotient(node)
    return _of_selector(node) if isinstance(node, Selector) else None


def _of_selector(node: Selector) -> Measured | None:
    known = catalogue.lookup(node.metric_name or "")
    if known is None or known.part != "value" or known.metric.grows or not known.metric.unit:
        return None
    return Measured(f"`{node.metric_name}`", known.metric.unit, known.metric.name)


def _of_buckets(node: Node) -> Measured | None:
    """Return the histogram whose quantile is taken: its buckets are in the metric's own unit."""
    for inner in walk(node):
        if isinstance(inner, Selector) and inner.metric_name:
            known = catalogue.lookup(inner.metric_name)
            if known is None or known.part != "bucket" or not known.metric.unit:
                return None
            return Measured(f"`{known.metric.name}`", known.metric.unit, known.metric.name)
    return None


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


def _quotient(node: Binary) -> Measured | None:
    """Return the unit of a mean (sum by count of one histogram), or of a share of a whole."""
    if node.op != "/":
        return None
    if _summed(node.lhs).text in _terms(_summed(node.rhs)):
        return Measured(f"`{node.text}`", "fraction")
    left, right = _single(node.lhs), _single(node.rhs)
    if left is None or right is None:
        return None
    one, other = (catalogue.lookup(s.metric_name or "") for s in (left, right))
    if one and other and (one.part, other.part) == ("sum", "count") and one.metric == other.metric:
        unit = one.metric.unit
        return Measured(f"the mean of `{one.metric.name}`", unit) if unit else None
    if left.metric_name == right.metric_name and left.range_ms == right.range_ms \
            and set(right.matchers) < set(left.matchers):
        return Measured(f"a share of `{left.metric_name}`", "fraction")
    if left.range_ms == right.range_ms and _is_share(left.metric_name, right.metric_name):
        return Measured(f"`{left.metric_name}` by `{right.metric_name}`", "ratio")
    return None


def _summed(node: Node) -> Node:
    """Return what a sum adds up; a sum of two is the two sums together."""
    return node.expr if isinstance(node, Aggregate) and node.op == "sum" else node


def _terms(node: Node) -> set[str]:
    """Return what `a + b + c` adds, when all of it is of the catalogue and so never negative."""
    if not isinstance(node, Binary) or node.op != "+":
        return set()
    found = {t for side in (node.lhs, node.rhs)
             for t in (_terms(_summed(side)) or {_summed(side).text})}
    return found if is_never_negative(node) else set()


# What is counted, and what it is counted among, as names say it.
_PARTS = frozenset({
    "abort", "aborted", "accepted", "available", "cached", "corrupted", "dropped", "error",
    "failed", "failure", "free", "hit", "idle", "miss", "missed", "open", "refused", "rejected",
    "rejection", "retried", "success", "successful", "timeout", "usage", "used",
})
_WHOLES = frozenset({
    "attempt", "capacity", "draft", "limit", "lookup", "max", "maximum", "query", "request",
    "size", "spec", "total",
})
_PLURALS = {"queries": "query", "retries": "retry", "misses": "miss", "success": "success"}


def _is_share(part: str | None, whole: str | None) -> bool:
    """Whether the names say that the one is counted among the other: `…_hits` of `…_queries`."""
    one, other = _words(part or ""), _words(whole or "")
    mine, yours = one - other, other - one
    return bool(mine & _PARTS) and mine <= _PARTS | _WHOLES and yours <= _WHOLES


@lru_cache(maxsize=1_024)
def _words(name: str) -> frozenset[str]:
    """Return the words of a metric's name, one by one, without what says that it is counted."""
    plain = re.sub(r"_(total|count|sum)$", "", name)
    parts: list[str] = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", plain)
    return frozenset(_PLURALS.get(p.lower(), p.lower().removesuffix("s")) for p in parts)


def _single(node: Node) -> Selector | None:
    """Return the one selector under sums and rates, which keep a quotient a quotient."""
    if isinstance(node, Selector):
        return node
    if isinstance(node, Aggregate) and node.op == "sum":
        return _single(node.expr)
    if isinstance(node, Call) and node.function in ("rate", "increase", "irate"):
        return _single(node.args[0])
    return None


def value_range(node: Node) -> tuple[float, float]:
    """Return the least and the greatest value that `node` can have; infinite where not known."""
    value = measured(node)
    if value is not None and value.unit in _WHOLE and value.metric not in _CAN_BE_NEGATIVE:
        return 0.0, _WHOLE[value.unit]
    return (0.0 if is_never_negative(node) else -math.inf), math.inf


def is_never_negative(node: Node) -> bool:
    """Return whether the catalogue's metrics and plain arithmetic make `node` 0 or more."""
    if isinstance(node, Selector):
        known = catalogue.lookup(node.metric_name or "")
        if known is None:
            return (node.metric_name or "").endswith(("_total", "_count", "_bucket"))
        return known.metric.name not in _CAN_BE_NEGATIVE
    if isinstance(node, Aggregate) and node.op in ("sum", "max", "min", "avg", "quantile"):
        return is_never_negative(node.expr)
    if isinstance(node, Call) and node.function in _NEVER_NEGATIVE:
        return all(is_never_negative(a) for a in node.args if a.type in ("vector", "matrix"))
    if isinstance(node, Binary) and node.op in ("+", "*", "/"):
        return is_never_negative(node.lhs) and is_never_negative(node.rhs)
    number = number_of(node)
    return number is not None and number >= 0
