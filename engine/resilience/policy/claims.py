"""From a firing instance to its claims and impulses: pure, and the same live, dry and in tests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from resilience import knobs
from resilience.model import (
    Action,
    Claim,
    Impulse,
    Json,
    Labels,
    Policy,
    State,
    UdfOutcome,
    instance_id,
    labels_of,
)
from resilience.policy.levers import lever
from resilience.policy.state import Instance
from resilience.policy.template import render, render_json
from resilience.policy.words import moment

Outcomes = Mapping[tuple[str, str, str], UdfOutcome]
REASON_MAX = 200


def active_actions(policy: Policy, instance: Instance) -> Sequence[Action]:
    """Return the actions in force: the policy's own, then those of the stages reached."""
    stages = policy.escalation[: instance.stages]
    return (*policy.actions, *(action for stage in stages for action in stage.actions))


class Allowance(Protocol):
    """What the safety belts let begin; `take` is asked once for each disruptive action."""

    def take(self) -> str | None:
        """Return None and count the action, or why it may not begin now."""
        ...


class _Everything:
    def take(self) -> str | None:
        return None


@dataclass(frozen=True, slots=True)
class Permit:
    """What stands between wishes and claims: `shut` maps levers in quarantine to the time until
    which they are; `withheld`: another member of the group holds, so nothing new begins."""

    shut: Mapping[str, int] = field(default_factory=dict)
    withheld: bool = False
    allowance: Allowance = field(default_factory=_Everything)


@dataclass(frozen=True, slots=True)
class Fired:
    """What an instance's active actions ask for now, at full strength, and what was refused.

    `granted` and `refused` are the keys of the disruptive actions of this firing.
    """

    claims: tuple[Claim, ...] = ()
    impulses: tuple[Impulse, ...] = ()
    notes: tuple[str, ...] = ()
    granted: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def fire(
    policy: Policy, instance: Instance, outcomes: Outcomes, revision: str, permit: Permit
) -> Fired:
    """Turn the active actions, UDF proposals included, into claims and new impulses."""
    maker = _Maker(policy, instance, revision, permit)
    claims: dict[tuple[str, str, str, str, Labels], Claim] = {}
    for action in _expanded(policy, instance, outcomes):
        if maker.may_begin(action):
            claims.update((made.key, made) for made in maker.claims(action))
            maker.impulse(action)
    for kept in _kept_on_hold(policy, instance, outcomes):
        claims.setdefault(kept.key, kept)
    return Fired(
        tuple(claims.values()), tuple(maker.impulses), tuple(maker.notes),
        tuple(maker.granted), tuple(maker.refused),
    )  # fmt: skip


def levers(action: Action, instance: Instance) -> set[str]:
    """Return the levers of an action, those that its UDF pulls now included."""
    labels, value = instance.labels, instance.fired_value
    own = {lever(c.knob, _scope(c.scope, labels, value)) for c in action.claims}
    prefix = f"{action.key}."
    made = {lever(c.knob, c.scope) for c in instance.base if c.action.startswith(prefix)}
    return own | made | {spec.impulse for spec in action.impulses}


def _scope(scope: Labels, labels: Labels, value: float | None) -> Labels:
    return labels_of({k: render(v, labels, value) for k, v in scope}) if scope else scope


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


@dataclass(slots=True)
class _Maker:
    policy: Policy
    instance: Instance
    revision: str
    permit: Permit
    impulses: list[Impulse] = field(default_factory=list[Impulse])
    notes: list[str] = field(default_factory=list[str])
    granted: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])

    def may_begin(self, action: Action) -> bool:
        """Ask the belts once for each disruptive action of a firing; a refused one waits."""
        if not action.disruptive or self.permit.withheld:
            return True
        if action.key not in self.instance.granted:
            why = self.permit.allowance.take()
            if why is not None:
                self.refused.append(action.key)
                self.notes.append(f"action {action.key}: refused: {why}")
                return False
        self.granted.append(action.key)
        return True

    def claims(self, action: Action) -> Iterator[Claim]:
        for spec in action.claims:
            labels, value = self.instance.labels, self.instance.fired_value
            scope = _scope(spec.scope, labels, value)
            wanted = render_json(spec.value, labels, value)
            why = _unfit(spec.knob, wanted, scope) or self._shut(lever(spec.knob, scope))
            if why:
                self.notes.append(f"action {action.key}: {why}")
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

    def impulse(self, action: Action) -> None:
        """Give the action's impulses that this firing has not given yet."""
        labels, value = self.instance.labels, self.instance.fired_value
        for spec in () if self.permit.withheld else action.impulses:
            made = Impulse(
                policy=self.policy.name,
                instance=instance_id(labels),
                firing=self.instance.firing,
                action=action.key,
                impulse=spec.impulse,
                args=render_json(spec.args, labels, value),
            )
            if made.key in self.instance.impulses:
                continue
            why = _emptied(spec.args, made.args) or self._shut(spec.impulse)
            if why:
                self.notes.append(f"action {action.key}: {why}")
                continue
            self.impulses.append(made)

    def _shut(self, name: str) -> str | None:
        until_ms = self.permit.shut.get(name)
        return None if until_ms is None else f"`{name}` is in quarantine until {moment(until_ms)}"

    def _reason(self, action: Action) -> str:
        """Say why on every response that the claim alters; fixed at the start of the firing."""
        text = action.message or dict(self.policy.annotations).get("summary", self.policy.name)
        return render(text, self.instance.labels, self.instance.fired_value)[:REASON_MAX]


def _unfit(name: str, value: Json, scope: Labels) -> str | None:
    definition = knobs.knob(name)
    if definition is None:
        return f"knob `{name}` is not known"
    return definition.check(value, dict(scope))


def _emptied(written: Json, filled: Json) -> str | None:
    """Say which condition is empty, as one from a label that is not there: it would fit all."""
    known = (written or {}).items()
    empty = [name for name, text in known if text and filled[name] == ""]
    return f"`{empty[0]}` is empty: {written[empty[0]]}" if empty else None


def in_force(
    policy: Policy, instance: Instance, capacities: Mapping[str, float]
) -> tuple[Claim, ...]:
    """Return the claims at the strength of the instance's state: full, ramping, or none."""
    state = instance.active
    if state is State.FIRING:
        return instance.base
    if state is not State.RECOVERING:
        return ()
    fraction = _fraction(policy, instance)
    return tuple(_eased(claim, fraction, capacities.get(claim.knob)) for claim in instance.base)


def _fraction(policy: Policy, instance: Instance) -> float:
    """Return how much of the way to the capacity a ramp or probe has gone."""
    if instance.probe_since_ms is not None:
        return policy.probe.share if policy.probe else 0.0
    if policy.recovery is None:
        return 0.0
    return policy.recovery.steps[min(instance.step, len(policy.recovery.steps) - 1)]


def _eased(claim: Claim, fraction: float, capacity: float | None) -> Claim:
    """Move a claim `fraction` of the way: a number to the capacity, a route's share to nothing.

    What knows no way between, or no capacity, holds to the last step.
    """
    definition = knobs.knob(claim.knob)
    if definition is not None and definition.name == "route.model" and fraction < 1:
        share = round(claim.value["share"] * (1 - fraction), 6)
        return replace(claim, value={**claim.value, "share": share}) if share > 0 else claim
    if definition is None or definition.type not in ("int", "float") or capacity is None:
        return claim
    eased = claim.value + (capacity - claim.value) * fraction
    if (eased - claim.value) * (1 if definition.fold_name == "min" else -1) < 0:
        return claim
    return replace(claim, value=math.floor(eased) if definition.type == "int" else eased)
