"""How many requests limits might have refused: a bound, from metrics alone.

Recorded metrics say how many requests were in flight and how many ended, not what would have
happened with fewer let in. So this counts what came in while a limit was on, and how far the load
was above the limit: the most that the limit could have refused of the *recorded* load. A policy in
shadow refuses nobody; for it the same is told as if it were in enforce.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from resilience.arrays import NDArray, np
from resilience.model import Json, Labels
from resilience.report.contention import Stretch, by_knob, in_force, stretches
from resilience.report.history import Holding

Floats = NDArray[np.float64]
LEAST = 1e-9
PROMPT_TOKENS = "vllm:prompt_tokens_total"

ALL_OF_A_TIER = (
    "the metrics do not say which tier a request belongs to: this counts as if all were of it, so "
    "the true number lies between 0 and this, and bounds of several tiers are not to be added"
)
NO_REACTION = (
    "the recorded load does not react: refused clients come again or leave, and a server with less "
    "to do answers faster"
)
ONE_SERVER = "requests are summed over all servers of the recording, the limit counts on each"
BURSTS = (
    "a limit per second is compared with the average of a minute or more: of shorter bursts more "
    "is refused"
)
TOGETHER = "limits of several knobs at once are counted one by one: a request is refused only once"


@dataclass(frozen=True, slots=True)
class Load:
    """What the recording says of requests, at steps of `step_ms`: those in flight, and those that
    came in during the step. NaN where it says nothing. `tier` set: of this tier alone.
    `prompt_tokens` are those that were read in a second; None: not recorded."""

    times_ms: NDArray[np.int64]
    in_flight: Floats
    arrived: Floats
    step_ms: int
    tier: str | None = None
    servers: int = 1
    prompt_tokens: Floats | None = None


def _in_flight(load: Load) -> Floats:
    return load.in_flight


def _arrivals(load: Load) -> Floats:
    return load.arrived * 1_000 / load.step_ms


def _prompt_tokens(load: Load) -> Floats | None:
    return load.prompt_tokens


# Knob -> what its limit is compared with.
MEASURES: dict[str, Callable[[Load], Floats | None]] = {
    "throttle.max_concurrency": _in_flight,
    "throttle.max_requests_per_second": _arrivals,
    "throttle.max_prompt_tokens_per_second": _prompt_tokens,
}
PER_SECOND = frozenset(k for k in MEASURES if k.endswith("_per_second"))
_SIZES = "the metrics do not say how large each request is"
_ANSWERS = "it refuses by what the server answers to single requests, which no metric says"
# Knob -> why there is no bound.
UNKNOWN = {
    "throttle.max_outstanding_tokens": _SIZES,
    "throttle.max_context_tokens": _SIZES,
    "throttle.token_quota": _SIZES,
    "limiter.rule": _ANSWERS,
    "breaker.rule": _ANSWERS,
}


@dataclass(frozen=True, slots=True)
class Shed:
    """The bound for one knob and scope. `refused_max` None: `why` says what is missing.

    `shadow` names policies that were in shadow; then this is what all together would have refused,
    had those been in enforce.
    """

    knob: str
    scope: Labels
    limited_ms: int
    arrived: int | None
    refused_max: int | None
    exact_tier: bool = False
    unknown_ms: int = 0
    why: str | None = None
    caveats: tuple[str, ...] = ()
    shadow: tuple[str, ...] = ()

    def to_json(self) -> Json:
        return {
            "knob": self.knob, "scope": dict(self.scope), "limited_ms": self.limited_ms,
            "arrived": self.arrived, "refused_max": self.refused_max,
            "exact_tier": self.exact_tier, "unknown_ms": self.unknown_ms, "why": self.why,
            "caveats": list(self.caveats), "shadow": list(self.shadow),
        }


def may_refuse(holdings: Iterable[Holding]) -> bool:
    """Say whether one of the claims is on a knob whose bound needs the load."""
    return any(held.knob in MEASURES for held in holdings)


def estimates(
    holdings: Iterable[Holding], loads: Sequence[Load], missing: Sequence[str]
) -> list[Shed]:
    """Return the bounds for each knob and scope that claims limited: first what was in force, then
    what the policies in shadow would have added.

    `loads` are the whole server's and, where known, those of tiers; `missing` names the metrics
    without which there is none.
    """
    found: list[Shed] = []
    for (knob, scope), group in by_knob(holdings).items():
        if knob not in MEASURES and knob not in UNKNOWN:
            continue
        enforced = [held for held in group if not held.shadow]
        shadow = tuple(sorted({held.policy for held in group if held.shadow}))
        if enforced:
            found.append(_estimate(knob, scope, enforced, loads, missing))
        if shadow:
            found.append(replace(_estimate(knob, scope, group, loads, missing), shadow=shadow))
    if len({s.knob for s in found if s.refused_max is not None and not s.shadow}) > 1:
        found = [replace(shed, caveats=(*shed.caveats, TOGETHER)) for shed in found]
    return found


def total(found: Sequence[Shed]) -> int | None:
    """Return a bound on what all limits together might have refused; None where one is not known.

    Limits of several tiers may have been in force at different times, so their bounds add up, also
    where each counts all requests as if they were of its tier.
    """
    bounds = [shed.refused_max for shed in found]
    return None if None in bounds else sum(bound or 0 for bound in bounds)


def _estimate(
    knob: str, scope: Labels, group: Sequence[Holding], loads: Sequence[Load],
    missing: Sequence[str],
) -> Shed:
    live = stretches(group, shadow=True)
    limited_ms = sum(s.end_ms - s.start_ms for s in live)
    if knob in UNKNOWN:
        return Shed(knob, scope, limited_ms, None, None, why=UNKNOWN[knob])
    found = _measured(knob, scope, loads)
    if found is None:
        lacks = [PROMPT_TOKENS] if any(x.tier is None for x in loads) else missing
        names = ", ".join(f"`{name}`" for name in lacks) or "requests in flight"
        return Shed(knob, scope, limited_ms, None, None, why=f"the recording has no {names}")
    load, measured = found
    limit = _limit(live, load)
    limited = np.isfinite(limit)
    known = limited & np.isfinite(measured) & np.isfinite(load.arrived)
    above = np.maximum(0, 1 - limit[known] / np.maximum(measured[known], LEAST))
    return Shed(
        knob, scope, limited_ms, round(float(load.arrived[known].sum())),
        round(float((load.arrived[known] * above).sum())), load.tier is not None,
        int((limited & ~known).sum()) * load.step_ms, None, _caveats(knob, scope, load),
    )


def _measured(
    knob: str, scope: Labels, loads: Sequence[Load]
) -> tuple[Load, Floats] | None:
    """Return what the limit is compared with: of the tier itself where it is known, else of all."""
    own = [x for x in loads if x.tier is not None and scope == (("tier", x.tier),)]
    for load in (*own, *(x for x in loads if x.tier is None)):
        values = MEASURES[knob](load)
        if values is not None:
            return load, values
    return None


def _limit(live: Sequence[Stretch], load: Load) -> Floats:
    """Return the limit in force at each step, of all servers together; infinite for none."""
    limit = np.full(len(load.times_ms), np.inf)
    for stretch in live:
        best = in_force(stretch.holdings)
        here = (load.times_ms >= stretch.start_ms) & (load.times_ms < stretch.end_ms)
        limit[here] = np.inf if best is None else float(best.value) * load.servers
    return limit


def _caveats(knob: str, scope: Labels, load: Load) -> tuple[str, ...]:
    found = [ALL_OF_A_TIER] if scope and load.tier is None else []
    found.append(NO_REACTION)
    if knob in PER_SECOND:
        found.append(BURSTS)
    if load.servers > 1:
        found.append(ONE_SERVER)
    return tuple(found)
