"""Between what policies want and what is claimed: groups and the safety belts. Pure.

Belts clip or refuse, visibly: what they do stands in the note of the decision. They hold for all
policies together because every claim is clipped before the knob folds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from resilience.model import Claim, EngineConfig, Policy, canonical_json
from resilience.policy.levers import lever
from resilience.policy.state import EngineState, Instance

HOUR_MS = 3_600_000
SHADOW = "/shadow"


# --- groups: the member of the highest priority that is at work holds ---


def group_key(policy: Policy) -> str:
    """Return under which key the holder for this policy stands; shadows never displace."""
    return f"{policy.group}{SHADOW}" if policy.mode == "shadow" else f"{policy.group}"


def is_withheld(policy: Policy, holders: Mapping[str, str]) -> bool:
    """Whether another member of the policy's group holds."""
    return policy.group is not None and holders.get(group_key(policy), policy.name) != policy.name


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
