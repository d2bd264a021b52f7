"""What was probably meant where an expression is not PromQL: words and signs of other languages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resilience.promql.lexer import Token

# What other systems call a function or an aggregation.
_CALLED = {
    "mean": "avg", "average": "avg", "median": "quantile", "length": "count",
    "percentile": "quantile", "increase_over_time": "increase", "derivative": "deriv",
    "moving_average": "avg_over_time",
}
_PERCENTILE = re.compile(r"[pP]([0-9]{2})")
_TURNED = {">": ">=", "<": "<=", "!": "!="}
# `5min`, `10sec`: a number, and how a unit of time begins.
_UNIT = re.compile(r"([0-9]+)_*(?P<unit>m(?:s|in)?|h|s|d)[a-z]*", re.IGNORECASE)
_THOUSANDS = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKMGT])(i?)[bB]?")
_POWERS = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


def function(name: str) -> str | None:
    """Return what to write for a function of another language."""
    percentile = _PERCENTILE.fullmatch(name)
    if percentile is not None:
        share = f"0.{percentile[1]}".rstrip("0")
        return f"write `histogram_quantile({share}, …)` over buckets, or `quantile({share}, …)`"
    meant = _CALLED.get(name.lower())
    return f"did you mean `{meant}`?" if meant else None


def number(word: str) -> str | None:
    """Return what to write for a number with a unit that PromQL does not have."""
    large = _THOUSANDS.fullmatch(word)
    if large is not None and large[3]:
        return f"write `{large[1]} * 2^{10 * _POWERS[large[2]]}`"
    if large is not None:
        minutes = f"`{large[1]}m` for minutes, " if word.endswith("M") else ""
        return f"write {minutes}`{large[1]}e{3 * _POWERS[large[2]]}`" + (
            " for millions" if minutes else "")
    unit = _UNIT.fullmatch(word)
    if unit is None:
        return None
    short = unit["unit"].lower()
    return f"did you mean `{unit[1]}{'m' if short == 'min' else short}`?"


def rest(tokens: Sequence[Token], at: int) -> str | None:
    """Return what to do about what stands behind a whole expression, from `tokens[at]` on."""
    token, before = tokens[at], tokens[at - 1]
    following = tokens[min(at + 1, len(tokens) - 1)]
    word = token.text.lower()
    if token.text == "=":
        return "write `==`"
    if word == "for" and following.kind in ("duration", "number"):
        return f"`for: {following.text}` is a field of its own, beside `expr`"
    if word in ("by", "without"):
        return f"`{word} (…)` stands at the aggregation: `sum {word} (…) (…)`"
    if word in ("group_left", "group_right"):
        return f"write `on (…)` or `ignoring (…)` before `{word}`"
    if token.text == "," and before.kind == "number" and before.end == token.pos \
            and following.kind == "number" and following.pos == token.end:
        return f"write the number without commas: `{before.text}{following.text}`"
    return "write `or` or `and` between conditions" if token.text == "," else None


def begin(tokens: Sequence[Token], at: int) -> str | None:
    """Return what to do where a value should begin, at `tokens[at]`, and something else stands."""
    token, before = tokens[at], tokens[max(at - 1, 0)]
    word = token.text.lower()
    if token.kind == "end" and before.text == "%":
        return "`%` is the remainder of a division: write a share as 0.9, a percentage as 90"
    if token.text == "=" and before.text in _TURNED:
        return f"write `{_TURNED[before.text]}`, without a blank"
    if word in ("group_left", "group_right"):
        return f"write `on (…)` or `ignoring (…)` before `{word}`"
    if before.text == "=" or token.text == "=":
        return "write `==`"
    return None
