"""Whatever the world says, these hold for the decision core."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.model import (
    Action,
    Claim,
    ClaimSpec,
    ImpulseSpec,
    Limits,
    Observations,
    OperatorEvent,
    Policy,
    RateLimit,
    Reason,
    Recovery,
    Resolve,
    SeriesTruth,
    State,
    Trigger,
    TriggerObservation,
    Truth,
    canonical_json,
)
from resilience.policy.decide import decide, revise
from resilience.policy.state import EngineState, live_claims
from tests.property.long_way import long_way

LABELS = ((), (("model_name", "a"),), (("model_name", "b"),))
REASONS = {
    Truth.TRUE: Reason.BREACH,
    Truth.FALSE: Reason.CLEAR,
    Truth.UNKNOWN: Reason.BLIND_STALE,
}

seconds = st.integers(0, 4).map(lambda s: s * 1_000)
triggers = st.builds(
    Trigger,
    expr=st.just("x > 1"),
    on_no_data=st.sampled_from(["hold", "resolve", "fire"]),
    for_ms=seconds,
    keep_firing_for_ms=seconds,
    resolve=st.none() | st.builds(Resolve, st.just("y"), seconds),
)
actions = st.tuples(
    st.integers(1, 64).map(
        lambda n: Action("0", "throttle", (ClaimSpec("throttle.max_concurrency", n),))
    ),
    st.just(Action("1", "reset", impulses=(ImpulseSpec("reset_prefix_cache"),))),
)


def policies_named(name: str) -> st.SearchStrategy[Policy]:
    return st.builds(
        Policy,
        name=st.just(name),
        trigger=triggers,
        actions=actions,
        mode=st.sampled_from(["enforce", "shadow"]),
        interval_ms=st.just(1_000),
        recovery=st.none() | st.builds(Recovery, st.just((0.5, 1.0)), seconds),
        limits=st.builds(Limits, seconds, st.just(()) | st.just((RateLimit(2, 10_000),))),
        priority=st.integers(0, 100),
    )


pairs = st.tuples(policies_named("p"), policies_named("q"))
truths = st.builds(
    lambda labels, truth: SeriesTruth(labels, truth, REASONS[truth]),
    st.sampled_from(LABELS),
    st.sampled_from(list(Truth)),
)
observed = st.lists(truths, max_size=3, unique_by=lambda s: s.labels).map(
    lambda found: TriggerObservation(tuple(found))
)
events = st.lists(
    st.sampled_from(
        [OperatorEvent("pause", "p"), OperatorEvent("resume", "p"), OperatorEvent("resume", None)]
    ),
    max_size=1,
)
ticks = st.lists(st.tuples(observed, observed, observed, observed, events), max_size=25)
Tick = tuple[TriggerObservation, ...]


def world(tick: tuple[object, ...]) -> Observations:
    p, q, p_resolve, q_resolve, operator = tick
    return Observations(
        triggers={"p": p, "q": q},  # type: ignore[dict-item]
        resolves={"p": p_resolve, "q": q_resolve},  # type: ignore[dict-item]
        capacities={"throttle.max_concurrency": 64},
        operator=tuple(operator),  # type: ignore[arg-type]
    )


@settings(max_examples=200)
@given(pairs, ticks)
def test_invariants(policies: tuple[Policy, Policy], script: list[tuple[object, ...]]) -> None:
    state = EngineState()
    impulses: set[str] = set()
    for number, tick in enumerate(script):
        now_ms, observations = 1_000 * (number + 1), world(tick)
        before = state
        state, decisions = decide(policies, before, observations, now_ms, "r")
        again = decide(policies, before, observations, now_ms, "r")
        assert again == (state, decisions), "the same input gives the same output"
        assert EngineState.from_json(state.to_json()) == state
        for (policy, _), instance in state.items():
            holds = instance.active in (State.FIRING, State.RECOVERING)
            assert bool(instance.claims) == holds, f"{policy}: claims live with the firing"
            if instance.active is State.PENDING:
                assert not instance.claims
        for decision in decisions:
            assert len({i.key for i in decision.impulses} & impulses) == 0, "at most once"
            impulses.update(i.key for i in decision.impulses)
            canonical_json(decision.to_json())
        ids = [d.id for d in decisions]
        assert len(ids) == len(set(ids))


@settings(max_examples=200)
@given(policies_named("p"), ticks)
def test_resolving_takes_evidence(policy: Policy, script: list[tuple[object, ...]]) -> None:
    """A firing that ends while its policy holds on no data ends by a false, a true resolve or a
    human, never by silence."""
    state = EngineState()
    for number, tick in enumerate(script):
        observations = world(tick)
        before, (state, decisions) = state, decide([policy], state, observations, number, "r")
        del before
        for decision in decisions:
            ended = decision.claims_before and not decision.claims_after
            if not ended or policy.trigger.on_no_data == "resolve":
                continue
            resolve = observations.resolves["p"]
            evidence = (
                decision.truth is Truth.FALSE
                or any(s.truth is Truth.TRUE for s in resolve.series)
                or decision.reason is Reason.OPERATOR
            )
            assert evidence, decision


@settings(max_examples=100)
@given(pairs, ticks)
def test_one_policy_never_touches_another(
    policies: tuple[Policy, Policy], script: list[tuple[object, ...]]
) -> None:
    together, alone = EngineState(), EngineState()
    for number, tick in enumerate(script):
        together, _ = decide(policies, together, world(tick), number * 1_000, "r")
        alone, _ = decide(policies[:1], alone, world(tick), number * 1_000, "r")
        assert together.of("p") == alone.of("p")


@settings(max_examples=100)
@given(pairs, ticks)
def test_a_revision_keeps_what_did_not_change(
    policies: tuple[Policy, Policy], script: list[tuple[object, ...]]
) -> None:
    state = EngineState()
    for number, tick in enumerate(script):
        state, _ = decide(policies, state, world(tick), number * 1_000, "r")
    same, none = revise(policies, policies, state, 99_000, "s")
    assert same == state and none == ()
    fewer, gone = revise(policies, policies[:1], state, 99_000, "s")
    assert fewer.of("p") == state.of("p") and not fewer.of("q")
    assert all(d.policy == "q" and d.claims_after == () for d in gone)


@settings(max_examples=400)
@given(pairs, ticks)
def test_the_short_way_equals_the_long_way(
    policies: tuple[Policy, Policy], script: list[tuple[object, ...]]
) -> None:
    short, long = EngineState(), EngineState()
    for number, tick in enumerate(script):
        short, said = decide(policies, short, world(tick), number * 1_000, "r")
        with long_way():
            long, spelt_out = decide(policies, long, world(tick), number * 1_000, "r")
        assert said == spelt_out
        assert _without_readings(short) == _without_readings(long)


def _without_readings(state: EngineState) -> list[object]:
    return [
        (key, replace(i, value=None, truth=Truth.TRUE, reason=Reason.CLEAR))
        for key, i in state.items()
    ]


def test_shadow_claims_stay_home() -> None:
    claim_action = Action("0", "throttle", (ClaimSpec("throttle.max_concurrency", 4),))
    trigger = Trigger("x > 1", "hold")
    policies = [
        Policy("p", trigger, (claim_action,), mode="shadow"),
        Policy("q", trigger, (claim_action,)),
    ]
    true = TriggerObservation((SeriesTruth((), Truth.TRUE, Reason.BREACH, 2.0),))
    observations = Observations(triggers={"p": true, "q": true})
    state, decisions = decide(policies, EngineState(), observations, 0, "r")
    assert [d.mode for d in decisions] == ["shadow", "enforce"]
    from resilience.model import Bundle

    live: tuple[Claim, ...] = live_claims(state, Bundle("r", tuple(policies)))
    assert [c.policy for c in live] == ["q"]
