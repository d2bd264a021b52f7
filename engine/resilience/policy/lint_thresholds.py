"""Comparisons that are missing, decided by the numbers alone, or in the wrong unit."""

from __future__ import annotations

import math
from collections.abc import Iterator

from resilience.policy import catalogue
from resilience.policy.lint_view import Remark, View, decides
from resilience.promql.plan import (
    COMPARISONS,
    Aggregate,
    Binary,
    Call,
    Negate,
    Node,
    Number,
    Selector,
    walk,
)

SECONDS_MAX = 100


def no_comparison(view: View) -> Iterator[Remark]:
    if view.role != "metric" and not decides(view.plan):
        yield Remark(
            view.plan, "no-comparison",
            "no comparison: true whenever a series exists, also at value 0",
            "compare it, as in `… > 0`",
        )


def never_or_always(view: View) -> Iterator[Remark]:
    """Comparisons whose outcome the numbers alone decide."""
    for node in view.nodes:
        if not isinstance(node, Binary) or node.op not in COMPARISONS:
            continue
        for side, number, op in _against_number(node):
            yield from _odd_threshold(node, number, op)
            yield from _outside_range(side, node, number, op)


def _against_number(node: Binary) -> Iterator[tuple[Node, float, str]]:
    """Yield (other side, number, operator seen from the other side)."""
    mirrored = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
    right, left = _number(node.rhs), _number(node.lhs)
    if right is not None:
        yield node.lhs, right, node.op
    elif left is not None:
        yield node.rhs, left, mirrored.get(node.op, node.op)


def _number(node: Node) -> float | None:
    if isinstance(node, Negate):
        inner = _number(node.expr)
        return None if inner is None else -inner
    return node.value if isinstance(node, Number) else None


def _odd_threshold(node: Binary, number: float, op: str) -> Iterator[Remark]:
    if math.isnan(number):
        outcome = "always" if op == "!=" else "never"
        yield Remark(node, "never-true" if outcome == "never" else "always-true",
                     f"a comparison with NaN is {outcome} true", "write a number")
    elif math.isinf(number):
        never = (number > 0) == (op in (">", ">="))
        code, word = ("never-true", "never") if never else ("always-true", "always")
        if op not in ("==", "!="):
            yield Remark(node, code, f"`{op} {'+' if number > 0 else '-'}Inf` is {word} true",
                         "write a number")


def _outside_range(side: Node, node: Binary, number: float, op: str) -> Iterator[Remark]:
    """Fractions are compared with 0.9, not with 90; a percentage the other way round."""
    metric = _plain_metric(side)
    if metric is None:
        return
    name = metric.metric.name
    if metric.metric.unit == "fraction" and number > 1 and op in (">", ">=", "=="):
        shown = f"; did you mean `{op} {number / 100:g}`?" if number <= 100 else ""
        yield Remark(node, "unit-mismatch",
                     f"`{name}` is a fraction from 0 to 1: `{op} {number:g}` is never true",
                     (shown.removeprefix("; ") or None))
    elif metric.metric.unit == "seconds" and number >= SECONDS_MAX and op in (">", ">="):
        yield Remark(node, "unit-mismatch", f"`{name}` is in seconds: `{op} {number:g}` looks like "
                     "milliseconds", f"did you mean `{op} {number / 1000:g}`?")
    elif metric.metric.unit == "percent" and 0 < number < 1 and op in (">", ">="):
        yield Remark(node, "unit-mismatch", f"`{name}` is a percentage from 0 to 100",
                     f"did you mean `{op} {number * 100:g}`?")


def _plain_metric(node: Node) -> catalogue.Known | None:
    """Return the metric whose value `node` still has: through max, min, avg and *_over_time."""
    if isinstance(node, Aggregate) and node.op in ("max", "min", "avg", "quantile", "topk"):
        return _plain_metric(node.expr)
    if isinstance(node, Call) and node.function in _VALUE_KEEPERS and node.args:
        return _plain_metric(node.args[-1])
    if isinstance(node, Call) and node.function == "histogram_quantile":
        return _bucket_metric(node.args[1])
    if isinstance(node, Selector) and node.metric_name:
        return catalogue.lookup(node.metric_name) or _renamed_fraction(node.metric_name)
    return None


def _bucket_metric(node: Node) -> catalogue.Known | None:
    """Return the histogram whose quantile is taken: its buckets are in the metric's own unit."""
    for inner in walk(node):
        if isinstance(inner, Selector) and inner.metric_name:
            known = catalogue.lookup(inner.metric_name)
            return known if known is not None and known.part == "bucket" else None
    return None


def sums_of_fractions(view: View) -> Iterator[Remark]:
    """The sum of usages of several servers is no usage."""
    for node in view.nodes:
        if isinstance(node, Aggregate) and node.op == "sum":
            known = _plain_metric(node.expr)
            if known is not None and known.metric.unit in ("fraction", "percent") \
                    and known.metric.name not in ("up", "probe_success"):
                yield Remark(node, "sum-of-fractions",
                             f"a sum of `{known.metric.name}`, which is a share of each server",
                             "use `max` or `avg`")


_VALUE_KEEPERS = frozenset({
    "max_over_time", "min_over_time", "avg_over_time", "last_over_time", "quantile_over_time",
})


def _renamed_fraction(name: str) -> catalogue.Known | None:
    if name in ("vllm:gpu_cache_usage_perc", "vllm:cpu_cache_usage_perc"):
        return catalogue.Known(catalogue.Metric(name, "gauge", "fraction"), "value")
    return None
