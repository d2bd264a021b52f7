"""What one tick knows of a policy: its series, those that are new, pauses and warm-up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from resilience.model import (
    Labels,
    Observations,
    OperatorEvent,
    Policy,
    Reason,
    SeriesTruth,
    TriggerObservation,
    Truth,
    instance_id,
)
from resilience.policy.letting_go import Evidence
from resilience.policy.state import NO_SAMPLE, EngineState, Instance, Ledger

INSTANCES_MAX = 1_000
EVERYONE = "*"
NOTHING = TriggerObservation()


@dataclass(frozen=True, slots=True)
class View:
    """One policy at one tick. `stopped`: an operator paused it."""

    policy: Policy
    trigger: TriggerObservation
    resolve: TriggerObservation | None
    known: Mapping[str, Instance]
    stopped: bool
    now_ms: int

    @property
    def sample_ms(self) -> int | None:
        return self.trigger.inputs[0].sample_ms if self.trigger.inputs else None

    def evidence(self, trigger: SeriesTruth, resolve: Truth | None) -> Evidence:
        return Evidence(trigger, resolve, self.stopped, 0, self.now_ms, self.sample_ms)


def view_of(
    policy: Policy, state: EngineState, observations: Observations,
    paused: Mapping[str, int | None], now_ms: int,
) -> View:
    return View(
        policy, observations.triggers.get(policy.name, NOTHING),
        observations.resolves.get(policy.name), state.of(policy.name),
        EVERYONE in paused or policy.name in paused, now_ms,
    )  # fmt: skip


def fresh(
    view: View, room: int, seen: int = 0
) -> tuple[list[tuple[str, SeriesTruth]], int]:
    """Return the series that may need a state, by id (a quiet one needs none), and how many of
    them get none. `room`: how many instances the policy may have in all; `seen`: how many of its
    true series have a state, if that is known."""
    series: Sequence[SeriesTruth] = view.trigger.series
    if not series and not view.known:
        series = (SeriesTruth((), Truth.UNKNOWN, view.trigger.missing),)
    true, unknown = Truth.TRUE, Truth.UNKNOWN
    if view.stopped:
        loud = list(series)
    elif view.policy.trigger.on_no_data == "fire":
        loud = [s for s in series if s.truth is true or s.truth is unknown]
    else:
        loud = [s for s in series if s.truth is true]
        if len(loud) == seen:
            return [], 0
    if not loud:
        return [], 0
    named = ((instance_id(s.labels), s) for s in loud)
    new = [(name, s) for name, s in named if name not in view.known]
    spare = max(0, room - len(view.known))
    return sorted(new, key=lambda pair: pair[0])[:spare], max(0, len(new) - spare)


def unseen(labels: Labels, trigger: TriggerObservation) -> SeriesTruth:
    """An instance that nobody reports is unknown. The one that stood for "no series at all" (no
    labels) is false when series are back: they are the evidence against it."""
    if not labels and any(s.labels and _is_seen(s) for s in trigger.series):
        return SeriesTruth(labels, Truth.FALSE, Reason.CLEAR)
    return SeriesTruth(labels, Truth.UNKNOWN, trigger.missing)


def _is_seen(series: SeriesTruth) -> bool:
    """Whether there are good samples; an idle series has them."""
    return series.truth is not Truth.UNKNOWN or series.reason is Reason.IDLE


def warmth(view: View, ledger: Ledger) -> tuple[int, int | None] | None:
    """Return the good samples of a policy since it was blind and the newest one's time; None: it
    is not in its warm-up."""
    policy = view.policy
    if policy.trigger.warm_up <= 1:
        return None
    before = ledger.warming.get(policy.name)
    series = view.trigger.series
    if not any(map(_is_seen, series)):
        return NO_SAMPLE
    if before is None:
        return None
    count, sample_ms = before
    if not count or view.sample_ms is None or view.sample_ms != sample_ms:
        count, sample_ms = count + 1, view.sample_ms
    return None if count >= policy.trigger.warm_up else (count, sample_ms)


def concerned(ledger: Ledger, paused: Iterable[str]) -> frozenset[str]:
    """Return the policies, or EVERYONE, that something beside their series may change: a pause, a
    lever in quarantine, a warm-up, series that were left out."""
    return frozenset((*paused, *ledger.quarantine, *ledger.warming, *ledger.left_out))


def pauses(
    state: EngineState, events: Sequence[OperatorEvent], now_ms: int
) -> dict[str, int | None]:
    """Return the pauses in force after this tick's operator events."""
    paused = dict(state.paused)
    for event in events:
        name = event.policy or EVERYONE
        if event.kind == "pause":
            paused[name] = event.until_ms
        elif name == EVERYONE:
            paused.clear()
        else:
            paused.pop(name, None)
    return {n: until for n, until in paused.items() if until is None or until > now_ms}
