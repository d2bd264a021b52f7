"""How values become text: measured first, so that no text is endless and none shows an address."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import GeneratorType
from typing import Any

from resilience.sandbox.budget import Run
from resilience.sandbox.limits import FIELD_WIDTH_MAX, TEXT_CHARS_MAX, WALK_NODES_MAX
from resilience.sandbox.values import DICT_VIEWS, MAPPINGS, ORDERED_VIEWS, TIMES, Kind, kind_of

_SPEC = re.compile(r"(?:.?[<>=^])?[-+ ]?z?#?0?(\d*)[,_]?(?:\.(\d*))?[a-zA-Z%]?", re.DOTALL)
_PERCENT = re.compile(r"%(?:\([^()]*\))?[-#0 +]*(\*|\d*)(?:\.(\*|\d*))?[hlL]?(.)", re.DOTALL)
_PERCENT_LETTERS = frozenset("diouxXeEfFgGcrs%")
_STRFTIME = re.compile(r"(?:[^%]|%[aAbBcdfHIjmMpSuUVwWxXyYGzZ%])*", re.DOTALL)
_CONTAINERS = frozenset({list, tuple, set, frozenset, *DICT_VIEWS, *ORDERED_VIEWS})


def measure(run: Run, value: object) -> int:
    """Return an upper bound of the characters in the text of `value`.

    Walks without recursion and counts shared parts as often as they would be written. Denies what
    has no text that is the same on every machine, and what is too large.
    """
    chars = nodes = 0
    stack = [value]
    while stack:
        item = stack.pop()
        nodes += 1
        chars += _own_chars(item)
        if nodes > WALK_NODES_MAX or chars > TEXT_CHARS_MAX:
            run.deny("the text of this value is too large")
        stack.extend(_parts(run, item))
    run.spend(nodes)
    return chars


def _own_chars(item: object) -> int:
    if type(item) is str:
        return len(item) + 2
    if type(item) is int:
        return item.bit_length() // 3 + 2
    return 64 if type(item) in TIMES else 26


def _parts(run: Run, item: object) -> list[object]:
    kind = type(item)
    if kind in MAPPINGS:
        parts: list[object] = [*item, *item.values()]  # type: ignore[misc, attr-defined]
        factory = getattr(item, "default_factory", None)
        return parts if factory is None else [*parts, factory]
    if kind in _CONTAINERS or kind.__name__ == "deque":
        return list(item)  # type: ignore[call-overload, no-any-return]
    if isinstance(item, Exception):
        return list(item.args)
    if item is None or kind in TIMES or isinstance(item, str | bool | int | float | range | Kind):
        return []
    if kind is GeneratorType:
        run.deny("a generator has no text; write `list(…)` around it")
    run.deny(f"{kind_of(item)} has no text")


def text(run: Run, value: object, write: Callable[[object], str] = str) -> str:
    """Return `str(value)` or `repr(value)`, measured."""
    if type(value) is str and write is str:
        return value
    measure(run, value)
    return write(value)


def formatted(run: Run, value: object, conversion: int, spec: str) -> str:
    """Return what an f-string's braces give: conversion (-1 none, else its letter), then spec."""
    if conversion != -1:
        value = text(run, value, str if conversion == ord("s") else repr)
    if not spec:
        return text(run, value)
    if type(value) in TIMES:
        return strftime(run, value, spec)
    if type(value) not in (str, int, float, bool):
        run.deny(f"{kind_of(value)} takes no format; write `{{value!s:…}}`")
    check_spec(run, spec)
    measure(run, value)
    return format(value, spec)


def check_spec(run: Run, spec: object) -> None:
    """Deny a format that is not one of numbers and texts, or wider than the limit."""
    match = _SPEC.fullmatch(spec) if isinstance(spec, str) and len(spec) < 64 else None
    if match is None:
        run.deny("the format after `:` is not one of numbers or texts")
    if any(number and int(number) > FIELD_WIDTH_MAX for number in match.groups()):
        run.deny(f"the format is wider than {FIELD_WIDTH_MAX:,}")


def strftime(run: Run, value: Any, spec: object) -> str:
    """Return the text of a time by letters such as `%Y`; the locale is always C."""
    if not isinstance(spec, str) or len(spec) > 200 or _STRFTIME.fullmatch(spec) is None:
        run.deny("the time format may hold `%` and one letter each, and 200 characters")
    return str(value.strftime(spec))


def percent(run: Run, template: str, values: object) -> str:
    """Return `template % values` with every width and the sum of all texts bounded."""
    chars = measure(run, values)
    fields = list(_PERCENT.finditer(template))
    for field in fields:
        width, precision, letter = field.groups()
        if "*" in (width, precision):
            run.deny("`*` cannot be a width; use an f-string")
        if any(number and int(number) > FIELD_WIDTH_MAX for number in (width, precision)):
            run.deny(f"the format is wider than {FIELD_WIDTH_MAX:,}")
        if letter not in _PERCENT_LETTERS:  # `(` too: a key with brackets would hide its width
            run.deny(f"`%{letter}` is not available; use an f-string")
    if len(template) + len(fields) * (FIELD_WIDTH_MAX + min(chars, TEXT_CHARS_MAX)) > 2**28:
        run.deny("the text of this value is too large")
    run.spend(len(fields))
    return template % values


def join(run: Run, separator: str, parts: list[object]) -> str:
    """Return `separator.join(parts)`, measured."""
    run.spend(len(parts))
    total = len(separator) * len(parts) + sum(len(p) for p in parts if isinstance(p, str))
    bounded(run, total)
    return separator.join(parts)  # type: ignore[arg-type]


def bounded(run: Run, chars: int) -> int:
    """Deny a text of more than the limit, else return `chars`."""
    if chars > TEXT_CHARS_MAX:
        run.deny(f"the text would have more than {TEXT_CHARS_MAX:,} characters")
    return chars
