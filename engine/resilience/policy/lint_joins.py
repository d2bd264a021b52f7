"""Joins that cannot match, because an aggregation has dropped the label they ask for."""

from __future__ import annotations

from collections.abc import Iterator

from resilience.policy.lint_view import Remark, View
from resilience.policy.words import listed
from resilience.promql.plan import Aggregate, Binary, Call, Matching, Negate, Node


def joins(view: View) -> Iterator[Remark]:
    """Both sides of a join must still have the labels by which they are joined."""
    for node in view.nodes:
        if isinstance(node, Binary) and node.matching is not None:
            yield from _join(node, node.matching)


def _join(node: Binary, matching: Matching) -> Iterator[Remark]:
    left, right = labels_left(node.lhs), labels_left(node.rhs)
    if matching.on:
        lost = [n for n in matching.labels if _has(left, n) != _has(right, n)]
        if lost:
            yield Remark(
                node, "join-cannot-match",
                f"`{node.op} on (…)` asks for {listed(lost)}, which one side has aggregated away",
                "add it to `by (…)` of that side, or take it out of `on (…)`",
            )
    elif left is not None and right is not None:
        ignored = set(matching.labels)
        if left - ignored != right - ignored:
            odd = sorted((left ^ right) - ignored)
            yield Remark(
                node, "join-cannot-match",
                f"the sides of `{node.op}` have different labels ({listed(odd)} on one side only)",
                "name the labels to join by: `on (…)`",
            )


def _has(labels: frozenset[str] | None, name: str) -> bool:
    return labels is None or name in labels


def labels_left(node: Node) -> frozenset[str] | None:
    """Return the labels that the result can have, or None when all of the series' may be there."""
    if isinstance(node, Aggregate):
        if node.op in ("topk", "bottomk", "limitk", "limit_ratio"):
            return labels_left(node.expr)
        below = labels_left(node.expr)
        if node.without:
            return None if below is None else below - set(node.grouping)
        return frozenset(node.grouping) if below is None else below & set(node.grouping)
    if isinstance(node, Negate):
        return labels_left(node.expr)
    if isinstance(node, Binary):
        return _labels_of_binary(node)
    if isinstance(node, Call):
        return _labels_of_call(node)
    return None


def _labels_of_binary(node: Binary) -> frozenset[str] | None:
    if node.lhs.type == "scalar":
        return labels_left(node.rhs)
    if node.rhs.type == "scalar" or node.op in ("and", "unless"):
        return labels_left(node.lhs)
    if node.op == "or":
        left, right = labels_left(node.lhs), labels_left(node.rhs)
        return None if left is None or right is None else left | right
    if node.matching is not None and node.matching.on and node.matching.card == "one-to-one":
        return frozenset(node.matching.labels)
    return labels_left(node.lhs)


def _labels_of_call(node: Call) -> frozenset[str] | None:
    if node.function in ("label_replace", "label_join", "absent", "absent_over_time", "vector"):
        return None
    vectors = [arg for arg in node.args if arg.type in ("vector", "matrix")]
    below = labels_left(vectors[0]) if vectors else None
    if node.function == "histogram_quantile" and below is not None:
        return below - {"le"}
    return below
