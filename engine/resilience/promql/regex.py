"""Label regexes: RE2, fully anchored, as Prometheus' FastRegexMatcher means them.

RE2 runs in linear time, so no pattern can hang; its memory and the pattern's length are bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

PATTERN_MAX = 16_384
_MEMORY_MAX = 16 << 20


class _MatcherLike(Protocol):
    @property
    def op(self) -> str: ...
    @property
    def value(self) -> str: ...


@lru_cache(maxsize=4_096)
def compiled(pattern: str) -> Any:
    """Return the RE2 object of `(?s:pattern)`, to be matched in full. Raises ValueError."""
    import re2

    if len(pattern) > PATTERN_MAX:
        raise ValueError(f"it has {len(pattern)} characters, the limit is {PATTERN_MAX}")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY_MAX
    try:
        return re2.compile(f"(?s:{pattern})", options)
    except re2.error as error:
        raise ValueError(_reason(error)) from None


def _reason(error: Exception) -> str:
    first = error.args[0] if error.args else "it cannot be compiled"
    text = first.decode("utf-8", "replace") if isinstance(first, bytes) else str(first)
    return text.partition(":")[0]


def problem(pattern: str) -> str | None:
    """Return why `pattern` is no regex, or None."""
    try:
        compiled(pattern)
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
    if matcher.op == "=~":
        return lambda text: found(text) is not None
    return lambda text: found(text) is None


def matches_empty(matcher: _MatcherLike) -> bool:
    return test(matcher)("")
