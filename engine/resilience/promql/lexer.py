"""Text to tokens, with bounds: nothing longer, deeper or stranger than this reaches the grammar.

Positions count code points from 0; `Source.place` turns one into line and column from 1.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from resilience.errors import PromQLError
from resilience.promql import advice

LENGTH_MAX = 65_536
TOKENS_MAX = 10_000
NESTING_MAX = 100

_UNITS_MS = {
    "y": 31_536_000_000, "w": 604_800_000, "d": 86_400_000, "h": 3_600_000,
    "m": 60_000, "s": 1_000, "ms": 1,
}
_DURATION_PARTS = re.compile(r"(\d+)(ms|[ywdhms])")
_INT_MAX = 2**63 - 1
_DURATION_MAX_MS = 9_223_372_036_854  # what Prometheus' nanoseconds can hold

# In one way only, or a long number that ends badly would be tried in all ways.
_DIGITS = r"[0-9]+(?:_+[0-9]+)*"
_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n]+|\#[^\r\n]*)
  | (?P<duration>(?:[0-9]+(?:ms|[ywdhms]))+(?![A-Za-z0-9_.]))
  | (?P<number>0[xX][0-9a-fA-F_]+(?![A-Za-z0-9_.])
      | (?>(?:DIGITS(?:\.(?:DIGITS)?)?|\.DIGITS)(?:[eE][+-]?[0-9]+)?)(?![A-Za-z0-9_.]))
  | (?P<name>[A-Za-z_:][A-Za-z0-9_:]*)
  | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`)
  | (?P<op>=~|!~|==|!=|<=|>=|[-+*/%^<>=(){}\[\],@:])
    """.replace("DIGITS", _DIGITS),
    re.VERBOSE,
)
_OPEN = {"(": ")", "[": "]", "{": "}"}
_CLOSE = {")": "(", "]": "[", "}": "{"}
# As other languages write them.
_C_WORDS = {
    "&": "and", "|": "or", "≥": ">=", "≤": "<=", "≠": "!=", "\u00d7": "*", "÷": "/", "\u2212": "-",
    "\u2013": "-", "\u2014": "-",
}
_BRACKETS = frozenset({*_OPEN, *_CLOSE})
_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\",
}
_ESCAPE = re.compile(
    rb"\\(x[0-9a-fA-F]{2}|[0-7]{3}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL
)


class Token(NamedTuple):
    """One token. `kind` is name, number, duration, string, op or end; `pos` counts from 0. A tuple,
    because an expression has many."""

    kind: str
    text: str
    pos: int

    @property
    def end(self) -> int:
        return self.pos + len(self.text)


@dataclass(frozen=True, slots=True)
class Source:
    """The text of one expression; makes errors that know their place."""

    text: str

    def place(self, pos: int) -> tuple[int, int]:
        """Return (line, column), both from 1."""
        before = self.text[:pos]
        return before.count("\n") + 1, pos - (before.rfind("\n") + 1) + 1

    def error(
        self, message: str, pos: int, *, kind: str = "parse", suggestion: str | None = None
    ) -> PromQLError:
        line, column = self.place(pos)
        return PromQLError(message, kind=kind, line=line, column=column, suggestion=suggestion)


def tokens(source: Source) -> list[Token]:
    """Return the tokens of `source`, closed by one of kind `end`.

    Raises PromQLError of kind `limit` for what is too long, too many or too deep, and of kind
    `parse` for characters, strings and brackets that cannot be.
    """
    text = source.text
    if len(text) > LENGTH_MAX:
        raise source.error(
            f"expression has {len(text)} characters, the limit is {LENGTH_MAX}", 0, kind="limit"
        )
    found: list[Token] = []
    open_brackets: list[Token] = []
    pos = 0
    while pos < len(text):
        if text[pos] == ":" and open_brackets and open_brackets[-1].text == "[":
            found.append(Token("op", ":", pos))
            pos += 1
            continue
        match = _TOKEN.match(text, pos)
        if match is None or match.lastgroup is None:
            raise _unreadable(source, pos)
        pos = match.end()
        if match.lastgroup != "space":
            token = Token(match.lastgroup, match.group(), match.start())
            found.append(token)
            if token.text in _BRACKETS:
                _track(source, token, open_brackets)
        if len(found) > TOKENS_MAX:
            raise source.error(f"expression has more than {TOKENS_MAX} words", pos, kind="limit")
    if open_brackets:
        last = open_brackets[-1]
        raise source.error(
            f"unclosed `{last.text}`", last.pos, suggestion=f"add the missing `{_OPEN[last.text]}`"
        )
    found.append(Token("end", "", len(text)))
    return found


def _track(source: Source, token: Token, open_brackets: list[Token]) -> None:
    """Open or close a bracket."""
    if token.text in _OPEN:
        open_brackets.append(token)
        if len(open_brackets) > NESTING_MAX:
            raise source.error(
                f"brackets are nested deeper than {NESTING_MAX}", token.pos, kind="limit"
            )
        return
    if not open_brackets:
        raise source.error(f"unexpected `{token.text}`: nothing is open", token.pos)
    opened = open_brackets.pop()
    if opened.text != _CLOSE[token.text]:
        raise source.error(
            f"unexpected `{token.text}`: `{opened.text}` is still open", token.pos,
            suggestion=f"close it with `{_OPEN[opened.text]}` first",
        )


def _unreadable(source: Source, pos: int) -> PromQLError:
    char = source.text[pos]
    if char in "\"'`":
        return source.error(f"unterminated string, it starts with {char}", pos)
    if char.isdigit() or (char == "." and source.text[pos + 1 : pos + 2].isdigit()):
        found = re.match(r"[\w.]{1,40}", source.text[pos : pos + 40])
        word = found.group() if found else char
        return source.error(f"bad number or duration `{word}`", pos, suggestion=advice.number(word))
    if char == "$":
        return source.error(
            "unexpected `$`: a dashboard variable is not PromQL", pos,
            suggestion="write the value in its place",
        )
    if char in "\u201c\u201d\u2018\u2019":
        return source.error(
            f"unexpected `{char}`", pos, suggestion="use straight quotes, `\"` or `'`"
        )
    if char == "|" and source.text[pos + 1 : pos + 2] != "|":
        return source.error("unexpected `|`: lines of logs are filtered so (LogQL), not metrics",
                            pos, suggestion="use a metric; conditions are put together with `or`")
    if char in _C_WORDS:
        return source.error(f"unexpected character `{char}`", pos,
                            suggestion=f"write `{_C_WORDS[char]}`")
    shown = char if char.isprintable() and not char.isspace() else f"U+{ord(char):04X}"
    return source.error(f"unexpected character `{shown}`", pos)


def duration_ms(source: Source, token: Token) -> int:
    """Return the milliseconds of a duration token; units must go from large to small, once."""
    total, rank = 0, -1
    order = list(_UNITS_MS)
    for count, unit in _DURATION_PARTS.findall(token.text):
        if order.index(unit) <= rank:
            raise source.error(
                f"`{token.text}` is not a duration: write units from large to small, as in `1h30m`",
                token.pos,
            )
        rank = order.index(unit)
        total += int(count.lstrip("0")[:20] or 0) * _UNITS_MS[unit]
    if total > _DURATION_MAX_MS:
        raise source.error(f"duration `{token.text}` is out of range", token.pos)
    return total


def number(source: Source, token: Token) -> float:
    """Return the value of a number as Go reads it: `_` between digits, 0x, leading 0 is octal."""
    text = token.text
    if text[:2] in ("0x", "0X"):
        digits = text[2:]
        if digits.endswith("_") or "__" in digits or not digits.strip("_"):
            raise source.error(f"bad number `{text}`", token.pos)
        value = int(digits.replace("_", ""), 16)
        if value > _INT_MAX:
            raise source.error(f"bad number `{text[:40]}`", token.pos)
        return float(value)
    if "__" in text:
        raise source.error(f"bad number `{text}`", token.pos)
    plain = text.replace("_", "")
    if len(plain) > 1 and plain[0] == "0" and re.fullmatch("[0-7]+", plain):
        value = int(plain, 8)
        return float(value) if value <= _INT_MAX else float(plain)
    found = float(plain)
    if math.isinf(found):
        raise source.error(f"number `{text[:40]}` is out of range", token.pos)
    return found


def word_number(text: str) -> float | None:
    """Return the value of `inf` and `nan` in any case, else None."""
    return {"inf": math.inf, "nan": math.nan}.get(text.lower())


def string(source: Source, token: Token) -> str:
    """Return what a string token stands for: backticks are raw, the others have Go's escapes."""
    quote, body = token.text[0], token.text[1:-1]
    if quote == "`":
        return body.replace("\r", "")
    if "\\" not in body:
        return body
    return _ESCAPE.sub(
        lambda m: _unescape(source, token, m.group(1), quote), body.encode("utf-8", "surrogatepass")
    ).decode("utf-8", "replace")


def _unescape(source: Source, token: Token, escape: bytes, quote: str) -> bytes:
    head = escape[:1].decode("latin-1")
    if head == quote:
        return quote.encode()
    if len(escape) == 1 and head in _ESCAPES:
        return _ESCAPES[head].encode()
    if len(escape) > 1:
        base = 8 if head.isdigit() else 16
        code = int(escape if head.isdigit() else escape[1:], base)
        if head == "x" or head.isdigit():
            if code < 256:
                return bytes((code,))
        elif code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF:
            return chr(code).encode()
    shown = escape.decode("utf-8", "replace")
    raise source.error(
        f"unknown escape `\\{shown}` in a string", token.pos,
        suggestion="double the backslash, or use backticks",
    )
