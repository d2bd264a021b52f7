"""The firings that go on as they are: most instances of an incident, and what they cost a tick.

What is said here of many instances at once is what `machine.stands_still` says of each of them; a
property test holds the two, and the way without either, against each other.
"""

from __future__ import annotations

from collections.abc import Mapping

from resilience.model import Labels, Observations, Policy, State, TriggerObservation, Truth
from resilience.policy.state import EngineState, Group, Instance
from resilience.policy.views import EVERYONE, concerned

_TRUE, _UNKNOWN, _FIRING = Truth.TRUE, Truth.UNKNOWN, State.FIRING


def burns_plainly(policy: Policy) -> bool:
    """Whether nothing but trigger, resolve and an operator can change a firing that has reached
    its last stage."""
    return not (policy.is_watched or policy.is_checked or policy.calls_udfs)


def parted(
    policy: Policy, known: Mapping[str, Instance], revision: str
) -> tuple[frozenset[Labels], tuple[str, ...]]:
    """Return the labels of the instances that burn on as long as trigger and resolve say so, and
    the ids of all others, sorted."""
    noted = known.burning if isinstance(known, Group) else None
    if noted is None or noted[0] != revision:
        stages = len(policy.escalation)
        burning = {n: i.labels for n, i in known.items() if _burns(i, revision, stages)}
        rest = tuple(sorted(known.keys() - burning.keys()))
        noted = (revision, frozenset(burning.values()), rest)
        if isinstance(known, Group):
            known.burning = noted
    return noted[1], noted[2]


def _burns(instance: Instance, revision: str, stages: int) -> bool:
    """Whether a firing whose trigger is true goes on as it is; its claims were made under this
    revision."""
    return (
        instance.state is _FIRING and instance.false_since_ms is None
        and instance.resolve_since_ms is None and not instance.refused
        and instance.stages >= stages
        and bool(base := instance.base) and base[0].revision == revision
    )


def true_series(trigger: TriggerObservation) -> list[Labels]:
    return [s.labels for s in trigger.series if s.truth is _TRUE]


def unresolved(labels: frozenset[Labels], resolve: TriggerObservation | None) -> bool:
    """Whether `resolve` speaks for each of these label sets, and is true for none."""
    return resolve is None or labels <= {s.labels for s in resolve.series if s.truth is not _TRUE}


def is_quiet(
    policy: Policy, known: Mapping[str, Instance], trigger: TriggerObservation
) -> bool:
    """Whether a policy has no instance and gets none: whatever checks it, there is nothing."""
    return not (known or policy.trigger.warm_up > 1 or _is_blind_fire(policy, trigger)
                or true_series(trigger))


def _is_blind_fire(policy: Policy, trigger: TriggerObservation) -> bool:
    """Whether what nobody sees is a reason to fire."""
    return policy.trigger.on_no_data == "fire" and (
        not trigger.series or any(s.truth is _UNKNOWN for s in trigger.series)
    )


def is_steady(
    policy: Policy, known: Mapping[str, Instance], trigger: TriggerObservation,
    resolve: TriggerObservation | None, revision: str,
) -> bool:
    """Whether a tick changes nothing of a policy that burns plainly and has instances: what fires
    burns on, and no series is new."""
    if not known or _is_blind_fire(policy, trigger):
        return False
    true = true_series(trigger)
    burning, rest = parted(policy, known, revision)
    return (
        not rest and len(true) == len(burning) and burning.issuperset(true)
        and unresolved(burning, resolve)
    )


def burns_on(
    policy: Policy, state: EngineState, observations: Observations, revision: str
) -> bool:
    """Whether no later tick changes anything of a policy either, as long as trigger and resolve say
    the same of the same series, its instances are these, and no operator speaks."""
    trigger = observations.triggers.get(policy.name)
    ledger = state.ledger
    return (
        trigger is not None and burns_plainly(policy)
        and not concerned(ledger, ledger.paused) & {policy.name, EVERYONE}
        and is_steady(policy, state.of(policy.name), trigger,
                      observations.resolves.get(policy.name), revision)
    )
