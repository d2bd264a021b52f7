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
from itertools import chain

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

Looked = tuple[str, Instance, SeriesTruth, Truth | None]
_TRUE, _FIRING = Truth.TRUE, State.FIRING

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
        known = Known(view)
        for name, instance, trigger, resolve in (
            *known, *known.with_resolve(fresh(view, INSTANCES_MAX)[0])
        ):
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
        known = Known(view, revision if burns_plainly(policy, view, awake) else None)
        for name, before, trigger, resolve in chain(known, _new(tick, known)):
            if not awake and stands_still(
                policy, before, trigger, resolve, stopped, now_ms, revision
            ) and (not policy.is_checked or rests(policy, before, observations.checks, now_ms)):
                if (before.state is State.INACTIVE and name in view.known
                        and idle(policy, before, now_ms)):
                    tick.forget(policy, name)
                continue
            tick.move(policy, name, before, view.evidence(trigger, resolve))
    return tick.end()


class Known:
    """The instances of a policy that the state knows, with what trigger and resolve say of them.

    `burning` skips the firings that go on under that revision and need no look: most instances of
    an incident. `seen` counts the series that were true and known, once all were gone through.
    """

    __slots__ = ("_resolve", "burning", "seen", "view")

    def __init__(self, view: View, burning: str | None = None) -> None:
        self.view, self.burning, self.seen = view, burning, 0
        self._resolve = None if view.resolve is None else Lookup(view.resolve)

    def __iter__(self) -> Iterator[Looked]:
        view, burning, resolves = self.view, self.burning, self._resolve
        known, policy = view.known, view.policy
        if not known:
            return
        exact = Lookup(view.trigger).exact
        resolved = None if resolves is None else resolves.exact
        for name in sorted(known):
            instance = known[name]
            labels = instance.labels
            truth = exact(labels)
            if truth is not None and truth.truth is _TRUE:
                self.seen += 1
                if burning is not None and _burns(instance, burning) and (
                    resolved is None
                    or ((no := resolved(labels)) is not None and no.truth is not _TRUE)
                ):
                    continue
            yield (name, instance, truth or unseen(labels, view.trigger),
                   _resolve_truth(policy, resolves, labels))

    def with_resolve(self, new: Sequence[tuple[str, SeriesTruth]]) -> Iterator[Looked]:
        """Yield series that have no state yet as the instances that they begin."""
        for name, truth in new:
            instance = Instance(truth.labels, since_ms=self.view.now_ms)
            resolve = _resolve_truth(self.view.policy, self._resolve, truth.labels)
            yield name, instance, truth, resolve


def _new(tick: Tick, known: Known) -> Iterator[Looked]:
    """Yield the series that may need a state, as far as there is room; after the known ones."""
    view = known.view
    new, left_out = fresh(view, tick.room(view), known.seen)
    tick.leave_out(view.policy, left_out)
    yield from known.with_resolve(new)


def _burns(instance: Instance, revision: str) -> bool:
    """Whether a firing whose trigger is true goes on as it is; for policies that burn plainly."""
    return (
        instance.state is _FIRING and instance.false_since_ms is None
        and instance.resolve_since_ms is None and not instance.refused
        and bool(base := instance.base) and base[0].revision == revision
    )


def burns_plainly(policy: Policy, view: View, awake: bool) -> bool:
    """Whether nothing but trigger and resolve can change a firing of the policy; what
    `stands_still` says of such instances, for all of them at once."""
    return not (awake or view.stopped or policy.is_watched or policy.is_checked
                or policy.calls_udfs or policy.escalation)


def _resolve_truth(policy: Policy, observed: Lookup | None, labels: Labels) -> Truth | None:
    """Return the truth of `resolve.expr` for an instance: of the series with its labels, else of
    the one whose labels are a part of them (a sum resolves each of its parts)."""
    if policy.trigger.resolve is None:
        return None
    found = None if observed is None else observed.nearest(labels)
    return Truth.UNKNOWN if found is None else found.truth
