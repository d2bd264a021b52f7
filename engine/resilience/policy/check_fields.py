"""The fields `verify`, `guard` and `probe` of a policy: schema and value, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resilience.model import Guard, Json, Probe, Verify, parse_duration
from resilience.policy import fragments as f
from resilience.policy.fragments import said, share_of

QUARANTINE_MAX_MS = 7 * 86_400_000
HOUR_MS = 3_600_000


def verify_schema() -> Json:
    return f.record(
        {
            "expr": said(
                f.expression(), "What must come true; with `improves` a value that must move."
            ),
            "within": said(
                f.duration(1_000, 24 * HOUR_MS),
                "Time that it has, counted while the expression is known.",
            ),
            "for": said(f.duration(0, HOUR_MS), "How long it must hold without a gap.", "0s"),
            "improves": said(
                f.choice("down", "up"),
                "Compare the value with the one at the start: it must fall, or rise.",
            ),
            "by": said(f.share(), "By which share of the value at the start.", "10%"),
            "on_failure": said(
                f.choice("rollback", "escalate"),
                "Take the work back, or go on to the next stage; without one left, take it back.",
                "rollback",
            ),
            "quarantine": said(
                f.duration(0, QUARANTINE_MAX_MS), "How long it is not tried again.", "10m"
            ),
        },
        ("expr", "within"),
    )


def guard_schema() -> Json:
    return f.record(
        {
            "expr": said(f.expression(), "What must not be; true undoes at once."),
            "quarantine": said(
                f.duration(1_000, QUARANTINE_MAX_MS),
                "How long the lever then stays as it is without this policy.", "10m",
            ),
        },
        ("expr",),
    )


def probe_schema() -> Json:
    return f.record(
        {
            "after": said(
                f.duration(1_000, 24 * HOUR_MS), "Time of firing before each probe."
            ),
            "share": said(
                f.share(), "How far the claims are eased: a share of the way to the capacity.",
                "10%",
            ),
            "for": said(f.duration(1_000, HOUR_MS), "How long one probe lasts.", "30s"),
            "max": said(f.integer(1, 1_000), "Most probes in one firing.", 5),
        },
        ("after",),
    )


def verify_of(raw: Mapping[str, Json] | None) -> Verify | None:
    """Return the value of a `verify` that fits its schema."""
    if raw is None:
        return None
    by: Any = raw.get("by", "10%")
    return Verify(
        raw["expr"], _ms(raw["within"]), _ms(raw.get("for", 0)), raw.get("improves"),
        share_of(by), raw.get("on_failure", "rollback"), _ms(raw.get("quarantine", "10m")),
    )


def guard_of(raw: Mapping[str, Json] | None) -> Guard | None:
    """Return the value of a `guard` that fits its schema."""
    return None if raw is None else Guard(raw["expr"], _ms(raw.get("quarantine", "10m")))


def probe_of(raw: Mapping[str, Json] | None) -> Probe | None:
    """Return the value of a `probe` that fits its schema."""
    if raw is None:
        return None
    return Probe(
        _ms(raw["after"]), share_of(raw.get("share", "10%")), _ms(raw.get("for", "30s")),
        int(raw.get("max", 5)),
    )


def _ms(value: Json) -> int:
    return parse_duration(str(value))
