"""From a firing instance to its claims and impulses: pure, and the same live, dry and in tests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from resilience import knobs
from resilience.model import (
    Action,
    Claim,
    Impulse,
    Labels,
    Policy,
    State,
    UdfOutcome,
    instance_id,
    labels_of,
)
from resilience.policy.state import Instance
from resilience.policy.template import render, render_json

Outcomes = Mapping[tuple[str, str, str], UdfOutcome]
REASON_MAX = 200


def active_actions(policy: Policy, instance: Instance) -> Sequence[Action]:
    """Return the actions in force: the policy's own, then those of the stages reached."""
    stages = policy.escalation[: instance.stages]
    return (*policy.actions, *(action for stage in stages for action in stage.actions))


@dataclass(frozen=True, slots=True)
class Fired:
    """What an instance's active actions ask for now, at full strength, and what was refused."""

    claims: tuple[Claim, ...] = ()
    impulses: tuple[Impulse, ...] = ()
    notes: tuple[str, ...] = ()


def fire(policy: Policy, instance: Instance, outcomes: Outcomes, revision: str) -> Fired:
    """Turn the active actions, UDF proposals included, into claims and new impulses."""
    maker = _Maker(policy, instance, revision)
    claims: dict[tuple[str, str, str, str, Labels], Claim] = {}
    impulses: list[Impulse] = []
    notes: list[str] = []
    for action in _expanded(policy, instance, outcomes):
        for made in maker.claims(action, notes):
            claims[made.key] = made
        impulses.extend(maker.impulses(action))
    for kept in _kept_on_hold(policy, instance, outcomes):
        claims.setdefault(kept.key, kept)
    return Fired(tuple(claims.values()), tuple(impulses), tuple(notes))


def _expanded(policy: Policy, instance: Instance, outcomes: Outcomes) -> Iterator[Action]:
    """Yield actions in order, each `udf_call` followed by what its UDF proposed."""
    for action in active_actions(policy, instance):
        yield action
        outcome = _outcome(policy, instance, action, outcomes)
        if outcome is not None and outcome.outcome == "ok":
            yield from outcome.actions


def _outcome(
    policy: Policy, instance: Instance, action: Action, outcomes: Outcomes
) -> UdfOutcome | None:
    if action.udf is None:
        return None
    return outcomes.get((policy.name, instance_id(instance.labels), action.key))


def _kept_on_hold(policy: Policy, instance: Instance, outcomes: Outcomes) -> Iterator[Claim]:
    """Yield the claims that a failed UDF with `on_error: hold` had made before."""
    for action in active_actions(policy, instance):
        if action.udf is None or action.udf.on_error != "hold":
            continue
        outcome = _outcome(policy, instance, action, outcomes)
        if outcome is None or outcome.outcome != "ok":
            prefix = f"{action.key}."
            yield from (c for c in instance.base if c.action.startswith(prefix))


@dataclass(frozen=True, slots=True)
class _Maker:
    policy: Policy
    instance: Instance
    revision: str

    def claims(self, action: Action, notes: list[str]) -> Iterator[Claim]:
        for spec in action.claims:
            labels, value = self.instance.labels, self.instance.fired_value
            scope = labels_of({k: render(v, labels, value) for k, v in spec.scope})
            wanted = render_json(spec.value, labels, value)
            definition = knobs.knob(spec.knob)
            why = (
                f"knob `{spec.knob}` is not known"
                if definition is None
                else definition.check(wanted, dict(scope))
            )
            if why:
                notes.append(f"action {action.key}: {why}")
                continue
            yield Claim(
                policy=self.policy.name,
                instance=instance_id(labels),
                action=action.key,
                knob=spec.knob,
                scope=scope,
                value=wanted,
                ttl_ms=action.lease_ms,
                keep=action.on_core_loss == "keep",
                priority=self.policy.priority,
                revision=self.revision,
                reason=self._reason(action),
            )

    def impulses(self, action: Action) -> Iterator[Impulse]:
        labels, value = self.instance.labels, self.instance.fired_value
        for spec in action.impulses:
            made = Impulse(
                policy=self.policy.name,
                instance=instance_id(labels),
                firing=self.instance.firing,
                action=action.key,
                impulse=spec.impulse,
                args=render_json(spec.args, labels, value),
            )
            if made.key not in self.instance.impulses:
                yield made

    def _reason(self, action: Action) -> str:
        """Say why on every response that the claim alters; fixed at the start of the firing."""
        text = action.message or dict(self.policy.annotations).get("summary", self.policy.name)
        return render(text, self.instance.labels, self.instance.fired_value)[:REASON_MAX]


def in_force(
    policy: Policy, instance: Instance, capacities: Mapping[str, float]
) -> tuple[Claim, ...]:
    """Return the claims at the strength of the instance's state: full, ramping, or none."""
    state = instance.active
    if state is State.FIRING:
        return instance.base
    if state is not State.RECOVERING or policy.recovery is None:
        return ()
    fraction = policy.recovery.steps[min(instance.step, len(policy.recovery.steps) - 1)]
    return tuple(_eased(claim, fraction, capacities.get(claim.knob)) for claim in instance.base)


def _eased(claim: Claim, fraction: float, capacity: float | None) -> Claim:
    """Move a numeric claim `fraction` of the way to the capacity; others hold to the last step."""
    definition = knobs.knob(claim.knob)
    if definition is None or definition.type not in ("int", "float") or capacity is None:
        return claim
    eased = claim.value + (capacity - claim.value) * fraction
    if (eased - claim.value) * (1 if definition.fold_name == "min" else -1) < 0:
        return claim
    return replace(claim, value=math.floor(eased) if definition.type == "int" else eased)
