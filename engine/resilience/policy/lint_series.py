"""Series read in a way that their type does not bear."""

from __future__ import annotations

import re
from collections.abc import Iterator

from resilience.model import format_duration
from resilience.policy import catalogue
from resilience.policy.catalogue import Known
from resilience.policy.lint_label_sets import KEEP_SERIES
from resilience.policy.lint_shares import mean_of, single, summed
from resilience.policy.lint_view import OF_BUCKETS, RATES, Remark, View
from resilience.promql.plan import (
    Aggregate,
    Binary,
    Call,
    Negate,
    Node,
    Selector,
    Subquery,
    walk,
)

_COUNTER_READERS = RATES | {
    "resets", "absent", "absent_over_time", "present_over_time", "timestamp", "changes",
    "count_over_time",
}
# What is meant, where a function of gauges stands over a counter.
_GAUGE_FUNCTIONS = {"delta": "increase", "idelta": "irate", "deriv": "rate",
                    "predict_linear": "rate", "double_exponential_smoothing": "rate"}
_WINDOW_MIN_SCRAPES = 4


def histograms(view: View) -> Iterator[Remark]:
    """histogram_quantile reads buckets, and only buckets that still have `le`."""
    for node in view.calls:
        if node.function not in OF_BUCKETS:
            continue
        for selector in _selectors(node.args[-1]):
            name = selector.metric_name
            if name and not name.endswith("_bucket"):
                base = re.sub(r"_(sum|count|total)$", "", name)
                yield Remark(selector, "no-bucket",
                             f"{node.function} over `{name}`, which is not a bucket series",
                             f"use `{base}_bucket`")
        yield from _lost_le(node)


def _lost_le(node: Call) -> Iterator[Remark]:
    for inner in walk(node.args[-1]):
        if not isinstance(inner, Aggregate) or inner.op in KEEP_SERIES:
            continue
        if ("le" in inner.grouping) == inner.without:
            yield Remark(inner, "lost-le",
                         f"{node.function} needs the label `le`, and `{inner.op}` drops it",
                         "add `le` to `by (…)`" if not inner.without else "take `le` out")
            return
        if inner.op != "sum":
            what = "an average" if inner.op == "avg" else f"the `{inner.op}`"
            yield Remark(inner, "quantile-of-avg",
                         f"{node.function} over {what} of buckets weighs a busy server like "
                         "an idle one", "use `sum by (le, …)`")
            return


def sums_of_buckets(view: View) -> Iterator[Remark]:
    """Each bucket holds those below it too, so a sum of all of them counts a request several times.
    """
    for node in view.aggregates:
        kept = ("le" in node.grouping) != node.without
        selector = single(node.expr) if node.op in ("sum", "avg") and not kept else None
        base = (selector.metric_name or "").removesuffix("_bucket") if selector is not None else ""
        if selector is None or not _is_of_buckets(node, selector) \
                or any(m.name == "le" and m.op in ("=", "=~") for m in selector.matchers) \
                or any(isinstance(n, Call) and n.function in OF_BUCKETS for n in view.above(node)):
            continue
        yield Remark(node, "lost-le", f"`{node.op}` adds all buckets of `{base}`, and each holds "
                     "those below it too: a request counts several times",
                     f"use `{base}_count`, or one bucket: `{base}_bucket{{le=\"…\"}}`")


def _is_of_buckets(node: Aggregate, selector: Selector) -> bool:
    """A gauge may be named after a bucket that tokens are taken from."""
    name = selector.metric_name or ""
    known = catalogue.lookup(name)
    return name.endswith("_bucket") and (
        node.expr is not selector if known is None else known.part == "bucket")


def averages(view: View) -> Iterator[Remark]:
    """A quantile is of requests: not of averages, and no average of quantiles is one."""
    for node in view.nodes:
        if isinstance(node, Aggregate) and node.op in ("avg", "sum") and any(
            _is_quantile(n) for n in walk(node.expr)
        ):
            yield Remark(node, "avg-of-quantile",
                         f"`{node.op}` of quantiles is not a quantile of all requests",
                         "aggregate the buckets: `histogram_quantile(φ, sum by (le) (rate(…)))`")
        inner = _of_quantile(node)
        if inner is None:
            continue
        if any(mean_of(n) is not None for n in walk(inner)):
            yield Remark(node, "quantile-of-avg", "a quantile over averages says how averages are "
                         "spread, and hides slow requests",
                         "use `histogram_quantile` over the buckets")
        elif any(isinstance(n, Aggregate) and n.op == "avg" for n in walk(inner)):
            yield Remark(node, "quantile-of-avg", "a quantile over averages says how averages are "
                         "spread, and hides the extremes",
                         "take the quantile of the series themselves, without `avg`")


def _of_quantile(node: Node) -> Node | None:
    if isinstance(node, Aggregate) and node.op == "quantile":
        return node.expr
    if isinstance(node, Call) and node.function == "quantile_over_time":
        return node.args[1]
    return None


def _is_quantile(node: Node) -> bool:
    """Whether it is a quantile: of buckets, or one that a summary exports."""
    if isinstance(node, Call):
        return node.function == "histogram_quantile"
    known = catalogue.lookup(node.metric_name or "") if isinstance(node, Selector) else None
    return known is not None and known.metric.type == "summary" and known.part == "value"


def rates_of_sums(view: View) -> Iterator[Remark]:
    """A sum of counters drops when one server restarts, and its rate counts all of it again."""
    for node in view.calls:
        if node.function not in RATES:
            continue
        inner = node.args[0]
        if isinstance(inner, Subquery) and isinstance(inner.expr, Aggregate) \
                and not any(isinstance(n, Call) for n in walk(inner.expr)) \
                and gauge_of(inner.expr) is None:
            yield Remark(node, "rate-of-sum", f"`{node.function}` of `{inner.expr.op}` takes the "
                         "restart of one server for a reset of all",
                         f"sum the rates: `{inner.expr.op}({node.function}(…))`")


def counters(view: View) -> Iterator[Remark]:
    """A counter means something as a rate, a gauge never does."""
    for selector in view.selectors:
        known = catalogue.lookup(selector.metric_name or "")
        if _grows(selector, known):
            yield from _as_counter(view, selector, _range_function(view, selector), known)


def differences(view: View) -> Iterator[Remark]:
    """What a counter has grown by, taken by hand, falls with each restart."""
    for node in view.binaries:
        if node.op != "-":
            continue
        now, then = summed(node.lhs), summed(node.rhs)
        if not isinstance(now, Selector) or not isinstance(then, Selector):
            continue
        known = catalogue.lookup(now.metric_name or "")
        if known is not None and _grows(now, known) and _same_at_another_time(now, then):
            window = format_duration(then.offset_ms - now.offset_ms)
            yield Remark(node, "delta-of-counter", f"the difference of `{now.metric_name}`, which "
                         "is a counter: a restart of the server looks like a fall",
                         f"use `increase({now.metric_name}[{window}])`")


def _same_at_another_time(now: Selector, then: Selector) -> bool:
    return now.matchers == then.matchers and now.offset_ms < then.offset_ms \
        and now.at is None and then.at is None


def rates_of_gauges(view: View) -> Iterator[Remark]:
    """A gauge that falls is no counter that began again; what is made of gauges is one too."""
    for node in view.calls:
        if node.function in RATES or node.function == "resets":
            inner = node.args[0]
            gauge = gauge_of(inner.expr if isinstance(inner, Subquery) else inner)
            if gauge is not None:
                yield Remark(node if isinstance(inner, Subquery) else inner, "rate-of-gauge",
                             f"`{node.function}` of `{gauge}`, which is a gauge",
                             "use `deriv` or `delta`" if node.function in RATES
                             else "use `changes`: a gauge that falls has not begun again")


def gauge_of(node: Node) -> str | None:
    """Return the gauge whose values `node` picks, adds or averages, a rate too; None for anything
    else."""
    if isinstance(node, Selector):
        known = catalogue.lookup(node.metric_name or "")
        return node.metric_name if known is not None and known.metric.type == "gauge" else None
    if isinstance(node, Call) and node.function in RATES:
        return node.text
    if isinstance(node, Call) and (node.function.endswith("_over_time")
                                   or node.function in ("label_replace", "label_join")):
        kept = [arg for arg in node.args if arg.type in ("vector", "matrix")]
        return gauge_of(kept[0]) if kept else None
    if isinstance(node, Aggregate | Subquery | Negate):
        return gauge_of(node.expr)
    return None


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
