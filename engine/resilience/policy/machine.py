"""The state machine of one instance: a pure step from what was to what is at `now_ms`.

inactive -> pending -> firing -> recovering -> inactive
held       no data and `on_no_data: hold`; the state beneath stays and its clocks stand still
suspended  paused by an operator

How a firing ends, by ramps and probes, is in letting_go.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

from resilience.model import Policy, Reason, SeriesTruth, State, Truth
from resilience.policy.letting_go import (
    Evidence,
    end,
    enter,
    finish,
    hold,
    probe_due,
    quiet,
    recovering,
    start_probe,
)
from resilience.policy.state import FIRED_MAX, Instance, changed, fired_within

__all__ = ["Evidence", "advance", "allowed", "stands_still"]


# Enumerations are looked up slowly, and these are asked for each series of each tick.
_TRUE, _FALSE, _UNKNOWN = Truth.TRUE, Truth.FALSE, Truth.UNKNOWN
_INACTIVE, _PENDING, _FIRING = State.INACTIVE, State.PENDING, State.FIRING
_HELD, _SUSPENDED, _RECOVERING = State.HELD, State.SUSPENDED, State.RECOVERING


def advance(policy: Policy, before: Instance, evidence: Evidence) -> Instance:
    """Return the instance after this tick; claims, impulses and UDF results are not touched."""
    trigger = evidence.trigger
    value = None if trigger.value is None or math.isnan(trigger.value) else trigger.value
    seen = before
    if (before.truth, before.reason, before.value) != (trigger.truth, trigger.reason, value):
        seen = changed(before, truth=trigger.truth, reason=trigger.reason, value=value)
    if evidence.paused:
        return _suspend(policy, seen, evidence.now_ms)
    if seen.state is State.SUSPENDED:
        return enter(seen, State.INACTIVE, evidence.now_ms, Reason.OPERATOR)
    if policy.trigger.warm_up > 1:
        seen = _warmed(policy, seen, evidence)
    if seen.warming and trigger.truth is not Truth.UNKNOWN:
        seen = changed(seen, reason=Reason.WARM_UP)
        trigger = SeriesTruth(trigger.labels, Truth.UNKNOWN, Reason.WARM_UP, trigger.value)
        resolve = None if evidence.resolve is None else Truth.UNKNOWN
        evidence = replace(evidence, trigger=trigger, resolve=resolve)
    reading = _reading(policy, trigger)
    if reading is Truth.UNKNOWN and evidence.resolve is Truth.TRUE:
        reading = _resolved_reading(seen)
    awake = _wake(seen, evidence, reading)
    after = _STEPS[awake.state](policy, awake, evidence, reading)
    if after.state is State.HELD and before.state is State.HELD:
        return changed(after, since_ms=before.since_ms)
    return after


def stands_still(
    policy: Policy, before: Instance, trigger: SeriesTruth, resolve: Truth | None, paused: bool,
    now_ms: int, revision: str,
) -> bool:
    """Return whether `advance` and its claims would change nothing but the last reading.

    Most instances of most ticks: they cost no copy. A property test holds this against the full
    way; where in doubt it says no. What checks say is not looked at here.
    """
    state = before.state
    if paused or state is _SUSPENDED:
        return paused and state is _SUSPENDED
    reading = trigger.truth if trigger.truth is not _UNKNOWN else _reading(policy, trigger)
    if state is _INACTIVE:
        return reading is not _TRUE and before.true_since_ms is None
    if policy.is_watched or before.refused:
        return False
    if state is _RECOVERING:
        return reading is _FALSE and _in_midst_of_a_step(policy, before, now_ms)
    if (resolve is _TRUE) is (before.resolve_since_ms is None):
        return False
    if state is _FIRING:
        if policy.escalation and before.stages < _stages(policy, before, now_ms):
            return False
        if reading is _FALSE and trigger.truth is _UNKNOWN:
            return False  # `on_no_data: resolve` ends a firing at once where it waits for a resolve
        waits = resolve is not _TRUE or _waits_for_resolve(policy, before, now_ms)
        return waits and _burns_on(policy, before, reading, revision)
    return resolve is not _TRUE and _waits_on(policy, before, reading, now_ms)


def _waits_on(policy: Policy, before: Instance, reading: Truth, now_ms: int) -> bool:
    """A held instance that still sees nothing, or a pending one whose `for` is not over."""
    if before.state is _HELD:
        return reading is _UNKNOWN
    if before.state is not _PENDING:
        return False
    since_ms = before.true_since_ms
    waits = since_ms is not None and now_ms - since_ms < policy.trigger.for_ms
    return waits and reading is _TRUE


def _in_midst_of_a_step(policy: Policy, before: Instance, now_ms: int) -> bool:
    recovery, since_ms = policy.recovery, before.step_since_ms
    if recovery is None or since_ms is None or before.probe_since_ms is not None:
        return False
    return now_ms - since_ms < recovery.every_ms


def _waits_for_resolve(policy: Policy, before: Instance, now_ms: int) -> bool:
    resolve, since_ms = policy.trigger.resolve, before.resolve_since_ms
    return resolve is not None and since_ms is not None and now_ms - since_ms < resolve.for_ms


def _burns_on(policy: Policy, before: Instance, reading: Truth, revision: str) -> bool:
    """A firing whose claims were made under this revision, without a UDF that may change them."""
    base = before.base
    if not base or base[0].revision != revision or policy.calls_udfs:
        return False
    if reading is _TRUE:
        return before.false_since_ms is None
    steady = before.false_since_ms is not None and policy.trigger.resolve is not None
    return reading is _FALSE and steady


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


def _warmed(policy: Policy, instance: Instance, e: Evidence) -> Instance:
    """Count the good samples after blindness; an idle series has samples and is not blind."""
    if e.trigger.truth is Truth.UNKNOWN:
        if e.trigger.reason is Reason.IDLE:
            return instance
        return changed(instance, warming=True, samples=0, sample_ms=None)
    if not instance.warming:
        return instance
    counted = _counted(instance, e)
    if counted.samples < policy.trigger.warm_up:
        return counted
    return changed(counted, warming=False, samples=0, sample_ms=None)


def _counted(instance: Instance, e: Evidence) -> Instance:
    """Count a sample once, however often it is looked at."""
    if instance.samples and e.sample_ms is not None and e.sample_ms == instance.sample_ms:
        return instance
    return changed(instance, samples=instance.samples + 1, sample_ms=e.sample_ms)


def _suspend(policy: Policy, instance: Instance, now_ms: int) -> Instance:
    if instance.state is State.SUSPENDED:
        return changed(instance, reason=Reason.OPERATOR)
    if instance.firing_since_ms is None:
        return quiet(instance, State.SUSPENDED, now_ms, Reason.OPERATOR)
    return end(policy, instance, State.SUSPENDED, now_ms, Reason.OPERATOR)


def _wake(instance: Instance, evidence: Evidence, reading: Truth) -> Instance:
    """Leave `held` when data is back: the clocks move on by the time that nobody could see."""
    if instance.state is not State.HELD or instance.held_from is None:
        return instance
    if reading is Truth.UNKNOWN:
        return changed(instance, state=instance.held_from, held_from=None)
    blind_ms = evidence.now_ms - instance.since_ms
    unseen_ms = 0 if instance.firing_since_ms is None else instance.unseen_ms + blind_ms
    return changed(
        instance,
        state=instance.held_from,
        held_from=None,
        since_ms=evidence.now_ms,
        true_since_ms=_later(instance.true_since_ms, blind_ms),
        step_since_ms=_later(instance.step_since_ms, blind_ms),
        unseen_ms=unseen_ms,
    )


def _later(t_ms: int | None, by_ms: int) -> int | None:
    return None if t_ms is None else t_ms + by_ms


def _inactive(policy: Policy, instance: Instance, e: Evidence, reading: Truth) -> Instance:
    if reading is not Truth.TRUE:
        return changed(instance, true_since_ms=None, warming=False, samples=0, sample_ms=None)
    pending = changed(
        enter(instance, State.PENDING, e.now_ms, e.trigger.reason), true_since_ms=e.now_ms
    )
    return _pending(policy, pending, e, reading)


def _pending(policy: Policy, instance: Instance, e: Evidence, reading: Truth) -> Instance:
    if reading is Truth.UNKNOWN:
        return hold(instance, e)
    if reading is Truth.FALSE:
        return quiet(instance, State.INACTIVE, e.now_ms, e.trigger.reason)
    if policy.limits.min_samples > 1 and not instance.warming:
        instance = _counted(instance, e)
    why = _waits(policy, instance, e)
    if why is not None:
        return changed(instance, reason=why)
    return changed(
        enter(instance, State.FIRING, e.now_ms, e.trigger.reason),
        firing_since_ms=e.now_ms,
        firing=e.number,
        fired_value=instance.value,
        fired_ms=_remembered(policy, (*instance.fired_ms, e.now_ms)),
        samples=instance.samples if instance.warming else 0,
        sample_ms=instance.sample_ms if instance.warming else None,
    )


def _remembered(policy: Policy, fired_ms: tuple[int, ...]) -> tuple[int, ...]:
    return fired_ms[-max([FIRED_MAX, *(rate.max for rate in policy.limits.rate)]) :]


def _waits(policy: Policy, instance: Instance, e: Evidence) -> Reason | None:
    """Return why a true trigger does not fire yet, or None."""
    since_ms = e.now_ms if instance.true_since_ms is None else instance.true_since_ms
    if e.now_ms - since_ms < policy.trigger.for_ms:
        return Reason.PENDING_FOR
    if instance.quarantine_until_ms is not None and e.now_ms < instance.quarantine_until_ms:
        return Reason.QUARANTINE
    if e.guard is Truth.TRUE:
        return Reason.GUARD
    if not e.warm and e.trigger.truth is Truth.TRUE:
        return Reason.WARM_UP
    few = instance.samples < policy.limits.min_samples and policy.limits.min_samples > 1
    if few or not e.room or not allowed(policy, instance, e.now_ms):
        return Reason.PENDING_FOR
    return None


def allowed(policy: Policy, instance: Instance, now_ms: int) -> bool:
    """Return whether cooldown and rate limits let the instance fire now.

    Of the cooldown that runs and the one that the policy asks for now, the longer counts.
    """
    limits = policy.limits
    if instance.cooldown_until_ms is not None and now_ms < instance.cooldown_until_ms:
        return False
    if instance.ended_ms is not None and now_ms - instance.ended_ms < limits.cooldown_ms:
        return False
    return all(fired_within(instance.fired_ms, now_ms, r.per_ms) < r.max for r in limits.rate)


def _firing(policy: Policy, instance: Instance, e: Evidence, reading: Truth) -> Instance:
    stages = instance.stages
    if reading is not Truth.UNKNOWN:
        stages = max(stages, _stages(policy, instance, e.now_ms))
    resolve_ms = _run(instance.resolve_since_ms, e.resolve is Truth.TRUE, e.now_ms)
    false_ms = _run(instance.false_since_ms, reading is Truth.FALSE, e.now_ms)
    clocks = (instance.stages, instance.resolve_since_ms, instance.false_since_ms)
    if clocks != (stages, resolve_ms, false_ms):
        instance = changed(
            instance, stages=stages, resolve_since_ms=resolve_ms, false_since_ms=false_ms
        )
    if _ends(policy, instance, e):
        return finish(policy, instance, e)
    if probe_due(policy, instance, e, reading):
        return start_probe(instance, e)
    if reading is Truth.UNKNOWN:
        return hold(instance, e)
    return instance if reading is Truth.TRUE else changed(instance, reason=Reason.KEEP_FIRING)


def _stages(policy: Policy, instance: Instance, now_ms: int) -> int:
    """Return how many stages the time in which the firing was seen has reached."""
    if instance.firing_since_ms is None:
        return 0
    fired_ms = now_ms - instance.firing_since_ms - instance.unseen_ms
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


_STEPS = {
    State.INACTIVE: _inactive,
    State.PENDING: _pending,
    State.FIRING: _firing,
    State.RECOVERING: recovering,
}
