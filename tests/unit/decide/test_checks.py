"""`verify` and `guard`: letters for the trigger, for the check, and what comes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from resilience.model import (
    Action,
    ClaimSpec,
    Escalation,
    Guard,
    ImpulseSpec,
    Reason,
    Recovery,
    SeriesTruth,
    TriggerObservation,
    Truth,
    Verify,
    labels_of,
)
from resilience.policy.state import EngineState

P, F, H, R, X, N = "pending", "firing", "held", "recovering", "inactive", ""
ESCALATION = (Escalation(60_000, (Action("e0.0", "x", (ClaimSpec("cache.max_running", 4),)),)),)
Line = Callable[..., Any]

VERIFY: list[tuple[str, dict[str, Any], str, str, list[str]]] = [
    ("met in time", {}, "TTTTT", "FFTFF", [F, F, F, F, F]),
    ("not met: rolled back and kept shut", {}, "TTTTTTT", "FFFFFFF", [F, F, F, X, P, P, P]),
    ("unknown is no failure: its clock stands still", {}, "TTTTTTTT", "FUUUUFFF",
     [F, F, F, F, F, F, F, X]),
    ("always unknown never fails", {}, "TTTTTTTT", "UUUUUUUU", [F] * 8),
    ("must hold for its time", {"for_ms": 1_000}, "TTTTTT", "FTFTTF", [F, F, F, F, F, F]),
    ("met too briefly is not met", {"for_ms": 2_000}, "TTTTT", "FTFFF", [F, F, F, X, P]),
    ("a trigger that nobody sees stops the clock", {}, "TUUUTTT", "FFFFFFF",
     [F, H, H, H, F, F, X]),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "letters", "check", "states"), [r[1:] for r in VERIFY],
                         ids=[r[0] for r in VERIFY])
def test_verify(
    timeline: Line, fields: dict[str, Any], letters: str, check: str, states: list[str]
) -> None:
    line = timeline(verify=Verify("v", 3_000, quarantine_ms=60_000, **fields))
    assert line.feed(letters, checks={"v": check}) == states


def test_what_fails_says_so(timeline: Line) -> None:
    line = timeline(verify=Verify("v", 2_000, quarantine_ms=5_000), recovery=Recovery((0.5, 1), 9))
    line.feed("TTT", checks={"v": "FFF"})
    last = line.decisions[-1]
    assert (last.from_state, last.to_state, last.reason) == (F, X, Reason.VERIFY_FAILED)
    assert last.claims_before and not last.claims_after
    assert last.note == "verify `v` failed for 2s: rolled back, in quarantine for 5s"
    assert line.feed("TTTTT", checks={"v": "FFFFF"}) == [P, P, P, P, F]
    assert line.decisions[-1].from_state == P


def test_quarantine_is_why_it_waits(timeline: Line) -> None:
    line = timeline(verify=Verify("v", 1_000, quarantine_ms=60_000))
    line.feed("TTT", checks={"v": "FFF"})
    assert line.instance().reason is Reason.QUARANTINE


def test_verify_escalates_and_then_rolls_back(timeline: Line) -> None:
    line = timeline(
        verify=Verify("v", 2_000, on_failure="escalate"), escalation=ESCALATION,
        actions=(Action("0", "x", (ClaimSpec("cache.max_running", 8),)),),
    )
    assert line.feed("TTTTT", checks={"v": "FFFFF"}) == [F, F, F, F, X]
    raised = line.decisions[-2]
    assert [c.value for c in raised.claims_after] == [8, 4]
    assert raised.reason is Reason.VERIFY_FAILED
    assert raised.note == "verify `v` failed for 2s: stage 1 of the escalation"


@pytest.mark.parametrize(("improves", "numbers", "states"), [
    ("down", [10, 9.5, 9.0, 20], [F, F, F, F]),
    ("down", [10, 9.5, 9.5, 9.5], [F, F, X, P]),
    ("up", [10, 11, 5, 5], [F, F, F, F]),
    ("up", [-10, -9.5, -9.0, -20], [F, F, F, F]),
    ("down", [None, None, 10, 8], [F, F, F, F]),
    ("down", [None, 10, 10, 10], [F, F, F, X]),
])
def test_improves(
    timeline: Line, improves: str, numbers: list[float | None], states: list[str]
) -> None:
    line = timeline(verify=Verify("v", 2_000, improves=improves, by=0.1))  # type: ignore[arg-type]
    assert line.feed("TTTT", numbers={"v": numbers}) == states


def test_a_guard_undoes_at_once(timeline: Line) -> None:
    line = timeline(guard=Guard("g", 3_000), recovery=Recovery((0.5, 1.0), 9_000))
    assert line.feed("TTTTTT", checks={"g": "FTFFFF"}) == [F, X, P, P, F, F]
    undone = line.decisions[1]
    assert (undone.reason, undone.claims_after) == (Reason.GUARD, ())
    assert undone.note == "guard `g` is true: undone, in quarantine for 3s"


@pytest.mark.parametrize(("letters", "check", "states"), [
    ("TT", "TT", [P, P]),               # what is wrong before is a reason not to begin
    ("TTT", "UUU", [F, F, F]),          # unknown is not true
    ("TUUU", "FFTF", [F, H, X, N]),     # also where the trigger is blind
    ("TFF", "FFT", [F, R, X]),          # also in a ramp
])
def test_where_a_guard_looks(
    timeline: Line, letters: str, check: str, states: list[str]
) -> None:
    line = timeline(guard=Guard("g", 60_000), recovery=Recovery((0.5, 1.0), 9_000))
    got = line.feed(letters, checks={"g": check})
    assert [s or X for s in got] == [s or X for s in states]


def two(**first: Any) -> tuple[Action, ...]:
    return (
        Action("0", "x", (ClaimSpec("cache.max_running", 8),), **first),
        Action("1", "y", (ClaimSpec("throttle.max_concurrency", 4),)),
    )


def test_a_guard_of_one_action_takes_back_that_one(timeline: Line) -> None:
    line = timeline(actions=two(guard=Guard("g", 2_000)))
    seen = []
    for letter in "FTFFF":
        line.feed("T", checks={"g": letter})
        seen.append(line.values())
    assert seen == [[8, 4], [4], [4], [8, 4], [8, 4]]
    assert [d.reason for d in line.decisions[1:3]] == [Reason.GUARD, Reason.BREACH]


def test_a_guard_of_one_action_works_without_the_trigger(timeline: Line) -> None:
    line = timeline(actions=two(guard=Guard("g", 60_000)))
    line.feed("T", checks={"g": "F"})
    line.feed("U", checks={"g": "T"})
    assert line.values() == [4]


def test_a_lever_in_quarantine_is_not_pulled_by_the_next_firing(timeline: Line) -> None:
    line = timeline(actions=two(guard=Guard("g", 60_000)))
    line.feed("TTFT", checks={"g": "FTFF"})
    assert line.values() == [4]
    assert "`cache.max_running` is in quarantine" in line.decisions[-1].note


@pytest.mark.parametrize("judged", ["a", "b"])
def test_a_lever_that_a_guard_shuts_is_let_go_by_every_instance_at_once(
    timeline: Line, judged: str
) -> None:
    line = timeline(actions=two(guard=Guard("g", 60_000)))
    both = [labels_of({"engine": name}) for name in "ab"]
    breach = TriggerObservation(
        tuple(SeriesTruth(one, Truth.TRUE, Reason.BREACH, 20.0) for one in both)
    )
    line.tick(breach)
    wrong = SeriesTruth(labels_of({"engine": judged}), Truth.TRUE, Reason.BREACH, 1.0)
    line.now_ms += 1_000
    line.checks = {"g": TriggerObservation((wrong,))}
    found = line.tick(breach)
    assert {dict(d.labels)["engine"]: d.reason for d in found} == {
        judged: Reason.GUARD, {"a": "b", "b": "a"}[judged]: Reason.QUARANTINE,
    }
    kept = [len(d.claims_after) for d in found]
    assert kept == [1, 1], "the other action's claim stays"


def test_an_impulse_behind_a_guard_is_not_given(timeline: Line) -> None:
    reset = Action("1", "r", impulses=(ImpulseSpec("reset_prefix_cache"),), guard=Guard("g", 60))
    line = timeline(actions=(two()[1], reset))
    line.feed("T", checks={"g": "T"})
    assert not line.decisions[0].impulses
    line.feed("T", checks={"g": "F"})
    assert [i.impulse for d in line.decisions for i in d.impulses] == ["reset_prefix_cache"]


def test_verify_of_one_action(timeline: Line) -> None:
    line = timeline(actions=two(verify=Verify("v", 2_000, quarantine_ms=60_000)))
    line.feed("TTTT", checks={"v": "FFFF"})
    assert line.values() == [4] and line.instance().state == F
    assert line.decisions[-1].note == (
        "action 0: verify `v` failed for 2s: rolled back, in quarantine for 1m; "
        "action 0: `cache.max_running` is in quarantine until 1970-01-01 00:17:42Z")


def test_verify_of_one_action_escalates_once(timeline: Line) -> None:
    line = timeline(actions=two(verify=Verify("v", 2_000, on_failure="escalate")),
                    escalation=ESCALATION)
    line.feed("TTTTTTT", checks={"v": "FFFFFFF"})
    assert line.values() == [8, 4, 4]


def test_what_checks_saw_is_an_input(timeline: Line) -> None:
    line = timeline(verify=Verify("v", 2_000), guard=Guard("g"))
    line.feed("T", checks={"v": "F", "g": "F"})
    assert len(line.decisions[0].inputs) >= 1


def test_unchanged_checks_cost_nothing(timeline: Line) -> None:
    line = timeline(verify=Verify("v", 60_000), guard=Guard("g", 60_000))
    line.feed("TT", checks={"v": "FF", "g": "FF"})
    before = line.state
    line.feed("TTT", checks={"v": "FFF", "g": "FFF"})
    assert line.state is before and len(line.decisions) == 1


def test_checks_survive_as_json(timeline: Line) -> None:
    line = timeline(actions=two(guard=Guard("g", 60_000)), verify=Verify("v", 60_000, 9_000))
    line.feed("TTT", checks={"v": "FUT", "g": "FTF"})
    assert line.state.ledger.quarantine
    assert EngineState.from_json(line.state.to_json()) == line.state
