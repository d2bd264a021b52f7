"""From decisions to figures: what counts as a firing, a flap, blind, and active."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from resilience.model import (
    Claim,
    Decision,
    Labels,
    Reason,
    SeriesTruth,
    State,
    TriggerObservation,
    Truth,
)
from resilience.policy.state import EngineState, Instance
from resilience.report.contention import meetings
from resilience.report.figures import FLAP_MS, Figures, figures, states, taken
from resilience.report.history import History, holdings_of, truth_word
from resilience.report.spans import Span

N, P, F, R, H = State.INACTIVE, State.PENDING, State.FIRING, State.RECOVERING, State.HELD
SECOND = 1_000


def _claim(value: Any = 4, policy: str = "p", priority: int = 50) -> Claim:
    return Claim(
        policy, "i", "0", "throttle.max_concurrency", (("tier", "best-effort"),), value, 30_000,
        False, priority, "sha256:1",
    )


class Run:
    """A run of seconds from 0; `go` moves an instance and ticks."""

    def __init__(self, seconds: int) -> None:
        self.history = History()
        for second in range(seconds):
            self.history.ticked(second * SECOND, SECOND)

    def go(
        self, second: int, before: State, after: State, *, firing: int | None = None,
        reason: Reason = Reason.BREACH, held: State | None = None, claims: tuple[Claim, ...] = (),
        policy: str = "p", instance: str = "i", labels: Labels = (),
        mode: Any = "enforce",
    ) -> None:
        clocks = (("firing_since_ms", None if firing is None else firing * SECOND),)
        self.history.decided(Decision(
            second * SECOND, "sha256:1", policy, "h", instance, labels, 1.5, Truth.TRUE, reason,
            before, after, clocks, (), claims, held_from=held, mode=mode,
        ))

    def figures(self, policy: str = "p") -> Figures:
        self.history.close()
        return figures(self.history.policies[policy], self.history)


def test_a_firing_lasts_from_breach_to_the_end_of_its_ramp() -> None:
    run = Run(100)
    run.go(10, N, P)
    run.go(20, P, F, firing=20, claims=(_claim(),))
    run.go(40, F, R, firing=20, claims=(_claim(8),))
    run.go(50, R, N)
    found = run.figures()
    assert (found.firings, found.active_ms, found.first_firing_ms) == (1, 30_000, 20_000)
    assert (found.flaps, found.near_misses, found.still_active) == (0, 0, 0)
    rows = taken(run.history.policies["p"].holdings)
    assert [(t.value, t.times, t.ms) for t in rows] == [(4, 1, 20_000), (8, 1, 10_000)]


def test_a_relapse_is_a_flap_and_no_new_firing() -> None:
    run = Run(100)
    run.go(10, N, F, firing=10)
    run.go(20, F, R, firing=10)
    run.go(25, R, F, firing=10, reason=Reason.RELAPSE)
    found = run.figures()
    assert (found.firings, found.flaps, found.relapses, found.still_active) == (1, 1, 1, 1)


@pytest.mark.parametrize(("pause_s", "flaps"), [(10, 1), (FLAP_MS // SECOND, 0)])
def test_firing_again_soon_is_a_flap(pause_s: int, flaps: int) -> None:
    run = Run(1_000)
    run.go(10, N, F, firing=10)
    run.go(20, F, N)
    run.go(20 + pause_s, N, F, firing=20 + pause_s)
    found = run.figures()
    assert (found.firings, found.flaps) == (2, flaps)


def test_held_is_blind_and_stays_active_where_it_fired() -> None:
    run = Run(100)
    run.go(10, N, F, firing=10)
    run.go(30, F, H, firing=10, held=F, reason=Reason.BLIND_STALE)
    run.go(60, H, F, firing=10)
    found = run.figures()
    assert (found.firings, found.active_ms, found.blind_ms) == (1, 90_000, 30_000)
    assert [s.what for s in states(run.history.policies["p"], run.history)] == [
        "inactive", "firing", "held", "firing",
    ]


def test_what_was_pending_and_did_not_fire_is_a_near_miss() -> None:
    run = Run(50)
    run.go(10, N, P)
    run.go(15, P, N)
    assert run.figures().near_misses == 1


def test_a_run_that_begins_in_a_firing_knows_it() -> None:
    run = Run(50)
    fired = Instance(
        (("pod", "a"),), State.FIRING, firing_since_ms=-5_000, fired_value=3.0, claims=(_claim(),)
    )
    run.history.began(EngineState({"p": {"i": fired}}))
    found = run.figures()
    assert (found.firings, found.active_ms, found.still_active) == (1, 50_000, 1)
    assert [(h.start_ms, h.end_ms) for h in run.history.policies["p"].holdings] == [(0, 50_000)]


def _series(*pairs: tuple[Truth, Reason]) -> TriggerObservation:
    return TriggerObservation(tuple(
        SeriesTruth((("n", str(i)),), truth, reason) for i, (truth, reason) in enumerate(pairs)
    ))


@pytest.mark.parametrize(("seen", "word"), [
    (TriggerObservation(missing=Reason.BLIND_STALE), "blind_stale"),
    (_series((Truth.FALSE, Reason.CLEAR), (Truth.TRUE, Reason.BREACH)), "true"),
    (_series((Truth.FALSE, Reason.CLEAR), (Truth.UNKNOWN, Reason.BLIND_STALE)), "blind_stale"),
    (_series((Truth.FALSE, Reason.CLEAR), (Truth.UNKNOWN, Reason.IDLE)), "false"),
    (_series((Truth.UNKNOWN, Reason.IDLE)), "idle"),
])
def test_one_word_for_all_series(seen: TriggerObservation, word: str) -> None:
    assert truth_word(seen) == word


def test_blind_time_is_what_the_trigger_could_not_see() -> None:
    run = Run(60)
    run.history.saw("p", 0, _series((Truth.FALSE, Reason.CLEAR)))
    run.history.saw("p", 20_000, TriggerObservation(missing=Reason.BLIND_NO_SERIES))
    run.history.saw("p", 50_000, _series((Truth.UNKNOWN, Reason.IDLE)))
    found = run.figures()
    assert (found.blind_ms, found.idle_ms, found.firings) == (30_000, 10_000, 0)


def test_policies_that_meet_with_values_that_are_maps() -> None:
    run = Run(100)
    for name, tokens in (("a", 50), ("b", 20)):
        quota = {"tokens": tokens, "window_ms": 1_000}
        claim = replace(_claim(8, name), knob="throttle.token_quota", value=quota)
        run.go(10, N, F, firing=10, claims=(claim,), policy=name)
    run.history.close()
    (met,) = meetings(holdings_of(run.history.policies))
    assert (met.winner, met.in_force) == ("b", {"tokens": 20, "window_ms": 1_000})


def test_a_claim_that_leaves_shadow_counts_from_then_on() -> None:
    run = Run(100)
    run.go(10, N, F, firing=10, claims=(_claim(),), mode="shadow")
    run.go(30, F, F, firing=10, claims=(_claim(),))
    run.history.close()
    assert [(h.shadow, h.start_ms, h.end_ms) for h in run.history.policies["p"].holdings] == [
        (True, 10_000, 30_000), (False, 30_000, 100_000)]


def test_policies_that_meet_on_a_knob_and_who_wins() -> None:
    run = Run(100)
    run.go(10, N, F, firing=10, claims=(_claim(8, "a"),), policy="a")
    run.go(20, N, F, firing=20, claims=(_claim(2, "b"),), policy="b")
    run.go(50, F, N, policy="b")
    run.go(60, N, F, firing=60, claims=(_claim(8, "c"),), policy="c")
    run.history.close()
    met = meetings(holdings_of(run.history.policies))
    assert [(m.values, m.winner, m.in_force, m.ms, m.first_ms) for m in met] == [
        ((("a", 8), ("b", 2)), "b", 2, 30_000, 20_000),
    ]


def test_policies_in_shadow_meet_as_they_would_in_enforce() -> None:
    run = Run(100)
    run.go(10, N, F, firing=10, claims=(_claim(8, "a"),), policy="a")
    run.go(20, N, F, firing=20, claims=(_claim(4, "b"),), policy="b")
    run.go(30, N, F, firing=30, claims=(_claim(2, "c", 60),), policy="c", mode="shadow")
    run.go(50, F, N, policy="c", mode="shadow")
    run.history.close()
    held = list(holdings_of(run.history.policies))
    assert [(m.values, m.winner, m.ms, m.shadow) for m in meetings(held)] == [
        ((("a", 8), ("b", 4)), "b", 80_000, ()),
        ((("a", 8), ("b", 4), ("c", 2)), "c", 20_000, ("c",)),
    ]
    grouped = meetings(held, {"b": "g", "c": "g"})
    assert [(m.values, m.shadow) for m in grouped] == [
        ((("a", 8), ("b", 4)), ()), ((("a", 8), ("c", 2)), ("c",))]


def test_a_later_bundle_ends_what_its_policy_held() -> None:
    run = Run(100)
    run.go(10, N, F, firing=10, claims=(_claim(),))
    run.go(40, F, N, reason=Reason.REVISION)
    run.history.close()
    assert [(h.start_ms, h.end_ms) for h in run.history.policies["p"].holdings] == [
        (10_000, 40_000),
    ]
    assert Span(40_000, 100_000, "inactive") in states(run.history.policies["p"], run.history)
