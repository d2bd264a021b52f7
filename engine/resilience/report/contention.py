"""Claims of different policies that met on one knob, and which of them was in force."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from resilience import knobs
from resilience.model import Json, Labels, canonical_json
from resilience.report.history import Holding


@dataclass(frozen=True, slots=True)
class Meeting:
    """Policies that held different values of one (knob, scope) at once, for `ms` in all.

    `values` pairs policies with what they wanted, `winner` is the policy whose value was in force.
    """

    knob: str
    scope: Labels
    values: tuple[tuple[str, Json], ...]
    winner: str
    in_force: Json
    first_ms: int
    ms: int

    def to_json(self) -> Json:
        return {
            "knob": self.knob, "scope": dict(self.scope),
            "values": [{"policy": p, "value": v} for p, v in self.values],
            "winner": self.winner, "in_force": self.in_force, "first_ms": self.first_ms,
            "ms": self.ms,
        }


@dataclass(frozen=True, slots=True)
class Stretch:
    """The claims that were live together on one knob from `start_ms` to `end_ms`."""

    start_ms: int
    end_ms: int
    holdings: tuple[Holding, ...]


def stretches(holdings: Iterable[Holding], *, shadow: bool = False) -> list[Stretch]:
    """Return the times between changes, with what was held; shadow claims hold nothing, unless
    they are asked for."""
    real = [held for held in holdings if shadow or not held.shadow]
    edges = sorted({t for held in real for t in (held.start_ms, held.end_ms)})
    starting = sorted(real, key=lambda h: h.start_ms)
    found: list[Stretch] = []
    live: list[Holding] = []
    at = 0
    for start_ms, end_ms in zip(edges, edges[1:], strict=False):
        live = [held for held in live if held.end_ms > start_ms]
        while at < len(starting) and starting[at].start_ms <= start_ms:
            live.append(starting[at])
            at += 1
        if live:
            found.append(Stretch(start_ms, end_ms, tuple(live)))
    return found


def in_force(holdings: Sequence[Holding]) -> Holding | None:
    """Return whose value the knob's own fold gives; None for a knob that nobody knows."""
    knob = knobs.knob(holdings[0].knob)
    if knob is None:
        return None
    claims = {
        knobs.LiveClaim(h.knob, h.scope, _hashable(h.value), h.policy, h.priority, 0): h
        for h in holdings
    }
    return claims[knobs.FOLDS[knob.fold_name](list(claims))]


def _hashable(value: Json) -> Json:
    return canonical_json(value) if isinstance(value, dict | list) else value


def by_knob(holdings: Iterable[Holding]) -> dict[tuple[str, Labels], list[Holding]]:
    found: dict[tuple[str, Labels], list[Holding]] = {}
    for held in holdings:
        found.setdefault((held.knob, held.scope), []).append(held)
    return dict(sorted(found.items()))


def meetings(holdings: Iterable[Holding]) -> list[Meeting]:
    """Return where policies met with different values, the longest meeting first."""
    found: dict[str, Meeting] = {}
    for (knob, scope), group in by_knob(holdings).items():
        for stretch in stretches(group):
            met = _meeting(knob, scope, stretch)
            if met is None:
                continue
            key = canonical_json([knob, dict(scope), met.values])
            old = found.get(key)
            found[key] = met if old is None else Meeting(
                knob, scope, old.values, old.winner, old.in_force, old.first_ms, old.ms + met.ms
            )
    return sorted(found.values(), key=lambda m: (-m.ms, m.knob, m.scope, m.winner))


def _meeting(knob: str, scope: Labels, stretch: Stretch) -> Meeting | None:
    wants = {(h.policy, canonical_json(h.value)): h for h in stretch.holdings}
    if len({policy for policy, _ in wants}) < 2 or len({value for _, value in wants}) < 2:
        return None
    best = in_force(stretch.holdings)
    if best is None:
        return None
    values = tuple((h.policy, h.value) for _, h in sorted(wants.items()))
    return Meeting(
        knob, scope, values, best.policy, best.value, stretch.start_ms,
        stretch.end_ms - stretch.start_ms,
    )
