"""How a report writes times, lengths of time, shares, values and claims for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from resilience.model import Json, Labels, format_duration, format_float
from resilience.report.lines import label_text


def stamp(t_ms: int | None) -> str:
    """Return UTC date and time to the second; `-` for none."""
    if t_ms is None:
        return "-"
    return datetime.fromtimestamp(t_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def duration(ms: int) -> str:
    """Return at most the two largest units of a length of time."""
    text = format_duration(ms if ms < 1_000 else ms // 1_000 * 1_000)
    if ms >= 86_400_000:
        return format_duration(ms // 3_600_000 * 3_600_000)
    if ms >= 3_600_000:
        return format_duration(ms // 60_000 * 60_000)
    return text


def share(ms: int, of_ms: int) -> str:
    """Return a time and its share of the run, such as `12m (3.4%)`."""
    if not ms:
        return "0"
    return f"{duration(ms)} ({ms / max(1, of_ms):.1%})"


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if value == value and abs(value) < 1e300 else format_float(value)


def value_text(value: Json) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return " ".join(f"{k}={value_text(v)}" for k, v in sorted(value.items()))
    return number(value) if isinstance(value, float) else str(value)


def knob_text(knob: str, scope: Labels) -> str:
    """Return `knob{scope}`."""
    return label_text((("__name__", knob), *scope))


def claim_text(knob: str, scope: Labels, value: Json) -> str:
    """Return `knob{scope} = value`."""
    return f"{knob_text(knob, scope)} = {value_text(value)}"


def named(values: Sequence[tuple[str, Json]], most: int) -> str:
    """Return who wanted which value; of many only the first ones are named."""
    shown = ", ".join(f"{policy} {value_text(value)}" for policy, value in values[:most])
    rest = len(values) - most
    return f"{shown} and {rest} more" if rest > 0 else shown
