"""Series read in a way that their type does not bear, and names that nobody exports."""

from __future__ import annotations

import re
from collections.abc import Iterator

from resilience.model import format_duration
from resilience.policy import catalogue
from resilience.policy.lint_view import Remark, View
from resilience.promql.plan import Aggregate, Binary, Call, Node, Selector, walk

_COUNTER_FUNCTIONS = frozenset({"rate", "increase", "irate"})
_COUNTER_READERS = _COUNTER_FUNCTIONS | {
    "resets", "absent", "absent_over_time", "present_over_time", "timestamp", "changes",
    "count_over_time",
}
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


def counters(view: View) -> Iterator[Remark]:
    """A counter means something as a rate, a gauge never does."""
    for selector in view.selectors:
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
    for selector in view.selectors:
        if selector.range_ms and selector.range_ms < _WINDOW_MIN_SCRAPES * interval:
            yield Remark(selector, "short-window",
                         f"window of {format_duration(selector.range_ms)} holds fewer than "
                         f"{_WINDOW_MIN_SCRAPES} scrapes of {format_duration(interval)}",
                         f"use at least {format_duration(_WINDOW_MIN_SCRAPES * interval)}")


def metrics(view: View) -> Iterator[Remark]:
    """Names that the target, or without a target the catalogue, does not know."""
    exported = view.context.metric_names
    for selector in view.selectors:
        name = selector.metric_name
        if not name or (exported is not None and name in exported):
            continue
        if _wants_buckets(view, selector) and not name.endswith("_bucket"):
            continue                          # histograms() says what to use
        if _has_alternative(view, selector, name):
            continue
        if exported is None:
            yield from _not_in_catalogue(selector, name)
        else:
            yield _not_exported(view, selector, name, exported)


def _has_alternative(view: View, selector: Selector, name: str) -> bool:
    """Whether an `or` offers the same metric under the name of another version as well."""
    exported = view.context.metric_names
    others = {
        s.metric_name for n in view.above(selector) if isinstance(n, Binary) and n.op == "or"
        for s in _selectors(n)
    }
    family = catalogue.names_of(name) & others - {name}
    return any(other in exported if exported is not None else True for other in family)


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
