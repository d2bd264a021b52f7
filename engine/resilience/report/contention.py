"""Claims of different policies that met on one knob, and which of them was in force."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from resilience import knobs
from resilience.model import Json, Labels, canonical_json
from resilience.report.history import Holding


@dataclass(frozen=True, slots=True)
class Meeting:
    """Policies that held different values of one (knob, scope) at once, for `ms` in all.

    `values` pairs policies with what they wanted, `winner` is the policy whose value was in force.
    `shadow`: these of them were in shadow, so it is what would have been, were they in enforce.
    """

    knob: str
    scope: Labels
    values: tuple[tuple[str, Json], ...]
    winner: str
    in_force: Json
    first_ms: int
    ms: int
    shadow: tuple[str, ...] = ()

    def to_json(self) -> Json:
        return {
            "knob": self.knob, "scope": dict(self.scope),
            "values": [{"policy": p, "value": v} for p, v in self.values],
            "winner": self.winner, "in_force": self.in_force, "first_ms": self.first_ms,
            "ms": self.ms, "shadow": list(self.shadow),
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
    claims = [knobs.LiveClaim(h.knob, h.scope, h.value, h.policy, h.priority, 0) for h in holdings]
    ruling = knobs.FOLDS[knob.fold_name](claims)
    return next(held for held, one in zip(holdings, claims, strict=True) if one is ruling)


def by_knob(holdings: Iterable[Holding]) -> dict[tuple[str, Labels], list[Holding]]:
    found: dict[tuple[str, Labels], list[Holding]] = {}
    for held in holdings:
        found.setdefault((held.knob, held.scope), []).append(held)
    return dict(sorted(found.items()))


def meetings(
    holdings: Iterable[Holding], groups: Mapping[str, str] | None = None
) -> list[Meeting]:
    """Return where policies met with different values, the longest meeting first; after those of
    policies that enforce those that there would have been, were policies in shadow in enforce.

    `groups`: the group of each policy that has one; its members never hold a knob together.
    """
    found: dict[tuple[object, ...], Meeting] = {}
    for (knob, _), group in by_knob(holdings).items():
        if knob.startswith(knobs.NOTIFY_PREFIX) or len({held.policy for held in group}) < 2:
            continue
        values = {id(held): canonical_json(held.value) for held in group}
        for stretch in stretches(group, shadow=True):
            for wants, met in _met(stretch, groups or {}, values):
                key = (met.knob, met.scope, met.shadow, *wants)
                old = found.get(key)
                found[key] = met if old is None else replace(old, ms=old.ms + met.ms)
    return sorted(
        found.values(), key=lambda m: (bool(m.shadow), -m.ms, m.knob, m.scope, m.winner))


def _met(
    stretch: Stretch, groups: Mapping[str, str], values: Mapping[int, str]
) -> Iterator[tuple[Iterable[tuple[str, str]], Meeting]]:
    """Yield what met in a stretch, and who wanted what; `values` are texts by id of a holding."""
    real = [held for held in stretch.holdings if not held.shadow]
    yield from _meeting(stretch, {(h.policy, values[id(h)]): h for h in real})
    if len(real) == len(stretch.holdings):
        return
    would = _one_of_each_group(stretch.holdings, groups)
    if any(held.shadow for held in would):
        yield from _meeting(stretch, {(h.policy, values[id(h)]): h for h in would})


def _one_of_each_group(
    holdings: Sequence[Holding], groups: Mapping[str, str]
) -> list[Holding]:
    """Return what would be held: a member in shadow holds only beside weaker ones that enforce."""
    first: dict[str, str] = {}
    for held in sorted(holdings, key=lambda h: (-h.priority, h.policy)):
        if held.policy in groups:
            first.setdefault(groups[held.policy], held.policy)
    return [h for h in holdings
            if h.policy not in groups or first[groups[h.policy]] == h.policy]


def _meeting(
    stretch: Stretch, wants: Mapping[tuple[str, str], Holding]
) -> Iterator[tuple[Iterable[tuple[str, str]], Meeting]]:
    if len({policy for policy, _ in wants}) < 2 or len({value for _, value in wants}) < 2:
        return
    best = in_force(tuple(wants.values()))
    if best is None:
        return
    keys = sorted(wants)
    ordered = [wants[key] for key in keys]
    yield keys, Meeting(
        best.knob, best.scope, tuple((h.policy, h.value) for h in ordered), best.policy,
        best.value, stretch.start_ms, stretch.end_ms - stretch.start_ms,
        shadow=tuple(dict.fromkeys(h.policy for h in ordered if h.shadow)),
    )
