"""Times on the command line."""

from __future__ import annotations

from datetime import UTC, datetime

from resilience.errors import UsageError
from resilience.samples import parse_duration

HELP = "RFC 3339 (`2026-11-29T10:00:00Z`), epoch seconds, `now`, or `-1h` for an hour ago"


def time_ms(text: str, option: str, now_ms: int) -> int:
    """Return epoch ms of what a user wrote behind `option`; raises UsageError."""
    text = text.strip()
    try:
        if text == "now":
            return now_ms
        if text.startswith("-") and not text[1:].replace(".", "").isdigit():
            return now_ms - parse_duration(text[1:])
        if text.replace(".", "", 1).isdigit():
            return round(float(text) * 1000)
        parsed = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise UsageError(f"`{text}` is not a time for {option}: write {HELP}") from None
    aware = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000)


def step_ms(text: str) -> int:
    """Return milliseconds of a step such as `30s`, or of seconds; raises UsageError."""
    try:
        step = round(float(text) * 1000) if text.replace(".", "", 1).isdigit() else None
        step = parse_duration(text) if step is None else step
    except ValueError as error:
        raise UsageError(f"--step: {error}") from None
    if step <= 0:
        raise UsageError("--step must be longer than 0")
    return step
