"""Plain policies with several series each: what costs no look is what a look would have left alone,
and of too many claims the first in order are in force."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.model import (
    Action,
    Bundle,
    ClaimSpec,
    EngineConfig,
    Escalation,
    Limits,
    Observations,
    OperatorEvent,
    Policy,
    Reason,
    Recovery,
    Resolve,
    Safety,
    SeriesTruth,
    Trigger,
    TriggerObservation,
    Truth,
)
from resilience.policy.decide import decide
from resilience.policy.state import EngineState, live_claims
from tests.property.long_way import long_way

SERIES = 4
NAMES = "pqr"
LABELS = tuple((("engine", str(n)), ("model_name", "m")) for n in range(SERIES))
SUM = (("model_name", "m"),)
FEW = EngineConfig(safety=Safety(enabled=False), max_claims=3)
MANY = replace(FEW, max_claims=1_000)

seconds = st.integers(0, 3).map(lambda s: s * 1_000)
knobs = st.sampled_from([("cache.max_running", ()), ("throttle.max_concurrency", ()),
                         ("throttle.max_concurrency", (("tier", "core"),))])


def actions(key: str) -> st.SearchStrategy[Action]:
    return st.tuples(knobs, st.integers(1, 40)).map(
        lambda one: Action(key, "x", (ClaimSpec(one[0][0], one[1], one[0][1]),)))


def policies(name: str) -> st.SearchStrategy[Policy]:
    return st.builds(
        Policy, name=st.just(name),
        trigger=st.builds(
            Trigger, expr=st.just("x > 1"),
            on_no_data=st.sampled_from(["hold", "hold", "resolve", "fire"]), for_ms=seconds,
            keep_firing_for_ms=seconds,
            resolve=st.none() | st.builds(Resolve, st.just("y"), seconds)),
        actions=st.tuples(actions("0")) | st.tuples(actions("0"), actions("1")),
        mode=st.sampled_from(["enforce", "enforce", "shadow"]), interval_ms=st.just(1_000),
        escalation=st.just(()) | st.tuples(st.builds(
            Escalation, st.just(2_000), st.tuples(actions("e0.0")))),
        recovery=st.none() | st.builds(Recovery, st.just((0.5, 1.0)), seconds),
        limits=st.builds(Limits, seconds, max_active=st.none() | st.just(2)),
        priority=st.integers(0, 2),
    )  # fmt: skip


TRUE, FALSE = (Truth.TRUE, Reason.BREACH), (Truth.FALSE, Reason.CLEAR)
BLIND = (Truth.UNKNOWN, Reason.BLIND_STALE)
# Mostly what lasts: a storm of changes would hardly ever let anything burn on.
triggers = st.lists(st.sampled_from([TRUE, TRUE, TRUE, TRUE, FALSE, BLIND, None]),
                    min_size=SERIES, max_size=SERIES)
resolves = st.lists(st.sampled_from([FALSE, FALSE, FALSE, FALSE, FALSE, TRUE, BLIND, None]),
                    min_size=SERIES, max_size=SERIES) | st.sampled_from([[FALSE], [TRUE], []])
events = st.sampled_from([(), (), (), (), (OperatorEvent("pause", "p"),),
                          (OperatorEvent("resume", None),)])
weather = st.tuples(*(st.tuples(triggers, resolves) for _ in NAMES), events)
scripts = st.lists(st.tuples(weather, st.integers(1, 4)), min_size=1, max_size=8)
bundles = st.tuples(*(policies(name) for name in NAMES))


def observation(found: list[Any]) -> TriggerObservation:
    """One reading for each series, or one of their sum."""
    labels = LABELS if len(found) == SERIES else (SUM,)
    return TriggerObservation(tuple(
        SeriesTruth(one, said[0], said[1], 1.0)
        for one, said in zip(labels, found, strict=False) if said is not None
    ))


def ticks(script: list[Any]) -> list[Observations]:
    return [
        Observations(
            {name: observation(row[0]) for name, row in zip(NAMES, rows, strict=True)},
            {name: observation(row[1]) for name, row in zip(NAMES, rows, strict=True)},
            operator=operator if again == 0 else (),
        )
        for (*rows, operator), times in script for again in range(times)
    ]


@settings(max_examples=100)
@given(bundles, scripts)
def test_what_burns_on_costs_no_look(every: tuple[Policy, ...], script: list[Any]) -> None:
    bundle = Bundle("r", every, MANY)
    short, long = EngineState(), EngineState()
    for number, seen in enumerate(ticks(script)):
        now_ms = 1_000 * number
        short, said = decide(every, short, seen, now_ms, "r", bundle)
        with long_way():
            long, spelt_out = decide(every, long, seen, now_ms, "r", bundle)
        assert said == spelt_out
        assert live_claims(short, bundle) == live_claims(long, bundle)


@settings(max_examples=100)
@given(bundles, scripts)
def test_of_too_many_claims_the_first_in_order_hold(
    every: tuple[Policy, ...], script: list[Any]
) -> None:
    few, many = Bundle("r", every, FEW), Bundle("r", every, MANY)
    cut, free = EngineState(), EngineState()
    for number, seen in enumerate(ticks(script)):
        now_ms = 1_000 * number
        cut, _ = decide(every, cut, seen, now_ms, "r", few)
        free, _ = decide(every, free, seen, now_ms, "r", many)
        wanted = sorted(live_claims(free, many), key=lambda c: (-c.priority, c.key))
        assert sorted(live_claims(cut, few), key=lambda c: (-c.priority, c.key)) == \
            wanted[: FEW.max_claims]
