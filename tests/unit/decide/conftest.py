"""A timeline: feed truths to one policy, one per second, and read the states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from resilience.model import (
    Action,
    ClaimSpec,
    Decision,
    ImpulseSpec,
    Labels,
    Observations,
    OperatorEvent,
    Policy,
    QueryInput,
    Reason,
    SeriesTruth,
    Trigger,
    TriggerObservation,
    Truth,
    UdfOutcome,
)
from resilience.policy.decide import decide, needs
from resilience.policy.state import EngineState, Instance

LETTERS = {
    "T": (Truth.TRUE, Reason.BREACH),
    "F": (Truth.FALSE, Reason.CLEAR),
    "U": (Truth.UNKNOWN, Reason.BLIND_STALE),
    "I": (Truth.UNKNOWN, Reason.IDLE),
}


@dataclass
class Timeline:
    policy: Policy
    labels: Labels = (("model_name", "m"),)
    state: EngineState = field(default_factory=EngineState)
    decisions: list[Decision] = field(default_factory=list)
    now_ms: int = 1_000_000
    capacities: Mapping[str, float] = field(default_factory=dict)
    udf: Callable[[str], UdfOutcome] | None = None
    calls: list[str] = field(default_factory=list)
    sample_ms: int | None = None
    checks: dict[str, TriggerObservation] = field(default_factory=dict)

    def feed(
        self,
        letters: str,
        resolve: str | None = None,
        operator: Sequence[OperatorEvent] = (),
        step_ms: int = 1_000,
        checks: Mapping[str, str] | None = None,
        numbers: Mapping[str, Sequence[float | None]] | None = None,
    ) -> list[str]:
        """Feed one letter a tick; return the state after each ("" where there is none).

        `checks` are letters by expression, `numbers` values by expression (None: unknown).
        """
        seen: list[str] = []
        for i, letter in enumerate(letters):
            ended = None if resolve is None else self._observation(resolve[i])
            self.checks = {e: self._observation(row[i]) for e, row in (checks or {}).items()}
            self.checks.update({e: self._number(row[i]) for e, row in (numbers or {}).items()})
            self.tick(self._observation(letter), ended, operator if i == 0 else ())
            instance = self.instance()
            seen.append(instance.state.value if instance else "")
            self.now_ms += step_ms
        return seen

    def tick(
        self,
        trigger: TriggerObservation,
        resolve: TriggerObservation | None = None,
        operator: Sequence[OperatorEvent] = (),
    ) -> tuple[Decision, ...]:
        name = self.policy.name
        observations = Observations(
            triggers={name: trigger},
            resolves={} if resolve is None else {name: resolve},
            capacities=self.capacities,
            operator=tuple(operator),
            checks={(name, expr): seen for expr, seen in self.checks.items()},
        )
        wanted = needs([self.policy], self.state, observations, self.now_ms)
        self.calls.extend(n.spec.function for n in wanted)
        if self.udf is not None:
            made = [self.udf(n.instance) for n in wanted]
            observations = replace(observations, udfs={o.key: o for o in made})
        self.state, made_decisions = decide(
            [self.policy], self.state, observations, self.now_ms, "sha256:test"
        )
        self.decisions.extend(made_decisions)
        return made_decisions

    def _observation(self, letter: str) -> TriggerObservation:
        if letter == "-":
            return TriggerObservation()
        truth, reason = LETTERS[letter]
        value = 1.0 if truth is Truth.TRUE else None
        sample_ms = self.now_ms if self.sample_ms is None else self.sample_ms
        inputs = (QueryInput("x", value, sample_ms),)
        return TriggerObservation((SeriesTruth(self.labels, truth, reason, value),), inputs=inputs)

    def _number(self, value: float | None) -> TriggerObservation:
        if value is None:
            return TriggerObservation()
        return TriggerObservation((SeriesTruth((), Truth.TRUE, Reason.BREACH, value),))

    def instance(self) -> Instance | None:
        found = list(self.state.of(self.policy.name).values())
        return found[0] if found else None

    def values(self) -> list[object]:
        instance = self.instance()
        return [c.value for c in instance.claims] if instance else []


THROTTLE = Action(
    "0",
    "throttle",
    (ClaimSpec("throttle.max_concurrency", 8, (("tier", "best-effort"),)),),
)
RESET = Action("1", "reset_prefix_cache", impulses=(ImpulseSpec("reset_prefix_cache"),))


@pytest.fixture
def timeline() -> Callable[..., Timeline]:
    """Return a maker: keywords of Trigger go to the trigger, the others to the policy."""

    def make(**kwargs: object) -> Timeline:
        trigger_keys = set(Trigger.__dataclass_fields__)
        trigger = {k: v for k, v in kwargs.items() if k in trigger_keys}
        rest = {k: v for k, v in kwargs.items() if k not in trigger_keys}
        full = {"expr": "x > 1", "on_no_data": "hold", **trigger}
        policy = Policy(
            "p",
            Trigger(**full),  # type: ignore[arg-type]
            **{"actions": (THROTTLE, RESET), **rest},  # type: ignore[arg-type]
        )
        return Timeline(policy)

    return make
