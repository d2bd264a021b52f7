"""Expressions that parse and still do not mean what was meant. Every rule is a warning."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from resilience.model import Severity, format_duration
from resilience.policy import catalogue
from resilience.policy.places import value_place
from resilience.promql.plan import (
    COMPARISONS,
    SET_OPERATORS,
    Aggregate,
    Binary,
    Call,
    Negate,
    Node,
    Number,
    Plan,
    Selector,
    walk,
)

if TYPE_CHECKING:
    from resilience.policy.context import Context
    from resilience.policy.expressions import Expression

Role: TypeAlias = Literal["trigger", "resolve", "metric"]
_COUNTER_FUNCTIONS = frozenset({"rate", "increase", "irate"})
_COUNTER_READERS = _COUNTER_FUNCTIONS | {
    "resets", "absent", "absent_over_time", "present_over_time", "timestamp", "changes",
    "count_over_time",
}
_WINDOW_MIN_SCRAPES = 4


@dataclass(frozen=True, slots=True)
class Remark:
    """What a rule has to say about a node."""

    node: Node
    code: str
    message: str
    suggestion: str | None = None
    severity: Severity = "warning"


@dataclass(frozen=True, slots=True)
class View:
    """What a rule may look at: the plan and, for each node, the one above it."""

    plan: Plan
    role: Role
    parents: dict[int, Node]
    context: Context
    on_missing_metric: str

    def above(self, node: Node) -> Iterator[Node]:
        """Yield the nodes above `node`, nearest first."""
        current = self.parents.get(id(node))
        while current is not None:
            yield current
            current = self.parents.get(id(current))


def run(expression: Expression, plan: Plan, context: Context) -> None:
    """Add what the rules find, each thing once, at its place in the file."""
    parents = {id(child): node for node in walk(plan) for child in node.children}
    view = View(plan, expression.role, parents, context, expression.on_missing_metric)
    seen: set[tuple[str, str]] = set()
    for rule in RULES:
        for remark in rule(view):
            if (remark.code, remark.message) in seen:
                continue
            seen.add((remark.code, remark.message))
            place = value_place(
                expression.document, expression.place, expression.text, remark.node.pos
            )
            context.add(
                expression.document, place, remark.severity, remark.code,
                f"{expression.path}: {remark.message}", remark.suggestion,
            )


def comment_cut(expression: Expression, plan: Plan, context: Context) -> bool:
    """Warn when ` #` ended an unquoted expression that has no comparison yet."""
    place = expression.place
    if place.style != "" or not expression.document.text or _decides(plan):
        return False
    rest = re.match(r"[ \t]+#[^\r\n]*", expression.document.text[place.end : place.end + 500])
    if rest is None:
        return False
    context.add(
        expression.document, place, "warning", "expr-cut",
        f"{expression.path} ends before ` #`: the rest of the line is a YAML comment, and what is "
        "left has no comparison", "quote the expression",
    )
    return True


def _decides(node: Node) -> bool:
    """Return whether the expression holds series back: by a comparison or what implies one."""
    if isinstance(node, Binary):
        if node.op in COMPARISONS:
            return True
        if node.op in SET_OPERATORS:
            either = _decides(node.lhs) and _decides(node.rhs)
            return either if node.op == "or" else _decides(node.lhs) or node.op == "unless" \
                or _decides(node.rhs)
        return _decides(node.lhs) or _decides(node.rhs)
    if isinstance(node, Call) and node.function in ("absent", "absent_over_time"):
        return True
    if isinstance(node, Aggregate) and node.op in ("topk", "bottomk"):
        return _decides(node.expr)
    return any(_decides(child) for child in node.children)


# --- rules -------------------------------------------------------------------------------------


def no_comparison(view: View) -> Iterator[Remark]:
    if view.role != "metric" and not _decides(view.plan):
        yield Remark(
            view.plan, "no-comparison",
            "no comparison: true whenever a series exists, also at value 0",
            "compare it, as in `… > 0`",
        )


def never_or_always(view: View) -> Iterator[Remark]:
    """Comparisons whose outcome the numbers alone decide."""
    for node in walk(view.plan):
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
    elif metric.metric.unit == "percent" and 0 < number < 1 and op in (">", ">="):
        yield Remark(node, "unit-mismatch", f"`{name}` is a percentage from 0 to 100",
                     f"did you mean `{op} {number * 100:g}`?")


def _plain_metric(node: Node) -> catalogue.Known | None:
    """Return the metric whose value `node` still has: through max, min, avg and *_over_time."""
    if isinstance(node, Aggregate) and node.op in ("max", "min", "avg", "quantile", "topk"):
        return _plain_metric(node.expr)
    if isinstance(node, Call) and node.function in _VALUE_KEEPERS and node.args:
        return _plain_metric(node.args[-1])
    if isinstance(node, Selector) and node.metric_name:
        return catalogue.lookup(node.metric_name) or _renamed_fraction(node.metric_name)
    return None


_VALUE_KEEPERS = frozenset({
    "max_over_time", "min_over_time", "avg_over_time", "last_over_time", "quantile_over_time",
})


def _renamed_fraction(name: str) -> catalogue.Known | None:
    if name in ("vllm:gpu_cache_usage_perc", "vllm:cpu_cache_usage_perc"):
        return catalogue.Known(catalogue.Metric(name, "gauge", "fraction"), "value")
    return None


def histograms(view: View) -> Iterator[Remark]:
    """histogram_quantile reads buckets, and only buckets that still have `le`."""
    for node in walk(view.plan):
        if not isinstance(node, Call) or node.function != "histogram_quantile":
            continue
        for selector in _selectors(node.args[1]):
            name = selector.metric_name
            if name and not name.endswith("_bucket"):
                base = re.sub(r"_(sum|count|total)$", "", name)
                yield Remark(selector, "no-bucket",
                             f"histogram_quantile over `{name}`, which is not a bucket series",
                             f"use `{base}_bucket`")
        yield from _lost_le(node)


def _lost_le(node: Call) -> Iterator[Remark]:
    for inner in walk(node.args[1]):
        if isinstance(inner, Aggregate) and ("le" in inner.grouping) == inner.without:
            yield Remark(inner, "lost-le",
                         f"histogram_quantile needs the label `le`, and `{inner.op}` drops it",
                         "add `le` to `by (…)`" if not inner.without else "take `le` out")
            return


def counters(view: View) -> Iterator[Remark]:
    """A counter means something as a rate, a gauge never does."""
    for selector in _selectors(view.plan):
        known = catalogue.lookup(selector.metric_name or "")
        if known is None:
            continue
        function = _range_function(view, selector)
        grows = known.metric.type == "counter" or known.part in ("bucket", "sum", "count")
        if grows and known.part != "created" and not _read_as_counter(view, selector):
            yield Remark(selector, "counter-without-rate",
                         f"`{selector.metric_name}` is a counter: its value only grows",
                         f"use `rate({selector.metric_name}[1m])`")
        elif known.metric.type == "gauge" and function in _COUNTER_FUNCTIONS:
            yield Remark(selector, "rate-of-gauge",
                         f"`{function}` of `{selector.metric_name}`, which is a gauge",
                         "use `deriv` or `delta`")


def _read_as_counter(view: View, selector: Selector) -> bool:
    for above in view.above(selector):
        if isinstance(above, Call) and (
            above.function in _COUNTER_READERS or above.function.endswith("_over_time")
        ):
            return True
        if isinstance(above, Call) and above.function in ("deriv", "delta", "idelta"):
            return True
        if isinstance(above, Binary) and above.op in ("-", "/"):
            return True
    return False


def _range_function(view: View, selector: Selector) -> str | None:
    above = view.parents.get(id(selector))
    return above.function if isinstance(above, Call) and selector.range_ms else None


def windows(view: View) -> Iterator[Remark]:
    """A window that holds fewer than four scrapes is empty as soon as one is late."""
    interval = view.context.interval_ms
    for selector in _selectors(view.plan):
        if selector.range_ms and selector.range_ms < _WINDOW_MIN_SCRAPES * interval:
            yield Remark(selector, "short-window",
                         f"window of {format_duration(selector.range_ms)} holds fewer than "
                         f"{_WINDOW_MIN_SCRAPES} scrapes of {format_duration(interval)}",
                         f"use at least {format_duration(_WINDOW_MIN_SCRAPES * interval)}")


def metrics(view: View) -> Iterator[Remark]:
    """Names that the target, or without a target the catalogue, does not know."""
    exported = view.context.metric_names
    for selector in _selectors(view.plan):
        name = selector.metric_name
        if not name or (exported is not None and name in exported):
            continue
        if _wants_buckets(view, selector) and not name.endswith("_bucket"):
            continue                          # histograms() says what to use
        if exported is None:
            yield from _not_in_catalogue(selector, name)
        else:
            yield _not_exported(view, selector, name, exported)


def _wants_buckets(view: View, selector: Selector) -> bool:
    return any(
        isinstance(n, Call) and n.function == "histogram_quantile" for n in view.above(selector)
    )


def _not_in_catalogue(selector: Selector, name: str) -> Iterator[Remark]:
    if name in catalogue.RENAMED:
        yield Remark(selector, "metric-renamed", f"current vLLM does not export `{name}`",
                     f"use {catalogue.RENAMED[name]}")
    elif name in catalogue.REMOVED:
        yield Remark(selector, "metric-removed",
                     f"current vLLM does not export `{name}`, and nothing replaces it")
    else:
        known = catalogue.lookup(name)
        if known is None:
            guess = catalogue.guess(name)
            yield Remark(selector, "metric-unknown", f"metric `{name}` is not in the catalogue",
                         f"did you mean `{guess}`?" if guess else None)
        elif known.part == "base":
            yield Remark(selector, "histogram-base",
                         f"`{name}` names a histogram's base series, which no server exports",
                         f"use `{name}_bucket`, `{name}_sum` or `{name}_count`")


def _not_exported(
    view: View, selector: Selector, name: str, exported: frozenset[str]
) -> Remark:
    severe = view.context.require_metrics and view.on_missing_metric != "warn"
    if f"{name}_bucket" in exported:
        return Remark(selector, "histogram-base",
                      f"`{name}` names a histogram's base series, which no server exports",
                      f"use `{name}_bucket`, `{name}_sum` or `{name}_count`",
                      "error" if severe else "warning")
    current = catalogue.RENAMED.get(name)
    hint = f"use {current}" if current else None
    if hint is None:
        guess = catalogue.guess(name, exported)
        hint = f"did you mean `{guess}`?" if guess else "the policy would be blind"
    return Remark(selector, "metric-missing", f"metric `{name}` is not exported by the target",
                  hint, "error" if severe else "warning")


def _selectors(node: Node) -> Iterator[Selector]:
    return (n for n in walk(node) if isinstance(n, Selector))


RULES: tuple[Callable[[View], Iterator[Remark]], ...] = (
    no_comparison, never_or_always, histograms, counters, windows, metrics,
)
