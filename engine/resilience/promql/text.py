"""Pieces of canonical PromQL text: numbers, durations, names, matchers, modifiers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Protocol

from resilience.samples import UNSAFE, format_duration

_METRIC = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_RESERVED = frozenset({
    "and", "or", "unless", "atan2", "offset", "by", "without", "on", "ignoring", "group_left",
    "group_right", "bool", "inf", "nan",
})
_NUMBERS = frozenset({"inf", "nan"})
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _MatcherLike(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def value(self) -> str: ...


def is_metric_name(text: str) -> bool:
    return _METRIC.fullmatch(text) is not None


def _is_plain(name: str) -> bool:
    return is_metric_name(name) and name.lower() not in _RESERVED


def is_label_name(text: str) -> bool:
    return _LABEL.fullmatch(text) is not None


def quote(text: str) -> str:
    """Return a double-quoted PromQL string; what a terminal would obey, or nobody sees, is
    escaped."""
    return UNSAFE.sub(lambda m: f"\\u{ord(m.group()):04x}", json.dumps(text, ensure_ascii=False))


def format_number(value: float) -> str:
    """Return the shortest text that reads back as `value`."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    negative_zero = value == 0 and math.copysign(1, value) < 0
    if value == int(value) and abs(value) < 1e15 and not negative_zero:
        return str(int(value))
    return repr(value)


def _label(name: str) -> str:
    plain = is_label_name(name) and name.lower() not in _NUMBERS
    return name if plain else quote(name)


def label_list(names: Iterable[str]) -> str:
    return ", ".join(_label(n) for n in names)


def matcher_list(metric_name: str | None, matchers: Sequence[_MatcherLike]) -> str:
    """Return `name{a="b"}`; a name that is no plain identifier, or not the only one, goes into
    the braces."""
    parts: list[str] = []
    head = ""
    names = sum(1 for m in matchers if m.name == "__name__")
    plain = names == 1 and _is_plain(metric_name or "")
    for m in matchers:
        if m.name == "__name__" and m.op == "=" and m.value == metric_name and not head:
            head = m.value
            if not plain:
                parts.insert(0, quote(head))
            continue
        parts.append(f"{_label(m.name)}{m.op}{quote(m.value)}")
    shown = head if plain else ""
    return shown + ("{" + ", ".join(parts) + "}" if parts or not shown else "")


def range_text(range_ms: int, step_ms: int | None = None, subquery: bool = False) -> str:
    if not range_ms:
        return ""
    step = "" if step_ms is None else format_duration(step_ms)
    return f"[{format_duration(range_ms)}{':' + step if subquery else ''}]"


def modifiers(offset_ms: int, at: int | str | None) -> str:
    """Return ` @ 1.5 offset 5m` for what is set."""
    words = ""
    if at is not None:
        words += f" @ {at}()" if isinstance(at, str) else f" @ {at / 1000:.3f}"
    if offset_ms:
        words += f" offset {'-' if offset_ms < 0 else ''}{format_duration(abs(offset_ms))}"
    return words
