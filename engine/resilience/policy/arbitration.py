"""Between what policies want and what is claimed: groups and the safety belts. Pure.

Belts clip or refuse, visibly: what they do stands in the note of the decision. They hold for all
policies together because every claim is clipped before the knob folds them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest

from resilience import knobs
from resilience.model import Claim, EngineConfig, Labels, Policy, canonical_json
from resilience.policy.claims import lever
from resilience.policy.state import EngineState, Instance

ClaimKey = tuple[str, str, str, str, Labels]
HOUR_MS = 3_600_000
CONCURRENCY = "throttle.max_concurrency"
SHADOW = "/shadow"


# --- groups: the member of the highest priority that is at work holds ---


def group_key(policy: Policy) -> str:
    """Return under which key the holder for this policy stands; shadows never displace."""
    return f"{policy.group}{SHADOW}" if policy.mode == "shadow" else f"{policy.group}"


def holders(
    everyone: Iterable[Policy], state: EngineState, moved: Mapping[tuple[str, str], Instance]
) -> dict[str, str]:
    """Return the policy that holds each group now, as the instances that moved have it."""
    found: dict[str, str] = {}
    members = (p for p in everyone if p.group is not None and p.mode != "off")
    for policy in sorted(members, key=lambda p: (-p.priority, p.name)):
        if _at_work(policy.name, state, moved):
            if policy.mode != "shadow":
                found.setdefault(f"{policy.group}", policy.name)
            found.setdefault(f"{policy.group}{SHADOW}", policy.name)
    return found


def _at_work(
    name: str, state: EngineState, moved: Mapping[tuple[str, str], Instance]
) -> bool:
    known = state.of(name)
    if any(moved.get((name, key), body).holds for key, body in known.items()):
        return True
    return any(body.holds for (policy, key), body in moved.items()
               if policy == name and key not in known)


# --- belts ---


def floors(config: EngineConfig, capacities: Mapping[str, float]) -> dict[str, float]:
    """Return the least value of each lever: what must stay of the capacity, core's floor.

    A knob whose capacity the core does not report has no floor.
    """
    safety = config.safety
    if not safety.enabled:
        return {}
    found = {
        name: max(1.0, math.floor(capacity * (1 - safety.capacity_removed) + 1e-9))
        for name, capacity in capacities.items()
        if (knob := knobs.knob(name)) is not None and knob.fold_name == "min"
    }
    capacity = capacities.get(CONCURRENCY)
    if capacity is not None and config.tiers:
        least = max(found[CONCURRENCY], math.floor(capacity * safety.core_floor + 1e-9))
        core = (("tier", config.tiers[0].name),)
        found[CONCURRENCY] = found[lever(CONCURRENCY, core)] = least
    return found


def clip(
    claims: tuple[Claim, ...], least: Mapping[str, float], notes: list[str]
) -> tuple[Claim, ...]:
    """Raise every claim that takes more than the belts allow, and say so."""
    return claims if all(_above(c, least) for c in claims) else _clipped(claims, least, notes)


def _above(claim: Claim, least: Mapping[str, float]) -> bool:
    floor = least.get(lever(claim.knob, claim.scope))
    return floor is None or claim.value >= floor


def _clipped(
    claims: Sequence[Claim], least: Mapping[str, float], notes: list[str]
) -> tuple[Claim, ...]:
    kept: list[Claim] = []
    for claim in claims:
        if not _above(claim, least):
            name = lever(claim.knob, claim.scope)
            notes.append(f"safety: {name} {canonical_json(claim.value)} is below the floor, "
                         f"{least[name]:g} is claimed")
            claim = replace(claim, value=int(least[name]))
        kept.append(claim)
    return tuple(kept)


class Budget:
    """Disruptive actions in the sliding hour; takes from `left` as actions begin."""

    def __init__(self, config: EngineConfig, begun_ms: Iterable[int], now_ms: int) -> None:
        self._max = config.safety.disruptive_per_hour if config.safety.enabled else None
        self._now_ms = now_ms
        self.begun_ms = tuple(t for t in begun_ms if now_ms - HOUR_MS < t <= now_ms)

    def take(self) -> str | None:
        """Count one action that begins now; return why it may not, or None."""
        if self._max is None:
            return None
        if len(self.begun_ms) >= self._max:
            return f"safety: {self._max} disruptive actions began within the hour"
        self.begun_ms = (*self.begun_ms, self._now_ms)
        return None

    def look(self) -> Look:
        """Return an allowance for shadow policies: it refuses, and takes nothing."""
        return Look(self)


@dataclass(frozen=True, slots=True)
class Look:
    """What a shadow policy may do: as much as if it enforced, at no cost to those that do."""

    budget: Budget

    def take(self) -> str | None:
        before = self.budget.begun_ms
        why = self.budget.take()
        self.budget.begun_ms = before
        return why


def fitting(wanted: Iterable[tuple[Claim, ...]], limit: int) -> frozenset[ClaimKey] | None:
    """Return the keys of the claims that fit in `limit`, the highest priorities first; None if all
    do. The core refuses a document with more, so that one claim too many would lose all."""
    every = [claim for claims in wanted for claim in claims]
    if len(every) <= limit:
        return None
    return frozenset(c.key for c in nsmallest(limit, every, key=lambda c: (-c.priority, c.key)))


def within(
    claims: Sequence[Claim], fit: frozenset[ClaimKey] | None, limit: int, notes: list[str],
) -> tuple[Claim, ...]:
    """Leave out the claims for which `fitting` has found no room, and say so."""
    if fit is None:
        return tuple(claims)
    kept = tuple(claim for claim in claims if claim.key in fit)
    if len(kept) < len(claims):
        notes.append(f"safety: {len(claims) - len(kept)} claims are beyond the limit of {limit}")
    return kept
