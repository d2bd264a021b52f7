"""Groups and safety belts, over several policies with intervals of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from resilience.model import (
    Action,
    Bundle,
    ClaimSpec,
    Decision,
    EngineConfig,
    ImpulseSpec,
    Json,
    Labels,
    Observations,
    Policy,
    Reason,
    Recovery,
    Safety,
    SeriesTruth,
    Trigger,
    TriggerObservation,
    Truth,
    Verify,
)
from resilience.policy.decide import decide
from resilience.policy.state import EngineState, live_claims

CAPACITIES = {"throttle.max_concurrency": 100.0, "cache.max_running": 100.0}
THROTTLE = "throttle.max_concurrency"
Checks = dict[tuple[str, str], TriggerObservation]


def policy(name: str, value: Json, *, knob: str = THROTTLE, scope: Labels = (), **more: Any
           ) -> Policy:
    action = Action("0", "x", (ClaimSpec(knob, value, scope),),
                    disruptive=more.pop("disruptive", False))
    return Policy(name, Trigger("x", "hold"), (action, *more.pop("also", ())), **more)


@dataclass
class Engine:
    """Several policies under one configuration, one tick a second."""

    policies: tuple[Policy, ...]
    config: EngineConfig = EngineConfig()
    capacities: dict[str, float] = field(default_factory=lambda: dict(CAPACITIES))
    state: EngineState = EngineState()
    now_ms: int = 1_000_000

    def tick(
        self, letters: str, due: str | None = None, checks: Checks | None = None
    ) -> tuple[Decision, ...]:
        """Tick with one letter (T or F) a policy; `due` names the only one whose turn it is,
        `checks` are what checks see, by policy and expression."""
        bundle = Bundle("r", self.policies, self.config)
        triggers = {
            p.name: TriggerObservation((SeriesTruth(
                (), *((Truth.TRUE, Reason.BREACH) if letter == "T"
                      else (Truth.FALSE, Reason.CLEAR)), 1.0),))
            for p, letter in zip(self.policies, letters, strict=True)
        }
        seen = Observations(triggers=triggers, capacities=self.capacities,
                            checks=checks or {})
        turn = [p for p in self.policies if due in (None, p.name)]
        self.state, made = decide(turn, self.state, seen, self.now_ms, "r", bundle)
        self.now_ms += 1_000
        return made

    def claims(self) -> dict[str, Json]:
        live = live_claims(self.state, Bundle("r", self.policies, self.config))
        return {c.policy: c.value for c in live}


# --- groups ---


def test_the_highest_priority_of_a_group_holds() -> None:
    engine = Engine((policy("low", 20, group="g", priority=10),
                     policy("high", 50, group="g", priority=20)))
    engine.tick("TF")
    assert engine.claims() == {"low": 20}
    made = engine.tick("TT")
    assert engine.claims() == {"high": 50}
    yielded = next(d for d in made if d.policy == "low")
    assert (yielded.reason, yielded.to_state) == (Reason.SUPERSEDED, "firing")
    assert yielded.note == "group `g` is held by `high`"
    engine.tick("TF")
    assert engine.claims() == {"low": 20}


SAME = {("low", "v"): TriggerObservation((SeriesTruth((), Truth.TRUE, Reason.BREACH, 10.0),))}


def test_what_is_withheld_is_not_verified() -> None:
    verify = Verify("v", 3_000, improves="down", quarantine_ms=60_000)
    engine = Engine((policy("low", 20, group="g", priority=10, verify=verify),
                     policy("high", 50, group="g", priority=20)))
    for _ in range(8):
        engine.tick("TT", checks=SAME)
    assert engine.claims() == {"high": 50}
    for _ in range(3):
        engine.tick("TF", checks=SAME)
        assert engine.claims() == {"low": 20}       # it has all of its time from here on
    made = [d for _ in range(3) for d in engine.tick("TF", checks=SAME)]
    assert [d.reason for d in made][:1] == [Reason.VERIFY_FAILED] and engine.claims() == {}


def test_a_withheld_verify_costs_no_change() -> None:
    engine = Engine((policy("low", 20, group="g", priority=10, verify=Verify("v", 3_000)),
                     policy("high", 50, group="g", priority=20)))
    engine.tick("TT", checks=SAME)
    engine.tick("TT", checks=SAME)
    before = engine.state
    engine.tick("TT", checks=SAME)
    assert engine.state.of("low") is before.of("low")


def test_a_group_reaches_a_policy_whose_turn_it_is_not() -> None:
    engine = Engine((policy("low", 20, group="g", priority=10),
                     policy("high", 50, group="g", priority=20)))
    engine.tick("TF")
    made = engine.tick("TT", due="high")
    assert engine.claims() == {"high": 50} and {d.policy for d in made} == {"low", "high"}
    engine.tick("TF", due="high")
    assert engine.claims() == {"low": 20}


def test_a_shadow_displaces_nobody() -> None:
    engine = Engine((policy("low", 20, group="g", priority=10),
                     policy("high", 50, group="g", priority=20, mode="shadow")))
    made = engine.tick("TT")
    assert engine.claims() == {"low": 20} and all(d.claims_after for d in made)


def test_a_withheld_member_gives_its_impulse_when_it_holds() -> None:
    reset = Action("1", "r", impulses=(ImpulseSpec("reset_prefix_cache"),))
    engine = Engine((policy("low", 20, group="g", priority=10, also=(reset,)),
                     policy("high", 50, group="g", priority=20)))
    assert not any(d.impulses for d in engine.tick("TT"))
    assert [d.policy for d in engine.tick("TF") if d.impulses] == ["low"]
    assert not any(d.impulses for d in engine.tick("TF"))


# --- how much capacity ---


def test_claims_stop_at_what_must_stay() -> None:
    engine = Engine((policy("p", 1, knob="cache.max_running"),))
    (made,) = engine.tick("T")
    assert engine.claims() == {"p": 5}
    assert made.note == "safety: cache.max_running 1 is below the floor, 5 is claimed"


def test_core_keeps_its_floor_and_others_may_be_cut() -> None:
    def scope(tier: str) -> Labels:
        return (("tier", tier),)

    engine = Engine((policy("core", 1, scope=scope("core")), policy("all", 1),
                     policy("rest", 1, scope=scope("best-effort"))))
    engine.tick("TTT")
    assert engine.claims() == {"core": 10, "all": 10, "rest": 1}


def test_belts_as_configured() -> None:
    safety = Safety(capacity_removed=0.5, core_floor=0.75)
    engine = Engine((policy("a", 1), policy("b", 1, knob="cache.max_running")),
                    EngineConfig(safety=safety))
    engine.tick("TT")
    assert engine.claims() == {"a": 75, "b": 50}
    off = Engine((policy("a", 1),), EngineConfig(safety=Safety(enabled=False)))
    off.tick("T")
    assert off.claims() == {"a": 1}


def test_a_core_that_shrinks_moves_the_floor() -> None:
    engine = Engine((policy("p", 1, knob="cache.max_running"),))
    engine.tick("T")
    engine.capacities["cache.max_running"] = 400.0
    (made,) = engine.tick("T")
    assert engine.claims() == {"p": 20} and made.reason is Reason.SAFETY
    assert engine.tick("T") == ()


def test_a_ramp_starts_at_the_wish_and_stays_above_the_floor() -> None:
    engine = Engine((policy("p", 1, knob="cache.max_running", recovery=Recovery((0.01, 1), 1)),))
    engine.tick("T")
    engine.tick("F")
    assert engine.claims() == {"p": 5}


# --- disruptive actions in an hour ---


def test_disruptive_actions_an_hour() -> None:
    engine = Engine(
        (policy("low", 20, disruptive=True, priority=1),
         policy("high", 20, disruptive=True, priority=9)),
        EngineConfig(safety=Safety(disruptive_per_hour=1)),
    )
    made = engine.tick("TT")
    assert engine.claims() == {"high": 20}
    note = next(d.note for d in made if d.policy == "low")
    assert note == "action 0: refused: safety: 1 disruptive actions began within the hour"
    assert engine.tick("TT") == () and engine.claims() == {"high": 20}
    assert EngineState.from_json(engine.state.to_json()) == engine.state
    engine.now_ms += 3_600_000
    engine.tick("TT")
    assert engine.claims() == {"low": 20, "high": 20}


def test_a_shadow_costs_no_budget() -> None:
    engine = Engine(
        (policy("s", 20, disruptive=True, priority=9, mode="shadow"),
         policy("e", 20, disruptive=True, priority=1)),
        EngineConfig(safety=Safety(disruptive_per_hour=1)),
    )
    assert all(d.claims_after for d in engine.tick("TT"))


# --- number of claims ---


def test_too_many_claims_give_way_by_priority() -> None:
    policies = tuple(policy(f"p{n}", 20, priority=n) for n in range(5))
    engine = Engine(policies, EngineConfig(max_claims=3))
    engine.tick("TTTTF")
    assert set(engine.claims()) == {"p1", "p2", "p3"}
    made = engine.tick("TTTTT")
    assert set(engine.claims()) == {"p2", "p3", "p4"}
    lost = next(d for d in made if d.policy == "p1")
    assert lost.note == "safety: 1 claims are beyond the limit of 3"
    assert engine.tick("TTTTT") == ()
    engine.tick("TTFFT")
    assert set(engine.claims()) == {"p0", "p1", "p4"}


def test_instances_of_all_policies_are_limited() -> None:
    engine = Engine((policy("a", 20), policy("b", 20)), EngineConfig(max_instances=1))
    engine.tick("TT")
    assert len(list(engine.state.items())) == 1
