"""Whatever the world says, these hold with checks, probes, limits, groups and belts too."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.model import (
    Action,
    Bundle,
    ClaimSpec,
    Decision,
    EngineConfig,
    Escalation,
    Guard,
    ImpulseSpec,
    Limits,
    Observations,
    OperatorEvent,
    Policy,
    Probe,
    QueryInput,
    RateLimit,
    Reason,
    Recovery,
    Resolve,
    Safety,
    SeriesTruth,
    State,
    Trigger,
    TriggerObservation,
    Truth,
    Verify,
    canonical_json,
)
from resilience.policy.decide import decide
from resilience.policy.state import EngineState, live_claims
from tests.property.long_way import long_way

LABELS = ((("engine", "a"),), (("engine", "b"),))
CORE = (("tier", "core"),)
CAPACITIES = {"throttle.max_concurrency": 40.0, "cache.max_running": 40.0}
CONFIG = EngineConfig(safety=Safety(disruptive_per_hour=3), max_claims=3)
FLOOR = 4
SECOND_MS = 1_000

seconds = st.integers(0, 4).map(lambda s: s * SECOND_MS)
some = st.integers(1, 4).map(lambda s: s * SECOND_MS)
verifies = st.none() | st.builds(
    Verify, st.just("v"), some, seconds, st.sampled_from([None, "down", "up"]), st.just(0.1),
    st.sampled_from(["rollback", "escalate"]), some,
)
guards = st.none() | st.builds(Guard, st.just("g"), some)
triggers = st.builds(
    Trigger, expr=st.just("x > 1"), on_no_data=st.sampled_from(["hold", "resolve", "fire"]),
    for_ms=seconds, keep_firing_for_ms=seconds,
    resolve=st.none() | st.builds(Resolve, st.just("y"), seconds), warm_up=st.integers(1, 3),
)
limits = st.builds(
    Limits, seconds, st.just(()) | st.just((RateLimit(2, 5_000), RateLimit(3, 20_000))),
    st.integers(1, 3), st.none() | st.just(1),
)


@st.composite
def actions(draw: Any, key: str) -> Action:
    knob, scope = draw(st.sampled_from(
        [("throttle.max_concurrency", CORE), ("throttle.max_concurrency", ()),
         ("cache.max_running", ())]))
    return Action(
        key, "x", (ClaimSpec(knob, draw(st.integers(1, 40)), scope),),
        impulses=draw(st.just(()) | st.just((ImpulseSpec("reset_prefix_cache"),))),
        verify=draw(verifies), guard=draw(guards), disruptive=draw(st.booleans()),
    )


def policies(name: str) -> st.SearchStrategy[Policy]:
    stage = st.builds(Escalation, some, st.tuples(actions("e0.0")))
    return st.builds(
        Policy, name=st.just(name), trigger=triggers,
        actions=st.tuples(actions("0")) | st.tuples(actions("0"), actions("1")),
        mode=st.sampled_from(["enforce", "enforce", "shadow"]), interval_ms=st.just(SECOND_MS),
        escalation=st.just(()) | st.tuples(stage),
        recovery=st.none() | st.builds(Recovery, st.just((0.5, 1.0)), seconds),
        probe=st.none() | st.builds(Probe, some, st.just(0.25), some, st.integers(1, 2)),
        verify=verifies, guard=guards, limits=limits, priority=st.integers(0, 9),
        group=st.none() | st.just("one"),
    )  # fmt: skip


pairs = st.tuples(policies("p"), policies("q"))
readings = st.sampled_from([
    (Truth.TRUE, Reason.BREACH), (Truth.TRUE, Reason.BREACH), (Truth.FALSE, Reason.CLEAR),
    (Truth.UNKNOWN, Reason.BLIND_STALE), (Truth.UNKNOWN, Reason.IDLE), None,
])
rows = st.tuples(readings, readings, readings, readings, st.integers(0, 20))
events = st.sampled_from([(), (), (), (OperatorEvent("pause", "p"),),
                          (OperatorEvent("resume", None),)])
scripts = st.lists(st.tuples(rows, rows, events), min_size=1, max_size=30)


def observation(found: Any, number: float, now_ms: int) -> TriggerObservation:
    """What one expression says: the same of both series, or nothing of any."""
    inputs = (QueryInput("x", number, now_ms),)
    if found is None:
        return TriggerObservation(inputs=inputs)
    series = (SeriesTruth(labels, found[0], found[1], float(number)) for labels in LABELS)
    return TriggerObservation(tuple(series), inputs=inputs)


def world(tick: Any, now_ms: int) -> Observations:
    *both, operator = tick
    triggers, resolves, checks = {}, {}, {}
    for name, (trigger, resolve, verify, guard, number) in zip("pq", both, strict=True):
        triggers[name] = observation(trigger, number, now_ms)
        resolves[name] = observation(resolve, number, now_ms)
        checks[name, "v"] = observation(verify, number, now_ms)
        checks[name, "g"] = observation(guard, number, now_ms)
    return Observations(triggers, resolves, capacities=CAPACITIES, operator=operator,
                        checks=checks)


def at(number: int) -> int:
    return 1_000_000 + number * SECOND_MS


@settings(max_examples=150)
@given(pairs, scripts)
def test_belts_groups_and_limits(both: tuple[Policy, Policy], script: list[Any]) -> None:
    bundle = Bundle("r", both, CONFIG)
    by_name = {p.name: p for p in both}
    state = EngineState()
    for number, tick in enumerate(script):
        before = state
        state, decisions = decide(both, before, world(tick, at(number)), at(number), "r", bundle)
        live = live_claims(state, bundle)
        assert len(live) <= CONFIG.max_claims
        assert all(c.value >= (2 if c.knob.startswith("cache") else FLOOR) for c in live)
        assert len(state.ledger.disruptive_ms) <= 3
        if all(p.group for p in both):
            assert len({c.policy for c in live}) <= 1, "one member of a group holds"
        for key, instance in state.items():
            policy = by_name[key[0]]
            assert instance.holds or not instance.claims
            assert instance.probes <= (policy.probe.max if policy.probe else 0)
            _cooldown_only_grows(before, key, instance.cooldown_until_ms, at(number))
        for decision in decisions:
            _fires_when_it_may(by_name[decision.policy], before, decision)
        _most_active(by_name, state)


def _cooldown_only_grows(
    before: EngineState, key: tuple[str, str], until_ms: int | None, now_ms: int
) -> None:
    old = before.of(key[0]).get(key[1])
    if old is not None and old.cooldown_until_ms is not None:
        assert until_ms is not None and until_ms >= old.cooldown_until_ms
    assert until_ms is None or until_ms <= now_ms + 4_000


def _fires_when_it_may(policy: Policy, before: EngineState, decision: Decision) -> None:
    starts = decision.to_state is State.FIRING and decision.from_state in (
        State.INACTIVE, State.PENDING)
    old = before.of(policy.name).get(decision.instance)
    if starts and old is not None:
        assert decision.t_ms >= max(old.cooldown_until_ms or 0, old.quarantine_until_ms or 0)


def _most_active(by_name: dict[str, Policy], state: EngineState) -> None:
    for name, policy in by_name.items():
        most = policy.limits.max_active
        if most is not None:
            assert sum(i.holds for i in state.of(name).values()) <= most


@settings(max_examples=150)
@given(pairs, scripts)
def test_a_firing_that_holds_ends_by_evidence(
    both: tuple[Policy, Policy], script: list[Any]
) -> None:
    """Not by silence: a false, a true resolve or guard, a `verify` that was seen to fail, or an
    operator; what the belts take back is refused by name, and the firing goes on."""
    state = EngineState()
    for number, tick in enumerate(script):
        seen = world(tick, at(number))
        state, decisions = decide(both, state, seen, at(number), "r", Bundle("r", both, CONFIG))
        for d in decisions:
            policy = both[d.policy == "q"]
            works = d.from_state in (State.FIRING, State.RECOVERING, State.HELD)
            if policy.trigger.on_no_data != "hold" or not works or d.to_state is not State.INACTIVE:
                continue
            known = {e: s.series[0].truth for (n, e), s in seen.checks.items()
                     if n == d.policy and s.series}
            resolve = seen.resolves[d.policy].series
            assert (
                d.truth is Truth.FALSE
                or (resolve and resolve[0].truth is Truth.TRUE)
                or (d.reason is Reason.GUARD and known["g"] is Truth.TRUE)
                or (d.reason is Reason.VERIFY_FAILED and known["v"] is not Truth.UNKNOWN)
            ), d


@settings(max_examples=150)
@given(pairs, scripts)
def test_a_restart_changes_nothing(both: tuple[Policy, Policy], script: list[Any]) -> None:
    """In the middle of `for`, ramp, escalation, verification, probe or quarantine: the state as
    JSON gives the same decisions, so nothing fires again and no time is lost."""
    bundle = Bundle("r", both, CONFIG)
    running, restarted = EngineState(), EngineState()
    for number, tick in enumerate(script):
        seen = world(tick, at(number))
        restarted = EngineState.from_json(json.loads(canonical_json(restarted.to_json())))
        assert restarted == running
        running, one = decide(both, running, seen, at(number), "r", bundle)
        restarted, two = decide(both, restarted, seen, at(number), "r", bundle)
        assert [canonical_json(d.to_json()) for d in one] == [
            canonical_json(d.to_json()) for d in two]


@settings(max_examples=250)
@given(pairs, scripts)
def test_the_short_way_equals_the_long_way(
    both: tuple[Policy, Policy], script: list[Any]
) -> None:
    bundle = Bundle("r", both, CONFIG)
    short, long = EngineState(), EngineState()
    for number, tick in enumerate(script):
        seen = world(tick, at(number))
        short, said = decide(both, short, seen, at(number), "r", bundle)
        with long_way():
            long, spelt_out = decide(both, long, seen, at(number), "r", bundle)
        assert said == spelt_out


@settings(max_examples=100)
@given(pairs, scripts)
def test_a_tick_without_news_copies_nothing(
    both: tuple[Policy, Policy], script: list[Any]
) -> None:
    """The same world at the same time decides nothing new and hands the same state back."""
    bundle = Bundle("r", both, CONFIG)
    state = EngineState()
    for number, tick in enumerate(script):
        seen = world(tick, at(number))
        state, _ = decide(both, state, seen, at(number), "r", bundle)
    quiet = world((*script[-1][:2], ()), at(len(script) - 1))
    made: tuple[Decision, ...] = ()
    for _ in range(2):
        state, made = decide(both, state, quiet, at(len(script) - 1), "r", bundle)
    settled, again = decide(both, state, quiet, at(len(script) - 1), "r", bundle)
    if not made and not again:              # a trigger and a resolve that are both true flap
        assert settled is state
