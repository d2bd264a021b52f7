"""Reading tokens one by one: names, label lists, durations and times, selectors."""

from __future__ import annotations

import math

from resilience.errors import PromQLError
from resilience.promql import lexer
from resilience.promql.lexer import Source, Token
from resilience.promql.plan import At, Matcher, Node, Selector
from resilience.promql.text import is_label_name
from resilience.promql.typecheck import Checker

TIME_MAX_MS = 2**53


class Cursor:
    """A place in the tokens of one expression, and what can be read from there."""

    def __init__(self, source: Source, experimental: bool) -> None:
        self.source = source
        self.tokens = lexer.tokens(source)
        self.at = 0
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

    def unexpected(self, wanted: str, suggestion: str | None = None) -> PromQLError:
        token = self.token
        what = "end of the expression" if token.kind == "end" else f"`{short(token.text)}`"
        return self.source.error(f"unexpected {what}: {wanted}", token.pos, suggestion=suggestion)

    # --- labels ---

    def label_names(self) -> tuple[str, ...]:
        if self.token.kind == "name":
            raise self.unexpected("expected `(` before label names",
                                  f"write `({short(self.token.text)})`")
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
        elif token.kind == "name" and lexer.word_number(token.text) is None:
            return token.text  # with a colon, too
        raise self.source.error(f"`{short(token.text)}` is not a label name", token.pos)

    # --- durations and times ---

    def instant(self) -> At:
        if self.is_word("start", "end"):
            word = self.take().text.lower()
            self.expect("(", f"after `{word}`")
            self.expect(")", f"after `{word}(`")
            return "start" if word == "start" else "end"
        sign = self.sign()
        token = self.token
        seconds = self.seconds(token)
        if seconds is None:
            return sign * self.plain_ms("a time")
        self.take()
        if not abs(seconds) * 1000 < 2.0**63:
            raise self.source.error(f"a time of `{short(token.text)}` is out of range", token.pos)
        # To the nearest millisecond; nothing was ever sampled so far away that it is cut.
        return sign * min(math.floor(seconds * 1000 + 0.5), TIME_MAX_MS)

    def sign(self) -> int:
        return -1 if self.is_op("+", "-") and self.take().text == "-" else 1

    def signed_ms(self, what: str) -> int:
        return self.sign() * self.plain_ms(what)

    def positive_duration(self, what: str) -> int:
        token = self.token
        ms = self.plain_ms(what)
        if ms <= 0:
            least = "0" if self.seconds(token) in (0, None) else "a millisecond"
            raise self.source.error(f"{what} must be longer than {least}", token.pos)
        if not self.is_op("]", ":"):
            self.refuse_duration_expression()
        return ms

    def plain_ms(self, what: str) -> int:
        """Read a duration or a number of seconds."""
        token = self.token
        if token.kind == "duration":
            return lexer.duration_ms(self.source, self.take())
        if (seconds := self.seconds(token)) is not None:
            return self.seconds_ms(seconds, what)
        self.refuse_duration_expression()
        raise self.unexpected(f"expected {what}: a duration as in `5m` or seconds")

    def seconds(self, token: Token) -> float | None:
        """Return the number that a token is, None for other tokens."""
        if token.kind == "number":
            return lexer.number(self.source, token)
        return lexer.word_number(token.text) if token.kind == "name" else None

    def seconds_ms(self, seconds: float, what: str) -> int:
        """Take a number of seconds that stands for a duration: parts of a millisecond are lost."""
        token = self.take()
        if not math.isfinite(seconds) or abs(seconds) > 9_223_372_036:
            raise self.source.error(f"{what} of `{token.text}` is out of range", token.pos)
        return round(seconds * 1e9) // 1_000_000

    def refuse_duration_expression(self) -> None:
        if self.is_op("(", "+", "-", "*", "/", "%", "^") or self.is_word(
            "step", "range", "min", "max", "start", "end"
        ):
            raise self.source.error(
                "duration expressions are experimental and not supported", self.token.pos,
                kind="unsupported", suggestion="write the duration itself, as in `5m`",
            )

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
            if name is not None:
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
                suggestion=f'write `{label}{op}"{short(value.text)}"`',
            )
        self.take()
        made = Matcher(label, op, lexer.string(self.source, value))  # type: ignore[arg-type]
        self.check.matcher(value, made)
        if name is not None and label == "__name__":
            raise self.source.error("the metric name is set twice", token.pos)
        matchers.append(made)

    def matcher_label(self, token: Token) -> str:
        if token.kind == "name" and is_label_name(token.text):
            return token.text
        if token.kind == "string" and token.text[1:-1]:
            return lexer.string(self.source, token)
        raise self.source.error(f"`{short(token.text)}` is not a label name", token.pos)


def short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
