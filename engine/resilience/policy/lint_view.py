"""What a lint rule sees and says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from resilience.model import Severity
from resilience.policy.context import Context
from resilience.promql.plan import (
    COMPARISONS,
    Aggregate,
    Binary,
    Call,
    Matcher,
    Node,
    Plan,
    Selector,
)

# `resolve` is any condition besides the trigger; `value` a number that is compared later.
Role: TypeAlias = Literal["trigger", "resolve", "metric", "value"]


@dataclass(frozen=True, slots=True)
class Remark:
    """What a rule has to say about a node."""

    node: Node
    code: str
    message: str
    suggestion: str | None = None
    severity: Severity = "warning"


@dataclass(frozen=True, slots=True)
class View:
    """What a rule may look at: the plan, all its nodes, and for each node the one above it."""

    plan: Plan
    nodes: tuple[Node, ...]
    role: Role
    parents: dict[int, Node]
    context: Context
    on_missing_metric: str

    @property
    def selectors(self) -> Iterator[Selector]:
        """Yield the selectors of the whole expression."""
        return (node for node in self.nodes if isinstance(node, Selector))

    def above(self, node: Node) -> Iterator[Node]:
        """Yield the nodes above `node`, nearest first."""
        current = self.parents.get(id(node))
        while current is not None:
            yield current
            current = self.parents.get(id(current))


def wants_a_value(matcher: Matcher) -> bool:
    """Whether only a series that has the label can match."""
    if matcher.op != "=~":
        return matcher.op == "=" and matcher.value != ""
    try:
        return re.fullmatch(matcher.value, "") is None
    except re.error:
        return False


def wants_buckets(view: View, selector: Selector) -> bool:
    """Return whether a quantile of buckets is taken of the selector."""
    return any(
        isinstance(n, Call) and n.function == "histogram_quantile" for n in view.above(selector)
    )


def decides(node: Node) -> bool:
    """Return whether the expression holds series back: by a comparison or what implies one.

    `bool` keeps every series, so it does not count; a trigger that is one `bool` comparison is
    the caller's to know.
    """
    if isinstance(node, Binary):
        if node.op in COMPARISONS:
            return not node.bool_result
        left, right = decides(node.lhs), decides(node.rhs)         # each once: chains are long
        if node.op == "or":
            return left and right
        return left or right or node.op == "unless"
    if isinstance(node, Call) and node.function in ("absent", "absent_over_time"):
        return True
    if isinstance(node, Aggregate) and node.op in ("topk", "bottomk"):
        return decides(node.expr)
    return any(decides(child) for child in node.children)
