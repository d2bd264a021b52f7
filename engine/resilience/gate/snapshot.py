"""The one immutable picture of the limits that a request is judged by.

It is built from the folded claims whenever they change and swapped as a whole; a request reads it
with two dictionary look-ups and never waits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from resilience.gate.config import GateConfig
from resilience.knobs import ClaimTable, LiveClaim, fold, scope_text

THROTTLE = "throttle.max_concurrency"
ROUTE = "route.model"


@dataclass(frozen=True, slots=True)
class Limit:
    """Requests in flight that are allowed, and who says so."""

    value: int
    policy: str
    reason: str


@dataclass(frozen=True, slots=True)
class Route:
    """The share (0..1] of new requests that goes to the served model `to`."""

    to: str
    share: float
    policy: str
    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All limits and routes by tier. It is valid until `expires_ms` (monotonic), when the next
    lease ends and the claims have to be folded again."""

    limits: Mapping[str, Limit]
    total: Limit | None
    routes: Mapping[str, Route]
    expires_ms: float = math.inf


def build(table: ClaimTable, config: GateConfig, now_ms: int) -> Snapshot:
    """Fold the claims that live at `now_ms` to what each tier is judged by."""
    live = table.live(now_ms)
    folded = fold(live)
    throttles, routes = folded.get(THROTTLE, {}), folded.get(ROUTE, {})
    return Snapshot(
        limits=_limits(throttles, config),
        total=_limit(throttles.get(""), None),
        routes=_routes(routes, config),
        expires_ms=min((c.deadline_ms for c in live if not c.keep), default=math.inf),
    )


def _limits(throttles: Mapping[str, LiveClaim], config: GateConfig) -> dict[str, Limit]:
    found: dict[str, Limit] = {}
    for tier, cap in config.tiers.items():
        limit = _limit(throttles.get(scope_text({"tier": tier})), cap)
        if limit is not None:
            found[tier] = limit
    return found


def _limit(claim: LiveClaim | None, cap: int | None) -> Limit | None:
    """A tier's own cap is its baseline: a claim may tighten it, never widen it."""
    if claim is not None and (cap is None or claim.value <= cap):
        return Limit(claim.value, claim.policy, claim.reason or "throttle")
    return None if cap is None else Limit(cap, "", "tier_limit")


def _routes(routes: Mapping[str, LiveClaim], config: GateConfig) -> dict[str, Route]:
    """A tier's own route comes before the one for everybody."""
    found: dict[str, Route] = {}
    for tier in config.tiers:
        claim = routes.get(scope_text({"tier": tier})) or routes.get("")
        if claim is not None:
            value = claim.value
            found[tier] = Route(
                value["to"], float(value["share"]), claim.policy, claim.reason or "reroute"
            )
    return found
