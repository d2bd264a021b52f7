"""Joins that cannot match: a label is aggregated away, or only one side ever had it."""

from __future__ import annotations

from collections.abc import Iterator

from resilience.policy import catalogue
from resilience.policy.lint_label_sets import (
    KEEP_SERIES,
    has_lost,
    kept_whole,
    labels_always,
    labels_dropped,
    labels_left,
)
from resilience.policy.lint_labels import lacking
from resilience.policy.lint_numbers import against_number
from resilience.policy.lint_view import OF_BUCKETS, Remark, View
from resilience.policy.words import listed
from resilience.promql.plan import Aggregate, Binary, Call, Matching, Node, Selector


def joins(view: View) -> Iterator[Remark]:
    """Both sides of a join must still have the labels by which they are joined."""
    for node, matching in _joined(view):
        if matching.on:
            yield from _by_labels(view, node, matching)
        else:
            yield from _by_the_rest(node, matching)
        yield from _taken_over(view, node, matching)


def absences(view: View) -> Iterator[Remark]:
    """What is absent has no series to join: `absent(x) and x > 5` is never true."""
    for node in view.binaries:
        for side, other in ((node.lhs, node.rhs), (node.rhs, node.lhs)):
            gone = _wanted_absent(side)
            if gone is not None and node.op not in ("or", "unless") and _stands_on(other, gone):
                yield Remark(node, "never-true",
                             f"one side of `{node.op}` wants `{gone.text}` to be absent, the other "
                             "is made of it: both are never there",
                             "join it with another metric of the server, or leave one out")


def _wanted_absent(node: Node) -> Node | None:
    """Return what `node` wants to be absent, now and not over a time."""
    if isinstance(node, Binary):
        compared = against_number(node)
        return None if compared is None else _wanted_absent(compared[0])
    if isinstance(node, Aggregate):
        return _wanted_absent(node.expr)
    return node.args[0] if isinstance(node, Call) and node.function == "absent" else None


def _stands_on(node: Node, base: Node) -> bool:
    """Whether `node` has no series where `base`, of the same moment, has none."""
    if node.text == base.text:
        return True
    if isinstance(node, Aggregate):
        return _stands_on(node.expr, base)
    if not isinstance(node, Binary) or node.op == "or":
        return False
    return _stands_on(node.lhs, base) or (node.op != "unless" and _stands_on(node.rhs, base))


def _joined(view: View) -> Iterator[tuple[Binary, Matching]]:
    """Yield what joins; `or` takes both sides, whether they match or not."""
    for node in view.binaries:
        if node.matching is not None and node.op != "or":
            yield node, node.matching


def _by_labels(view: View, node: Binary, matching: Matching) -> Iterator[Remark]:
    lost: list[str] = []
    for label in matching.labels:
        left, right = has_lost(node.lhs, label), has_lost(node.rhs, label)
        if left or right:
            lost += [label] * (left != right)
            continue
        one, other = lacking(view, node.lhs, label), lacking(view, node.rhs, label)
        if (one is None) != (other is None):
            yield Remark(node, "join-cannot-match",
                         f"`{node.op} on (…)` asks for `{label}`, which `{one or other}` does not "
                         "have", "join by a label that both sides have")
    if lost:
        yield Remark(
            node, "join-cannot-match",
            f"`{node.op} on (…)` asks for {listed(lost)}, which one side has aggregated away",
            "add it to `by (…)` of that side, or take it out of `on (…)`",
        )


def _by_the_rest(node: Binary, matching: Matching) -> Iterator[Remark]:
    odd = sorted(_on_one_side(node) - set(matching.labels))
    if odd:
        yield Remark(
            node, "join-cannot-match",
            f"the sides of `{node.op}` have different labels ({listed(odd)} on one side only)",
            "name the labels to join by: `on (…)`",
        )


def _taken_over(view: View, node: Binary, matching: Matching) -> Iterator[Remark]:
    """`group_left (x)` takes x from the one side, which must have it."""
    one = node.lhs if matching.card == "one-to-many" else node.rhs
    word = "group_right" if matching.card == "one-to-many" else "group_left"
    for label in matching.include:
        name = lacking(view, one, label)
        if has_lost(one, label):
            yield Remark(node, "label-unknown", f"`{word} ({label})` takes a label that its side "
                         "has aggregated away", "add it to `by (…)` of that side")
        elif name is not None:
            yield Remark(node, "label-unknown", f"`{word} ({label})` takes a label that "
                         f"`{name}` does not have: it is empty",
                         f"take it out of `{word} (…)`")


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

_OF_A_TARGET = frozenset({"job", "instance"})
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
        if one and other and one != other and not set(matching.labels) >= _OF_A_TARGET:
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
    if found is not None and isinstance(node, Call) and node.function in OF_BUCKETS:
        return found[0], found[1] - {"le"}
    return found


# By these a server always has several series of one metric.
_SEVERAL = frozenset({"finished_reason", "le", "quantile"})


def joined_several(view: View) -> Iterator[Remark]:
    """One series that finds several partners is an error of evaluation, not a result."""
    for node, matching in _joined(view):
        sides = {"many-to-one": (node.rhs,), "one-to-many": (node.lhs,),
                 "one-to-one": (node.lhs, node.rhs)}.get(matching.card, ())
        for side in sides:
            named = set(matching.labels)
            several = _several(side)
            apart = sorted(several - named if matching.on else several & named)
            if apart:
                more = ", or add `group_left` or `group_right`" * (matching.card == "one-to-one")
                yield Remark(node, "join-cannot-match",
                             f"one side of `{node.op}` has a series for each {listed(apart)}, and "
                             "several match one of the other: evaluating it is an error",
                             f"sum that side first{more}")


def _several(node: Node) -> frozenset[str]:
    """Return labels by which each server has several series of this."""
    if isinstance(node, Selector):
        known = catalogue.lookup(node.metric_name or "")
        own = frozenset() if known is None or known.labels is None else known.labels
        return (own & _SEVERAL) - {m.name for m in node.matchers if m.op == "="}
    if isinstance(node, Aggregate) and node.op not in KEEP_SERIES:
        below = _several(node.expr)
        return below - set(node.grouping) if node.without else below & set(node.grouping)
    whole = kept_whole(node)
    found = frozenset[str]() if whole is None else _several(whole)
    made = isinstance(node, Call) and node.function in OF_BUCKETS
    return found - {"le"} if made else found


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
