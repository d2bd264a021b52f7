"""Joins that cannot match: a label is aggregated away, or only one side ever had it."""

from __future__ import annotations

from collections.abc import Iterator

from resilience.policy import catalogue
from resilience.policy.lint_view import Remark, View
from resilience.policy.words import listed
from resilience.promql.plan import Aggregate, Binary, Call, Matching, Negate, Node, Selector


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
    if node.function == "histogram_quantile" and below is not None:
        return below - {"le"}
    return below


# --- what the sides are, where nothing is aggregated ----------------------------------------------

# Scraped from one port, so that `job` and `instance` are the same.
_EXPORTER = {"vllm": "vLLM", "gate": "vLLM", "sglang": "SGLang", "triton": "Triton", "tgi": "TGI",
             "dcgm": "dcgm-exporter"}
_MAKE_LABELS = frozenset({"label_replace", "label_join", "absent", "absent_over_time", "info"})


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
    below = _kept_whole(node)
    found = None if below is None else _source(below)
    if found is not None and isinstance(node, Call) and node.function == "histogram_quantile":
        return found[0], found[1] - {"le"}
    return found


def _kept_whole(node: Node) -> Node | None:
    """Return the child whose labels `node` keeps, all of them."""
    if isinstance(node, Negate):
        return node.expr
    if isinstance(node, Call) and node.function not in _MAKE_LABELS:
        vectors = [arg for arg in node.args if arg.type in ("vector", "matrix")]
        return vectors[0] if len(vectors) == 1 else None
    if isinstance(node, Binary):
        if node.lhs.type == "scalar":
            return node.rhs
        if node.rhs.type == "scalar" or node.op in ("and", "unless"):
            return node.lhs
    return None


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
    below = _kept_whole(node)
    return {} if below is None else _fixed(below)
