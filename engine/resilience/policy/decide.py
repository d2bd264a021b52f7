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
from resilience.policy.burning import (
    burns_plainly,
    is_quiet,
    is_steady,
    parted,
    true_series,
    unresolved,
)
from resilience.policy.machine import advance, stands_still
from resilience.policy.matching import Lookup
from resilience.policy.records import revise
from resilience.policy.state import EngineState, Instance, idle
from resilience.policy.tick import Tick, completed, judged, was_withheld
from resilience.policy.udf_needs import UdfNeed, needs_of
from resilience.policy.views import (
    INSTANCES_MAX,
    NOTHING,
    View,
    fresh,
    pauses,
    unseen,
    view_of,
    warmth,
)

Looked = tuple[str, Instance, SeriesTruth, Truth | None]
_TRUE, _FALSE, _UNKNOWN = Truth.TRUE, Truth.FALSE, Truth.UNKNOWN

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
            withheld = was_withheld(policy, instance, state.ledger)
            after = judged(
                policy, moved, observations, shut, now_ms, withheld=withheld
            ).instance
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
    triggers, resolves = observations.triggers, observations.resolves
    for policy in policies:
        free, known = not tick.concerns(policy), state.of(policy.name)
        trigger = triggers.get(policy.name, NOTHING)
        plain = free and burns_plainly(policy)
        if free and is_quiet(policy, known, trigger) or plain and is_steady(
            policy, known, trigger, resolves.get(policy.name), revision
        ):
            continue
        _look(tick, view_of(policy, state, observations, tick.paused, now_ms), observations,
              revision, plain=plain)
    return tick.end()


def _look(
    tick: Tick, view: View, observations: Observations, revision: str, *, plain: bool
) -> None:
    """Move the instances of one policy that do not stand still."""
    policy, now_ms = view.policy, view.now_ms
    tick.begin(view)
    stopped, awake = view.stopped, tick.is_shut(policy)
    known = Known(view, revision if plain else None)
    for name, before, trigger, resolve in chain(known, _new(tick, known)):
        if not awake and stands_still(
            policy, before, trigger, resolve, stopped, now_ms, revision
        ) and (not policy.is_checked or tick.rests(policy, before)):
            if (before.state is State.INACTIVE and name in view.known
                    and idle(policy, before, now_ms)):
                tick.forget(policy, name)
            continue
        tick.move(policy, name, before, view.evidence(trigger, resolve))


class Known:
    """The instances of a policy that the state knows, with what trigger and resolve say of them.

    `revision`, for policies that burn plainly: those that burn on under it need no look.
    `seen` counts the series that were true and known, once all were gone through.
    """

    __slots__ = ("_resolve", "_revision", "seen", "view")

    def __init__(self, view: View, revision: str | None = None) -> None:
        self.view, self._revision, self.seen = view, revision, 0
        self._resolve = None if view.resolve is None else Lookup(view.resolve)

    def __iter__(self) -> Iterator[Looked]:
        view, resolves = self.view, self._resolve
        known = view.known
        if not known:
            return
        exact = Lookup(view.trigger).exact
        for name in self._names():
            instance = known[name]
            labels = instance.labels
            truth = exact(labels)
            self.seen += truth is not None and truth.truth is _TRUE
            resolve = _resolve_truth(view.policy, resolves, labels)
            if truth is None:
                truth = unseen(labels, view.trigger)
                if truth.truth is _FALSE and resolve is _UNKNOWN:
                    resolve = _TRUE  # no series of `resolve` speaks for the lack of series
            yield name, instance, truth, resolve

    def _names(self) -> Sequence[str]:
        """Return the ids of those that need a look, sorted."""
        view = self.view
        if self._revision is not None:
            burning, rest = parted(view.policy, view.known, self._revision)
            if burning and burning.issubset(true_series(view.trigger)) and unresolved(
                burning, view.resolve
            ):
                self.seen = len(burning)
                return rest
        return sorted(view.known)

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


def _resolve_truth(policy: Policy, observed: Lookup | None, labels: Labels) -> Truth | None:
    """Return the truth of `resolve.expr` for an instance: of the series with its labels, else of
    the one whose labels are a part of them (a sum resolves each of its parts)."""
    if policy.trigger.resolve is None:
        return None
    found = None if observed is None else observed.nearest(labels)
    return Truth.UNKNOWN if found is None else found.truth
