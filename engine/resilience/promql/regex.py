"""Label regexes: RE2, fully anchored, as Prometheus' FastRegexMatcher means them.

RE2 runs in linear time, so no pattern can hang; its memory and the pattern's length are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

PATTERN_MAX = 16_384
_MEMORY_MAX = 16 << 20
_KEPT_MAX = 128  # characters of a text whose answer is kept
# A quoted part, which may go on to the end, or one escape. RE2 knows one that Go, and so
# Prometheus, refuses.
_QUOTED = r"\\Q.*?(?:\\E|\Z)|\\."
_ESCAPES = re.compile(_QUOTED, re.DOTALL)
_SINGLE_BYTE = r"\C"
# What may hold a bracket that opens no group, and what opens one that is counted.
_OPENING = (
    _QUOTED + r"|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]"
    r"|(?P<group>\((?!\?)|\(\?P?<(?P<name>[^>]*)>)"
)


class _MatcherLike(Protocol):
    @property
    def op(self) -> str: ...
    @property
    def value(self) -> str: ...


@lru_cache(maxsize=4_096)
def compiled(pattern: str) -> Any:
    """Return the RE2 object of a matcher's pattern, to be matched in full. Raises ValueError."""
    return _compiled(_checked(pattern), True)


@lru_cache(maxsize=4_096)
def substitution(pattern: str) -> Any:
    """Return the RE2 object of a pattern of `label_replace`, to be searched for.

    Prometheus puts it into another one as text, so an open quote reaches over the end and `a)|(b`
    is whole. Raises ValueError.
    """
    return _compiled(f"^(?s:{_checked(pattern)})$", False)


def _checked(pattern: str) -> str:
    """Return a pattern as it was written, if it may be compiled. Raises ValueError."""
    if len(pattern) > PATTERN_MAX:
        raise ValueError(f"it has {len(pattern)} characters, the limit is {PATTERN_MAX}")
    if _SINGLE_BYTE in _ESCAPES.findall(pattern):
        raise ValueError(f"invalid escape sequence `{_SINGLE_BYTE}`")
    return pattern


def _compiled(pattern: str, dot_all: bool) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.dot_nl = dot_all
    options.max_mem = _MEMORY_MAX
    try:
        found = re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(_reason(error)) from None
    if strange := [name for name in found.groupindex if not name.isascii()]:
        raise ValueError(f"invalid named capture `{strange[0]}`")
    return found


def _reason(error: Exception) -> str:
    first = error.args[0] if error.args else "it cannot be compiled"
    text = first.decode("utf-8", "replace") if isinstance(first, bytes) else str(first)
    return text.partition(":")[0]


@lru_cache(maxsize=256)
def groups(pattern: str) -> dict[str, list[int]]:
    """Return name -> numbers of the groups of a valid pattern: in Go a name may be there twice."""
    found: dict[str, list[int]] = {}
    opened = (m for m in re.finditer(_OPENING, pattern, re.DOTALL) if m["group"])
    for number, match in enumerate(opened, 1):
        if match["name"]:
            found.setdefault(match["name"], []).append(number)
    return found


def problem(pattern: str, compile_: Callable[[str], Any] = compiled) -> str | None:
    """Return why `pattern` is no regex, or None."""
    try:
        compile_(pattern)
    except ValueError as error:
        return str(error)
    return None


def test(matcher: _MatcherLike) -> Callable[[str], bool]:
    """Return the test of one label value; a missing label is the empty text."""
    value = matcher.value
    if matcher.op == "=":
        return lambda text: text == value
    if matcher.op == "!=":
        return lambda text: text != value
    found = compiled(value).fullmatch
    wanted = matcher.op == "=~"
    return lambda text: wanted is (
        _matches(value, text) if len(text) <= _KEPT_MAX else found(text) is not None
    )


@lru_cache(maxsize=65_536)
def _matches(pattern: str, text: str) -> bool:
    """Whether a text matches: the same few names and values come again with each group."""
    return compiled(pattern).fullmatch(text) is not None


def matches_empty(matcher: _MatcherLike) -> bool:
    return test(matcher)("")
