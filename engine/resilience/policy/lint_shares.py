"""Which quotient is a mean, and which a share of a whole: by what is divided, and by its names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from resilience.policy import catalogue
from resilience.policy.catalogue import Known
from resilience.policy.lint_numbers import number_of
from resilience.policy.lint_view import RATES
from resilience.promql.plan import (
    COMPARISONS,
    Aggregate,
    Binary,
    Call,
    Node,
    Selector,
    walk,
)

_OVER_TIME = {"sum_over_time": "count_over_time"}
TIMES = frozenset({"seconds", "milliseconds", "microseconds"})
_CAN_BE_NEGATIVE = frozenset({"vllm:gpu_prefix_cache_hit_rate", "vllm:cpu_prefix_cache_hit_rate",
                              "sglang:cache_hit_rate"})
# 0 or more whatever they are given, and what is so if that is.
_NEVER_NEGATIVE = frozenset({
    "abs", "absent", "absent_over_time", "changes", "count_over_time", "histogram_fraction",
    "present_over_time", "resets", "sqrt", "stddev_over_time", "stdvar_over_time", "time",
})
_KEEP_SIGN = frozenset({
    *RATES, "histogram_quantile", "max_over_time", "min_over_time", "avg_over_time",
    "sum_over_time", "last_over_time", "quantile_over_time", "scalar",
})


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean: of what, in which unit, or else `values` whose unit it has. An empty unit and no
    values: nobody knows."""

    what: str
    unit: str = ""
    values: Node | None = None


def mean_of(node: Node) -> Mean | None:
    """Return what `sum / count` of one thing is the mean of; None for another quotient."""
    if not isinstance(node, Binary) or node.op != "/":
        return None
    whole = _mean_of_values(node.lhs, unwrapped(node.rhs))
    if whole is not None:
        return whole
    left, right = single(node.lhs), single(node.rhs)
    if left is None or right is None:
        return None
    one, other = catalogue.lookup(left.metric_name or ""), catalogue.lookup(right.metric_name or "")
    if one is not None and other is not None:
        return _mean_of_known(one, other)
    base = _base(left.metric_name, "_sum")
    if base is not None and base == _base(right.metric_name, "_count"):
        return Mean(f"`{base}`")
    return None


def _mean_of_values(left: Node, right: Node) -> Mean | None:
    """`sum(x) / count(x)` is `avg(x)`, and so are their kin over time."""
    if isinstance(left, Aggregate) and left.op == "sum" and isinstance(right, Aggregate) \
            and right.op == "count" and left.expr.text == right.expr.text:
        return Mean(f"`{left.expr.text}`", values=left.expr)
    if isinstance(left, Call) and isinstance(right, Call) \
            and _OVER_TIME.get(left.function) == right.function \
            and left.args[0].text == right.args[0].text:
        return Mean(f"`{left.args[0].text}`", values=left.args[0])
    return None


def _mean_of_known(one: Known, other: Known) -> Mean | None:
    if (one.part, other.part) == ("sum", "count") and one.metric == other.metric:
        return Mean(f"`{one.metric.name}`", one.metric.unit)
    counts = other.part == "count" or (other.metric.grows and not other.metric.unit)
    if one.metric.grows and one.metric.unit in TIMES and counts \
            and one.metric.stack == other.metric.stack:
        return Mean(f"`{one.metric.name}`", one.metric.unit)
    return None


def _base(name: str | None, suffix: str) -> str | None:
    return name[: -len(suffix)] if name and name.endswith(suffix) else None


# --- shares --------------------------------------------------------------------------------------


def share_of(node: Binary) -> tuple[str, str] | None:
    """Return (what it is a share of, unit) of a quotient. Unit `ratio`: a share by its name only,
    so that it may pass 1 where a limit can be overdrawn."""
    left, right = summed(node.lhs), summed(node.rhs)
    if left.text in _terms(right) or _is_rest(left, right):
        return f"`{node.text}`", "fraction"
    if _is_counted_among(_bare(node.lhs), unwrapped(node.rhs)):
        return f"`{node.text}`", "fraction"
    one, other = single(node.lhs), single(node.rhs)
    if one is None or other is None or one.range_ms != other.range_ms:
        return None
    if _is_bucket_of(one, other):
        return f"a share of `{other.metric_name}`", "fraction"
    if one.metric_name == other.metric_name and set(other.matchers) < set(one.matchers):
        return f"a share of `{one.metric_name}`", "fraction"
    if _is_share(one.metric_name, other.metric_name):
        sure = _is_part(one.metric_name, other.metric_name)
        return (f"`{one.metric_name}` by `{other.metric_name}`", "fraction" if sure else "ratio")
    return None


def is_itself(node: Node) -> bool:
    """Whether each series is divided by itself: some of a metric by all of it, without sums."""
    if not isinstance(node, Binary) or node.op != "/" or node.matching is None \
            or node.matching.on or node.matching.labels or node.matching.card != "one-to-one":
        return False
    left, right = node.lhs, node.rhs
    if isinstance(left, Call) and isinstance(right, Call) and left.function in RATES \
            and left.function == right.function:
        left, right = left.args[0], right.args[0]
    if not isinstance(left, Selector) or not isinstance(right, Selector):
        return False
    same = (left.metric_name, left.range_ms, left.offset_ms, left.at) == (
        right.metric_name, right.range_ms, right.offset_ms, right.at)
    return same and bool(left.metric_name) and set(right.matchers) <= set(left.matchers)


def summed(node: Node) -> Node:
    """Return what a sum adds up; a sum of two is the two sums together."""
    return node.expr if isinstance(node, Aggregate) and node.op == "sum" else node


def _terms(node: Node) -> set[str]:
    """Return what `a + b + c` adds, when all of it is of the catalogue and so never negative."""
    if not isinstance(node, Binary) or node.op != "+":
        return set()
    found = {t for side in (node.lhs, node.rhs)
             for t in (_terms(summed(side)) or {summed(side).text})}
    return found if is_never_negative(node) else set()


def _is_rest(left: Node, right: Node) -> bool:
    """Whether it is `(total - part) / total`."""
    return isinstance(left, Binary) and left.op == "-" and is_never_negative(left.lhs) \
        and is_never_negative(left.rhs) and summed(left.lhs).text == right.text


def unwrapped(node: Node) -> Node:
    """Return the vector that `scalar` makes a number of; anything else is as it is."""
    return node.args[0] if isinstance(node, Call) and node.function == "scalar" else node


def _bare(node: Node) -> Node:
    """Return what is counted where `… or vector(0)` says that there may be none."""
    return node.lhs if isinstance(node, Binary) and node.op == "or" \
        and not any(isinstance(n, Selector) for n in walk(node.rhs)) else node


def _is_counted_among(left: Node, right: Node) -> bool:
    """Whether it is `count(x > 5) / count(x)`, or the sum of a `bool` by such a count."""
    if not (isinstance(left, Aggregate) and isinstance(right, Aggregate) and right.op == "count"):
        return False
    part, whole = left.expr, right.expr
    if left.op == "sum":
        return isinstance(part, Binary) and part.bool_result and _compared(part).text == whole.text
    if left.op != "count" or part.text == whole.text:
        return False
    part = _compared(part)
    if isinstance(part, Selector) and isinstance(whole, Selector):
        return part.metric_name == whole.metric_name \
            and set(whole.matchers) <= set(part.matchers)
    return part.text == whole.text


def _compared(node: Node) -> Node:
    """Return what comparisons with numbers have left of a vector."""
    while isinstance(node, Binary) and node.op in COMPARISONS:
        if number_of(node.rhs) is None and number_of(node.lhs) is None:
            break
        node = node.rhs if node.lhs.type == "scalar" else node.lhs
    return node


def _is_bucket_of(left: Selector, right: Selector) -> bool:
    """Whether requests of a bucket are divided by all of them: `_count`, or the bucket `+Inf`."""
    base = _base(left.metric_name, "_bucket")
    if base is None:
        return False
    if right.metric_name == f"{base}_count":
        return True
    every = any(m.name == "le" and m.op == "=" and m.value in ("+Inf", "Inf")
                for m in right.matchers)
    return every and right.metric_name == left.metric_name


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


def _is_part(part: str | None, whole: str | None) -> bool:
    """Whether both are counters of one server whose share is one, not a limit that is overdrawn."""
    known = [catalogue.lookup(name or "") for name in (part, whole)]
    return all(k is not None and k.metric.grows for k in known)


@lru_cache(maxsize=1_024)
def _words(name: str) -> frozenset[str]:
    """Return the words of a metric's name, one by one, without what says that it is counted."""
    plain = re.sub(r"_(total|count|sum)$", "", name)
    parts: list[str] = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", plain)
    return frozenset(_PLURALS.get(p.lower(), p.lower().removesuffix("s")) for p in parts)


def single(node: Node) -> Selector | None:
    """Return the one selector under sums and rates, which keep a quotient a quotient."""
    if isinstance(node, Selector):
        return node
    if isinstance(node, Aggregate) and node.op == "sum":
        return single(node.expr)
    if isinstance(node, Call) and node.function in RATES:
        return single(node.args[0])
    return None


def is_never_negative(node: Node) -> bool:
    """Return whether the catalogue's metrics and plain arithmetic make `node` 0 or more."""
    if isinstance(node, Selector):
        known = catalogue.lookup(node.metric_name or "")
        if known is None:
            return (node.metric_name or "").endswith(("_total", "_count", "_bucket"))
        return known.metric.name not in _CAN_BE_NEGATIVE
    if isinstance(node, Aggregate) and node.op in (
        "sum", "max", "min", "avg", "quantile", "topk", "bottomk"
    ):
        return is_never_negative(node.expr)
    if isinstance(node, Aggregate) and node.op in ("count", "group", "stddev", "stdvar"):
        return True
    if isinstance(node, Call) and node.function in _NEVER_NEGATIVE:
        return True
    if isinstance(node, Call) and node.function in _KEEP_SIGN:
        return all(is_never_negative(a) for a in node.args if a.type in ("vector", "matrix"))
    if isinstance(node, Binary) and node.op in ("+", "*", "/"):
        return is_never_negative(node.lhs) and is_never_negative(node.rhs)
    number = number_of(node)
    return number is not None and number >= 0


def can_be_negative(metric: str | None) -> bool:
    """Return whether a server has been seen to export this share below 0."""
    return metric in _CAN_BE_NEGATIVE
