"""Series read in a way that their type does not bear."""

from __future__ import annotations

import re
from collections.abc import Iterator

from resilience.model import format_duration
from resilience.policy import catalogue
from resilience.policy.catalogue import Known
from resilience.policy.lint_units import measured
from resilience.policy.lint_view import Remark, View
from resilience.promql.plan import Aggregate, Binary, Call, Node, Selector, Subquery, walk

_COUNTER_FUNCTIONS = frozenset({"rate", "increase", "irate"})
_COUNTER_READERS = _COUNTER_FUNCTIONS | {
    "resets", "absent", "absent_over_time", "present_over_time", "timestamp", "changes",
    "count_over_time",
}
# What is meant, where a function of gauges stands over a counter.
_GAUGE_FUNCTIONS = {"delta": "increase", "idelta": "irate", "deriv": "rate",
                    "predict_linear": "rate", "double_exponential_smoothing": "rate"}
_WINDOW_MIN_SCRAPES = 4


def histograms(view: View) -> Iterator[Remark]:
    """histogram_quantile reads buckets, and only buckets that still have `le`."""
    for node in view.nodes:
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
        if isinstance(inner, Aggregate) and inner.op == "avg":
            yield Remark(inner, "quantile-of-avg",
                         "histogram_quantile over an average of buckets weighs a busy server like "
                         "an idle one", "use `sum by (le, …)`")
            return


def averages(view: View) -> Iterator[Remark]:
    """A quantile is of requests: not of averages, and no average of quantiles is one."""
    for node in view.nodes:
        if isinstance(node, Aggregate) and node.op in ("avg", "sum") and any(
            isinstance(n, Call) and n.function == "histogram_quantile" for n in walk(node.expr)
        ):
            yield Remark(node, "avg-of-quantile",
                         f"`{node.op}` of quantiles is not a quantile of all requests",
                         "aggregate the buckets: `histogram_quantile(φ, sum by (le) (rate(…)))`")
        inner = _of_quantile(node)
        if inner is not None and any(_is_mean(n) for n in walk(inner)):
            yield Remark(node, "quantile-of-avg", "a quantile over averages says how averages are "
                         "spread, and hides slow requests",
                         "use `histogram_quantile` over the buckets")


def _of_quantile(node: Node) -> Node | None:
    if isinstance(node, Aggregate) and node.op == "quantile":
        return node.expr
    if isinstance(node, Call) and node.function == "quantile_over_time":
        return node.args[1]
    return None


def _is_mean(node: Node) -> bool:
    value = measured(node)
    return isinstance(node, Binary) and value is not None and value.what.startswith("the mean")


def rates_of_sums(view: View) -> Iterator[Remark]:
    """A sum of counters drops when one server restarts, and its rate counts all of it again."""
    for node in view.nodes:
        if not isinstance(node, Call) or node.function not in _COUNTER_FUNCTIONS:
            continue
        inner = node.args[0]
        if isinstance(inner, Subquery) and isinstance(inner.expr, Aggregate) \
                and not any(isinstance(n, Call) for n in walk(inner.expr)):
            yield Remark(node, "rate-of-sum", f"`{node.function}` of `{inner.expr.op}` takes the "
                         "restart of one server for a reset of all",
                         f"sum the rates: `{inner.expr.op}({node.function}(…))`")


def counters(view: View) -> Iterator[Remark]:
    """A counter means something as a rate, a gauge never does."""
    for selector in view.selectors:
        known = catalogue.lookup(selector.metric_name or "")
        function = _range_function(view, selector)
        if _grows(selector, known):
            yield from _as_counter(view, selector, function, known)
        elif known is not None and known.metric.type == "gauge" and function in _COUNTER_FUNCTIONS:
            yield Remark(selector, "rate-of-gauge",
                         f"`{function}` of `{selector.metric_name}`, which is a gauge",
                         "use `deriv` or `delta`")


def _grows(selector: Selector, known: Known | None) -> bool:
    """Whether it is a counter, by the catalogue or by the ending that OpenMetrics gives it."""
    if known is None:
        return (selector.metric_name or "").endswith("_total")
    return known.part in ("bucket", "sum", "count") or (
        known.metric.grows and known.part != "created")


def _as_counter(
    view: View, selector: Selector, function: str | None, known: Known | None
) -> Iterator[Remark]:
    name = selector.metric_name
    if function in _GAUGE_FUNCTIONS:
        window = format_duration(selector.range_ms)
        yield Remark(selector, "delta-of-counter",
                     f"`{function}` of `{name}`, which is a counter: a restart of the server looks "
                     "like a fall", f"use `{_GAUGE_FUNCTIONS[function]}({name}[{window}])`")
    elif known is not None and not _read_as_counter(view, selector):
        yield Remark(selector, "counter-without-rate",
                     f"`{name}` is a counter: its value only grows", f"use `rate({name}[1m])`")


def _read_as_counter(view: View, selector: Selector) -> bool:
    for above in view.above(selector):
        if isinstance(above, Call) and above.function in _COUNTER_READERS:
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
    for selector in view.selectors:
        if selector.range_ms and selector.range_ms < _WINDOW_MIN_SCRAPES * interval:
            yield Remark(selector, "short-window",
                         f"window of {format_duration(selector.range_ms)} holds fewer than "
                         f"{_WINDOW_MIN_SCRAPES} scrapes of {format_duration(interval)}",
                         f"use at least {format_duration(_WINDOW_MIN_SCRAPES * interval)}")


def _selectors(node: Node) -> Iterator[Selector]:
    return (n for n in walk(node) if isinstance(n, Selector))
