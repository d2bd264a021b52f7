"""What an unquoted YAML scalar means.

YAML 1.1 and YAML 1.2 read `no`, `010`, `1:30`, `1_000`, `0x10`, `1e3` and `2026-01-01` differently,
and so do the tools that people generate YAML with. Such a scalar is an error that says what to
write instead; all others mean the same in both. NaN, infinities and numbers beyond 2^53 are errors.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from resilience.model import format_duration

INTEGER_MAX = 2**53
_REMEMBERED_MAX = 40

_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NORWAY = {"yes": True, "on": True, "no": False, "off": False}
_START = frozenset("0123456789+-.~=<")
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)?\.[0-9]+(?:[eE][-+][0-9]+)?|[-+]?(?:0|[1-9][0-9]*)\.")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}(?:[Tt \t].*)?")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")
_BASES = re.compile(r"[-+]?0(?:x[0-9a-fA-F_]+|o?[0-7_]+|b[01_]+)")
_UNDERSCORE = re.compile(r"[-+]?(?=.*_)[0-9][0-9_]*(?:\.[0-9_]*)?")
_EXPONENT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+(?:\.[0-9]*)?")


@dataclass(frozen=True, slots=True)
class Refused:
    """A scalar that may not stand unquoted: why, what to write, and the value to go on with."""

    code: str
    message: str
    suggestion: str
    value: str | int | float | bool | None = None


Value: TypeAlias = str | int | float | bool | None


def plain(text: str) -> Value | Refused:
    """Return the value of the unquoted scalar `text`."""
    return _remembered(text) if len(text) <= _REMEMBERED_MAX else _plain(text)


def _plain(text: str) -> Value | Refused:
    if text in _BOOL:
        return _BOOL[text]
    if text in _NULL:
        return None
    if text[0] not in _START:
        return _norway(text)
    if _INT.fullmatch(text):
        return _integer(text)
    if _FLOAT.fullmatch(text):
        return _float(text)
    return _odd(text)


# The same few words and durations stand in every policy.
_remembered = lru_cache(maxsize=4_096)(_plain)


def _norway(text: str) -> str | Refused:
    meaning = _NORWAY.get(text.lower())
    if meaning is None:
        return text
    word = "true" if meaning else "false"
    return Refused(
        "yaml-ambiguous", f"`{text}` is the boolean {word} in YAML 1.1 and a string in YAML 1.2",
        f'quote it, `"{text}"`, if it is a word; write `{word}` if it is a boolean', text,
    )


def _integer(text: str) -> int | Refused:
    if len(text) < 18 and abs(int(text)) <= INTEGER_MAX:
        return int(text)
    return Refused(
        "number-too-large", f"`{_short(text)}` is beyond 2^53", "write a smaller number or quote it"
    )


def _float(text: str) -> float | Refused:
    value = float(text)
    if abs(value) <= INTEGER_MAX:
        return value
    return Refused(
        "number-too-large", f"`{_short(text)}` is beyond 2^53", "write a smaller number or quote it"
    )


def _odd(text: str) -> str | Refused:
    """Judge what looks like a number or a date and is not a plain decimal."""
    if _NOT_FINITE.fullmatch(text):
        return Refused(
            "number-not-finite", f"`{text}` is not a finite number", "write a finite number"
        )
    if text in ("=", "<<"):
        message = f"`{text}` has a meaning of its own in YAML 1.1"
        return Refused("yaml-ambiguous", message, "quote it")
    for pattern, judge in _JUDGES:
        if pattern.fullmatch(text):
            return judge(text)
    return text


def _date(text: str) -> Refused:
    return Refused(
        "yaml-ambiguous", f"`{_short(text)}` is a date in YAML 1.1 and a string in YAML 1.2",
        "quote it", text,
    )


def _sexagesimal(text: str) -> Refused:
    parts = text.replace("_", "").lstrip("+-").split(".")[0].split(":")
    if sum(map(len, parts)) > 12:
        return Refused("yaml-ambiguous", f"`{_short(text)}` is a number to base 60 in YAML 1.1",
                       "quote it", text)
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + int(part)
    minus = text.startswith("-")
    written = "" if minus else f"write `{format_duration(seconds * 1000)}` for a duration, or "
    return Refused(
        "yaml-ambiguous", f"`{text}` is the number {'-' * minus}{seconds} in YAML 1.1 (base 60)",
        f"{written}quote it", text,
    )


def _based(text: str) -> Refused:
    return Refused(
        "yaml-ambiguous",
        f"`{_short(text)}` is not a plain decimal: YAML 1.1 and 1.2 read it differently",
        f"write `{_decimal(text)}`, or quote it", text,
    )


def _decimal(text: str) -> str:
    digits = text.replace("_", "").lower()
    if len(digits) > 20:
        return "a decimal number"
    sign, body = ("-", digits[1:]) if digits[0] == "-" else ("", digits.lstrip("+"))
    for prefix, base in (("0x", 16), ("0o", 8), ("0b", 2)):
        if body.startswith(prefix):
            return sign + str(int(body[2:] or "0", base))
    if len(body) > 1 and body[0] == "0" and set(body) <= set("01234567"):
        return sign + str(int(body, 8))
    return sign + (body.lstrip("0") or "0")


def _exponent(text: str) -> Refused:
    return Refused(
        "yaml-ambiguous", f"`{_short(text)}` is a number in YAML 1.2 and a string in YAML 1.1",
        f'{_written_out(text)}quote it: `"{_short(text)}"`', text,
    )


def _written_out(text: str) -> str:
    """Return advice to write the number without an exponent, where that can be read."""
    value = float(text) if len(text) < 40 else math.inf
    if not 1e-6 < abs(value) <= INTEGER_MAX:
        return ""
    shown = str(int(value)) if value == int(value) else repr(value)
    return f"write `{shown}` for a number, or "


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"


_JUDGES = (
    (_DATE, _date), (_SEXAGESIMAL, _sexagesimal), (_BASES, _based), (_UNDERSCORE, _based),
    (_LEADING_ZERO, _based), (_EXPONENT, _exponent),
)
