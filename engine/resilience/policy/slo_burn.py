"""Burn rates: how fast an error budget goes, and over which two windows that is judged.

A pace is a share of the budget in a share of the objective's window. Burn rate = share of the
budget / share of the window. The paces are those of the Google SRE workbook, chapter 5: 2 % in
1 h, 5 % in 6 h, 10 % in 3 d of a window of 30 d give burn rates of 14.4, 6 and 1, each with a
short window of a twelfth. For any other window the same shares give windows of another length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from resilience.model import Json, parse_duration
from resilience.policy.fragments import share_of

SHORT_PART = 12
INTERVALS_MS = (15_000, 5_000, 1_000)


@dataclass(frozen=True, slots=True)
class Pace:
    """`budget`: share of the error budget that is gone after `window`, a share of the window."""

    budget: float
    window: float


WORKBOOK = {
    "fast": Pace(0.02, 1 / 720), "medium": Pace(0.05, 1 / 120), "slow": Pace(0.10, 1 / 10),
}


@dataclass(frozen=True, slots=True)
class Burn:
    """Fires when the budget burns `factor` times too fast over both windows."""

    factor: float
    long_ms: int
    short_ms: int


def burn_of(severity: str, raw: Mapping[str, Json], window_ms: int) -> Burn | str:
    """Return the burn rate of one alert of an objective over `window_ms`, or what it lacks."""
    pace = WORKBOOK.get(severity)
    long_ms = _long_ms(raw, pace, window_ms)
    if long_ms is None:
        return "needs `long`, the time over which the budget is judged"
    if long_ms > window_ms:
        return "has a `long` above the objective's own window"
    factor = _factor(raw, pace, long_ms / window_ms)
    if factor is None:
        return "needs `budget` or `burn`, and not both"
    short_ms = parse_duration(str(raw["short"])) if "short" in raw else \
        _whole_seconds(long_ms / SHORT_PART)
    if short_ms >= long_ms:
        return "has a `short` that is not below `long`"
    return Burn(factor, long_ms, short_ms)


def _long_ms(raw: Mapping[str, Json], pace: Pace | None, window_ms: int) -> int | None:
    if "long" in raw:
        return parse_duration(str(raw["long"]))
    return None if pace is None else _whole_seconds(window_ms * pace.window)


def _factor(raw: Mapping[str, Json], pace: Pace | None, share: float) -> float | None:
    if "burn" in raw:
        return None if "budget" in raw else float(raw["burn"])
    if "budget" in raw:
        return float(f"{share_of(raw['budget']) / share:.6g}")
    return None if pace is None else float(f"{pace.budget / share:.6g}")


def _whole_seconds(ms: float) -> int:
    return round(ms / 1_000) * 1_000 if ms >= 1_000 else max(1, round(ms))


def interval_ms_of(short_ms: int) -> int:
    """Return how often to look, so that a quarter of the short window is never slept through."""
    return next((ms for ms in INTERVALS_MS if ms * 4 <= short_ms), INTERVALS_MS[-1])
