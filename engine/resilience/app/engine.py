"""One tick: read, decide, journal, act. A synchronous function over ports.

Nothing here starts a thread, sleeps or reads a clock: the scheduler, the dry run and the simulator
call `Engine.tick(t_ms, interval_ms)` and own the time. The caller serialises the calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from resilience.app.engine_events import (
    bundle_event,
    capability_event,
    operator_event,
    tick_event,
)
from resilience.app.mask import Mask
from resilience.app.prefetch import Events, Prefetch, Propose
from resilience.app.saved_state import SavedState
from resilience.app.trigger_plans import compile_policies
from resilience.errors import JournalError
from resilience.model import (
    Bundle,
    Capabilities,
    Claim,
    Decision,
    Execution,
    Files,
    Journal,
    JournalEntry,
    Json,
    Observations,
    OperatorEvent,
    Policy,
    Source,
    TriggerObservation,
    UdfRunner,
    canonical_json,
)
from resilience.policy.burning import burns_on
from resilience.policy.decide import decide, revise
from resilience.policy.set_back import in_time
from resilience.policy.state import EngineState, Instance, live_claims
from resilience.policy.unsaved import letting_go
from resilience.policy.views import pauses

DECISIONS_KEPT = 1_000
OPERATOR_EVENTS_MAX = 4_096


class Driver(Protocol):
    """What carries claims to the core (the bus); absent in a dry run."""

    def drive(
        self,
        decisions: Sequence[Decision],
        claims: Sequence[Claim],
        t_ms: int,
    ) -> Sequence[Execution]: ...


@dataclass(frozen=True, slots=True)
class TickReport:
    """What one tick did. `error` is set when the journal refused: then nothing has begun, and
    `decisions` are those that only let go."""

    t_ms: int
    interval_ms: int
    seq: int
    evaluated: int = 0
    decisions: tuple[Decision, ...] = ()
    executions: tuple[Execution, ...] = ()
    failures: Mapping[str, str] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Ahead:
    """What is known of a tick before it is made: the policies that may decide something though they
    have no state (`awake`), and those whose trigger and resolve say of the same series what they
    said at the tick before, values apart (`same`)."""

    awake: frozenset[str]
    same: frozenset[str]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An immutable view for the control API and the metrics."""

    revision: str
    state: EngineState
    claims: tuple[Claim, ...]
    decisions: tuple[Decision, ...]
    observations: Mapping[str, TriggerObservation]
    capabilities: Capabilities | None
    last_tick_ms: Mapping[int, int]


def _ignore(event: Json) -> None:
    del event


class Engine:
    """The state of one engine and its tick."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        source: Source,
        journal: Journal | None,
        propose: Propose,
        bus: Driver | None = None,
        udfs: UdfRunner | None = None,
        files: Files | None = None,
        events: Events = _ignore,
        record_results: bool = False,
        keep_inputs: bool = False,
    ) -> None:
        """`journal` None: nothing is remembered, as in a dry run.

        `record_results`: also emit what queries returned, for sources that keep no samples.

        `keep_inputs`: journal what decisions were made from, so that they can be replayed.
        """
        self.bundle = bundle
        self.source = source
        self.state = EngineState()
        self.capabilities: Capabilities | None = None
        self._prefetch = Prefetch(source, propose, udfs, events, record_results=record_results)
        self._saved = SavedState(journal, drives=bus is not None, keep_inputs=keep_inputs)
        self._bus = bus
        self._files = files
        self._events = events
        self._operator: deque[tuple[OperatorEvent, str]] = deque()
        self._decisions: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self._observed: dict[str, TriggerObservation] = {}
        self._last_tick_ms: dict[int, int] = {}
        self._decided_ms: dict[int, int] = {}
        self._plans = compile_policies(bundle.policies)
        self._burning: dict[str, Mapping[str, Instance]] = {}

    @property
    def saved(self) -> EngineState:
        """What the journal holds; behind `state` while it refuses."""
        return self._saved.state

    @property
    def inputs_dropped(self) -> int:
        """How many decisions cannot be replayed, because their inputs were too large to keep."""
        return self._saved.inputs_dropped

    @property
    def owed_dropped(self) -> int:
        """How many decisions were acted on while the journal refused, and never written."""
        return self._saved.owed_dropped

    # --- life cycle ---

    def restore(self) -> None:
        """Load the state that the journal holds; clocks go on as if nothing had happened."""
        self.state = self._saved.restore()
        for event, key in self._saved.unheard():
            self.operator(event, key)

    def begin_recording(self) -> None:
        """Emit what a dry run must know before the first recorded tick."""
        self._events({"type": "state", "state": self.state.to_json()})
        if self.capabilities is not None:
            self._events(capability_event(self.capabilities))
        self._events(bundle_event(self.bundle, 0))

    def observe_capabilities(self, capabilities: Capabilities) -> None:
        """Take what the core can do; ramps aim at its capacities from the next tick on."""
        self.capabilities = capabilities
        self._events(capability_event(capabilities))

    def begin_with(self, state: EngineState) -> None:
        """Start from a given state and journal it; raises JournalError with nothing changed."""
        self._saved.write(state, ())
        self.state = state

    def set_state(self, state: EngineState) -> None:
        """Start from a given state (a dry run over a recording that began in mid-flight)."""
        self.state = self._saved.state = state

    def operator(self, event: OperatorEvent, key: str = "") -> None:
        """Take a pause or resume; it counts from the next tick on.

        `key` is that of its row in the journal, if it has one: the tick that hears it deletes the
        row, and a restart before that brings the event back.
        """
        self._operator.append((event, key))

    def paused(self, now_ms: int) -> Mapping[str, int | None]:
        """Return what is paused, and until when, with what the next tick is still to hear."""
        return pauses(self.state, [event for event, _ in self._operator.copy()], now_ms)

    @property
    def crowded(self) -> bool:
        """Whether no more events of operators should come in before a tick has heard some."""
        return len(self._operator) >= OPERATOR_EVENTS_MAX

    def swap(
        self, bundle: Bundle, now_ms: int, rows: Sequence[JournalEntry] = ()
    ) -> tuple[Decision, ...]:
        """Replace the whole bundle between two ticks, and journal `rows` with it; raises
        JournalError with nothing changed."""
        plans = compile_policies(bundle.policies)
        state, decisions = revise(
            self.bundle.policies, bundle.policies, self.state, now_ms, bundle.revision
        )
        kept = self._saved.inputs(
            bundle.policies, self.state, Observations(), now_ms, bundle.revision, decisions,
            before=self.bundle.revision,
        )
        self._saved.write(state, decisions, [*kept, *rows])
        self._events(bundle_event(bundle, now_ms))
        self.bundle, self.state, self._plans, self._burning = bundle, state, plans, {}
        names = {p.name for p in bundle.policies}
        self._observed = {n: o for n, o in self._observed.items() if n in names}
        self._publish(decisions)
        return decisions

    def snapshot(self) -> Snapshot:
        return Snapshot(
            self.bundle.revision,
            self.state,
            live_claims(self.state, self.bundle),
            tuple(self._decisions),
            dict(self._observed),
            self.capabilities,
            dict(self._last_tick_ms),
        )

    # --- the tick ---

    def observation(self, policy: str) -> TriggerObservation | None:
        """Return what the trigger of `policy` said at its last tick."""
        return self._observed.get(policy)

    def tick(
        self, t_ms: int, interval_ms: int, *, missed: int = 0, ahead: Ahead | None = None
    ) -> TickReport:
        """Evaluate all policies of one interval at `t_ms`; `missed` counts ticks that were late.

        `ahead` is what the caller knows already: only a dry run does that sees all ticks, in none
        of which an operator speaks.
        """
        seq = self.source.seq()
        operator = self._taken()
        self._announce(t_ms, interval_ms, seq, missed, operator)
        policies = self._due(interval_ms, ahead)
        before, observations, state, decisions = self._decide(
            policies, t_ms, interval_ms, seq, operator)
        if ahead is not None and self._left_out(decisions, policies, interval_ms):
            policies = self._due(interval_ms, None)
            before, observations, state, decisions = self._decide(
                policies, t_ms, interval_ms, seq, operator)
        self._observed.update(observations.triggers)
        kept = self._saved.inputs(
            policies, before, observations, t_ms, self.bundle.revision, decisions)
        decisions, error = self._commit(before, state, decisions, kept)
        if ahead is not None:
            self._note_burning(policies, observations)
        self._decided_ms[interval_ms] = t_ms
        self._last_tick_ms[interval_ms] = t_ms
        executions = self._act(decisions, t_ms)
        self._publish(decisions)
        failures = _failures(policies, observations)
        return TickReport(
            t_ms, interval_ms, seq, len(policies), decisions, executions, failures, error
        )

    def _decide(
        self, policies: Sequence[Policy], t_ms: int, interval_ms: int, seq: int,
        operator: tuple[OperatorEvent, ...],
    ) -> tuple[EngineState, Observations, EngineState, tuple[Decision, ...]]:
        """Return the state in time, what was read, the state after it, and what changed."""
        last_ms = self._decided_ms.get(interval_ms)
        before = in_time(self.state, policies, t_ms, interval_ms, last_ms)
        observations = self._prefetch.observe(
            policies, self._plans, before, t_ms, seq, capabilities=self.capabilities,
            operator=operator)
        state, decisions = decide(
            policies, before, observations, t_ms, self.bundle.revision, self.bundle
        )
        return before, observations, state, decisions

    def _left_out(
        self, decisions: Sequence[Decision], policies: Sequence[Policy], interval_ms: int
    ) -> bool:
        """Whether a policy that is due and was not looked at was moved all the same: where claims
        are cut for their number, others make room. Its decision tells what it would have seen."""
        moved = {d.policy for d in decisions} - {p.name for p in policies}
        return bool(moved) and any(p.name in moved for p in self._due(interval_ms, None))

    def _due(self, interval_ms: int, ahead: Ahead | None) -> list[Policy]:
        """Return the policies of a tick, without those of which it is known that it changes nothing
        of them."""
        there = self.state.instances
        looked = None
        if ahead is not None:
            burning = {n for n, g in self._burning.items() if g is there.get(n)}
            looked = (ahead.awake | there.keys()) - (burning & ahead.same)
        return [
            p for p in self.bundle.policies
            if (looked is None or p.name in looked)
            and p.interval_ms == interval_ms and p.mode != "off"
        ]

    def _note_burning(self, policies: Sequence[Policy], observations: Observations) -> None:
        """Remember which policies need no look before their trigger or resolve says other things,
        as long as their instances are these."""
        for policy in policies:
            if burns_on(policy, self.state, observations, self.bundle.revision):
                self._burning[policy.name] = self.state.of(policy.name)
            else:
                self._burning.pop(policy.name, None)

    def _taken(self) -> tuple[OperatorEvent, ...]:
        """Take the events one by one: none that comes in meanwhile is lost."""
        events: list[OperatorEvent] = []
        while self._operator and len(events) < OPERATOR_EVENTS_MAX:
            event, key = self._operator.popleft()
            events.append(event)
            self._saved.heard(key)
        return tuple(events)

    def _announce(
        self,
        t_ms: int,
        interval_ms: int,
        seq: int,
        missed: int,
        operator: Iterable[OperatorEvent],
    ) -> None:
        for event in operator:
            self._events(operator_event(event))
        self._events(tick_event(t_ms, interval_ms, seq, missed))

    def _commit(
        self, before: EngineState, state: EngineState, decisions: Sequence[Decision],
        kept: Sequence[JournalEntry],
    ) -> tuple[tuple[Decision, ...], str | None]:
        """Journal the new state, then adopt it; return the decisions that hold, and why not all.

        Without a journal only what lets go is adopted, and written once there is room.
        """
        try:
            self._saved.write(state, decisions, kept)
        except JournalError as error:
            self.state, done = letting_go(before, state, decisions)
            self._saved.owe(done)
            return done, str(error)
        self.state = state
        return tuple(decisions), None

    def _act(self, decisions: Sequence[Decision], t_ms: int) -> tuple[Execution, ...]:
        if self._bus is None:
            return ()
        return tuple(self._bus.drive(decisions, live_claims(self.state, self.bundle), t_ms))

    def _publish(self, decisions: Sequence[Decision]) -> None:
        self._decisions.extend(decisions)
        if self._events is _ignore and self._files is None:
            return
        for decision in decisions:
            body = decision.to_json()
            self._events({"type": "decision", "decision": body})
            if self._files is not None:
                masked = Mask.configured(self.bundle.config).of(body)
                self._files.append_line("decisions.jsonl", canonical_json(masked))


def _failures(policies: Sequence[Policy], observations: Observations) -> Mapping[str, str]:
    return {
        p.name: detail
        for p in policies
        if (detail := observations.triggers[p.name].detail) is not None
    }
