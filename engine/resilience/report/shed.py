"""How many requests a throttle might have refused: a bound, from metrics alone.

Recorded metrics say how many requests were in flight and how many ended, not what would have
happened with fewer let in. So this counts what came in while a limit was on, and how far the flight
was above the limit: the most that the limit could have refused of the *recorded* load.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from resilience.arrays import NDArray, np
from resilience.model import Json, Labels
from resilience.report.contention import by_knob, in_force, stretches
from resilience.report.history import Holding

KNOB = "throttle.max_concurrency"
Floats = NDArray[np.float64]

ALL_OF_A_TIER = (
    "the metrics do not say which tier a request belongs to: this counts as if all were of it, so "
    "the true number lies between 0 and this"
)
NO_REACTION = (
    "the recorded load does not react: refused clients come again or leave, and a server with less "
    "to do answers faster"
)
ONE_SERVER = "requests are summed over all servers of the recording, the limit counts on each"


@dataclass(frozen=True, slots=True)
class Load:
    """What the recording says of requests, at steps of `step_ms`: those in flight, and those that
    came in during the step. NaN where it says nothing. `tier` set: of this tier alone."""

    times_ms: NDArray[np.int64]
    in_flight: Floats
    arrived: Floats
    step_ms: int
    tier: str | None = None
    servers: int = 1


@dataclass(frozen=True, slots=True)
class Shed:
    """The bound for one tier (or all). `refused_max` None: `why` says what is missing."""

    scope: Labels
    limited_ms: int
    arrived: int | None
    refused_max: int | None
    exact_tier: bool = False
    unknown_ms: int = 0
    why: str | None = None
    caveats: tuple[str, ...] = ()

    def to_json(self) -> Json:
        return {
            "scope": dict(self.scope), "limited_ms": self.limited_ms, "arrived": self.arrived,
            "refused_max": self.refused_max, "exact_tier": self.exact_tier,
            "unknown_ms": self.unknown_ms, "why": self.why, "caveats": list(self.caveats),
        }


def estimates(
    holdings: Iterable[Holding], loads: Sequence[Load], missing: Sequence[str]
) -> list[Shed]:
    """Return one bound for each scope that a throttle limited.

    `loads` are the whole server's and, where known, those of tiers; `missing` names the metrics
    without which there is none.
    """
    return [
        _estimate(scope, group, loads, missing)
        for (knob, scope), group in by_knob(holdings).items()
        if knob == KNOB and any(not held.shadow for held in group)
    ]


def _estimate(
    scope: Labels, group: Sequence[Holding], loads: Sequence[Load], missing: Sequence[str]
) -> Shed:
    live = stretches(group)
    limited_ms = sum(s.end_ms - s.start_ms for s in live)
    tier = dict(scope).get("tier")
    own = next((load for load in loads if load.tier is not None and load.tier == tier), None)
    load = own or next((load for load in loads if load.tier is None), None)
    if load is None:
        names = ", ".join(f"`{name}`" for name in missing) or "requests in flight"
        return Shed(scope, limited_ms, None, None, why=f"the recording has no {names}")
    limit = np.full(len(load.times_ms), np.inf)
    for stretch in live:
        best = in_force(stretch.holdings)
        here = (load.times_ms >= stretch.start_ms) & (load.times_ms < stretch.end_ms)
        limit[here] = np.inf if best is None else float(best.value) * load.servers
    limited = np.isfinite(limit)
    known = limited & np.isfinite(load.in_flight) & np.isfinite(load.arrived)
    above = np.maximum(0, 1 - limit[known] / np.maximum(load.in_flight[known], 1e-9))
    caveats = [NO_REACTION]
    if own is None and tier is not None:
        caveats.insert(0, ALL_OF_A_TIER)
    if load.servers > 1:
        caveats.append(ONE_SERVER)
    return Shed(
        scope, limited_ms, round(float(load.arrived[known].sum())),
        round(float((load.arrived[known] * above).sum())), own is not None,
        int((limited & ~known).sum()) * load.step_ms, None, tuple(caveats),
    )
