"""The state of the engine: one small machine for each series of a policy's trigger.

Every clock is a timestamp in the state (epoch ms), so that the state survives a restart as JSON
and nothing is re-fired or forgotten. An instance that never fired and is inactive has no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from resilience.model import (
    Bundle,
    Claim,
    Json,
    Labels,
    Policy,
    Reason,
    State,
    Truth,
    labels_of,
    parse_float,
)

# How long a finished instance is remembered for its cooldown and its rate windows.
FIRED_MAX = 64


@dataclass(frozen=True, slots=True)
class Instance:
    """One trigger series of one policy.

    Clocks: `since_ms` when `state` was entered; `true_since_ms` start of the current run of true;
    `firing_since_ms` start of the firing; `false_since_ms` start of the current run of false while
    firing; `resolve_since_ms` start of the current run of a true resolve expression;
    `step_since_ms` when the current recovery step began; `ended_ms` end of the last firing.
    `claims` are in force now; `base` are the same at full strength, from which a ramp starts.
    """

    labels: Labels
    state: State = State.INACTIVE
    held_from: State | None = None
    since_ms: int = 0
    true_since_ms: int | None = None
    firing_since_ms: int | None = None
    false_since_ms: int | None = None
    resolve_since_ms: int | None = None
    step_since_ms: int | None = None
    step: int = 0
    ended_ms: int | None = None
    firing: int = 0
    stages: int = 0
    fired_value: float | None = None
    fired_ms: tuple[int, ...] = ()
    claims: tuple[Claim, ...] = ()
    base: tuple[Claim, ...] = ()
    impulses: tuple[str, ...] = ()
    previous: tuple[tuple[str, Json], ...] = ()
    value: float | None = None
    truth: Truth = Truth.UNKNOWN
    reason: Reason = Reason.BLIND_NO_SERIES

    @property
    def active(self) -> State:
        """The state beneath `held`."""
        return self.held_from if self.state is State.HELD and self.held_from else self.state

    def clocks(self) -> tuple[tuple[str, int | None], ...]:
        return (
            ("ended_ms", self.ended_ms),
            ("false_since_ms", self.false_since_ms),
            ("firing_since_ms", self.firing_since_ms),
            ("resolve_since_ms", self.resolve_since_ms),
            ("since_ms", self.since_ms),
            ("step_since_ms", self.step_since_ms),
            ("true_since_ms", self.true_since_ms),
        )

    def to_json(self) -> Json:
        return {
            "labels": dict(self.labels),
            "state": self.state.value,
            "held_from": self.held_from.value if self.held_from else None,
            **dict(self.clocks()),
            "step": self.step,
            "firing": self.firing,
            "stages": self.stages,
            "fired_value": self.fired_value,
            "fired_ms": list(self.fired_ms),
            "claims": [c.to_json() for c in self.claims],
            "base": [c.to_json() for c in self.base],
            "impulses": list(self.impulses),
            "previous": [list(pair) for pair in self.previous],
            "value": self.value,
            "truth": self.truth.value,
            "reason": self.reason.value,
        }

    @classmethod
    def from_json(cls, body: Json) -> Instance:
        held = body["held_from"]
        fields: dict[str, Any] = dict(body)
        fields.update(
            {
                "labels": labels_of(body["labels"]),
                "state": State(body["state"]),
                "held_from": State(held) if held else None,
                "value": parse_float(body["value"]),
                "fired_value": parse_float(body["fired_value"]),
                "fired_ms": tuple(body["fired_ms"]),
                "claims": tuple(Claim.from_json(c) for c in body["claims"]),
                "base": tuple(Claim.from_json(c) for c in body["base"]),
                "impulses": tuple(body["impulses"]),
                "previous": tuple((k, v) for k, v in body["previous"]),
                "truth": Truth(body["truth"]),
                "reason": Reason(body["reason"]),
            }
        )
        return cls(**fields)


Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class EngineState:
    """All instances by policy and instance id, firings counted by policy, and pauses.

    `paused` maps a policy name, or `*` for all, to when the pause ends (None: until resumed).
    """

    instances: Mapping[str, Mapping[str, Instance]] = field(default_factory=dict)
    firings: Mapping[str, int] = field(default_factory=dict)
    paused: Mapping[str, int | None] = field(default_factory=dict)

    def of(self, policy: str) -> Mapping[str, Instance]:
        """Return the instances of one policy by id."""
        return self.instances.get(policy, {})

    def items(self) -> Iterator[tuple[Key, Instance]]:
        """Yield ((policy, instance id), instance), in order."""
        for policy, group in sorted(self.instances.items()):
            for instance, body in sorted(group.items()):
                yield (policy, instance), body

    def with_changes(
        self,
        instances: Mapping[Key, Instance | None],
        firings: Mapping[str, int],
        paused: Mapping[str, int | None],
    ) -> EngineState:
        """Return a new state; an instance that maps to None is forgotten."""
        if not instances and firings == self.firings and paused == self.paused:
            return self
        merged = dict(self.instances)
        for policy in {policy for policy, _ in instances}:
            group: dict[str, Instance | None] = dict(merged.get(policy, {}))
            group.update({i: body for (p, i), body in instances.items() if p == policy})
            kept = {i: body for i, body in group.items() if body is not None}
            merged[policy] = kept
            if not kept:
                del merged[policy]
        return replace(self, instances=merged, firings=dict(firings), paused=dict(paused))

    def to_json(self) -> Json:
        return {
            "instances": [[p, i, body.to_json()] for (p, i), body in self.items()],
            "firings": dict(self.firings),
            "paused": dict(self.paused),
        }

    @classmethod
    def from_json(cls, body: Json) -> EngineState:
        instances: dict[str, dict[str, Instance]] = {}
        for policy, instance, fields in body["instances"]:
            instances.setdefault(policy, {})[instance] = Instance.from_json(fields)
        return cls(instances, dict(body["firings"]), dict(body["paused"]))


def live_claims(state: EngineState, bundle: Bundle) -> tuple[Claim, ...]:
    """Return the claims of policies that enforce, in a stable order; shadow claims stay home."""
    enforced = {p.name for p in bundle.policies if p.mode == "enforce"}
    claims = [
        claim
        for (policy, _), instance in state.items()
        if policy in enforced
        for claim in instance.claims
    ]
    return tuple(sorted(claims, key=lambda c: c.key))


def idle(policy: Policy, instance: Instance, now_ms: int) -> bool:
    """Return whether an inactive instance has nothing left to remember."""
    if instance.state is not State.INACTIVE or instance.claims:
        return False
    if instance.ended_ms is None:
        return True
    memory_ms = max([policy.limits.cooldown_ms, *(r.per_ms for r in policy.limits.rate)])
    return now_ms - max([instance.ended_ms, *instance.fired_ms]) >= memory_ms


def fired_within(fired_ms: Iterable[int], now_ms: int, per_ms: int) -> int:
    """Count firings in the window (now - per, now]."""
    return sum(1 for t in fired_ms if now_ms - per_ms < t <= now_ms)
