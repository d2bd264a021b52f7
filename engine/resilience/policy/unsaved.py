"""What may be done of a tick that could not be journalled: only what lets go. Pure.

Nothing begins that a restart would not know of: no claim, no impulse, no firing. What ends may end:
a full disk must not keep anything degraded, and after a crash the same evidence ends it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from resilience.model import Decision, Reason, State
from resilience.policy.state import EngineState, Instance, Key


def changes(before: EngineState, after: EngineState) -> dict[Key, Instance | None]:
    """Return what differs, by identity: an unchanged policy's group is the same object."""
    changed: dict[Key, Instance | None] = {}
    for policy in before.instances.keys() | after.instances.keys():
        old, new = before.of(policy), after.of(policy)
        if old is new:
            continue
        changed.update({(policy, i): b for i, b in new.items() if old.get(i) is not b})
        changed.update({(policy, i): None for i in old.keys() - new.keys()})
    return changed


def letting_go(
    before: EngineState, after: EngineState, decisions: Sequence[Decision]
) -> tuple[EngineState, tuple[Decision, ...]]:
    """Return the state between the two that only lets go, and the decisions that led to it.

    A member of a group that gives way to another one waits for the journal as well: the other may
    not begin without it.
    """
    giving_way = {
        (d.policy, d.instance) for d in decisions if d.reason is Reason.SUPERSEDED
    }
    changed = changes(before, after)
    eased: dict[Key, Instance | None] = {
        key: new for key, new in changed.items()
        if key not in giving_way and _lets_go(before.of(key[0]).get(key[1]), new)
    }
    waiting: dict[Key, Instance | None] = {
        key: _on_evidence(old, new) for key, new in changed.items()
        if key not in eased and new is not None
        and (old := before.of(key[0]).get(key[1])) is not None and old.holds
    }
    ledger = replace(
        after.ledger, firings=before.ledger.firings, disruptive_ms=before.ledger.disruptive_ms
    )
    done = tuple(d for d in decisions if (d.policy, d.instance) in eased)
    return before.with_changes({**eased, **waiting}, ledger), done


def _on_evidence(old: Instance, new: Instance) -> Instance:
    """Return `old`, which may not do what `new` does (another stage, a lower limit), with what was
    seen by now: what ends it must go on counting."""
    verify = new.verify if new.stages == old.stages else old.verify
    return replace(
        old, false_since_ms=new.false_since_ms, resolve_since_ms=new.resolve_since_ms,
        value=new.value, truth=new.truth, reason=new.reason, verify=verify,
        warming=new.warming, samples=new.samples, sample_ms=new.sample_ms,
    )


def _lets_go(old: Instance | None, new: Instance | None) -> bool:
    if new is None:
        return True
    if old is None:
        return not new.claims and not new.firing
    begins = new.firing != old.firing or not set(new.impulses) <= set(old.impulses)
    if begins:
        return False
    if new.active is State.RECOVERING and old.holds:  # a ramp moves towards the baseline
        return {c.key for c in new.claims} <= {c.key for c in old.claims}
    return all(claim in old.claims for claim in new.claims)
