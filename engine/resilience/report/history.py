"""What happened to each policy in a run: told tick by tick, kept as spans of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from resilience.model import (
    Claim,
    Decision,
    Json,
    Labels,
    Reason,
    State,
    TriggerObservation,
    Truth,
)
from resilience.policy.state import EngineState
from resilience.report.spans import Lane, Span

FIRST_MS = -(2**62)
ACTIVE = (State.FIRING, State.RECOVERING)
# A policy is shown in the first of these that one of its instances is in.
STATES = ("firing", "held", "recovering", "suspended", "pending", "inactive")
BLIND = tuple(r.value for r in Reason if r.value.startswith("blind_"))


@dataclass(frozen=True, slots=True)
class Firing:
    """One firing of one instance. `end_ms` None: it was still on at the end."""

    policy: str
    instance: str
    labels: Labels
    value: float | None
    start_ms: int
    end_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Holding:
    """A claim of one value for some time; `shadow` claims never left the engine."""

    policy: str
    instance: str
    action: str
    knob: str
    scope: Labels
    value: Json
    priority: int
    start_ms: int
    end_ms: int
    shadow: bool = False

    def to_json(self) -> Json:
        return {
            "instance": self.instance, "action": self.action, "knob": self.knob,
            "scope": dict(self.scope), "value": self.value, "priority": self.priority,
            "start_ms": self.start_ms, "end_ms": self.end_ms, "shadow": self.shadow,
        }


@dataclass(slots=True)
class Track:
    """One instance of a policy: its states, whether it was active, and how it fired."""

    labels: Labels
    states: Lane
    active: Lane
    firings: list[Firing] = field(default_factory=list[Firing])
    fired_ms: int | None = None
    relapses: int = 0
    near_misses: int = 0


@dataclass(slots=True)
class PolicyHistory:
    """What one policy went through."""

    tracks: dict[str, Track] = field(default_factory=dict[str, Track])
    truth: Lane | None = None
    decisions: int = 0
    impulses: Counter[str] = field(default_factory=Counter[str])
    udf: Counter[str] = field(default_factory=Counter[str])
    notes: Counter[str] = field(default_factory=Counter[str])
    holdings: list[Holding] = field(default_factory=list[Holding])
    open: dict[tuple[str, str, str, Labels], Holding] = field(
        default_factory=dict[tuple[str, str, str, Labels], Holding]
    )


class History:
    """Listens to a dry run. Times of `end_ms` are those of the last tick and its interval."""

    def __init__(self) -> None:
        self.policies: dict[str, PolicyHistory] = {}
        self.start_ms: int | None = None
        self.end_ms = 0
        self.ticks = 0

    # --- listening ---

    def ticked(self, t_ms: int, interval_ms: int) -> None:
        if self.start_ms is None:
            self.start_ms = t_ms
        self.end_ms = max(self.end_ms, t_ms + interval_ms)
        self.ticks += 1

    def began(self, state: EngineState) -> None:
        """Take the state in which a recording of a running engine begins."""
        for (policy, key), instance in state.items():
            history = self._of(policy)
            track = Track(
                instance.labels, Lane(FIRST_MS, instance.state.value),
                Lane(FIRST_MS, _active(instance.state, instance.held_from)),
            )
            history.tracks[key] = track
            if instance.firing_since_ms is not None:
                since_ms = track.fired_ms = instance.firing_since_ms
                track.firings.append(Firing(
                    policy, key, instance.labels, instance.fired_value, since_ms
                ))
            self._claim(history, key, instance.claims, FIRST_MS, False)

    def saw(self, policy: str, t_ms: int, observation: TriggerObservation) -> None:
        history = self._of(policy)
        word = truth_word(observation)
        if history.truth is None:
            history.truth = Lane(t_ms, word)
        history.truth.put(t_ms, word)

    def decided(self, decision: Decision) -> None:
        history = self._of(decision.policy)
        track = history.tracks.get(decision.instance)
        if track is None:
            track = history.tracks[decision.instance] = Track(
                decision.labels, Lane(FIRST_MS, decision.from_state.value), Lane(FIRST_MS, "")
            )
        history.decisions += 1
        history.impulses.update(i.impulse for i in decision.impulses)
        history.udf.update(f"{u['function']}: {u['outcome']}" for u in decision.udf)
        if decision.note:
            history.notes[decision.note] += 1
        _move(track, decision)
        self._claim(
            history, decision.instance, decision.claims_after, decision.t_ms,
            decision.mode == "shadow",
        )

    def _of(self, policy: str) -> PolicyHistory:
        return self.policies.setdefault(policy, PolicyHistory())

    def _claim(
        self, history: PolicyHistory, instance: str, claims: Iterable[Claim], t_ms: int,
        shadow: bool,
    ) -> None:
        """Close what is not claimed any more, or in another way, and open what is new."""
        wanted = {(instance, c.action, c.knob, c.scope): c for c in claims}
        for key, held in list(history.open.items()):
            new = wanted.get(key)
            if key[0] == instance and (
                new is None or held.shadow is not shadow
                or (new.value, new.priority) != (held.value, held.priority)
            ):
                self._close(history, key, t_ms)
        for key, claim in wanted.items():
            if key not in history.open:
                history.open[key] = Holding(
                    claim.policy, instance, claim.action, claim.knob, claim.scope, claim.value,
                    claim.priority, t_ms, t_ms, shadow,
                )

    def _close(
        self, history: PolicyHistory, key: tuple[str, str, str, Labels], t_ms: int
    ) -> None:
        held = history.open.pop(key)
        start_ms = max(held.start_ms, self.start_ms or 0)
        if t_ms > start_ms:
            history.holdings.append(Holding(
                held.policy, held.instance, held.action, held.knob, held.scope, held.value,
                held.priority, start_ms, t_ms, held.shadow,
            ))

    # --- the end ---

    def close(self) -> None:
        """End what is still open, at the end of the run."""
        for history in self.policies.values():
            for key in list(history.open):
                self._close(history, key, self.end_ms)

    def clipped(self, lane: Lane) -> list[Span]:
        """Return the spans of a lane within the run."""
        start_ms = self.start_ms or 0
        return [
            Span(max(s.start_ms, start_ms), s.end_ms, s.what)
            for s in lane.spans(self.end_ms) if s.end_ms > start_ms
        ]


def truth_word(seen: TriggerObservation) -> str:
    """Return one word for all series: `true` before any `blind_…`, before `false`, before `idle`;
    with no series at all the reason why there is none."""
    if not seen.series:
        return seen.missing.value
    truths = {s.truth for s in seen.series}
    blind = sorted({s.reason.value for s in seen.series if s.reason.value in BLIND})
    if Truth.TRUE in truths:
        return Truth.TRUE.value
    if blind:
        return blind[0]
    return Truth.FALSE.value if Truth.FALSE in truths else Reason.IDLE.value


def _active(state: State, held_from: State | None) -> str:
    beneath = held_from if state is State.HELD and held_from is not None else state
    return "active" if beneath in ACTIVE else ""


def _move(track: Track, decision: Decision) -> None:
    t_ms, clocks = decision.t_ms, dict(decision.clocks)
    active = _active(decision.to_state, decision.held_from)
    track.states.put(t_ms, decision.to_state.value)
    track.active.put(t_ms, active)
    if decision.reason is Reason.RELAPSE and decision.from_state is State.RECOVERING:
        track.relapses += 1
    if decision.from_state is State.PENDING and decision.to_state is State.INACTIVE:
        track.near_misses += 1
    fired_ms = clocks.get("firing_since_ms") if active else None
    if fired_ms == track.fired_ms:
        return
    if track.fired_ms is not None:
        track.firings[-1] = _ended(track.firings[-1], t_ms)
    track.fired_ms = fired_ms
    if fired_ms is not None:
        track.firings.append(Firing(
            decision.policy, decision.instance, decision.labels, decision.value, fired_ms
        ))


def _ended(firing: Firing, t_ms: int) -> Firing:
    return Firing(
        firing.policy, firing.instance, firing.labels, firing.value, firing.start_ms, t_ms
    )


def holdings_of(policies: Mapping[str, PolicyHistory]) -> list[Holding]:
    """Return all closed holdings in order of start."""
    found = [held for history in policies.values() for held in history.holdings]
    return sorted(found, key=lambda h: (h.start_ms, h.policy, h.instance, h.action))
