"""Decisions as they are recorded, and what a new revision does to running instances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from resilience.model import (
    Claim,
    Decision,
    Json,
    Observations,
    Policy,
    QueryInput,
    Reason,
    State,
    TriggerObservation,
    instance_id,
)
from resilience.policy.claims import Fired, active_actions
from resilience.policy.letting_go import end
from resilience.policy.state import EngineState, Instance, Key, differs, idle
from resilience.policy.udf_values import metric_value


@dataclass(slots=True)
class Move:
    """One instance that this tick changes, on its way through the tick.

    `reason` set: what decided instead of the trigger. `withheld`: its group has another holder.
    """

    policy: Policy
    key: Key
    before: Instance
    after: Instance
    fired: Fired = Fired()
    reason: Reason | None = None
    notes: list[str] = field(default_factory=list[str])
    withheld: bool = False

    @property
    def differs(self) -> bool:
        """Whether there is something to record."""
        before, after = self.before, self.after
        return bool(self.fired.impulses) or (before.state, before.held_from, before.claims) != (
            after.state, after.held_from, after.claims,
        )  # fmt: skip

    @property
    def settled(self) -> Instance:
        """The old object when only the last reading moved: an unchanged instance costs no copy
        and no row in the journal. What a pending one waits for is worth a row."""
        before, after = self.before, self.after
        if before is after or before.state is not after.state:
            return after
        if after.state is State.PENDING and before.reason is not after.reason:
            return after
        return after if differs(before, after) else before


def decision(
    move: Move, observations: Observations, now_ms: int, revision: str
) -> Decision:
    """Return the record of a move."""
    policy, before, after = move.policy, move.before, move.after
    return Decision(
        t_ms=now_ms,
        revision=revision,
        policy=policy.name,
        spec_hash=policy.spec_hash,
        instance=instance_id(after.labels),
        labels=after.labels,
        value=after.value,
        truth=after.truth,
        reason=_why(move, observations),
        from_state=before.state,
        to_state=after.state,
        clocks=after.clocks(),
        claims_before=before.claims,
        claims_after=after.claims,
        actions=tuple(a.key for a in active_actions(policy, after))
        if after.state is State.FIRING
        else (),
        impulses=move.fired.impulses,
        inputs=_inputs(policy, before, after, observations),
        udf=_udf_records(policy, after, observations),
        held_from=after.held_from,
        mode=policy.mode,
        note="; ".join(move.notes) or None,
    )


def _why(move: Move, observations: Observations) -> Reason:
    """A check, or a failed UDF, explains claims that are missing better than the trigger does."""
    if move.reason is not None:
        return move.reason
    after = move.after
    if after.state is State.FIRING and any(
        r["outcome"] != "ok" for r in _udf_records(move.policy, after, observations)
    ):
        return Reason.UDF_ERROR
    return after.reason


def _inputs(
    policy: Policy, before: Instance, after: Instance, observations: Observations
) -> tuple[QueryInput, ...]:
    found: list[QueryInput] = []
    for group in (observations.triggers, observations.resolves):
        observed = group.get(policy.name)
        if observed is not None:
            found.extend(observed.inputs)
    if policy.is_checked and (before.holds or after.holds or after.state is State.PENDING):
        found.extend(_check_inputs(policy, observations.checks))
    if after.state is State.FIRING:
        for action in active_actions(policy, after):
            for _, expr in action.udf.metrics if action.udf else ():
                found.append(QueryInput(expr, metric_value(observations.queries.get(expr))))
    return tuple(found)


def _check_inputs(
    policy: Policy, checks: Mapping[tuple[str, str], TriggerObservation]
) -> Sequence[QueryInput]:
    """Return what `verify` and `guard` looked at, each query once."""
    seen = [checks.get((policy.name, check.expr)) for _, check in policy.checks()]
    inputs = (i for observed in seen if observed is not None for i in observed.inputs)
    return list({i.query: i for i in inputs}.values())


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
    has another trigger end, their claims with them, and the reason is `revision`. Of the policy
    with another trigger stays what its limits and its quarantine go by.
    """
    old = {p.name: p for p in before}
    new = {p.name: p for p in after if p.mode != "off"}
    ended: dict[Key, Instance | None] = {}
    decisions: list[Decision] = []
    for (name, key), instance in state.items():
        former, now = old.get(name), new.get(name)
        if now is not None and (former is None or former.trigger == now.trigger):
            continue
        kept = None if now is None else _remembered(former or now, now, instance, now_ms)
        ended[(name, key)] = kept
        if instance.state is not State.INACTIVE or instance.claims:
            decisions.append(_retired(former or now, name, instance, now_ms, revision))
    return state.with_changes(ended, state.ledger), tuple(decisions)


def _remembered(
    former: Policy, policy: Policy, instance: Instance, now_ms: int
) -> Instance | None:
    """Return what `policy` must not forget of an instance of the `former` trigger, or None."""
    fired = instance.firing_since_ms is not None
    done = end(former, instance, State.INACTIVE, now_ms, Reason.REVISION) if fired else instance
    kept = Instance(
        instance.labels, since_ms=now_ms, reason=Reason.REVISION, ended_ms=done.ended_ms,
        firing=done.firing, fired_ms=done.fired_ms, cooldown_until_ms=done.cooldown_until_ms,
        quarantine_until_ms=done.quarantine_until_ms,
    )
    return None if idle(policy, kept, now_ms) else kept


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
