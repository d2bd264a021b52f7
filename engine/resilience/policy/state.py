"""The state of the engine: one small machine for each series of a policy's trigger.

Every clock is a timestamp in the state (epoch ms), so that the state survives a restart as JSON
and nothing is re-fired or forgotten. An instance that never fired and is inactive has no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from operator import attrgetter
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

# Starts of firings that are remembered where no rate limit asks for more.
FIRED_MAX = 64
NO_SAMPLE: tuple[int, int | None] = (0, None)


@dataclass(frozen=True, slots=True)
class Verification:
    """How far one `verify` has come; `key` is its action's, empty for the policy's own.

    `since_ms` moves on by the time in which the expression was unknown, `blind_ms` is when that
    began, `met_ms` the start of the current run of true, `baseline` the value to improve on.
    """

    key: str
    since_ms: int
    blind_ms: int | None = None
    met_ms: int | None = None
    baseline: float | None = None
    done: bool = False


@dataclass(frozen=True, slots=True)
class Instance:
    """One trigger series of one policy.

    Clocks: `since_ms` when `state` was entered; `true_since_ms` start of the current run of true;
    `firing_since_ms` start of the firing; `false_since_ms` start of the current run of false while
    firing; `resolve_since_ms` start of the current run of a true resolve expression;
    `step_since_ms` when the current recovery step began; `ended_ms` end of the last firing;
    `probe_since_ms` start of the probe under way, `probed_ms` end of the last one;
    `cooldown_until_ms` and `quarantine_until_ms` before which it may not fire.
    `unseen_ms` is how long this firing was held, up to when data last came back.
    `claims` are in force now; `base` are the same at full strength, from which a ramp starts.
    `samples` counts good samples, up to the one of `sample_ms`, while that matters: after
    blindness (`warming`) and before a firing that wants several. `granted` are the disruptive
    actions of this firing that the safety belts let pass, `refused` those that wait for them.
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
    warming: bool = False
    samples: int = 0
    sample_ms: int | None = None
    probes: int = 0
    probe_since_ms: int | None = None
    probed_ms: int | None = None
    cooldown_until_ms: int | None = None
    quarantine_until_ms: int | None = None
    verify: tuple[Verification, ...] = ()
    granted: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    unseen_ms: int = 0

    @property
    def active(self) -> State:
        """The state beneath `held`."""
        return self.held_from if self.state is State.HELD and self.held_from else self.state

    @property
    def holds(self) -> bool:
        """Whether it is at work: firing or recovering, seen or not."""
        return self.active in (State.FIRING, State.RECOVERING)

    def clocks(self) -> tuple[tuple[str, int | None], ...]:
        return (
            ("cooldown_until_ms", self.cooldown_until_ms),
            ("ended_ms", self.ended_ms),
            ("false_since_ms", self.false_since_ms),
            ("firing_since_ms", self.firing_since_ms),
            ("probe_since_ms", self.probe_since_ms),
            ("probed_ms", self.probed_ms),
            ("quarantine_until_ms", self.quarantine_until_ms),
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
            "warming": self.warming,
            "samples": self.samples,
            "sample_ms": self.sample_ms,
            "probes": self.probes,
            "verify": [asdict(v) for v in self.verify],
            "granted": list(self.granted),
            "refused": list(self.refused),
            "unseen_ms": self.unseen_ms,
        }

    @classmethod
    def from_json(cls, body: Json) -> Instance:
        """Read what `to_json` wrote, also an older engine that knew fewer fields."""
        held = body["held_from"]
        known: dict[str, Any] = dict(body)
        known.update(
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
                "verify": tuple(Verification(**v) for v in body.get("verify", ())),
                "granted": tuple(body.get("granted", ())),
                "refused": tuple(body.get("refused", ())),
            }
        )
        return cls(**known)


_NAMES = tuple(f.name for f in fields(Instance))
_PLACES = {name: place for place, name in enumerate(_NAMES)}
_values = attrgetter(*_NAMES)


_lasting = attrgetter(*(n for n in _NAMES if n not in ("value", "truth", "reason")))


def differs(one: Instance, other: Instance) -> bool:
    """Whether more than the last reading is different."""
    return bool(_lasting(one) != _lasting(other))


def changed(instance: Instance, **values: Any) -> Instance:
    """Return what dataclasses.replace returns, in half the time: a tick does little else."""
    every = list(_values(instance))
    for name, value in values.items():
        every[_PLACES[name]] = value
    return Instance(*every)


Key = tuple[str, str]


class Group(dict[str, Instance]):
    """The instances of one policy by id. It is replaced and never changed once a state has it, so
    that what follows from it is found once and stays with it (`burning.py`)."""

    __slots__ = ("burning",)

    burning: tuple[str, frozenset[Labels], tuple[str, ...]] | None

    def __init__(self, instances: Mapping[str, Instance] | None = None) -> None:
        super().__init__(instances or {})
        self.burning = None


@dataclass(frozen=True, slots=True)
class Ledger:
    """What is remembered beside the instances, by name of policy unless said otherwise.

    `firings`: how often it has fired. `paused`: when its pause ends (None: until resumed; the
    name `*` is all). `warming`: good samples since blindness and the time of the newest.
    `quarantine`: levers that may not be pulled, and until when. `disruptive_ms`: when disruptive
    actions began, of all policies, within the hour. `holders`: which policy holds a group.
    `floors`: the safety belts in force, by knob and scope. `crowded`: claims are cut for number.
    `left_out`: how many series got no instance, because `limits.instances` was reached.
    """

    firings: Mapping[str, int] = field(default_factory=dict)
    paused: Mapping[str, int | None] = field(default_factory=dict)
    warming: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    quarantine: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    disruptive_ms: tuple[int, ...] = ()
    holders: Mapping[str, str] = field(default_factory=dict)
    floors: Mapping[str, float] = field(default_factory=dict)
    crowded: bool = False
    left_out: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> Json:
        return {
            "firings": dict(self.firings),
            "paused": dict(self.paused),
            "warming": {name: list(pair) for name, pair in self.warming.items()},
            "quarantine": {name: dict(levers) for name, levers in self.quarantine.items()},
            "disruptive_ms": list(self.disruptive_ms),
            "holders": dict(self.holders),
            "floors": dict(self.floors),
            "crowded": self.crowded,
            "left_out": dict(self.left_out),
        }

    @classmethod
    def from_json(cls, body: Json) -> Ledger:
        """Read what `to_json` wrote; what an older engine did not know is at its beginning."""
        return cls(
            dict(body.get("firings", {})),
            dict(body.get("paused", {})),
            {name: (n, t) for name, (n, t) in body.get("warming", {}).items()},
            {name: dict(levers) for name, levers in body.get("quarantine", {}).items()},
            tuple(body.get("disruptive_ms", ())),
            dict(body.get("holders", {})),
            dict(body.get("floors", {})),
            bool(body.get("crowded", False)),
            dict(body.get("left_out", {})),
        )


@dataclass(frozen=True, slots=True)
class EngineState:
    """All instances by policy and instance id, and the ledger.

    `left_away` counts instances that take room but are not in here: those of policies that had no
    part in what is replayed.
    """

    instances: Mapping[str, Mapping[str, Instance]] = field(default_factory=dict)
    ledger: Ledger = Ledger()
    left_away: int = 0

    @property
    def paused(self) -> Mapping[str, int | None]:
        return self.ledger.paused

    def of(self, policy: str) -> Mapping[str, Instance]:
        """Return the instances of one policy by id."""
        return self.instances.get(policy, {})

    def items(self) -> Iterator[tuple[Key, Instance]]:
        """Yield ((policy, instance id), instance), in order."""
        for policy, group in sorted(self.instances.items()):
            for instance, body in sorted(group.items()):
                yield (policy, instance), body

    def with_changes(
        self, instances: Mapping[Key, Instance | None], ledger: Ledger
    ) -> EngineState:
        """Return a new state; an instance that maps to None is forgotten."""
        if not instances:
            return self if ledger == self.ledger else replace(self, ledger=ledger)
        merged = dict(self.instances)
        groups: dict[str, Group] = {}
        for (policy, name), body in instances.items():
            group = groups.get(policy)
            if group is None:
                group = groups[policy] = Group(merged.get(policy))
            if body is None:
                group.pop(name, None)
            else:
                group[name] = body
        for policy, group in groups.items():
            if group:
                merged[policy] = group
            else:
                merged.pop(policy, None)
        return replace(self, instances=merged, ledger=ledger)

    def to_json(self) -> Json:
        return {
            "instances": [[p, i, body.to_json()] for (p, i), body in self.items()],
            **self.ledger.to_json(),
        }

    @classmethod
    def from_json(cls, body: Json) -> EngineState:
        instances: dict[str, Group] = {}
        for policy, name, fields_of in body["instances"]:
            instances.setdefault(policy, Group())[name] = Instance.from_json(fields_of)
        return cls(instances, Ledger.from_json(body))


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
    if instance.ended_ms is None and instance.quarantine_until_ms is None:
        return True
    if max(instance.cooldown_until_ms or 0, instance.quarantine_until_ms or 0) > now_ms:
        return False
    limits = policy.limits
    memory_ms = max([limits.cooldown_ms, *(r.per_ms for r in limits.rate)])
    return now_ms - max([instance.ended_ms or 0, *instance.fired_ms]) >= memory_ms


def fired_within(fired_ms: Iterable[int], now_ms: int, per_ms: int) -> int:
    """Count firings in the window (now - per, now]."""
    return sum(1 for t in fired_ms if now_ms - per_ms < t <= now_ms)
