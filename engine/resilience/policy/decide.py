"""One tick's decisions: two pure calls over recorded inputs.

`needs()` says which UDF calls the tick requires, `decide()` returns the next state and what
changed. Neither knows a clock, a file or a random number; the live engine, the dry run, policy
tests and the simulator call the same two functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from resilience.model import (
    Claim,
    Decision,
    Impulse,
    Json,
    Labels,
    Observations,
    OperatorEvent,
    Policy,
    QueryInput,
    QueryResult,
    Reason,
    SeriesTruth,
    State,
    TriggerObservation,
    Truth,
    UdfCall,
    UdfOutcome,
    UdfSpec,
    instance_id,
)
from resilience.policy.claims import Fired, active_actions, fire, in_force
from resilience.policy.machine import Evidence, advance, stands_still
from resilience.policy.state import EngineState, Instance, Key, idle
from resilience.policy.udf_values import ambiguous, in_json, metric_value

INSTANCES_MAX = 1_000
EVERYONE = "*"


@dataclass(frozen=True, slots=True)
class UdfNeed:
    """A UDF call that this tick requires; `call()` completes it once its queries are answered."""

    policy: str
    instance: str
    action: str
    spec: UdfSpec
    base: Json

    @property
    def queries(self) -> tuple[str, ...]:
        return tuple(expr for _, expr in self.spec.metrics)

    def refused(self, results: Mapping[str, QueryResult]) -> UdfOutcome | None:
        """Return the outcome of a call that cannot be made with these answers, or None."""
        why = ambiguous(self.spec, results)
        if why is None:
            return None
        return UdfOutcome(
            self.policy, self.instance, self.action, self.spec.function, "RUNTIME_DENIED",
            detail=why,
        )

    def call(self, results: Mapping[str, QueryResult]) -> UdfCall:
        metrics = {
            name: in_json(metric_value(results.get(expr))) for name, expr in self.spec.metrics
        }
        return UdfCall(
            self.policy,
            self.instance,
            self.action,
            self.spec.function,
            self.spec.timeout_ms,
            {**self.base, "metrics": metrics},
        )


def needs(
    policies: Sequence[Policy], state: EngineState, observations: Observations, now_ms: int
) -> tuple[UdfNeed, ...]:
    """Return the UDF calls without which `decide()` cannot finish this tick, in a stable order."""
    paused = _pauses(state, observations.operator, now_ms)
    found: list[UdfNeed] = []
    for policy in policies:
        if not any(a.udf for a in _all_actions(policy)):
            continue
        for key, instance, evidence in _instances(policy, state, observations, paused, now_ms):
            after = advance(policy, instance, evidence)
            if after.state is State.FIRING:
                found.extend(_needs_of(policy, key, after, now_ms))
    return tuple(found)


def _all_actions(policy: Policy) -> Iterator[Json]:
    yield from policy.actions
    for stage in policy.escalation:
        yield from stage.actions


def _needs_of(policy: Policy, key: Key, instance: Instance, now_ms: int) -> Iterator[UdfNeed]:
    previous = dict(instance.previous)
    for action in active_actions(policy, instance):
        if action.udf is None:
            continue
        base = {
            "policy": policy.name,
            "labels": dict(instance.labels),
            "value": in_json(instance.value),
            "now": now_ms / 1000,
            "params": action.udf.params,
            "claims": [
                {"knob": c.knob, "scope": dict(c.scope), "value": c.value} for c in instance.claims
            ],
            "previous": previous.get(action.key),
        }
        yield UdfNeed(policy.name, key[1], action.key, action.udf, base)


def decide(
    policies: Sequence[Policy],
    state: EngineState,
    observations: Observations,
    now_ms: int,
    revision: str,
) -> tuple[EngineState, tuple[Decision, ...]]:
    """Return the state after this tick and one Decision for each change of state or claims.

    `policies` are those whose interval is due; instances of others are left alone.
    """
    paused = _pauses(state, observations.operator, now_ms)
    firings = dict(state.firings)
    changed: dict[Key, Instance | None] = {}
    decisions: list[Decision] = []
    for policy in policies:
        for key, before, evidence in _instances(policy, state, observations, paused, now_ms):
            if stands_still(policy, before, evidence, revision):
                if key[1] in state.of(policy.name) and idle(policy, before, now_ms):
                    changed[key] = None
                continue
            evidence = replace(evidence, number=firings.get(policy.name, 0) + 1)
            turn = _turn(policy, before, evidence, observations, revision)
            firings[policy.name] = max(firings.get(policy.name, 0), turn.after.firing)
            forgotten = idle(policy, turn.after, now_ms)
            if turn.after is not before or (forgotten and key[1] in state.of(policy.name)):
                changed[key] = None if forgotten else turn.after
            if turn.decision is not None:
                decisions.append(turn.decision)
    firings = {name: n for name, n in firings.items() if n}
    return state.with_changes(changed, firings, paused), tuple(decisions)


def _pauses(
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


def _instances(
    policy: Policy,
    state: EngineState,
    observations: Observations,
    paused: Mapping[str, int | None],
    now_ms: int,
) -> Iterator[tuple[Key, Instance, Evidence]]:
    """Yield every instance to look at: those in the state, then new series of the trigger."""
    trigger = observations.triggers.get(policy.name, TriggerObservation())
    resolve = observations.resolves.get(policy.name)
    known = state.of(policy.name)
    truths = {instance_id(s.labels): s for s in trigger.series}
    stopped = EVERYONE in paused or policy.name in paused
    for name in sorted(known):
        instance = known[name]
        truth = truths.get(name) or _unseen(instance.labels, trigger)
        ended = _resolve_truth(policy, resolve, instance.labels)
        yield (policy.name, name), instance, Evidence(truth, ended, stopped, 0, now_ms)
    if not known and not truths:
        truths = {instance_id(()): SeriesTruth((), Truth.UNKNOWN, trigger.missing)}
    for name in _fresh(policy, truths, known, stopped):
        truth = truths[name]
        ended = _resolve_truth(policy, resolve, truth.labels)
        instance = Instance(truth.labels, since_ms=now_ms)
        yield (policy.name, name), instance, Evidence(truth, ended, stopped, 0, now_ms)


def _fresh(
    policy: Policy,
    truths: Mapping[str, SeriesTruth],
    known: Mapping[str, Instance],
    stopped: bool,
) -> list[str]:
    """Return the ids of series that may need a state: a quiet one needs none."""
    fires_blind = policy.trigger.on_no_data == "fire"
    new = [
        name
        for name, s in truths.items()
        if name not in known
        and (s.truth is Truth.TRUE or stopped or (fires_blind and s.truth is Truth.UNKNOWN))
    ]
    return sorted(new)[: max(0, INSTANCES_MAX - len(known))]


def _unseen(labels: Labels, trigger: TriggerObservation) -> SeriesTruth:
    """An instance that nobody reports is unknown. The one that stood for "no series at all" (no
    labels) ends when series are back: they are the evidence against it."""
    if not labels and any(s.labels for s in trigger.series):
        return SeriesTruth(labels, Truth.FALSE, Reason.CLEAR)
    return SeriesTruth(labels, Truth.UNKNOWN, trigger.missing)


def _resolve_truth(
    policy: Policy, observed: TriggerObservation | None, labels: Labels
) -> Truth | None:
    """Return the truth of `resolve.expr` for an instance: the series with its labels, else the
    one whose labels are a part of them (a sum resolves each of its parts)."""
    if policy.trigger.resolve is None:
        return None
    if observed is None:
        return Truth.UNKNOWN
    exact = [s.truth for s in observed.series if s.labels == labels]
    part = [s.truth for s in observed.series if set(s.labels) < set(labels)]
    if exact:
        return exact[0]
    return part[0] if len(part) == 1 else Truth.UNKNOWN


@dataclass(frozen=True, slots=True)
class _Turn:
    after: Instance
    decision: Decision | None = None


def _turn(
    policy: Policy,
    before: Instance,
    evidence: Evidence,
    observations: Observations,
    revision: str,
) -> _Turn:
    """Advance one instance, refresh what it claims, and say what changed."""
    moved = advance(policy, before, evidence)
    moved = _escalated(policy, moved, observations.udfs)
    fired = Fired()
    if moved.state is State.FIRING:
        fired = fire(policy, moved, observations.udfs, revision)
        moved = replace(
            moved,
            base=fired.claims,
            impulses=(*moved.impulses, *(i.key for i in fired.impulses)),
            previous=_previous(policy, moved, observations.udfs),
        )
    moved = replace(moved, claims=in_force(policy, moved, observations.capacities))
    if moved.state in (State.INACTIVE, State.SUSPENDED):
        moved = replace(moved, base=())
    if not _differs(before, moved, fired.impulses):
        return _Turn(_settled(before, moved))
    decision = _decision(policy, before, moved, evidence, observations, fired, revision)
    return _Turn(moved, decision)


def _escalated(
    policy: Policy, instance: Instance, outcomes: Mapping[tuple[str, str, str], UdfOutcome]
) -> Instance:
    """Take the next escalation stage at once when a UDF with `on_error: escalate` failed."""
    if instance.state is not State.FIRING or instance.stages >= len(policy.escalation):
        return instance
    for action in active_actions(policy, instance):
        if action.udf is None or action.udf.on_error != "escalate":
            continue
        outcome = outcomes.get((policy.name, instance_id(instance.labels), action.key))
        if outcome is not None and outcome.outcome != "ok":
            return replace(instance, stages=instance.stages + 1)
    return instance


def _previous(
    policy: Policy,
    instance: Instance,
    outcomes: Mapping[tuple[str, str, str], UdfOutcome],
) -> tuple[tuple[str, Json], ...]:
    """Return what each UDF of this firing returned last."""
    previous = dict(instance.previous)
    for action in active_actions(policy, instance):
        outcome = outcomes.get((policy.name, instance_id(instance.labels), action.key))
        if outcome is not None and outcome.outcome == "ok":
            previous[action.key] = outcome.result
    return tuple(sorted(previous.items()))


def _differs(before: Instance, after: Instance, impulses: Sequence[Impulse]) -> bool:
    return bool(impulses) or (before.state, before.held_from, before.claims) != (
        after.state,
        after.held_from,
        after.claims,
    )


def _settled(before: Instance, after: Instance) -> Instance:
    """Keep the old object when only the last reading moved: an unchanged instance costs no copy
    and no row in the journal."""
    reading = replace(before, value=after.value, truth=after.truth, reason=after.reason)
    return before if reading == after else after


def _decision(
    policy: Policy,
    before: Instance,
    after: Instance,
    evidence: Evidence,
    observations: Observations,
    fired: Fired,
    revision: str,
) -> Decision:
    return Decision(
        t_ms=evidence.now_ms,
        revision=revision,
        policy=policy.name,
        spec_hash=policy.spec_hash,
        instance=instance_id(after.labels),
        labels=after.labels,
        value=after.value,
        truth=after.truth,
        reason=_why(policy, after, observations),
        from_state=before.state,
        to_state=after.state,
        clocks=after.clocks(),
        claims_before=before.claims,
        claims_after=after.claims,
        actions=tuple(a.key for a in active_actions(policy, after))
        if after.state is State.FIRING
        else (),
        impulses=fired.impulses,
        inputs=_inputs(policy, after, observations),
        udf=_udf_records(policy, after, observations),
        held_from=after.held_from,
        mode=policy.mode,
        note="; ".join(fired.notes) or None,
    )


def _why(policy: Policy, after: Instance, observations: Observations) -> Reason:
    """A failed UDF explains claims that are missing better than the trigger does."""
    if after.state is State.FIRING and any(
        r["outcome"] != "ok" for r in _udf_records(policy, after, observations)
    ):
        return Reason.UDF_ERROR
    return after.reason


def _inputs(policy: Policy, after: Instance, observations: Observations) -> tuple[QueryInput, ...]:
    found: list[QueryInput] = []
    for group in (observations.triggers, observations.resolves):
        observed = group.get(policy.name)
        if observed is not None:
            found.extend(observed.inputs)
    if after.state is State.FIRING:
        for action in active_actions(policy, after):
            for _, expr in action.udf.metrics if action.udf else ():
                found.append(QueryInput(expr, metric_value(observations.queries.get(expr))))
    return tuple(found)


def _udf_records(policy: Policy, after: Instance, observations: Observations) -> tuple[Json, ...]:
    if after.state is not State.FIRING:
        return ()
    outcomes = [
        observations.udfs.get((policy.name, instance_id(after.labels), action.key))
        for action in active_actions(policy, after)
        if action.udf is not None
    ]
    return tuple(
        {"function": o.function, "outcome": o.outcome, "result": o.result}
        for o in outcomes
        if o is not None
    )


def revise(
    before: Sequence[Policy],
    after: Sequence[Policy],
    state: EngineState,
    now_ms: int,
    revision: str,
) -> tuple[EngineState, tuple[Decision, ...]]:
    """Carry the state to a new revision.

    Running instances survive where the trigger is the same; those of a policy that is gone, off or
    has another trigger end, their claims with them, and the reason is `revision`.
    """
    old = {p.name: p for p in before}
    new = {p.name: p for p in after if p.mode != "off"}
    changed: dict[Key, Instance | None] = {}
    decisions: list[Decision] = []
    for (name, key), instance in state.items():
        former, now = old.get(name), new.get(name)
        if now is not None and (former is None or former.trigger == now.trigger):
            continue
        changed[(name, key)] = None
        if instance.state is not State.INACTIVE or instance.claims:
            decisions.append(_retired(former or now, name, instance, now_ms, revision))
    return state.with_changes(changed, state.firings, state.paused), tuple(decisions)


def _retired(
    policy: Policy | None, name: str, instance: Instance, now_ms: int, revision: str
) -> Decision:
    none: tuple[Claim, ...] = ()
    return Decision(
        t_ms=now_ms,
        revision=revision,
        policy=name,
        spec_hash=policy.spec_hash if policy else "",
        instance=instance_id(instance.labels),
        labels=instance.labels,
        value=instance.value,
        truth=instance.truth,
        reason=Reason.REVISION,
        from_state=instance.state,
        to_state=State.INACTIVE,
        clocks=instance.clocks(),
        claims_before=instance.claims,
        claims_after=none,
        mode=policy.mode if policy else "enforce",
    )
