"""Labels that a metric does not have: such a matcher selects nothing, such a group is empty."""

from __future__ import annotations

from collections.abc import Iterator

from resilience.policy import catalogue
from resilience.policy.lint_view import Remark, View, wants_a_value, wants_buckets
from resilience.policy.words import listed, nearest
from resilience.promql.plan import Aggregate, Binary, Call, Node, Selector, walk

# Common in scrape configurations, so that any series may have them.
_OF_SCRAPING = frozenset({
    "__name__", "job", "instance", "cluster", "region", "zone", "namespace", "pod", "container",
    "node", "service", "endpoint", "name", "version", "model", "engine", "method", "stage",
})
_MAKES_LABELS = frozenset({
    "label_replace", "label_join", "absent", "absent_over_time", "info", "count_values",
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
    for node in view.nodes:
        if isinstance(node, Aggregate) and not node.without:
            yield from _named(view, node, node.grouping, f"`{node.op} by` has it empty")
        elif isinstance(node, Binary) and node.matching is not None and node.matching.on:
            yield from _named(view, node, node.matching.labels, "both sides of "
                              f"`{node.op} on` have it empty")


def _named(view: View, node: Node, labels: tuple[str, ...], effect: str) -> Iterator[Remark]:
    """Judge labels that `node` groups or joins by: some selector below must have them."""
    if any(isinstance(n, Call) and n.function in _MAKES_LABELS for n in walk(node)) or any(
        isinstance(n, Aggregate) and n.op == "count_values" for n in walk(node)
    ):
        return
    below = [n for n in walk(node) if isinstance(n, Selector)]
    for label in labels:
        if any(_is_le_of_no_buckets(view, selector, label) for selector in below):
            continue
        if below and all(_lacks(view, selector, label) for selector in below):
            yield _remark(view, node, below[0], label, effect)


def _is_le_of_no_buckets(view: View, selector: Selector, label: str) -> bool:
    """Whether `le` is right and the metric is not: lint_series.histograms says so."""
    return label == "le" and wants_buckets(view, selector)


def _lacks(view: View, selector: Selector, label: str) -> bool:
    """Whether no series of the selector can have `label`, as far as that is known."""
    name = selector.metric_name
    if not name or label == "__name__":
        return False
    seen = (view.context.metric_labels or {}).get(name)
    if seen is not None:
        return label not in seen
    known = catalogue.lookup(name)
    if known is None or known.labels is None or label in known.labels:
        return False
    if label in _OF_SCRAPING:
        return known.head == "vllm:" and _MEANT.get(label, label) in known.labels
    return label in catalogue.own_labels() or _slip(label, known.labels) is not None


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
