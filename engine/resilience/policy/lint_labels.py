"""Labels that a metric does not have: such a matcher selects nothing, such a group is empty."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from resilience.policy import catalogue
from resilience.policy.lint_label_sets import MAKE_LABELS, has_lost
from resilience.policy.lint_view import Remark, View, wants_a_value, wants_buckets
from resilience.policy.words import listed, nearest
from resilience.promql.plan import Aggregate, Binary, Call, Matcher, Node, Selector, walk

# Common in scrape configurations, so that any series may have them.
_OF_SCRAPING = frozenset({
    "__name__", "job", "instance", "cluster", "region", "zone", "namespace", "pod", "container",
    "node", "service", "endpoint", "name", "version", "model", "engine", "method", "stage",
})
# Made by Prometheus for a target: what exporters say of themselves is not on them.
_OF_TARGETS = frozenset({
    "up", "probe_success", "scrape_duration_seconds", "scrape_samples_scraped",
    "scrape_samples_post_metric_relabeling", "scrape_series_added",
})
# No relabelling makes these, so they are out of place on any other metric.
_ONLY_GPUS = frozenset({
    "gpu", "UUID", "modelName", "pci_bus_id", "GPU_I_ID", "GPU_I_PROFILE", "err_code", "err_msg",
    "DCGM_FI_DRIVER_VERSION",
})
# What people write who know another exporter: a label of it, and what it is called here.
_MEANT = {
    "model": "model_name", "model_name": "model", "finish_reason": "finished_reason",
    "status": "finished_reason",
}


def labels(view: View) -> Iterator[Remark]:
    """Matchers, then groupings, by labels that the metric cannot have."""
    for selector in view.selectors:
        for matcher in selector.matchers:
            if wants_a_value(matcher) and not _is_le_of_no_buckets(
                view, selector, matcher.name
            ) and _lacks(view, selector, matcher.name):
                yield _remark(view, selector, selector, matcher.name, "selects nothing")
        yield from _at_once(selector)
    for node in view.nodes:
        if isinstance(node, Aggregate) and not node.without:
            yield from _named(view, node, node.grouping, f"`{node.op} by` has it empty")
            yield from _lost(node)
        elif isinstance(node, Binary) and node.matching is not None and node.matching.on:
            yield from _named(view, node, node.matching.labels, "both sides of "
                              f"`{node.op} on` have it empty")


def _at_once(selector: Selector) -> Iterator[Remark]:
    """A label has one value."""
    wanted: dict[str, str] = {}
    for name, op, value in selector.matchers:
        other = wanted.setdefault(name, value) if op == "=" else value
        refused = op == "!=" and Matcher(name, "=", value) in selector.matchers
        if other != value or refused:
            message = f"not be `{value}`" if refused else f"be `{value}`"
            yield Remark(selector, "never-true", f"`{name}` cannot be `{other}` and {message} at "
                         "once: selects nothing", "take one out" if refused else
                         "use `=~\"a|b\"` for one of several")


def _lost(node: Aggregate) -> Iterator[Remark]:
    """Say which labels of `by` the aggregations below have not left."""
    gone = [name for name in node.grouping if has_lost(node.expr, name)]
    if gone:
        yield Remark(node, "label-unknown", f"`{node.op} by` asks for {listed(gone)}, which is "
                     "aggregated away below it", "keep it there, or take it out here")


def _named(view: View, node: Node, labels: tuple[str, ...], effect: str) -> Iterator[Remark]:
    """Judge labels that `node` groups or joins by: some selector below must have them."""
    below = [n for n in walk(node) if isinstance(n, Selector)]
    if not below or _makes_labels(node):
        return
    for label in labels:
        if any(_is_le_of_no_buckets(view, selector, label) for selector in below):
            continue
        if all(_lacks(view, selector, label) for selector in below):
            yield _remark(view, node, below[0], label, effect)


def _makes_labels(node: Node) -> bool:
    return any(isinstance(n, Call) and n.function in MAKE_LABELS
               or isinstance(n, Aggregate) and n.op == "count_values" for n in walk(node))


def lacking(view: View, node: Node, label: str) -> str | None:
    """Return the metric because of which no series of `node` can have `label` to join by; None
    when one may have it."""
    below = [n for n in walk(node) if isinstance(n, Selector)]
    if not below or _makes_labels(node):
        return None
    return below[0].metric_name if all(_lacks(view, s, label, True) for s in below) else None


def _is_le_of_no_buckets(view: View, selector: Selector, label: str) -> bool:
    """Whether `le` is right and the metric is not: lint_series.histograms says so."""
    return label == "le" and wants_buckets(view, selector)


def _lacks(view: View, selector: Selector, label: str, joins: bool = False) -> bool:
    """Whether no series of the selector can have `label`, as far as that is known. Where it
    `joins`, what another exporter says of itself is not taken for a label of scraping."""
    name = selector.metric_name
    if not name or label == "__name__":
        return False
    seen = (view.context.metric_labels or {}).get(name)
    if seen is not None:
        return label not in seen
    if joins and name in _OF_TARGETS:
        return label in catalogue.own_labels() - _OF_SCRAPING
    known = catalogue.lookup(name)
    if known is None or known.labels is None or label in known.labels:
        return False
    if label in _OF_SCRAPING:
        return known.head == "vllm:" and _MEANT.get(label, label) in known.labels
    own = catalogue.own_labels() | (catalogue.labels_of_gpus() if joins else _ONLY_GPUS)
    return _MEANT.get(label, label) in own or _slip(label, known.labels) is not None


@lru_cache(maxsize=1_024)
def _slip(label: str, own: frozenset[str]) -> str | None:
    """Return the label that was meant, when one is nearly the same."""
    meant = _MEANT.get(label)
    return meant if meant in own else nearest(label, own, 0.8)


def _remark(view: View, node: Node, selector: Selector, label: str, effect: str) -> Remark:
    name = selector.metric_name or ""
    known = catalogue.lookup(name)
    seen = (view.context.metric_labels or {}).get(name)
    own = seen if seen is not None else (known.labels if known else None) or frozenset()
    meant = _slip(label, own)
    hint = f"did you mean `{meant}`?" if meant else \
        f"it has {listed(sorted(own))}" if own else "it has none of its own"
    return Remark(node, "label-unknown", f"`{name}` has no label `{label}`: {effect}", hint)
