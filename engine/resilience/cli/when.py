"""Times on the command line."""

from __future__ import annotations

from datetime import UTC, datetime

from resilience.errors import UsageError
from resilience.policy.words import quoted
from resilience.samples import parse_duration

HELP = "RFC 3339 (`2026-11-29T10:00:00Z`), epoch seconds, `now`, or `-1h` for an hour ago"

LAST_S = 253_402_300_799   # the end of the year 9999


def time_ms(text: str, option: str, now_ms: int) -> int:
    """Return epoch ms of what a user wrote behind `option`; raises UsageError."""
    text = text.strip()
    try:
        if text == "now":
            return now_ms
        if text.startswith("-") and not text[1:].replace(".", "").isdigit():
            return now_ms - parse_duration(text[1:])
        if _is_number(text):
            return _epoch_ms(float(text), text, option)
        parsed = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{quoted(text)} is not a time for {option}: write {HELP}") from None
    aware = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000)


def _is_number(text: str) -> bool:
    return text.isascii() and text.replace(".", "", 1).isdigit()


def _epoch_ms(seconds: float, text: str, option: str) -> int:
    """Return epoch ms; raises UsageError for what lies after the year 9999: most often it was
    written in milliseconds."""
    if seconds > LAST_S:
        hint = ": write seconds, not milliseconds" if seconds / 1000 <= LAST_S else ""
        raise UsageError(f"{quoted(text)} for {option} lies after the year 9999{hint}")
    return round(seconds * 1000)


def step_ms(text: str) -> int:
    """Return milliseconds of a step such as `30s`, or of seconds; raises UsageError."""
    try:
        step = round(float(text) * 1000) if _is_number(text) else parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--step: {error}") from None
    except OverflowError:
        raise UsageError(f"--step: {quoted(text)} is too long") from None
    if step <= 0:
        raise UsageError("--step must be longer than 0")
    return step
