"""The state machine of one instance: a pure step from what was to what is at `now_ms`.

inactive -> pending -> firing -> recovering -> inactive
held       no data and `on_no_data: hold`; the state beneath stays and its clocks stand still
suspended  paused by an operator
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from resilience.model import Policy, Reason, SeriesTruth, State, Truth
from resilience.policy.state import FIRED_MAX, Instance, fired_within


@dataclass(frozen=True, slots=True)
class Evidence:
    """What this tick knows of one instance. `resolve` None: the policy has no resolve expression.

    `number` is the firing number to use if the instance starts to fire now.
    """

    trigger: SeriesTruth
    resolve: Truth | None
    paused: bool
    number: int
    now_ms: int


def advance(policy: Policy, before: Instance, evidence: Evidence) -> Instance:
    """Return the instance after this tick; claims, impulses and UDF results are not touched."""
    trigger = evidence.trigger
    value = None if trigger.value is None or math.isnan(trigger.value) else trigger.value
    seen = replace(before, truth=trigger.truth, reason=trigger.reason, value=value)
    if evidence.paused:
        return _suspend(seen, evidence.now_ms)
    if seen.state is State.SUSPENDED:
        return _enter(seen, State.INACTIVE, evidence.now_ms, Reason.OPERATOR)
    reading = _reading(policy, trigger)
    if reading is Truth.UNKNOWN and evidence.resolve is Truth.TRUE:
        reading = _resolved_reading(seen)
    awake = _wake(seen, evidence, reading)
    after = _STEPS[awake.state](policy, awake, evidence, reading)
    if after.state is State.HELD and before.state is State.HELD:
        return replace(after, since_ms=before.since_ms)
    return after


def stands_still(policy: Policy, before: Instance, evidence: Evidence, revision: str) -> bool:
    """Return whether `advance` and its claims would change nothing but the last reading.

    Most instances of most ticks: they cost no copy. A property test holds this against the full
    way; where in doubt it says no.
    """
    if evidence.paused or before.state is State.SUSPENDED:
        return evidence.paused and before.state is State.SUSPENDED
    reading = _reading(policy, evidence.trigger)
    if before.state is State.INACTIVE:
        return reading is not Truth.TRUE and before.true_since_ms is None
    if evidence.resolve is Truth.TRUE or before.resolve_since_ms is not None:
        return False
    if before.stages != max(before.stages, _stages(policy, before, evidence.now_ms)):
        return False
    if before.state is State.HELD:
        return reading is Truth.UNKNOWN
    if before.state is State.PENDING:
        since_ms = before.true_since_ms
        waits = since_ms is not None and evidence.now_ms - since_ms < policy.trigger.for_ms
        return waits and reading is Truth.TRUE
    if reading is Truth.FALSE and evidence.trigger.truth is Truth.UNKNOWN:
        return False  # `on_no_data: resolve` ends a firing at once where a resolve is asked for
    return before.state is State.FIRING and _burns_on(policy, before, reading, revision)


def _burns_on(policy: Policy, before: Instance, reading: Truth, revision: str) -> bool:
    """A firing whose claims were made under this revision, without a UDF that may change them."""
    if not before.base or before.base[0].revision != revision:
        return False
    stages = policy.escalation[: before.stages]
    if any(a.udf for a in (*policy.actions, *(a for s in stages for a in s.actions))):
        return False
    if reading is Truth.TRUE:
        return before.false_since_ms is None
    steady = before.false_since_ms is not None and policy.trigger.resolve is not None
    return reading is Truth.FALSE and steady


def _reading(policy: Policy, trigger: SeriesTruth) -> Truth:
    """Apply `on_no_data`. Idle (0/0 without traffic) is not blind, so it never fires by itself."""
    if trigger.truth is not Truth.UNKNOWN:
        return trigger.truth
    if policy.trigger.on_no_data == "resolve":
        return Truth.FALSE
    if policy.trigger.on_no_data == "fire" and trigger.reason is not Reason.IDLE:
        return Truth.TRUE
    return Truth.UNKNOWN


def _resolved_reading(instance: Instance) -> Truth:
    """A true resolve expression is the evidence on which a ramp began; on it the ramp goes on."""
    return Truth.FALSE if instance.active is State.RECOVERING else Truth.UNKNOWN


def _enter(instance: Instance, state: State, now_ms: int, reason: Reason) -> Instance:
    return replace(instance, state=state, held_from=None, since_ms=now_ms, reason=reason)


def _suspend(instance: Instance, now_ms: int) -> Instance:
    if instance.state is State.SUSPENDED:
        return replace(instance, reason=Reason.OPERATOR)
    ended_ms = now_ms if instance.firing_since_ms is not None else instance.ended_ms
    return replace(_quiet(instance, State.SUSPENDED, now_ms, Reason.OPERATOR), ended_ms=ended_ms)


def _quiet(instance: Instance, state: State, now_ms: int, reason: Reason) -> Instance:
    """Enter a state in which nothing is pending, firing or claimed."""
    return replace(
        _enter(instance, state, now_ms, reason),
        true_since_ms=None,
        firing_since_ms=None,
        false_since_ms=None,
        resolve_since_ms=None,
        step_since_ms=None,
        step=0,
        stages=0,
        fired_value=None,
        impulses=(),
        previous=(),
    )


def _wake(instance: Instance, evidence: Evidence, reading: Truth) -> Instance:
    """Leave `held` when data is back: the clocks move on by the time that nobody could see."""
    if instance.state is not State.HELD or instance.held_from is None:
        return instance
    if reading is Truth.UNKNOWN:
        return replace(instance, state=instance.held_from, held_from=None)
    blind_ms = evidence.now_ms - instance.since_ms
    return replace(
        instance,
        state=instance.held_from,
        held_from=None,
        since_ms=evidence.now_ms,
        true_since_ms=_later(instance.true_since_ms, blind_ms),
        step_since_ms=_later(instance.step_since_ms, blind_ms),
    )


def _later(t_ms: int | None, by_ms: int) -> int | None:
    return None if t_ms is None else t_ms + by_ms


def _hold(instance: Instance, evidence: Evidence) -> Instance:
    """Show `held` above the state; `since_ms` is when the data went away."""
    return replace(
        instance,
        state=State.HELD,
        held_from=instance.state,
        since_ms=evidence.now_ms,
        false_since_ms=None,
    )


def _inactive(policy: Policy, instance: Instance, e: Evidence, reading: Truth) -> Instance:
    if reading is not Truth.TRUE:
        return replace(instance, true_since_ms=None)
    pending = replace(
        _enter(instance, State.PENDING, e.now_ms, e.trigger.reason), true_since_ms=e.now_ms
    )
    return _pending(policy, pending, e, reading)


def _pending(policy: Policy, instance: Instance, e: Evidence, reading: Truth) -> Instance:
    if reading is Truth.UNKNOWN:
        return _hold(instance, e)
    if reading is Truth.FALSE:
        return _quiet(instance, State.INACTIVE, e.now_ms, e.trigger.reason)
    since_ms = e.now_ms if instance.true_since_ms is None else instance.true_since_ms
    waited = e.now_ms - since_ms >= policy.trigger.for_ms
    if not waited or not allowed(policy, instance, e.now_ms):
        return replace(instance, reason=Reason.PENDING_FOR)
    return replace(
        _enter(instance, State.FIRING, e.now_ms, e.trigger.reason),
        firing_since_ms=e.now_ms,
        firing=e.number,
        fired_value=e.trigger.value,
        fired_ms=(*instance.fired_ms, e.now_ms)[-FIRED_MAX:],
    )


def allowed(policy: Policy, instance: Instance, now_ms: int) -> bool:
    """Return whether cooldown and rate limits let the instance fire now."""
    limits = policy.limits
    if instance.ended_ms is not None and now_ms - instance.ended_ms < limits.cooldown_ms:
        return False
    return all(fired_within(instance.fired_ms, now_ms, r.per_ms) < r.max for r in limits.rate)


def _firing(policy: Policy, instance: Instance, e: Evidence, reading: Truth) -> Instance:
    instance = replace(
        instance,
        stages=max(instance.stages, _stages(policy, instance, e.now_ms)),
        resolve_since_ms=_run(instance.resolve_since_ms, e.resolve is Truth.TRUE, e.now_ms),
        false_since_ms=_run(instance.false_since_ms, reading is Truth.FALSE, e.now_ms),
    )
    if _ends(policy, instance, e):
        return _end(policy, instance, e)
    if reading is Truth.UNKNOWN:
        return _hold(instance, e)
    return instance if reading is Truth.TRUE else replace(instance, reason=Reason.KEEP_FIRING)


def _stages(policy: Policy, instance: Instance, now_ms: int) -> int:
    if instance.firing_since_ms is None:
        return 0
    fired_ms = now_ms - instance.firing_since_ms
    return sum(1 for stage in policy.escalation if stage.after_ms <= fired_ms)


def _run(since_ms: int | None, holds: bool, now_ms: int) -> int | None:
    """Return the start of the current run of a condition."""
    if not holds:
        return None
    return now_ms if since_ms is None else since_ms


def _ends(policy: Policy, instance: Instance, e: Evidence) -> bool:
    """Resolving takes positive evidence, or the policy's explicit `on_no_data: resolve`."""
    if policy.trigger.resolve is not None:
        by_choice = e.trigger.truth is Truth.UNKNOWN and policy.trigger.on_no_data == "resolve"
        since_ms, wait_ms = instance.resolve_since_ms, policy.trigger.resolve.for_ms
        return by_choice or (since_ms is not None and e.now_ms - since_ms >= wait_ms)
    since_ms = instance.false_since_ms
    return since_ms is not None and e.now_ms - since_ms >= policy.trigger.keep_firing_for_ms


def _end(policy: Policy, instance: Instance, e: Evidence) -> Instance:
    if policy.recovery is None or not instance.base:
        return _finish(instance, e)
    ramp = replace(
        _enter(instance, State.RECOVERING, e.now_ms, Reason.CLEAR),
        step=0,
        step_since_ms=e.now_ms,
        false_since_ms=None,
        resolve_since_ms=None,
    )
    return ramp if policy.recovery.steps[0] < 1 else _finish(instance, e)


def _finish(instance: Instance, e: Evidence) -> Instance:
    reason = e.trigger.reason if e.trigger.truth is not Truth.TRUE else Reason.CLEAR
    return replace(_quiet(instance, State.INACTIVE, e.now_ms, reason), ended_ms=e.now_ms)


def _recovering(policy: Policy, instance: Instance, e: Evidence, reading: Truth) -> Instance:
    if reading is Truth.TRUE:
        return replace(
            _enter(instance, State.FIRING, e.now_ms, Reason.RELAPSE), step=0, step_since_ms=None
        )
    if reading is Truth.UNKNOWN:
        return _hold(instance, e)
    recovery = policy.recovery
    if recovery is None:
        return _finish(instance, e)
    step, since_ms = instance.step, instance.step_since_ms or e.now_ms
    if e.now_ms - since_ms < recovery.every_ms:
        return instance
    step += 1
    if step >= len(recovery.steps) or recovery.steps[step] >= 1:
        return _finish(instance, e)
    return replace(instance, step=step, step_since_ms=e.now_ms)


_STEPS = {
    State.INACTIVE: _inactive,
    State.PENDING: _pending,
    State.FIRING: _firing,
    State.RECOVERING: _recovering,
}
