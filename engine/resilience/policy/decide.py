"""One tick's decisions: two pure calls over recorded inputs.

`needs()` says which UDF calls the tick requires, `decide()` returns the next state and what
changed. Neither knows a clock, a file or a random number; the live engine, the dry run, policy
tests and the simulator call the same two functions.

A tick goes: views.py reads what is known of each instance, machine.py moves it, checks.py judges
it (guard, verify), claims.py says what it wants, arbitration.py what of that may be, tick.py leads
through it, and records.py writes down what changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from resilience.model import (
    Bundle,
    Decision,
    Labels,
    Observations,
    Policy,
    SeriesTruth,
    State,
    Truth,
)
from resilience.policy.checks import rests
from resilience.policy.machine import advance, stands_still
from resilience.policy.matching import Lookup
from resilience.policy.records import revise
from resilience.policy.state import EngineState, Instance, idle
from resilience.policy.tick import Tick, completed, judged
from resilience.policy.udf_needs import UdfNeed, needs_of
from resilience.policy.views import INSTANCES_MAX, View, fresh, pauses, unseen, view_of, warmth

__all__ = ["UdfNeed", "decide", "needs", "revise"]


def needs(
    policies: Sequence[Policy], state: EngineState, observations: Observations, now_ms: int
) -> tuple[UdfNeed, ...]:
    """Return the UDF calls without which `decide()` cannot finish this tick, in a stable order."""
    paused = pauses(state, observations.operator, now_ms)
    found: list[UdfNeed] = []
    for policy in policies:
        if not policy.calls_udfs:
            continue
        view = view_of(policy, state, observations, paused, now_ms)
        warm = warmth(view, state.ledger) is None
        for name, instance, trigger, resolve in _instances(view, fresh(view, INSTANCES_MAX)[0]):
            evidence = view.evidence(trigger, resolve)
            full = completed(policy, instance, evidence, observations, warm=warm)
            moved = advance(policy, instance, full)
            shut = state.ledger.quarantine.get(policy.name, {})
            after = judged(policy, moved, observations, shut, now_ms).instance
            if after.state is State.FIRING:
                found.extend(needs_of(policy, name, after, now_ms))
    return tuple(found)


def decide(
    policies: Sequence[Policy],
    state: EngineState,
    observations: Observations,
    now_ms: int,
    revision: str,
    bundle: Bundle | None = None,
) -> tuple[EngineState, tuple[Decision, ...]]:
    """Return the state after this tick and one Decision for each change of state or claims.

    `policies` are those whose interval is due; instances of others are left alone, unless a group
    or a safety belt of the whole `bundle` concerns their claims.
    """
    tick = Tick(policies, bundle, state, observations, now_ms, revision)
    for policy in policies:
        view = view_of(policy, state, observations, tick.paused, now_ms)
        tick.begin(view)
        stopped, awake = view.stopped, tick.is_shut(policy)
        new, left_out = fresh(view, tick.room(view))
        tick.leave_out(policy, left_out)
        for name, before, trigger, resolve in _instances(view, new):
            if not awake and stands_still(
                policy, before, trigger, resolve, stopped, now_ms, revision
            ) and (not policy.is_checked or rests(policy, before, observations.checks, now_ms)):
                if (before.state is State.INACTIVE and name in view.known
                        and idle(policy, before, now_ms)):
                    tick.forget(policy, name)
                continue
            tick.move(policy, name, before, view.evidence(trigger, resolve))
    return tick.end()


def _instances(
    view: View, new: Sequence[tuple[str, SeriesTruth]]
) -> Iterator[tuple[str, Instance, SeriesTruth, Truth | None]]:
    """Yield every instance to look at, with what trigger and resolve say of it: those in the
    state, then the `new` series of the trigger."""
    policy, known = view.policy, view.known
    if not known and not new:
        return
    seen = Lookup(view.trigger)
    resolve = None if view.resolve is None else Lookup(view.resolve)
    for name in sorted(known):
        instance = known[name]
        labels = instance.labels
        truth = seen.exact(labels) or unseen(labels, view.trigger)
        yield name, instance, truth, _resolve_truth(policy, resolve, labels)
    for name, truth in new:
        instance = Instance(truth.labels, since_ms=view.now_ms)
        yield name, instance, truth, _resolve_truth(policy, resolve, truth.labels)


def _resolve_truth(policy: Policy, observed: Lookup | None, labels: Labels) -> Truth | None:
    """Return the truth of `resolve.expr` for an instance: of the series with its labels, else of
    the one whose labels are a part of them (a sum resolves each of its parts)."""
    if policy.trigger.resolve is None:
        return None
    found = None if observed is None else observed.nearest(labels)
    return Truth.UNKNOWN if found is None else found.truth
