"""How a firing ends: at once, in a ramp, after a probe, or rolled back. Pure steps."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.model import Policy, Reason, SeriesTruth, State, Truth
from resilience.policy.state import Instance, changed


@dataclass(frozen=True, slots=True)
class Evidence:
    """What this tick knows of one instance. `resolve` None: the policy has no resolve expression.

    `number` is the firing number to use if the instance starts to fire now; `sample_ms` the time
    of the trigger's newest sample; `guard` what the policy's guard says; `room` whether one more
    instance of the policy may fire; `warm` whether the policy has seen enough since blindness.
    """

    trigger: SeriesTruth
    resolve: Truth | None
    paused: bool
    number: int
    now_ms: int
    sample_ms: int | None = None
    guard: Truth = Truth.FALSE
    room: bool = True
    warm: bool = True


def enter(instance: Instance, state: State, now_ms: int, reason: Reason) -> Instance:
    return changed(instance, state=state, held_from=None, since_ms=now_ms, reason=reason)


def quiet(instance: Instance, state: State, now_ms: int, reason: Reason) -> Instance:
    """Enter a state in which nothing is pending, firing or claimed."""
    return changed(
        enter(instance, state, now_ms, reason),
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
        warming=False,
        samples=0,
        sample_ms=None,
        probes=0,
        probe_since_ms=None,
        probed_ms=None,
        verify=(),
        granted=(),
        refused=(),
        unseen_ms=0,
    )


def hold(instance: Instance, evidence: Evidence) -> Instance:
    """Show `held` above the state; `since_ms` is when the data went away."""
    return changed(
        instance,
        state=State.HELD,
        held_from=instance.state,
        since_ms=evidence.now_ms,
        false_since_ms=None,
    )


def end(policy: Policy, instance: Instance, state: State, now_ms: int, reason: Reason) -> Instance:
    """End a firing now; of a cooldown that still runs and the new one the longer counts."""
    until_ms = instance.cooldown_until_ms
    if policy.limits.cooldown_ms:
        until_ms = max(until_ms or 0, now_ms + policy.limits.cooldown_ms)
    ended = quiet(instance, state, now_ms, reason)
    return changed(ended, ended_ms=now_ms, cooldown_until_ms=until_ms)


def finish(policy: Policy, instance: Instance, e: Evidence) -> Instance:
    """Let go on evidence: in a ramp where the policy has one."""
    if policy.recovery is None or not instance.base or policy.recovery.steps[0] >= 1:
        return _done(policy, instance, e)
    return changed(
        enter(instance, State.RECOVERING, e.now_ms, Reason.CLEAR),
        step=0,
        step_since_ms=e.now_ms,
        false_since_ms=None,
        resolve_since_ms=None,
        probe_since_ms=None,
    )


def _done(policy: Policy, instance: Instance, e: Evidence) -> Instance:
    reason = e.trigger.reason if e.trigger.truth is not Truth.TRUE else Reason.CLEAR
    return end(policy, instance, State.INACTIVE, e.now_ms, reason)


def roll_back(
    policy: Policy, instance: Instance, now_ms: int, reason: Reason, quarantine_ms: int
) -> Instance:
    """Undo everything at once, without a ramp, and keep the instance from firing for a while."""
    until_ms = max(instance.quarantine_until_ms or 0, now_ms + quarantine_ms)
    ended = end(policy, instance, State.INACTIVE, now_ms, reason)
    return changed(ended, quarantine_until_ms=until_ms)


def recovering(policy: Policy, instance: Instance, e: Evidence, reading: Truth) -> Instance:
    """One tick of a ramp or a probe; a relapse ends both at once."""
    if reading is Truth.TRUE:
        seen = e.trigger.truth is Truth.TRUE  # else blind, which `on_no_data: fire` takes for it
        reason = Reason.RELAPSE if seen else e.trigger.reason
        return changed(_relit(instance, e, reason), step=0, step_since_ms=None)
    if instance.probe_since_ms is not None:
        return _probing(policy, instance, e, reading)
    if reading is Truth.UNKNOWN:
        return hold(instance, e)
    recovery = policy.recovery
    if recovery is None:
        return _done(policy, instance, e)
    step, since_ms = instance.step, instance.step_since_ms or e.now_ms
    if e.now_ms - since_ms < recovery.every_ms:
        return instance
    step += 1
    if step >= len(recovery.steps) or recovery.steps[step] >= 1:
        return _done(policy, instance, e)
    return changed(instance, step=step, step_since_ms=e.now_ms)


def _relit(instance: Instance, e: Evidence, reason: Reason) -> Instance:
    """Return to firing at full strength."""
    probed_ms = instance.probed_ms if instance.probe_since_ms is None else e.now_ms
    return changed(
        enter(instance, State.FIRING, e.now_ms, reason), probe_since_ms=None, probed_ms=probed_ms
    )


# --- half-open probes ---


def probe_due(policy: Policy, instance: Instance, e: Evidence, reading: Truth) -> bool:
    """Return whether to look behind the claims now: never into a breach, never blind."""
    probe = policy.probe
    if probe is None or not instance.base or instance.probes >= probe.max:
        return False
    if reading is Truth.TRUE or _is_blind(e):
        return False
    last_ms = instance.firing_since_ms if instance.probed_ms is None else instance.probed_ms
    return last_ms is not None and e.now_ms - last_ms >= probe.after_ms


def _is_blind(e: Evidence) -> bool:
    return e.trigger.truth is Truth.UNKNOWN and e.trigger.reason is not Reason.IDLE


def start_probe(instance: Instance, e: Evidence) -> Instance:
    return changed(
        enter(instance, State.RECOVERING, e.now_ms, Reason.PROBE),
        probes=instance.probes + 1,
        probe_since_ms=e.now_ms,
        false_since_ms=None,
        resolve_since_ms=None,
    )


def _probing(policy: Policy, instance: Instance, e: Evidence, reading: Truth) -> Instance:
    """A probe ends by itself: at its end only positive evidence lets go, and nobody probes blind.

    With a resolve expression that is the evidence; without one, the trigger's false is.
    """
    if _is_blind(e):
        back = _relit(instance, e, e.trigger.reason)
        return hold(back, e) if reading is Truth.UNKNOWN else back
    probe, since_ms = policy.probe, instance.probe_since_ms or e.now_ms
    if probe is not None and e.now_ms - since_ms < probe.for_ms:
        return changed(instance, reason=Reason.PROBE)
    evidence = reading is Truth.FALSE if e.resolve is None else e.resolve is Truth.TRUE
    if evidence:
        return finish(policy, instance, e)
    return _relit(instance, e, e.trigger.reason)
