"""The one immutable picture of the claims that requests are judged by.

It is built from the folded claims whenever they change and swapped as a whole; a request reads it
and never waits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from resilience.desired import ClaimTable
from resilience.gate.breaker import BreakerRule
from resilience.gate.breakers import BreakerClaim
from resilience.gate.config import GateConfig
from resilience.gate.limiter import LimiterRule
from resilience.gate.limits import CONCURRENCY, LIMITER, NEED_TOKENS, OUTSTANDING, THROTTLES, Limit
from resilience.gate.ticket import Lane
from resilience.knobs import LiveClaim, fold, scope_text

ROUTE = "route.model"
BREAKER = "breaker.rule"
GATE_KNOBS = (*THROTTLES, LIMITER, BREAKER, ROUTE)
Scopes = Mapping[str, LiveClaim]


@dataclass(frozen=True, slots=True)
class Route:
    """The share (0..1] of new requests that goes to the served model `to`."""

    to: str
    share: float
    policy: str
    reason: str

    def beyond(self, old: Route | None) -> Route | None:
        """Return what there is of it for a request that was already asked whether it takes `old`:
        the share by which the route has grown, of those that are left; None: nothing."""
        had = old.share if old is not None and old.to == self.to else 0.0
        return replace(self, share=(self.share - had) / (1 - had)) if self.share > had else None


@dataclass(frozen=True, slots=True)
class LimiterClaim:
    """The adaptive limiter's rule in force, and who asked for it."""

    rule: LimiterRule
    policy: str
    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is in force until `expires_ms` (monotonic), when the next lease ends and the claims have
    to be folded again. `models` are those that some scope names: others need not be told apart."""

    limits: tuple[Limit, ...] = ()
    routes: Mapping[str, Route] = field(default_factory=dict[str, Route])
    breakers: Mapping[Lane, BreakerClaim] = field(default_factory=dict[Lane, BreakerClaim])
    limiter: LimiterClaim | None = None
    models: frozenset[str] = frozenset()
    needs_tokens: bool = False
    expires_ms: float = math.inf

    def asks_more_than(self, other: Snapshot) -> bool:
        """Say whether of requests that came under `other` too little may be known for this one, or
        they may be on a way that is no longer theirs."""
        return (
            (self.needs_tokens and not other.needs_tokens)
            or not self.models <= other.models
            or self.routes != other.routes
        )


def build(table: ClaimTable, config: GateConfig, now_ms: int) -> Snapshot:
    """Fold the claims that live at `now_ms` over the Engine document's own limits."""
    live = table.live(now_ms)
    folded = fold(live)
    limits = _limits(folded, config)
    breakers = {
        _lane(claim): BreakerClaim(
            BreakerRule.from_json(claim.value), claim.policy, claim.reason or "breaker_open")
        for claim in folded.get(BREAKER, {}).values()
    }
    return Snapshot(
        limits, _routes(folded.get(ROUTE, {}), config), breakers,
        _limiter(folded.get(LIMITER, {}).get(""), config),
        models=frozenset(scope[2] for scope in [*(x.scope for x in limits), *breakers]) - {""},
        needs_tokens=any(limit.kind in NEED_TOKENS for limit in limits),
        expires_ms=min((c.deadline_ms for c in live if not c.keep), default=math.inf),
    )


def _limits(folded: Mapping[str, Scopes], config: GateConfig) -> tuple[Limit, ...]:
    """A claim may tighten what the document says, never widen it."""
    found = {(limit.kind, limit.scope): limit for limit in _own_limits(config)}
    for kind in THROTTLES:
        for claim in folded.get(kind, {}).values():
            scope = _lane(claim)
            mine = Limit(kind, scope, claim.value, claim.policy, claim.reason or "throttle")
            own = found.get((kind, scope))
            if own is None or mine.number <= own.number:
                found[kind, scope] = mine
    return tuple(found.values())


def _own_limits(config: GateConfig) -> list[Limit]:
    found = [
        Limit(CONCURRENCY, (name, "", ""), tier.max_concurrency, "", "tier_limit")
        for name, tier in config.tiers.items() if tier.max_concurrency is not None
    ]
    for name, tenant in config.tenants.items():
        scope = ("", name, "")
        if tenant.max_concurrency is not None:
            found.append(Limit(CONCURRENCY, scope, tenant.max_concurrency, "", "tenant_limit"))
        if tenant.max_outstanding_tokens is not None:
            found.append(
                Limit(OUTSTANDING, scope, tenant.max_outstanding_tokens, "", "tenant_limit"))
    return found


def _lane(claim: LiveClaim) -> Lane:
    scope = dict(claim.scope)
    return scope.get("tier", ""), scope.get("tenant", ""), scope.get("model", "")


def _limiter(claim: LiveClaim | None, config: GateConfig) -> LimiterClaim | None:
    if claim is not None:
        rule = LimiterRule.from_json(claim.value)
        if rule.headroom is None and config.limiter is not None:
            rule = replace(rule, headroom=config.limiter.headroom)
        return LimiterClaim(rule, claim.policy, claim.reason or "adaptive_limit")
    return None if config.limiter is None else LimiterClaim(config.limiter, "", "adaptive_limit")


def _routes(routes: Scopes, config: GateConfig) -> dict[str, Route]:
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
