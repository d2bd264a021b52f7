"""Joins that cannot match: a label is aggregated away, or only one side ever had it."""

from __future__ import annotations

from collections.abc import Iterator

from resilience.policy import catalogue
from resilience.policy.lint_label_sets import (
    kept_whole,
    labels_always,
    labels_dropped,
    labels_left,
)
from resilience.policy.lint_view import Remark, View
from resilience.policy.words import listed
from resilience.promql.plan import Aggregate, Binary, Call, Matching, Node, Selector


def joins(view: View) -> Iterator[Remark]:
    """Both sides of a join must still have the labels by which they are joined."""
    for node, matching in _joined(view):
        yield from _join(node, matching)


def _joined(view: View) -> Iterator[tuple[Binary, Matching]]:
    """Yield what joins; `or` takes both sides, whether they match or not."""
    for node in view.nodes:
        if isinstance(node, Binary) and node.matching is not None and node.op != "or":
            yield node, node.matching


def _join(node: Binary, matching: Matching) -> Iterator[Remark]:
    if matching.on:
        lost = [n for n in matching.labels if _one_lacks(node, n)]
        if lost:
            yield Remark(
                node, "join-cannot-match",
                f"`{node.op} on (…)` asks for {listed(lost)}, which one side has aggregated away",
                "add it to `by (…)` of that side, or take it out of `on (…)`",
            )
        return
    odd = sorted(_on_one_side(node) - set(matching.labels))
    if odd:
        yield Remark(
            node, "join-cannot-match",
            f"the sides of `{node.op}` have different labels ({listed(odd)} on one side only)",
            "name the labels to join by: `on (…)`",
        )


def _one_lacks(node: Binary, label: str) -> bool:
    """Whether one side has lost `label` while the other may have it."""
    left, right = labels_left(node.lhs), labels_left(node.rhs)
    left_lacks = label in labels_dropped(node.lhs) if left is None else label not in left
    right_lacks = label in labels_dropped(node.rhs) if right is None else label not in right
    return left_lacks != right_lacks


def _on_one_side(node: Binary) -> frozenset[str]:
    """Return the labels that one side has and the other has aggregated away."""
    left, right = labels_left(node.lhs), labels_left(node.rhs)
    if left is not None and right is not None:
        return left ^ right
    return _missing(node.lhs, node.rhs) | _missing(node.rhs, node.lhs)


def _missing(one: Node, other: Node) -> frozenset[str]:
    """Return the labels that all series of `one` have and none of `other` can have."""
    always, left = labels_always(one), labels_left(other)
    return always & labels_dropped(other) if left is None else always - left


# --- what the sides are, where nothing is aggregated ----------------------------------------------

# Scraped from one port, so that `job` and `instance` are the same.
_EXPORTER = {"vllm": "vLLM", "gate": "vLLM", "sglang": "SGLang", "triton": "Triton", "tgi": "TGI",
             "dcgm": "dcgm-exporter"}


def joined_metrics(view: View) -> Iterator[Remark]:
    """Whole series match by all their labels, so both sides need the same ones."""
    for node, matching in _joined(view):
        left, right = _source(node.lhs), _source(node.rhs)
        if matching.on or left is None or right is None:
            continue
        (one, mine), (other, yours) = left, right
        odd = sorted((mine ^ yours) - set(matching.labels))
        if one and other and one != other:
            yield Remark(node, "join-cannot-match",
                         f"the sides of `{node.op}` come from {one} and {other}, whose `job` and "
                         "`instance` differ", "name the labels to join by: `on (…)`")
        elif odd:
            yield Remark(node, "join-cannot-match",
                         f"only one side of `{node.op}` has {listed(odd)}",
                         "name the labels to join by: `on (…)`, or leave some out: `ignoring (…)`")


def _source(node: Node) -> tuple[str, frozenset[str]] | None:
    """Return who exports the series of `node` and their own labels; None when that is not sure."""
    if isinstance(node, Selector):
        known = catalogue.lookup(node.metric_name or "")
        if node.metric_name in ("up", "probe_success"):
            return "", frozenset()
        if known is None or known.labels is None:
            return None
        return _EXPORTER.get(known.metric.stack, ""), known.labels
    below = kept_whole(node)
    found = None if below is None else _source(below)
    if found is not None and isinstance(node, Call) and node.function == "histogram_quantile":
        return found[0], found[1] - {"le"}
    return found


def joined_values(view: View) -> Iterator[Remark]:
    """A label that both sides fix at different values is no label to join by."""
    for node, matching in _joined(view):
        left, right = _fixed(node.lhs), _fixed(node.rhs)
        for label in left.keys() & right.keys():
            counts = (label in matching.labels) == matching.on
            if counts and left[label] != right[label]:
                yield Remark(node, "join-cannot-match",
                             f"one side of `{node.op}` has `{label}=\"{left[label]}\"` and the "
                             f"other `{label}=\"{right[label]}\"`",
                             f"leave it out of the join: `ignoring ({label})`")


def _fixed(node: Node) -> dict[str, str]:
    """Return the labels of the result that can have one value only."""
    if isinstance(node, Selector):
        return {m.name: m.value for m in node.matchers
                if m.op == "=" and m.value and m.name != "__name__"}
    if isinstance(node, Aggregate):
        kept = set(node.grouping)
        return {k: v for k, v in _fixed(node.expr).items() if (k in kept) != node.without}
    below = kept_whole(node)
    return {} if below is None else _fixed(below)
