"""More claims than a core takes: the highest priorities get in, the others wait for room. Pure.

A core refuses a document with too many claims, so that one claim too many would lose all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from resilience.model import Claim, Labels, Policy, Reason
from resilience.policy.records import Move
from resilience.policy.state import EngineState, Instance, Key, changed

ClaimKey = tuple[str, str, str, str, Labels]
Fit = frozenset[ClaimKey]
Claims = tuple[Claim, ...]


class Crowd:
    """The claims of the policies that enforce. `free` gives those of an instance that did not
    move as if their number had no limit; `make_room` adds to `moves`."""

    def __init__(
        self, policies: Sequence[Policy], state: EngineState, moves: dict[Key, Move], limit: int,
        free: Callable[[Policy, Instance], Claims],
    ) -> None:
        self._policies, self._state, self._moves = policies, state, moves
        self._limit, self._free = limit, free

    def fitting(self) -> Fit | None:
        """Return the keys of the claims that fit, None if all do."""
        first = list(islice(self._wanted(), self._limit + 1))
        return None if len(first) <= self._limit else frozenset(c.key for c in first[:-1])

    def _wanted(self) -> Iterator[Claim]:
        """Yield the claims in the order in which they get in: by priority, then by key. Whoever
        stops early has looked at no more instances than that."""
        moved: dict[str, set[str]] = {}
        for policy_name, name in self._moves:
            moved.setdefault(policy_name, set()).add(name)
        for policy in sorted(self._policies, key=lambda p: (-p.priority, p.name)):
            known = self._state.of(policy.name)
            for name in sorted(known.keys() | moved.get(policy.name, ())):
                yield from sorted(self._claims(policy, name), key=lambda c: c.key)

    def _claims(self, policy: Policy, name: str) -> Claims:
        move = self._moves.get((policy.name, name))
        if move is not None:
            return move.after.claims
        return self._free(policy, self._state.of(policy.name)[name])

    def make_room(self, fit: Fit | None) -> None:
        """Give the claims that fit to those that lack them, and take the others away."""
        for policy, key, now, claims in [*self._resting(fit), *self._moving()]:
            notes: list[str] = []
            kept = self._within(claims, fit, notes)
            if kept == now.claims:
                continue
            move = self._moves.get(key)
            if move is None:
                move = self._moves[key] = Move(policy, key, now, now)
            move.notes.extend(notes)
            if move.reason is None and move.before.state is now.state:
                move.reason = Reason.SAFETY
            move.after = changed(now, claims=kept)

    def _resting(self, fit: Fit | None) -> Iterator[tuple[Policy, Key, Instance, Claims]]:
        """Yield what did not move and may gain or lose: few of many that have nothing."""
        room: dict[str, set[str]] = {}
        for policy_name, name, *_ in fit or ():
            room.setdefault(policy_name, set()).add(name)
        for policy in self._policies:
            has_room = room.get(policy.name, ())
            concerned = [
                name for name, i in self._state.of(policy.name).items()
                if i.base and (i.claims or fit is None or name in has_room)
            ]
            for name in concerned:
                key = (policy.name, name)
                if key not in self._moves:
                    instance = self._state.of(policy.name)[name]
                    yield policy, key, instance, self._free(policy, instance)

    def _moving(self) -> Iterable[tuple[Policy, Key, Instance, Claims]]:
        for key, move in list(self._moves.items()):
            if move.policy.mode == "enforce":
                yield move.policy, key, move.after, move.after.claims

    def _within(self, claims: Claims, fit: Fit | None, notes: list[str]) -> Claims:
        """Leave out the claims for which there is no room, and say so."""
        if fit is None:
            return claims
        kept = tuple(claim for claim in claims if claim.key in fit)
        if len(kept) < len(claims):
            notes.append(
                f"safety: {len(claims) - len(kept)} claims are beyond the limit of {self._limit}")
        return kept
