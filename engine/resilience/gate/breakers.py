"""The breakers of one gate: one for each scope that a policy set a rule for, and their events."""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from resilience.gate.breaker import Breaker, BreakerRule, Change, Outcome, Pass
from resilience.gate.ticket import Lane, Ticket, axes_of, covers

logger = logging.getLogger("resilience.gate")
EVENTS_MAX = 256


@dataclass(frozen=True, slots=True)
class BreakerClaim:
    """A rule in force for a scope, and who asked for it."""

    rule: BreakerRule
    policy: str
    reason: str


@dataclass(frozen=True, slots=True)
class Event(Change):
    """A change of state as it is told on. `number` counts from 1 in a set of breakers; `policy`
    set the rule by which it changed, for `scope`."""

    number: int
    scope: Lane
    policy: str


class BreakerSet:
    """Breakers by scope. A breaker lives as long as some policy claims a rule for its scope.

    `life` tells its events apart from those of another server process, which count anew.
    """

    def __init__(self, changed: Callable[[Change], None]) -> None:
        self.events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self.life = secrets.token_hex(4)
        self._told = 0
        self._changed = changed
        self._breakers: dict[Lane, Breaker] = {}
        self._claims: Mapping[Lane, BreakerClaim] = {}

    def adopt(self, claims: Mapping[Lane, BreakerClaim], now_ms: int) -> None:
        """Make exactly these rules hold; a breaker that stays keeps its state."""
        for scope in self._breakers.keys() - claims.keys():
            self._breakers.pop(scope).retire(now_ms)
        for scope, claim in claims.items():
            if scope in self._breakers:
                self._breakers[scope].adopt(claim.rule, now_ms)
            else:
                self._breakers[scope] = Breaker(
                    name_of(scope), claim.rule, partial(self._note, scope))
        self._claims = claims

    def states(self, now_ms: int) -> dict[str, str]:
        """Return by name the state that a request would meet now."""
        return {b.name: b.look(now_ms) for b in self._breakers.values()}

    def of(self, lane: Lane) -> tuple[tuple[Breaker, BreakerClaim], ...]:
        """Return the breakers that a request of `lane` passes."""
        return tuple(
            (self._breakers[scope], self._claims[scope]) for scope in self._breakers
            if covers(scope, lane)
        )

    def _note(self, scope: Lane, change: Change) -> None:
        self._told += 1
        claim = self._claims.get(scope)
        policy = "" if claim is None else claim.policy
        self.events.append(Event(
            change.name, change.from_state, change.to_state, change.at_ms, self._told, scope,
            policy))
        name = change.name if change.name.isprintable() else ascii(change.name)[1:-1]
        logger.warning("breaker %s: %s -> %s", name, change.from_state, change.to_state)
        self._changed(change)


def name_of(scope: Lane) -> str:
    """Return `all`, `tier=core`, `tier=core,model=m`."""
    return ",".join(f"{axis}={name}" for axis, name in axes_of(scope).items()) or "all"


def shut_of(
    breakers: tuple[tuple[Breaker, BreakerClaim], ...], now_ms: int
) -> tuple[Breaker, BreakerClaim] | None:
    """Return the first breaker that lets nobody in."""
    for breaker, claim in breakers:
        if not breaker.allows(now_ms):
            return breaker, claim
    return None


def enter_all(
    breakers: tuple[tuple[Breaker, BreakerClaim], ...], ticket: Ticket, now_ms: int
) -> tuple[Breaker, BreakerClaim] | None:
    """Take leave of every breaker, or of none; returns the one that says no."""
    shut = shut_of(breakers, now_ms) if len(breakers) > 1 else None
    if shut is not None:
        return shut
    passes: list[tuple[Breaker, Pass]] = []
    for breaker, claim in breakers:
        given = breaker.enter(now_ms)
        if given is None:
            return breaker, claim
        passes.append((breaker, given))
    ticket.passes = tuple(passes)
    ticket.is_probe = any(given.probe is not None for _, given in passes)
    return None


def hear_all(ticket: Ticket, now_ms: int) -> None:
    """Tell every breaker that a probe of it has more of its stream."""
    for breaker, given in ticket.passes:
        breaker.hear(given, now_ms)


def leave_all(ticket: Ticket, outcome: Outcome, duration_ms: float, now_ms: int) -> None:
    """Tell every breaker that the request passed how it ended, once."""
    passes, ticket.passes = ticket.passes, ()
    tokens = ticket.prompt_tokens + ticket.output_tokens()
    for breaker, given in passes:
        breaker.leave(given, outcome, duration_ms, tokens, now_ms)
