"""What was meant by text that is not a Prometheus duration."""

from __future__ import annotations

import re
from typing import Any

from resilience.model import format_duration

_FRACTION = re.compile(r"([0-9]+)\.([0-9]+)(ms|[smhdwy])")
_WORDS = {
    "second": "s", "sec": "s", "minute": "m", "min": "m", "hour": "h", "hr": "h", "day": "d",
    "week": "w", "year": "y", "millisecond": "ms", "msec": "ms", "milli": "ms",
}
_WORDED = re.compile(r"([0-9]+)\s*([a-zA-Z]+)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"([0-9]+)(ms|[smhdwy])")


def duration_advice(value: Any) -> str:
    """Return what to write instead of `value`."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return "write a duration such as `30s` or `1h30m`"
    if isinstance(value, int | float):
        return _of_number(value)
    return _of_text(value.strip()) or "write a duration such as `30s` or `1h30m`"


def _of_number(value: int | float) -> str:
    if value < 0:
        return "a duration cannot be negative"
    if value == int(value):
        return f"write the unit: `{int(value)}s` for seconds, `{int(value)}ms` for milliseconds"
    return f"write whole units: `{format_duration(round(value * 1000))}`"


def _of_text(text: str) -> str | None:
    if text.startswith("-"):
        return "a duration cannot be negative"
    if re.fullmatch(r"P(T?[0-9].*)", text):
        return "this is ISO 8601; write it as `30s` or `1h30m`"
    fraction = _FRACTION.fullmatch(text)
    if fraction and fraction[3] in _UNIT_MS:
        whole = float(f"{fraction[1]}.{fraction[2]}") * _UNIT_MS[fraction[3]]
        return f"durations take no fractions; write `{format_duration(round(whole))}`"
    if text.isdigit():
        return f"write the unit: `{text}s` for seconds"
    return _of_words(text)


def _of_words(text: str) -> str | None:
    if re.fullmatch(r"[0-9]+M", text):
        return f"`M` is no unit: write `{text[:-1]}m` for minutes"
    worded = _WORDED.fullmatch(text)
    if worded:
        word = worded[2].lower()
        unit = _WORDS.get(word.removesuffix("s")) or _WORDS.get(word)
        if unit:
            return f"did you mean `{worded[1]}{unit}`?"
    if text != text.lower() and _PART.match(text.lower()):
        return f"units are lower case: `{text.lower()}`"
    joined = "".join(text.split())
    if joined != text and _PART.match(joined):
        return f"write it without blanks: `{joined}`"
    parts = _PART.findall(text)
    if len(parts) > 1 and "".join(n + u for n, u in parts) == text:
        return "write units from large to small, each once, as in `1h30m`"
    return None
