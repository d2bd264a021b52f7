"""The plan: frozen nodes of one expression, made once by `parser.parse`.

Nodes compare and hash by their canonical text, so equal subexpressions of different policies are
one key. Where a node stands in the expression (`pos`) is no part of it. Parentheses and unary
plus leave no node.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from resilience.promql.text import (
    format_number,
    label_list,
    matcher_list,
    modifiers,
    quote,
    range_text,
)

PlanType: TypeAlias = Literal["vector", "scalar", "matrix", "string"]
At: TypeAlias = int | Literal["start", "end"] | None
MatchOp: TypeAlias = Literal["=", "!=", "=~", "!~"]

SET_OPERATORS = frozenset({"and", "or", "unless"})
COMPARISONS = frozenset({"==", "!=", "<", ">", "<=", ">="})
DEPTH_MAX = 160


class Matcher(NamedTuple):
    """One label matcher. An empty `value` with `=` matches series without the label."""

    # A tuple, because stores look their series up by it: it hashes five times as fast.

    name: str
    op: MatchOp
    value: str


@dataclass(frozen=True, slots=True)
class Matching:
    """How the series of two vectors find each other. `card` is Prometheus' cardinality."""

    on: bool = False
    labels: tuple[str, ...] = ()
    card: Literal["one-to-one", "many-to-one", "one-to-many", "many-to-many"] = "one-to-one"
    include: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """Base of all nodes. `text` is canonical PromQL, `depth` the height of the tree below."""

    pos: int = field(default=0, kw_only=True)
    text: str = field(default="", init=False)
    depth: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", self._unparse())
        object.__setattr__(self, "depth", 1 + max((c.depth for c in self.children), default=0))

    @abstractmethod
    def _unparse(self) -> str: ...

    @property
    def children(self) -> tuple[Node, ...]:
        return ()

    @property
    def type(self) -> PlanType:
        return "vector"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


Plan: TypeAlias = Node


@dataclass(frozen=True, slots=True, eq=False)
class Number(Node):
    """A number, a duration too: its seconds."""

    value: float

    @property
    def type(self) -> PlanType:
        return "scalar"

    def _unparse(self) -> str:
        return format_number(self.value)


@dataclass(frozen=True, slots=True, eq=False)
class String(Node):
    """A text in quotes, without its escapes."""

    value: str

    @property
    def type(self) -> PlanType:
        return "string"

    def _unparse(self) -> str:
        return quote(self.value)


@dataclass(frozen=True, slots=True, eq=False)
class Selector(Node):
    """A vector selector, or with `range_ms` > 0 a matrix selector. `matchers` hold the metric name
    too, in the order written; `metric_name` is set when the name is given exactly."""

    metric_name: str | None
    matchers: tuple[Matcher, ...]
    range_ms: int = 0
    offset_ms: int = 0
    at: At = None

    @property
    def type(self) -> PlanType:
        return "matrix" if self.range_ms else "vector"

    def _unparse(self) -> str:
        body = matcher_list(self.metric_name, self.matchers)
        return body + range_text(self.range_ms) + modifiers(self.offset_ms, self.at)


@dataclass(frozen=True, slots=True, eq=False)
class Subquery(Node):
    """`expr[range:step]`; `step_ms` None means the default evaluation interval."""

    expr: Node
    range_ms: int
    step_ms: int | None = None
    offset_ms: int = 0
    at: At = None

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.expr,)

    @property
    def type(self) -> PlanType:
        return "matrix"

    def _unparse(self) -> str:
        inner = self.expr.text
        plain = isinstance(self.expr, Call | Selector) and not (
            isinstance(self.expr, Selector) and (self.expr.offset_ms or self.expr.at is not None)
        )
        body = inner if plain else f"({inner})"
        return body + range_text(self.range_ms, self.step_ms, True) + modifiers(
            self.offset_ms, self.at
        )


@dataclass(frozen=True, slots=True, eq=False)
class Call(Node):
    """A function call; `returns` is the type of its result."""

    function: str
    args: tuple[Node, ...]
    returns: PlanType = "vector"

    @property
    def children(self) -> tuple[Node, ...]:
        return self.args

    @property
    def type(self) -> PlanType:
        return self.returns

    def _unparse(self) -> str:
        return f"{self.function}({', '.join(a.text for a in self.args)})"


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate(Node):
    """An aggregation over `expr`, by or without `grouping`; `param` for topk and its kin."""

    op: str
    expr: Node
    param: Node | None = None
    grouping: tuple[str, ...] = ()
    without: bool = False

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.expr,) if self.param is None else (self.param, self.expr)

    def _unparse(self) -> str:
        word = "without" if self.without else "by"
        clause = f" {word} ({label_list(self.grouping)}) " if self.grouping or self.without else ""
        param = f"{self.param.text}, " if self.param is not None else ""
        return f"{self.op}{clause}({param}{self.expr.text})"


@dataclass(frozen=True, slots=True, eq=False)
class Negate(Node):
    """Unary minus."""

    expr: Node

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.expr,)

    @property
    def type(self) -> PlanType:
        return self.expr.type

    def _unparse(self) -> str:
        inner = self.expr.text
        return f"-({inner})" if isinstance(self.expr, Binary | Negate | Number) else f"-{inner}"


@dataclass(frozen=True, slots=True, eq=False)
class Binary(Node):
    """`lhs op rhs`. `matching` is set when both sides are vectors."""

    op: str
    lhs: Node
    rhs: Node
    bool_result: bool = False
    matching: Matching | None = None
    operator_pos: int = field(default=0, kw_only=True)

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.lhs, self.rhs)

    @property
    def type(self) -> PlanType:
        if self.matching is not None:              # two vectors: a long chain is not walked
            return "vector"
        both = self.lhs.type == "scalar" and self.rhs.type == "scalar"
        return "scalar" if both else "vector"

    def _unparse(self) -> str:
        words = [self.op]
        if self.bool_result:
            words.append("bool")
        words.extend(_matching_words(self.matching))
        return f"{_side(self.lhs)} {' '.join(words)} {_side(self.rhs)}"


def matching_text(matching: Matching | None) -> str:
    """Return the clause of `matching`, for example `on (pod) group_left ()`, or an empty text."""
    return " ".join(_matching_words(matching))


def _matching_words(matching: Matching | None) -> list[str]:
    if matching is None:
        return []
    words: list[str] = []
    side = {"many-to-one": "group_left", "one-to-many": "group_right"}.get(matching.card)
    if matching.on or matching.labels or side:
        words.append(f"{'on' if matching.on else 'ignoring'} ({label_list(matching.labels)})")
    if side:
        words.append(f"{side} ({label_list(matching.include)})")
    return words


def _side(node: Node) -> str:
    """Parenthesise what could regroup; modifiers and signs are safe without."""
    return f"({node.text})" if isinstance(node, Binary | Negate) else node.text


def unparse(node: Node) -> str:
    """Return canonical PromQL; parsing it gives an equal plan."""
    return node.text


def walk(node: Node) -> Iterator[Node]:
    """Yield `node` and everything below it, parents first."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(current.children))


def selectors(node: Node) -> tuple[Selector, ...]:
    """Return every selector in the order in which it is written; repeated ones once."""
    return tuple(dict.fromkeys(n for n in walk(node) if isinstance(n, Selector)))
