"""Which labels the result of an expression can have, and which it always has."""

from __future__ import annotations

from resilience.policy import catalogue
from resilience.policy.lint_view import OF_BUCKETS, wants_a_value
from resilience.promql.plan import Aggregate, Binary, Call, Negate, Node, Selector

MAKE_LABELS = frozenset({"label_replace", "label_join", "absent", "absent_over_time", "info"})
KEEP_SERIES = frozenset({"topk", "bottomk", "limitk", "limit_ratio"})
_OF_A_SCRAPE = frozenset({"job", "instance"})


def labels_left(node: Node) -> frozenset[str] | None:
    """Return the labels that the result can have, or None when all of the series' may be there."""
    if isinstance(node, Aggregate):
        if node.op in KEEP_SERIES:
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
    matching = node.matching
    if matching is not None and matching.on and matching.card == "one-to-one":
        return frozenset(matching.labels)
    many = node.rhs if matching is not None and matching.card == "one-to-many" else node.lhs
    below = labels_left(many)
    return below if below is None or matching is None else below | set(matching.include)


def _labels_of_call(node: Call) -> frozenset[str] | None:
    if node.function in ("label_replace", "label_join", "absent", "absent_over_time", "vector"):
        return None
    vectors = [arg for arg in node.args if arg.type in ("vector", "matrix")]
    below = labels_left(vectors[0]) if vectors else None
    if node.function in OF_BUCKETS and below is not None:
        return below - {"le"}
    return below


def kept_whole(node: Node) -> Node | None:
    """Return the child whose labels `node` keeps, all of them."""
    if isinstance(node, Negate):
        return node.expr
    if isinstance(node, Call) and node.function not in MAKE_LABELS:
        vectors = [arg for arg in node.args if arg.type in ("vector", "matrix")]
        return vectors[0] if len(vectors) == 1 else None
    if isinstance(node, Binary):
        if node.lhs.type == "scalar":
            return node.rhs
        if node.rhs.type == "scalar" or node.op in ("and", "unless"):
            return node.lhs
    return None


def labels_always(node: Node) -> frozenset[str]:
    """Return labels that every series of the result has, with a value; the others are not sure."""
    if isinstance(node, Selector):
        return _always_of_selector(node)
    if isinstance(node, Aggregate):
        below = labels_always(node.expr)
        if node.op in KEEP_SERIES:
            return below
        return below - set(node.grouping) if node.without else below & set(node.grouping)
    if isinstance(node, Binary) and node.lhs.type == node.rhs.type == "vector":
        return _always_of_binary(node)
    below_node = kept_whole(node)
    if below_node is None:
        return frozenset()
    made = isinstance(node, Call) and node.function in OF_BUCKETS
    return labels_always(below_node) - ({"le"} if made else set())


def _always_of_selector(node: Selector) -> frozenset[str]:
    """A scrape adds `job` and `instance`; what a recording rule makes may lack both."""
    asked = frozenset(m.name for m in node.matchers if m.name != "__name__" and wants_a_value(m))
    known = catalogue.lookup(node.metric_name or "")
    return asked | (_OF_A_SCRAPE if known is not None else frozenset())


def _always_of_binary(node: Binary) -> frozenset[str]:
    left, right = labels_always(node.lhs), labels_always(node.rhs)
    if node.op in ("and", "unless"):
        return left
    if node.op == "or":
        return left & right
    matching = node.matching
    if matching is None:
        return frozenset()
    if matching.card == "one-to-one":
        named = set(matching.labels)
        return left & named if matching.on else left - named
    return (right if matching.card == "one-to-many" else left) - set(matching.include)


def has_lost(node: Node, label: str) -> bool:
    """Return whether no series of the result can have `label`, because it was aggregated away."""
    left = labels_left(node)
    return label in labels_dropped(node) if left is None else label not in left


def labels_dropped(node: Node) -> frozenset[str]:
    """Return labels that no series of the result has, because `without` took them away."""
    if isinstance(node, Aggregate) and node.op not in KEEP_SERIES:
        return labels_dropped(node.expr) | (set(node.grouping) if node.without else set())
    below = kept_whole(node)
    return frozenset() if below is None else labels_dropped(below)
