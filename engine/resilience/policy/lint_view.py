"""What a lint rule sees and says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

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
from resilience.promql.regex import matches_empty

# What reads the buckets of a histogram.
OF_BUCKETS = frozenset({"histogram_quantile", "histogram_fraction"})
# What reads a counter as its growth.
RATES = frozenset({"rate", "increase", "irate"})
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
    """What a rule may look at: the plan, all its nodes, parents first and also by their kind, and
    for each node the one above it. `derived`: nobody wrote the expression; it was made of an
    objective."""

    plan: Plan
    nodes: tuple[Node, ...]
    by_kind: dict[type[Node], list[Any]]
    role: Role
    parents: dict[int, Node]
    context: Context
    on_missing_metric: str
    derived: bool = False

    @property
    def selectors(self) -> Sequence[Selector]:
        return self.by_kind.get(Selector, ())

    @property
    def calls(self) -> Sequence[Call]:
        return self.by_kind.get(Call, ())

    @property
    def aggregates(self) -> Sequence[Aggregate]:
        return self.by_kind.get(Aggregate, ())

    @property
    def binaries(self) -> Sequence[Binary]:
        return self.by_kind.get(Binary, ())

    def above(self, node: Node) -> Iterator[Node]:
        """Yield the nodes above `node`, nearest first."""
        current = self.parents.get(id(node))
        while current is not None:
            yield current
            current = self.parents.get(id(current))


def wants_a_value(matcher: Matcher) -> bool:
    """Whether only a series that has the label can match."""
    return matcher.op in ("=", "=~") and not matches_empty(matcher)


def wants_buckets(view: View, selector: Selector) -> bool:
    """Return whether a quantile of buckets is taken of the selector."""
    return bool(view.calls) and any(
        isinstance(n, Call) and n.function in OF_BUCKETS for n in view.above(selector)
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
