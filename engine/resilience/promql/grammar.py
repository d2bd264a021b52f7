"""Tokens to plan: a precedence-climbing reader of Prometheus 3.5's grammar.

Recursion is bounded: brackets and signs by the lexer's nesting bound and `_enter`, chains of
operators by the height of the tree that they make.
"""

from __future__ import annotations

import math

from resilience.errors import PromQLError
from resilience.promql import lexer
from resilience.promql.lexer import Source, Token
from resilience.promql.plan import (
    DEPTH_MAX,
    Aggregate,
    At,
    Matcher,
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
    OUT_OF_SCOPE,
)
from resilience.promql.text import is_label_name
from resilience.promql.typecheck import Checker

_PRECEDENCE = {
    "or": 1, "and": 2, "unless": 2, "==": 3, "!=": 3, "<": 3, ">": 3, "<=": 3, ">=": 3,
    "+": 4, "-": 4, "*": 5, "/": 5, "%": 5, "atan2": 5, "^": 6,
}
_UNARY_PRECEDENCE = 5
_MODIFIABLE = "only a selector or a subquery can have"

class Grammar:
    """Reads one expression; `plan()` returns its root."""

    def __init__(self, source: Source, experimental: bool) -> None:
        self.source = source
        self.tokens = lexer.tokens(source)
        self.at = 0
        self.level = 0
        self.check = Checker(source, experimental)

    # --- tokens ---

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def take(self) -> Token:
        token = self.tokens[self.at]
        self.at += 1
        return token

    def is_op(self, *texts: str) -> bool:
        return self.token.kind == "op" and self.token.text in texts

    def is_word(self, *words: str) -> bool:
        return self.token.kind == "name" and self.token.text.lower() in words

    def expect(self, text: str, where: str) -> Token:
        if not self.is_op(text):
            raise self.unexpected(f"expected `{text}` {where}")
        return self.take()

    def unexpected(self, wanted: str) -> PromQLError:
        token = self.token
        if token.kind == "end":
            return self.source.error(f"unexpected end of the expression: {wanted}", token.pos)
        return self.source.error(f"unexpected `{_short(token.text)}`: {wanted}", token.pos)

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
        token = self.token
        if token.text == "=":
            return self.source.error(
                "unexpected `=`: it does not compare", token.pos, suggestion="write `==`"
            )
        return self.unexpected("the expression should end or go on with an operator")

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

    def label_names(self) -> tuple[str, ...]:
        self.expect("(", "before label names")
        names: list[str] = []
        while not self.is_op(")"):
            names.append(self.label_name())
            if not self.is_op(")"):
                self.expect(",", "between label names")
        self.take()
        return tuple(names)

    def label_name(self) -> str:
        token = self.take()
        if token.kind == "string":
            name = lexer.string(self.source, token)
            if name:
                return name
        elif token.kind == "name" and is_label_name(token.text):
            return token.text
        raise self.source.error(f"`{_short(token.text)}` is not a label name", token.pos)

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

    def instant(self) -> At:
        if self.is_word("start", "end"):
            word = self.take().text.lower()
            self.expect("(", f"after `{word}`")
            self.expect(")", f"after `{word}(`")
            return "start" if word == "start" else "end"
        return self.signed_ms("a time")

    def signed_ms(self, what: str) -> int:
        sign = 1
        if self.is_op("+", "-"):
            sign = -1 if self.take().text == "-" else 1
        return sign * self.plain_ms(what)

    def positive_duration(self, what: str) -> int:
        token = self.token
        ms = self.plain_ms(what)
        if ms <= 0:
            raise self.source.error(f"{what} must be longer than 0", token.pos)
        if not self.is_op("]", ":"):
            self.refuse_duration_expression()
        return ms

    def plain_ms(self, what: str) -> int:
        """Read a duration or a number of seconds."""
        token = self.token
        if token.kind == "duration":
            return lexer.duration_ms(self.source, self.take())
        if token.kind == "number":
            return self.seconds_ms(lexer.number(self.source, token), what)
        if token.kind == "name" and (value := lexer.word_number(token.text)) is not None:
            return self.seconds_ms(value, what)
        self.refuse_duration_expression()
        raise self.unexpected(f"expected {what}: a duration as in `5m` or seconds")

    def seconds_ms(self, seconds: float, what: str) -> int:
        token = self.take()
        if not math.isfinite(seconds) or abs(seconds) > 9_223_372_036:
            raise self.source.error(f"{what} of `{token.text}` is out of range", token.pos)
        return round(seconds * 1000)

    def refuse_duration_expression(self) -> None:
        if self.is_op("(", "+", "-", "*", "/", "%", "^") or self.is_word(
            "step", "range", "min", "max", "start", "end"
        ):
            raise self.source.error(
                "duration expressions are experimental and not supported", self.token.pos,
                kind="unsupported", suggestion="write the duration itself, as in `5m`",
            )

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
        raise self.unexpected("expected a selector, a function or a number")

    def named(self) -> Node:
        token = self.token
        word = token.text.lower()
        following = self.tokens[self.at + 1]
        value = lexer.word_number(token.text)
        if value is not None and following.text != "{":
            self.take()
            return Number(value, pos=token.pos)
        called = following.kind == "op" and following.text == "("
        grouped = following.kind == "name" and following.text.lower() in ("by", "without")
        if (called or grouped) and word in AGGREGATIONS | EXPERIMENTAL_AGGREGATIONS:
            return self.aggregation()
        if called and word not in KEYWORDS:
            return self.call()
        if word in KEYWORDS and word not in ("bool", "inf", "nan"):
            raise self.unexpected("expected a selector, a function or a number")
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

    # --- selectors ---

    def selector(self, name: Token | None) -> Node:
        start = name or self.token
        matchers: list[Matcher] = []
        if name is not None:
            matchers.append(Matcher("__name__", "=", name.text))
        if self.is_op("{"):
            self.take()
            while not self.is_op("}"):
                self.matcher(matchers, name)
                if not self.is_op("}"):
                    self.comma_or_or()
            self.take()
        self.check.selector(start, matchers)
        exact = [m.value for m in matchers if m.name == "__name__" and m.op == "=" and m.value]
        return Selector(exact[0] if exact else None, tuple(matchers), pos=start.pos)

    def comma_or_or(self) -> None:
        if self.is_word("or"):
            raise self.source.error(
                "`or` between matchers is not PromQL", self.token.pos, kind="unsupported",
                suggestion="write `=~\"a|b\"` or join two selectors with `or`",
            )
        self.expect(",", "or `}` after a matcher")

    def matcher(self, matchers: list[Matcher], name: Token | None) -> None:
        token = self.take()
        if token.kind == "string" and self.is_op(",", "}"):
            if name is not None or any(m.name == "__name__" and m.op == "=" for m in matchers):
                raise self.source.error("the metric name is set twice", token.pos)
            matchers.append(Matcher("__name__", "=", lexer.string(self.source, token)))
            return
        label = self.matcher_label(token)
        if not self.is_op("=", "!=", "=~", "!~"):
            if self.is_op("=="):
                raise self.source.error(
                    "a matcher has a single `=`", self.token.pos, suggestion="write `=`"
                )
            raise self.unexpected("expected `=`, `!=`, `=~` or `!~` after a label name")
        op = self.take().text
        value = self.token
        if value.kind != "string":
            raise self.source.error(
                f"the value of label `{label}` is a quoted string", value.pos,
                suggestion=f'write `{label}{op}"{_short(value.text)}"`',
            )
        self.take()
        made = Matcher(label, op, lexer.string(self.source, value))  # type: ignore[arg-type]
        self.check.matcher(value, made)
        if name is not None and label == "__name__" and op == "=":
            raise self.source.error("the metric name is set twice", token.pos)
        matchers.append(made)

    def matcher_label(self, token: Token) -> str:
        if token.kind == "name" and is_label_name(token.text):
            return token.text
        if token.kind == "string" and token.text[1:-1]:
            return lexer.string(self.source, token)
        raise self.source.error(f"`{_short(token.text)}` is not a label name", token.pos)


def _modified(target: Selector | Subquery, offset_ms: int, at: At) -> Node:
    if isinstance(target, Selector):
        return Selector(
            target.metric_name, target.matchers, target.range_ms, offset_ms, at, pos=target.pos
        )
    return Subquery(target.expr, target.range_ms, target.step_ms, offset_ms, at, pos=target.pos)


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
