"""The figures of a policy over a run: firings, active time, flaps, blind time, what it claimed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from resilience.model import Json, Labels
from resilience.report.history import (
    BLIND,
    STATES,
    Firing,
    History,
    Holding,
    PolicyHistory,
)
from resilience.report.spans import Span, folded, only, union_ms

# Firing again so soon after the last firing ended is a flap.
FLAP_MS = 300_000


@dataclass(frozen=True, slots=True)
class Figures:
    """`active_ms`: at least one instance fires or recovers, held ones included. `blind_ms`: the
    trigger has no answer for want of data, or an instance is held for it. `idle_ms`: an answer
    needs traffic and there is none. `near_misses`: pending, and then not fired."""

    decisions: int = 0
    firings: int = 0
    active_ms: int = 0
    flaps: int = 0
    relapses: int = 0
    near_misses: int = 0
    blind_ms: int = 0
    idle_ms: int = 0
    instances: int = 0
    first_firing_ms: int | None = None
    still_active: int = 0

    def to_json(self) -> Json:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Taken:
    """One claim that actions asked for, with its arguments, and for how long in sum."""

    knob: str
    scope: Labels
    value: Json
    times: int
    ms: int
    shadow: bool

    def to_json(self) -> Json:
        return {"knob": self.knob, "scope": dict(self.scope), "value": self.value,
                "times": self.times, "ms": self.ms, "shadow": self.shadow}


def figures(history: PolicyHistory, run: History) -> Figures:
    """Return the figures of one policy."""
    tracks = list(history.tracks.values())
    firings = sorted((f for t in tracks for f in t.firings), key=lambda f: f.start_ms)
    active = [s for t in tracks for s in only(run.clipped(t.active), "active")]
    relapses = sum(t.relapses for t in tracks)
    return Figures(
        decisions=history.decisions,
        firings=len(firings),
        active_ms=union_ms(active),
        flaps=relapses + sum(_refired(t.firings) for t in tracks),
        relapses=relapses,
        near_misses=sum(t.near_misses for t in tracks),
        blind_ms=union_ms(blind(history, run)),
        idle_ms=union_ms(only(truths(history, run), "idle")),
        instances=sum(1 for t in tracks if t.firings),
        first_firing_ms=firings[0].start_ms if firings else None,
        still_active=sum(1 for f in firings if f.end_ms is None),
    )


def _refired(firings: Sequence[Firing]) -> int:
    return sum(
        1 for before, after in zip(firings, firings[1:], strict=False)
        if before.end_ms is not None and after.start_ms - before.end_ms < FLAP_MS
    )


def truths(history: PolicyHistory, run: History) -> list[Span]:
    """Return what the trigger said, over time."""
    return [] if history.truth is None else run.clipped(history.truth)


def blind(history: PolicyHistory, run: History) -> list[Span]:
    """Return when nobody could know: the trigger was blind, or an instance held."""
    held = [s for t in history.tracks.values() for s in only(run.clipped(t.states), "held")]
    return [*only(truths(history, run), *BLIND), *held]


def states(history: PolicyHistory, run: History) -> list[Span]:
    """Return the policy's state over time, folded over its instances."""
    quiet = [Span(run.start_ms or 0, run.end_ms, "inactive")]
    lanes = [run.clipped(track.states) for track in history.tracks.values()]
    return folded([quiet, *lanes], STATES, "inactive")


def taken(holdings: Sequence[Holding]) -> list[Taken]:
    """Return what a policy claimed, each value once, the longest held first."""
    found: dict[tuple[str, Labels, str], list[Holding]] = {}
    for held in holdings:
        found.setdefault((held.knob, held.scope, repr(held.value)), []).append(held)
    rows = [
        Taken(
            group[0].knob, group[0].scope, group[0].value, len(group),
            union_ms([Span(h.start_ms, h.end_ms, "") for h in group]), group[0].shadow,
        )
        for group in found.values()
    ]
    return sorted(rows, key=lambda t: (-t.ms, t.knob, t.scope))
