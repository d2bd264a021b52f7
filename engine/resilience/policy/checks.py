"""`verify` and `guard`: what must come true while a policy fires, and what must not be.

Both are three-valued. Unknown neither proves nor condemns: the clock of a `verify` stands still
while its expression is unknown, and a guard undoes only what it has seen to be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from resilience.model import (
    Action,
    Guard,
    Policy,
    Reason,
    SeriesTruth,
    State,
    TriggerObservation,
    Truth,
    Verify,
    format_duration,
)
from resilience.policy.claims import active_actions
from resilience.policy.letting_go import roll_back
from resilience.policy.matching import nearest
from resilience.policy.state import Instance, Verification

Checks = Mapping[tuple[str, str], TriggerObservation]
_UNSEEN = SeriesTruth((), Truth.UNKNOWN, Reason.BLIND_NO_SERIES)


@dataclass(frozen=True, slots=True)
class Judged:
    """What the checks made of an instance. `lifted`: actions to take back, until when (ms)."""

    instance: Instance
    lifted: Mapping[str, int]
    reason: Reason | None = None
    notes: tuple[str, ...] = ()


def guard_truth(policy: Policy, instance: Instance, checks: Checks) -> Truth:
    """Return what the policy's own guard says of an instance; false where there is none."""
    return Truth.FALSE if policy.guard is None else _look(policy, policy.guard, instance, checks)[0]


def rests(
    policy: Policy, instance: Instance, checks: Checks, now_ms: int, *, withheld: bool = False
) -> bool:
    """Return whether `judge` would leave an instance that stands still as it is."""
    if not policy.is_checked or not instance.holds:
        return True
    actions = active_actions(policy, instance)
    guards = (policy.guard, *(a.guard for a in actions))
    if any(g is not None and _look(policy, g, instance, checks)[0] is Truth.TRUE for g in guards):
        return False
    known = {v.key: v for v in instance.verify}
    for key, verify in _wanted(policy, actions, {}):
        v = known.get(key)
        if v is None:
            return False
        if withheld:
            if _idle(v, now_ms) != v:
                return False
            continue
        look = _look_awake(policy, verify, instance, checks)
        if not v.done and (_step(v, verify, *look, now_ms) != v or _has_failed(v, verify, now_ms)):
            return False
    return True


def judge(
    policy: Policy, instance: Instance, actions: Sequence[Action], checks: Checks, now_ms: int,
    *, withheld: bool = False,
) -> Judged:
    """Judge an instance that is at work, after the state machine has moved it.

    `withheld`: its claims have been held back, so that nothing can have come of them yet.
    """
    if not policy.is_checked or not instance.holds:
        return Judged(instance, {})
    guard = policy.guard
    if guard is not None and guard_truth(policy, instance, checks) is Truth.TRUE:
        note = guard_note("", guard)
        back = roll_back(policy, instance, now_ms, Reason.GUARD, guard.quarantine_ms)
        return Judged(back, {}, Reason.GUARD, (note,))
    lifted: dict[str, int] = {}
    notes: list[str] = []
    for action in actions:
        if action.guard is None:
            continue
        if _look(policy, action.guard, instance, checks)[0] is Truth.TRUE:
            lifted[action.key] = now_ms + action.guard.quarantine_ms
            notes.append(guard_note(action.key, action.guard))
    judged = Judged(instance, lifted, Reason.GUARD if lifted else None, tuple(notes))
    return _verified(policy, judged, actions, checks, now_ms, withheld=withheld)


# --- what is said of it; coverage reads it again ---


def guard_note(key: str, guard: Guard) -> str:
    """Return what the decision says when a guard undoes; `key` is its action's, or empty."""
    return f"{_whose(key)}guard `{guard.expr}` is true: undone, {_quarantine(guard)}"


def failed_note(key: str, verify: Verify) -> str:
    """Return how the sentence begins that a decision says of a verify that failed."""
    return f"{_whose(key)}verify `{verify.expr}` failed for {format_duration(verify.within_ms)}"


def met_note(key: str, verify: Verify) -> str:
    """Return what the decision that ends a firing says of a verify that was met."""
    return f"{_whose(key)}verify `{verify.expr}` was met"


def outcomes(policy: Policy, before: Instance) -> Iterator[str]:
    """Yield what had come of each verify of a firing that ends; of failures their own decision
    has told."""
    if not before.verify:
        return
    known = {v.key: v for v in before.verify}
    for key, verify in _wanted(policy, active_actions(policy, before), {}):
        v = known.get(key)
        if v is None or (v.done and v.met_ms is None):
            continue
        yield met_note(key, verify) if v.done else \
            f"{_whose(key)}verify `{verify.expr}` was not decided"


def _whose(key: str) -> str:
    return f"action {key}: " if key else ""


def _quarantine(check: Guard | Verify) -> str:
    return f"in quarantine for {format_duration(check.quarantine_ms)}"


def _look(
    policy: Policy, check: Guard | Verify, instance: Instance, checks: Checks
) -> tuple[Truth, float | None]:
    """Return truth and value of a check's expression for an instance."""
    seen = checks.get((policy.name, check.expr))
    found = nearest(seen, instance.labels) if seen is not None else None
    found = found or _UNSEEN
    value = None if found.value is None or math.isnan(found.value) else found.value
    return found.truth, value


# --- verify ---


def _verified(
    policy: Policy, judged: Judged, actions: Sequence[Action], checks: Checks, now_ms: int,
    *, withheld: bool,
) -> Judged:
    """Move each verification on, then act on those that have failed."""
    instance = judged.instance
    running: list[Verification] = []
    failed: list[tuple[str, Verify]] = []
    known = {v.key: v for v in instance.verify}
    for key, verify in _wanted(policy, actions, judged.lifted):
        before = known.get(key) or Verification(key, now_ms)
        after = before
        if withheld:
            after = _idle(before, now_ms)
        elif not before.done:
            after = _step(before, verify, *_look_awake(policy, verify, instance, checks), now_ms)
            if _has_failed(after, verify, now_ms):
                failed.append((key, verify))
        running.append(after)
    moved = replace(judged, instance=replace(instance, verify=tuple(running)))
    for key, verify in failed:
        moved = _failed(policy, moved, key, verify, now_ms)
    return moved


def _wanted(
    policy: Policy, actions: Sequence[Action], lifted: Mapping[str, int]
) -> Iterator[tuple[str, Verify]]:
    if policy.verify is not None:
        yield "", policy.verify
    for action in actions:
        if action.verify is not None and action.key not in lifted:
            yield action.key, action.verify


def _look_awake(
    policy: Policy, verify: Verify, instance: Instance, checks: Checks
) -> tuple[Truth, float | None]:
    """What works at less than full strength, or on a trigger that nobody sees, proves nothing."""
    if instance.state is not State.FIRING:
        return Truth.UNKNOWN, None
    return _look(policy, verify, instance, checks)


def _idle(v: Verification, now_ms: int) -> Verification:
    """What does nothing has all of its time before it, and no value to improve on yet."""
    began_anew = v.blind_ms == v.since_ms and v.baseline is None
    return v if v.done or began_anew else Verification(v.key, now_ms, blind_ms=now_ms)


def _step(
    v: Verification, verify: Verify, truth: Truth, value: float | None, now_ms: int
) -> Verification:
    known = truth is not Truth.UNKNOWN and (verify.improves is None or value is not None)
    if not known:
        return v if v.blind_ms is not None else replace(v, blind_ms=now_ms, met_ms=None)
    if v.blind_ms is not None:
        v = replace(v, since_ms=v.since_ms + now_ms - v.blind_ms, blind_ms=None)
    if verify.improves is not None and v.baseline is None:
        return replace(v, baseline=value)
    if not _is_met(v, verify, truth, value):
        return replace(v, met_ms=None)
    met_ms = now_ms if v.met_ms is None else v.met_ms
    return replace(v, met_ms=met_ms, done=now_ms - met_ms >= verify.for_ms)


def _is_met(v: Verification, verify: Verify, truth: Truth, value: float | None) -> bool:
    if verify.improves is None or value is None or v.baseline is None:
        return truth is Truth.TRUE
    step = verify.by * abs(v.baseline)
    if verify.improves == "down":
        return value <= v.baseline - step
    return value >= v.baseline + step


def _has_failed(v: Verification, verify: Verify, now_ms: int) -> bool:
    waits = v.done or v.met_ms is not None or v.blind_ms is not None
    return not waits and now_ms - v.since_ms >= verify.within_ms


def _failed(policy: Policy, judged: Judged, key: str, verify: Verify, now_ms: int) -> Judged:
    """Escalate if the policy says so and a stage is left; else roll back."""
    instance = judged.instance
    if not instance.holds:
        return judged
    why = failed_note(key, verify)
    if verify.on_failure == "escalate" and instance.stages < len(policy.escalation):
        raised = replace(
            instance, stages=instance.stages + 1, verify=_anew(instance.verify, key, now_ms)
        )
        note = f"{why}: stage {raised.stages} of the escalation"
        return _with(judged, raised, judged.lifted, note)
    note = f"{why}: rolled back, {_quarantine(verify)}"
    if key:
        lifted = {**judged.lifted, key: now_ms + verify.quarantine_ms}
        return _with(judged, instance, lifted, note)
    back = roll_back(policy, instance, now_ms, Reason.VERIFY_FAILED, verify.quarantine_ms)
    return _with(judged, back, judged.lifted, note)


def _anew(
    running: Sequence[Verification], key: str, now_ms: int
) -> tuple[Verification, ...]:
    """A stage gives the policy's verification its time again; an action's has had it."""
    done = bool(key)
    return tuple(Verification(key, now_ms, done=done) if v.key == key else v for v in running)


def _with(judged: Judged, instance: Instance, lifted: Mapping[str, int], note: str) -> Judged:
    reason = judged.reason or Reason.VERIFY_FAILED
    return Judged(instance, lifted, reason, (*judged.notes, note))
