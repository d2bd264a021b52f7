"""One tick: read, decide, journal, act. A synchronous function over ports.

Nothing here starts a thread, sleeps or reads a clock: the scheduler, the dry run and the simulator
call `Engine.tick(t_ms, interval_ms)` and own the time. The caller serialises the calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from resilience.app.engine_events import (
    bundle_event,
    capability_event,
    operator_event,
    result_json,
    tick_event,
    udf_event,
)
from resilience.app.impulses import planned
from resilience.app.mask import Mask
from resilience.app.state_rows import decision_row, readable, state_rows
from resilience.errors import JournalError
from resilience.model import (
    Action,
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
    QueryResult,
    Source,
    TriggerObservation,
    UdfCall,
    UdfOutcome,
    UdfRunner,
    canonical_json,
)
from resilience.policy.decide import UdfNeed, decide, needs, revise
from resilience.policy.set_back import in_time
from resilience.policy.state import EngineState, Instance, Ledger, live_claims
from resilience.policy.unsaved import letting_go
from resilience.promql.truth import TriggerPlan, compile_trigger, observe

QUERY_DEADLINE_MS = 5_000
UDF_KILL_MS = 1_000
DECISIONS_KEPT = 1_000
OPERATOR_EVENTS_MAX = 256
MAX_AGE_SCRAPES = 3

Propose = Callable[[Json, Action], tuple[Action, ...]]
Events = Callable[[Json], None]


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
class Snapshot:
    """An immutable view for the control API and the metrics."""

    revision: str
    state: EngineState
    claims: tuple[Claim, ...]
    decisions: tuple[Decision, ...]
    observations: Mapping[str, TriggerObservation]
    capabilities: Capabilities | None
    last_tick_ms: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class _Plans:
    trigger: TriggerPlan
    resolve: TriggerPlan | None
    checks: Mapping[str, TriggerPlan]


def _ignore(event: Json) -> None:
    del event


class Engine:
    """The state of one engine and its tick."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        source: Source,
        journal: Journal,
        propose: Propose,
        bus: Driver | None = None,
        udfs: UdfRunner | None = None,
        files: Files | None = None,
        events: Events = _ignore,
        record_results: bool = False,
        keep_inputs: bool = False,
    ) -> None:
        """`record_results`: also emit what queries returned, for sources that keep no samples.

        `keep_inputs`: journal what decisions were made from, so that they can be replayed.
        """
        self.bundle = bundle
        self.source = source
        self.state = EngineState()
        self.saved = self.state  # what the journal holds; behind `state` while it refuses
        self.capabilities: Capabilities | None = None
        self._journal = journal
        self._propose = propose
        self._bus = bus
        self._udfs = udfs
        self._files = files
        self._events = events
        self._record_results = record_results
        self._keep_inputs = keep_inputs
        self.inputs_dropped = 0
        self._owed: deque[JournalEntry] = deque(maxlen=DECISIONS_KEPT)
        self._operator: deque[OperatorEvent] = deque(maxlen=OPERATOR_EVENTS_MAX)
        self._decisions: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self._observed: dict[str, TriggerObservation] = {}
        self._last_tick_ms: dict[int, int] = {}
        self._decided_ms: dict[int, int] = {}
        self._plans = _compile(bundle.policies)

    # --- life cycle ---

    def restore(self) -> None:
        """Load the state that the journal holds; clocks go on as if nothing had happened."""
        grouped: dict[str, dict[str, Instance]] = {}
        with readable("state"):
            for key, body in self._journal.load("state").items():
                policy, _, name = key.rpartition("/")
                grouped.setdefault(policy, {})[name] = Instance.from_json(body)
        with readable("counters"):
            ledger = Ledger.from_json(self._journal.load("counters"))
        self.state = self.saved = EngineState(grouped, ledger)

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
        self._persist(state, ())
        self.state = state

    def set_state(self, state: EngineState) -> None:
        """Start from a given state (a dry run over a recording that began in mid-flight)."""
        self.state = self.saved = state

    def operator(self, event: OperatorEvent) -> None:
        """Take a pause or resume; it counts from the next tick on."""
        self._operator.append(event)

    def swap(self, bundle: Bundle, now_ms: int) -> tuple[Decision, ...]:
        """Replace the whole bundle between two ticks; raises JournalError with nothing changed."""
        plans = _compile(bundle.policies)
        state, decisions = revise(
            self.bundle.policies, bundle.policies, self.state, now_ms, bundle.revision
        )
        kept = self._inputs(
            bundle.policies, self.state, Observations(), now_ms, bundle.revision, decisions,
            before=self.bundle.revision,
        )
        self._persist(state, decisions, kept)
        self._events(bundle_event(bundle, now_ms))
        self.bundle, self.state, self._plans = bundle, state, plans
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
        self, t_ms: int, interval_ms: int, *, missed: int = 0,
        quiet: frozenset[str] = frozenset(),
    ) -> TickReport:
        """Evaluate all policies of one interval at `t_ms`; `missed` counts ticks that were late.

        `quiet` names policies of which the caller knows that they have nothing to decide unless
        they have a state already: only a dry run, which sees all ticks ahead, can know that.
        """
        seq = self.source.seq()
        operator = tuple(self._operator)
        self._operator.clear()
        self._announce(t_ms, interval_ms, seq, missed, operator)
        policies = [
            p for p in self.bundle.policies
            if p.interval_ms == interval_ms and p.mode != "off"
            and (p.name not in quiet or self.state.of(p.name))
        ]
        last_ms = self._decided_ms.get(interval_ms)
        before = in_time(self.state, policies, t_ms, interval_ms, last_ms)
        observations = self._observe(policies, before, t_ms, seq, operator)
        state, decisions = decide(
            policies, before, observations, t_ms, self.bundle.revision, self.bundle
        )
        kept = self._inputs(
            policies, before, observations, t_ms, self.bundle.revision, decisions)
        decisions, error = self._commit(before, state, decisions, kept)
        self._decided_ms[interval_ms] = t_ms
        self._last_tick_ms[interval_ms] = t_ms
        executions = self._act(decisions, t_ms)
        self._publish(decisions)
        failures = _failures(policies, observations)
        return TickReport(
            t_ms, interval_ms, seq, len(policies), decisions, executions, failures, error
        )

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

    def _observe(
        self, policies: Sequence[Policy], before: EngineState, t_ms: int, seq: int,
        operator: tuple[OperatorEvent, ...],
    ) -> Observations:
        """Prefetch everything that `decide()` may look at."""
        results = self._query(_trigger_queries(policies, self._plans), t_ms, seq)
        observations = Observations(
            triggers={
                p.name: observe(self._plans[p.name].trigger, results, t_ms, self._max_age_ms(p))
                for p in policies
            },
            resolves={
                p.name: observe(resolve, results, t_ms, self._max_age_ms(p))
                for p in policies
                if (resolve := self._plans[p.name].resolve) is not None
            },
            capacities=self._capacities(),
            operator=operator,
            checks={
                (p.name, expr): observe(plan, results, t_ms, self._max_age_ms(p))
                for p in policies
                for expr, plan in self._plans[p.name].checks.items()
            },
        )
        self._observed.update(observations.triggers)
        wanted = needs(policies, before, observations, t_ms)
        if not wanted:
            return observations
        queries = self._query(dict.fromkeys(q for n in wanted for q in n.queries), t_ms, seq)
        outcomes = self._run_udfs(wanted, queries, policies, t_ms)
        return replace(observations, queries=queries, udfs=outcomes)

    def _query(self, exprs: Iterable[str], t_ms: int, seq: int) -> Mapping[str, QueryResult]:
        wanted = list(exprs)
        if not wanted:
            return {}
        results = self.source.query(wanted, t_ms, seq=seq, deadline_ms=QUERY_DEADLINE_MS)
        if self._record_results:
            self._events(
                {
                    "type": "query",
                    "t_ms": t_ms,
                    "results": [result_json(r) for r in results.values()],
                }
            )
        return results

    def _max_age_ms(self, policy: Policy) -> int:
        if policy.trigger.max_age_ms is not None:
            return policy.trigger.max_age_ms
        return MAX_AGE_SCRAPES * self.source.scrape_interval_ms

    def _capacities(self) -> Mapping[str, float]:
        if self.capabilities is None:
            return {}
        return {
            name: c.capacity
            for name, c in self.capabilities.knobs.items()
            if c.capacity is not None
        }

    def _run_udfs(
        self,
        wanted: Sequence[UdfNeed],
        queries: Mapping[str, QueryResult],
        policies: Sequence[Policy],
        t_ms: int,
    ) -> Mapping[tuple[str, str, str], UdfOutcome]:
        refused = [r for need in wanted if (r := need.refused(queries)) is not None]
        keys = {r.key for r in refused}
        calls = [n.call(queries) for n in wanted if (n.policy, n.instance, n.action) not in keys]
        outcomes = [*refused, *self._call(calls)]
        actions = {(p.name, a.key): a for p in policies for a in p.every_action()}
        expanded = [self._expand(o, actions[o.policy, o.action]) for o in outcomes]
        for outcome in expanded:
            self._events(udf_event(outcome, t_ms))
        return {o.key: o for o in expanded}

    def _call(self, calls: Sequence[UdfCall]) -> Sequence[UdfOutcome]:
        if not calls:
            return ()
        if self._udfs is None:
            return [_no_runner(call) for call in calls]
        deadline_ms = max(c.timeout_ms for c in calls) + UDF_KILL_MS
        return self._udfs.run(calls, deadline_ms=deadline_ms)

    def _expand(self, outcome: UdfOutcome, action: Action) -> UdfOutcome:
        """Check what a UDF proposed as strictly as what a policy says."""
        if outcome.outcome != "ok":
            return outcome
        try:
            return replace(outcome, actions=self._propose(outcome.result, action))
        except ValueError as error:
            return replace(outcome, outcome="BAD_RESULT", detail=str(error))

    def _commit(
        self, before: EngineState, state: EngineState, decisions: Sequence[Decision],
        kept: Sequence[JournalEntry],
    ) -> tuple[tuple[Decision, ...], str | None]:
        """Journal the new state, then adopt it; return the decisions that hold, and why not all.

        Without a journal only what lets go is adopted, and written once there is room.
        """
        try:
            self._persist(state, decisions, kept)
        except JournalError as error:
            self.state, done = letting_go(before, state, decisions)
            self._owed.extend(map(decision_row, done))
            return done, str(error)
        self.state = state
        return tuple(decisions), None

    def _inputs(
        self, policies: Sequence[Policy], state: EngineState, observations: Observations,
        t_ms: int, revision: str, decisions: Sequence[Decision], *, before: str | None = None,
    ) -> list[JournalEntry]:
        """Return the row that keeps what `decisions` were made from, if it is wanted and fits."""
        if not decisions or not self._keep_inputs:
            return []
        from resilience.app.inputs import kept_inputs

        entry = kept_inputs(
            policies, state, observations, t_ms, revision, decisions, before=before
        ).entry(decisions)
        self.inputs_dropped += entry is None
        return [] if entry is None else [entry]

    def _persist(
        self, after: EngineState, decisions: Sequence[Decision],
        kept: Sequence[JournalEntry] = (),
    ) -> None:
        """Write how `after` differs from what the journal holds, and what it is still owed."""
        batch = [
            *self._owed, *state_rows(self.saved, after), *map(decision_row, decisions), *kept
        ]
        if self._bus is not None:
            batch += [row for d in decisions for row in planned(d)]
        if batch:
            self._journal.append(batch)
        self._owed.clear()
        self.saved = after

    def _act(self, decisions: Sequence[Decision], t_ms: int) -> tuple[Execution, ...]:
        if self._bus is None:
            return ()
        return tuple(self._bus.drive(decisions, live_claims(self.state, self.bundle), t_ms))

    def _publish(self, decisions: Sequence[Decision]) -> None:
        self._decisions.extend(decisions)
        for decision in decisions:
            body = decision.to_json()
            self._events({"type": "decision", "decision": body})
            if self._files is not None:
                masked = Mask.configured(self.bundle.config).of(body)
                self._files.append_line("decisions.jsonl", canonical_json(masked))


def _compile(policies: Sequence[Policy]) -> dict[str, _Plans]:
    return {
        p.name: _Plans(
            compile_trigger(p.trigger.expr),
            compile_trigger(p.trigger.resolve.expr) if p.trigger.resolve else None,
            {check.expr: compile_trigger(check.expr) for _, check in p.checks()},
        )
        for p in policies
    }


def _trigger_queries(policies: Sequence[Policy], plans: Mapping[str, _Plans]) -> dict[str, None]:
    """Return each query once, in the order of the policies."""
    found: dict[str, None] = {}
    for policy in policies:
        own = plans[policy.name]
        for plan in (own.trigger, own.resolve, *own.checks.values()):
            found.update(dict.fromkeys(plan.queries if plan is not None else ()))
    return found


def _no_runner(call: UdfCall) -> UdfOutcome:
    return UdfOutcome(
        call.policy, call.instance, call.action, call.function, "CRASH", detail="no UDF runner"
    )


def _failures(policies: Sequence[Policy], observations: Observations) -> Mapping[str, str]:
    return {
        p.name: detail
        for p in policies
        if (detail := observations.triggers[p.name].detail) is not None
    }
