"""Tokens to plan: a precedence-climbing reader of Prometheus 3.5's grammar.

Recursion is bounded: brackets and signs by the lexer's nesting bound and `expression`, chains of
operators by the height of the tree that they make.
"""

from __future__ import annotations

from resilience.errors import PromQLError
from resilience.promql import advice, lexer
from resilience.promql.cursor import Cursor
from resilience.promql.lexer import Source, Token
from resilience.promql.plan import (
    DEPTH_MAX,
    Aggregate,
    At,
    Matching,
    Negate,
    Node,
    Number,
    Selector,
    String,
    Subquery,
)
from resilience.promql.signatures import (
    AGGREGATIONS,
    EXPERIMENTAL_AGGREGATIONS,
    KEYWORDS,
    NAMES_TOO,
    OUT_OF_SCOPE,
)

_PRECEDENCE = {
    "or": 1, "and": 2, "unless": 2, "==": 3, "!=": 3, "<": 3, ">": 3, "<=": 3, ">=": 3,
    "+": 4, "-": 4, "*": 5, "/": 5, "%": 5, "atan2": 5, "^": 6,
}
_UNARY_PRECEDENCE = 5
_AGGREGATIONS = frozenset(AGGREGATIONS | EXPERIMENTAL_AGGREGATIONS)
_NO_NAMES = frozenset(KEYWORDS - NAMES_TOO)
_MODIFIABLE = "only a selector or a subquery can have"


class Grammar(Cursor):
    """Reads one expression; `plan()` returns its root."""

    def __init__(self, source: Source, experimental: bool) -> None:
        super().__init__(source, experimental)
        self.level = 0

    def made(self, node: Node) -> Node:
        """Return `node` unless the tree has grown too high."""
        if node.depth > DEPTH_MAX:
            raise self.source.error(
                f"expression is more than {DEPTH_MAX} operations deep", node.pos, kind="limit"
            )
        return node

    # --- expressions ---

    def plan(self) -> Node:
        if self.token.kind == "end":
            raise self.source.error("no expression found", 0)
        root = self.expression(0)
        if self.token.kind != "end":
            raise self.trailing()
        return root

    def trailing(self) -> PromQLError:
        hint = advice.rest(self.tokens, self.at)
        if self.token.text == "=":
            following = self.tokens[self.at + 1]
            turned = following.text in ("<", ">") and following.pos == self.token.end
            return self.source.error(
                "unexpected `=`: it does not compare", self.token.pos,
                suggestion=f"write `{following.text}=`" if turned else hint,
            )
        return self.unexpected("the expression should end or go on with an operator", hint)

    def expression(self, lowest: int) -> Node:
        self.level += 1
        if self.level > lexer.NESTING_MAX:
            raise self.source.error(
                f"expression is nested deeper than {lexer.NESTING_MAX}", self.token.pos,
                kind="limit",
            )
        lhs = self.unary()
        while (op := self.operator()) is not None and _PRECEDENCE[op] > lowest:
            lhs = self.binary(lhs, op)
        self.level -= 1
        return lhs

    def operator(self) -> str | None:
        token = self.token
        text = token.text.lower()
        return text if token.kind in ("op", "name") and text in _PRECEDENCE else None

    def binary(self, lhs: Node, op: str) -> Node:
        token = self.take()
        bool_result = self.is_word("bool")
        if bool_result:
            self.take()
        matching = self.matching()
        rank = _PRECEDENCE[op]
        rhs = self.expression(rank - 1 if op == "^" else rank)
        return self.made(self.check.binary(token, op, lhs, rhs, bool_result, matching))

    def matching(self) -> Matching | None:
        found = self.matching_labels()
        following = self.tokens[min(self.at + 1, len(self.tokens) - 1)]
        if self.is_word("fill", "fill_left", "fill_right") and following.text == "(":
            raise self.source.error(
                f"the modifier `{self.token.text}` is newer than Prometheus 3.5 and experimental",
                self.token.pos, kind="unsupported", suggestion="join with `or` instead",
            )
        return found

    def matching_labels(self) -> Matching | None:
        if not self.is_word("on", "ignoring"):
            return None
        on = self.take().text.lower() == "on"
        labels = self.label_names()
        if not self.is_word("group_left", "group_right"):
            return Matching(on, labels)
        left = self.take().text.lower() == "group_left"
        include = self.label_names() if self.is_op("(") else ()
        return Matching(on, labels, "many-to-one" if left else "one-to-many", include)

    def unary(self) -> Node:
        signs: list[Token] = []
        while self.is_op("+", "-"):
            signs.append(self.take())
            if len(signs) > lexer.NESTING_MAX:
                raise self.source.error("too many signs in a row", self.token.pos, kind="limit")
        if not signs:
            return self.postfix()
        node = self.expression(_UNARY_PRECEDENCE)
        for sign in reversed(signs):
            self.check.sign(sign, node)
            if sign.text == "-":
                node = self.negated(sign, node)
        return node

    def negated(self, sign: Token, node: Node) -> Node:
        if isinstance(node, Number):
            return Number(-node.value, pos=sign.pos)
        return self.made(Negate(node, pos=sign.pos))

    # --- modifiers ---

    def postfix(self) -> Node:
        start = self.token
        bare = not self.is_op("(")
        node = self.primary()
        seen: set[str] = set()
        while True:
            if self.is_op("["):
                node = self.bracket(node, start, bare, seen)
                seen = set()
            elif self.is_op("@"):
                node = self.at_modifier(node, bare, seen)
            elif self.is_word("offset"):
                node = self.offset_modifier(node, bare, seen)
            elif self.is_word("anchored", "smoothed"):
                raise self.source.error(
                    f"the modifier `{self.token.text}` is experimental and not supported",
                    self.token.pos, kind="unsupported",
                )
            else:
                return node
            bare = True

    def bracket(self, node: Node, start: Token, bare: bool, seen: set[str]) -> Node:
        opened = self.take()
        range_ms = 0 if self.is_op(":") else self.positive_duration("a range")
        if not range_ms:
            raise self.unexpected("expected a duration as in `[5m]`")
        if self.token.kind == "name":             # Prometheus takes its first letter for a colon
            raise self.unexpected("a duration has no spaces, as in `5m`")
        if self.is_op(":"):
            self.take()
            step = None if self.is_op("]") else self.positive_duration("a subquery step")
            self.expect("]", "after the subquery")
            self.check.subquery(opened, node)
            return self.made(Subquery(node, range_ms, step, pos=start.pos))
        self.expect("]", "after the range")
        if not isinstance(node, Selector) or node.range_ms or not bare:
            raise self.source.error(
                "a range `[…]` is only allowed after a selector", opened.pos, kind="type",
                suggestion="a subquery needs a colon, as in `[5m:1m]`",
            )
        if seen:
            raise self.source.error(
                f"`{min(seen)}` must come after the range", opened.pos,
                suggestion="write `metric[5m] offset 1h`",
            )
        return Selector(node.metric_name, node.matchers, range_ms, pos=node.pos)

    def modifiable(self, node: Node, bare: bool, seen: set[str], word: str) -> Selector | Subquery:
        if not isinstance(node, Selector | Subquery) or not bare:
            raise self.source.error(f"{_MODIFIABLE} `{word}`", self.token.pos)
        if word in seen:
            raise self.source.error(f"`{word}` may not be set twice", self.token.pos)
        seen.add(word)
        return node

    def at_modifier(self, node: Node, bare: bool, seen: set[str]) -> Node:
        target = self.modifiable(node, bare, seen, "@")
        self.take()
        return _modified(target, target.offset_ms, self.instant())

    def offset_modifier(self, node: Node, bare: bool, seen: set[str]) -> Node:
        target = self.modifiable(node, bare, seen, "offset")
        self.take()
        return _modified(target, self.signed_ms("an offset"), target.at)

    # --- primaries ---

    def primary(self) -> Node:
        token = self.token
        if token.kind == "number":
            return Number(lexer.number(self.source, self.take()), pos=token.pos)
        if token.kind == "duration":
            return Number(lexer.duration_ms(self.source, self.take()) / 1000, pos=token.pos)
        if token.kind == "string":
            return String(lexer.string(self.source, self.take()), pos=token.pos)
        if token.kind == "name":
            return self.named()
        if self.is_op("("):
            self.take()
            node = self.expression(0)
            if not self.is_op(")"):
                raise self.trailing() if self.token.kind != "end" else self.unexpected(
                    "expected `)`"
                )
            self.take()
            return node
        if self.is_op("{"):
            return self.selector(None)
        raise self.unexpected("expected a selector, a function or a number",
                              advice.begin(self.tokens, self.at))

    def named(self) -> Node:
        token = self.token
        word = token.text.lower()
        following = self.tokens[self.at + 1]
        value = lexer.word_number(token.text)
        if value is not None:
            self.take()
            return Number(value, pos=token.pos)
        called = following.kind == "op" and following.text == "("
        grouped = following.kind == "name" and following.text.lower() in ("by", "without")
        if (called or grouped) and word in _AGGREGATIONS:
            return self.aggregation()
        if called and word not in KEYWORDS:
            return self.call()
        if word in _NO_NAMES:
            raise self.unexpected("expected a selector, a function or a number",
                                  advice.begin(self.tokens, self.at))
        return self.selector(self.take())

    def call(self) -> Node:
        name = self.take()
        self.check.known(name)
        return self.made(self.check.call(name, self.arguments()))

    def arguments(self) -> list[Node]:
        self.expect("(", "before arguments")
        args: list[Node] = []
        while not self.is_op(")"):
            args.append(self.expression(0))
            if self.is_op(")"):
                break
            self.expect(",", "or `)` after an argument")
            if self.is_op(")"):
                raise self.unexpected("expected an argument after `,`")
        self.take()
        return args

    def aggregation(self) -> Node:
        name = self.take()
        op = name.text.lower()
        if op in OUT_OF_SCOPE:
            raise self.source.error(OUT_OF_SCOPE[op], name.pos, kind="unsupported")
        clause = self.grouping()
        args = self.arguments()
        if clause is None:
            clause = self.grouping()
        without, labels = clause or (False, ())
        param, expr = self.check.aggregation(name, op, args)
        return self.made(Aggregate(op, expr, param, labels, without, pos=name.pos))

    def grouping(self) -> tuple[bool, tuple[str, ...]] | None:
        if not self.is_word("by", "without"):
            return None
        without = self.take().text.lower() == "without"
        return without, self.label_names()

def _modified(target: Selector | Subquery, offset_ms: int, at: At) -> Node:
    if isinstance(target, Selector):
        return Selector(
            target.metric_name, target.matchers, target.range_ms, offset_ms, at, pos=target.pos
        )
    return Subquery(target.expr, target.range_ms, target.step_ms, offset_ms, at, pos=target.pos)
