"""The state machine as a table: one letter a second (T true, F false, U blind, I idle, - gone)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from resilience.model import (
    Action,
    ClaimSpec,
    Escalation,
    ImpulseSpec,
    Limits,
    OperatorEvent,
    RateLimit,
    Reason,
    Recovery,
    Resolve,
    SeriesTruth,
    TriggerObservation,
    Truth,
    instance_id,
)
from resilience.policy.state import EngineState
from tests.unit.decide.conftest import RESET

P, F, H, R, N, S = "pending", "firing", "held", "recovering", "", "suspended"

TABLE: list[tuple[str, dict[str, Any], str, str | None, list[str]]] = [
    ("fires at once without for", {}, "TF", None, [F, N]),
    ("for counts from the first true", {"for_ms": 2_000}, "TTTF", None, [P, P, F, N]),
    ("for starts anew after a false", {"for_ms": 2_000}, "TTFTT", None, [P, P, N, P, P]),
    ("nothing is remembered of a quiet series", {}, "FFUI-", None, [N] * 5),
    ("keep_firing_for counts false only", {"keep_firing_for_ms": 2_000}, "TFFF", None,
     [F, F, F, N]),
    ("a relapse restarts keep_firing_for", {"keep_firing_for_ms": 2_000}, "TFFTFF", None,
     [F] * 6),
    ("blind time does not count to keep_firing_for", {"keep_firing_for_ms": 2_000}, "TFUUFFF",
     None, [F, F, H, H, F, F, N]),
    ("hold keeps a firing through blindness", {}, "TUUUT", None, [F, H, H, H, F]),
    ("hold never resolves on absence", {}, "T-----", None, [F, H, H, H, H, H]),
    ("hold resolves on the first false", {}, "TUUF", None, [F, H, H, N]),
    ("idle is no evidence either", {}, "TIIF", None, [F, H, H, N]),
    ("hold stops the clock of for", {"for_ms": 3_000}, "TTUUUTT", None,
     [P, P, H, H, H, P, F]),
    ("on_no_data resolve ends a firing", {"on_no_data": "resolve"}, "TU", None, [F, N]),
    ("on_no_data resolve waits for keep_firing_for",
     {"on_no_data": "resolve", "keep_firing_for_ms": 2_000}, "TUUU", None, [F, F, F, N]),
    ("on_no_data fire fires", {"on_no_data": "fire"}, "U", None, [F]),
    ("on_no_data fire respects for", {"on_no_data": "fire", "for_ms": 1_000}, "UU", None, [P, F]),
    ("idle never fires by itself", {"on_no_data": "fire"}, "II", None, [N, N]),
    ("with resolve, false does not end", {"resolve": Resolve("y")}, "TFFF", "FFFF", [F] * 4),
    ("resolve ends after its for", {"resolve": Resolve("y", 2_000)}, "TFFFF", "FTTTT",
     [F, F, F, N, N]),
    ("a gap in resolve restarts it", {"resolve": Resolve("y", 2_000)}, "TFFFFFF", "FTTUTTT",
     [F, F, F, F, F, F, N]),
    ("resolve ends even where the trigger is blind", {"resolve": Resolve("y")}, "TUU", "FUT",
     [F, H, N]),
    ("recovery steps, then ends", {"recovery": Recovery((0.5, 1.0), 2_000)}, "TFFFF", None,
     [F, R, R, N, N]),
    ("a relapse while recovering fires without for",
     {"for_ms": 2_000, "recovery": Recovery((0.5, 1.0), 5_000)}, "TTTFT", None, [P, P, F, R, F]),
    ("a ramp stands still while blind", {"recovery": Recovery((0.5, 1.0), 2_000)}, "TFUUUFFF",
     None, [F, R, H, H, H, R, N, N]),
    ("a ramp stands still when resolve is unknown too",
     {"resolve": Resolve("y"), "recovery": Recovery((0.5, 1.0), 2_000)}, "TIUUF", "FTUUT",
     [F, R, H, H, R]),
    ("a ramp goes on while its resolve is true, idle or not",
     {"resolve": Resolve("y"), "recovery": Recovery((0.5, 1.0), 2_000)}, "TIIII", "FTTTT",
     [F, R, R, N, N]),
    ("a ramp without any evidence stands still",
     {"resolve": Resolve("y"), "recovery": Recovery((0.5, 1.0), 2_000)}, "TIIIII", "FTUUTT",
     [F, R, H, H, R, N]),
    ("a ramp that begins at the whole way is none", {"recovery": Recovery((1.0,), 5_000)}, "TFF",
     None, [F, N, N]),
    ("without claims there is nothing to ease",
     {"recovery": Recovery((0.5, 1.0), 5_000), "actions": (RESET,)}, "TF", None, [F, N]),
    ("cooldown holds back the next firing", {"limits": Limits(cooldown_ms=3_000)}, "TFTTTT", None,
     [F, "inactive", P, P, F, F]),
    ("a rate limit holds back", {"limits": Limits(rate=(RateLimit(2, 60_000),))}, "TFTFTT", None,
     [F, "inactive", F, "inactive", P, P]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kwargs", "letters", "resolve", "states"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_table(
    timeline: Callable[..., Any],
    kwargs: dict[str, Any],
    letters: str,
    resolve: str | None,
    states: list[str],
) -> None:
    assert timeline(**kwargs).feed(letters, resolve) == states


@pytest.mark.parametrize(("letters", "resolve", "reason"), [
    ("TF", "FT", Reason.CLEAR), ("TI", "FT", Reason.IDLE), ("TU", "FT", Reason.BLIND_STALE),
    ("TT", "FT", Reason.CLEAR),
])  # fmt: skip
def test_the_end_of_a_firing_says_what_the_trigger_said(
    timeline: Callable[..., Any], letters: str, resolve: str, reason: Reason
) -> None:
    line = timeline(resolve=Resolve("y"))
    assert line.feed(letters, resolve) == [F, N]
    assert line.decisions[-1].reason is reason


def test_claims_live_as_long_as_the_firing(timeline: Callable[..., Any]) -> None:
    line = timeline(keep_firing_for_ms=2_000)
    line.feed("TF")
    assert line.values() == [8]
    line.feed("U")
    assert line.values() == [8]
    line.feed("FFF")
    assert line.values() == []
    last = line.decisions[-1]
    assert [c.value for c in last.claims_before] == [8] and last.claims_after == ()


@pytest.mark.parametrize(("label", "given"), [("model_name", ["m"]), ("lora", [])])
def test_an_impulse_whose_condition_has_no_value_is_not_given(
    timeline: Callable[..., Any], label: str, given: list[str]
) -> None:
    spec = ImpulseSpec("abort_requests", {"model": f"{{{{ $labels.{label} }}}}", "limit": 3})
    line = timeline(actions=(Action("1", "abort_requests", impulses=(spec,)),))
    line.feed("TT")
    assert [i.args["model"] for d in line.decisions for i in d.impulses] == given
    told = [d.note for d in line.decisions if d.note]
    assert bool(given) or any("`model` is empty: {{ $labels.lora }}" in n for n in told), told


def test_an_impulse_is_made_once_a_firing(timeline: Callable[..., Any]) -> None:
    line = timeline(recovery=Recovery((0.5, 1.0), 5_000))
    line.feed("TTTUTFT")
    made = [i for d in line.decisions for i in d.impulses]
    assert [i.firing for i in made] == [1]
    line.feed("FFFFFFT")
    made = [i for d in line.decisions for i in d.impulses]
    assert [i.firing for i in made] == [1, 2] and made[0].key != made[1].key


def test_recovery_moves_towards_the_capacity(timeline: Callable[..., Any]) -> None:
    line = timeline(recovery=Recovery((0.25, 0.5, 1.0), 1_000))
    line.capacities = {"throttle.max_concurrency": 32}
    seen = []
    for letter in "TFFF":
        line.feed(letter)
        seen.append(line.values())
    assert seen == [[8], [14], [20], []]


def test_no_capacity_holds_the_value_to_the_last_step(timeline: Callable[..., Any]) -> None:
    line = timeline(recovery=Recovery((0.5, 1.0), 1_000))
    line.feed("TF")
    assert line.values() == [8]


def test_escalation_adds_actions(timeline: Callable[..., Any]) -> None:
    more = Action("e0.0", "cache_degrade", (ClaimSpec("cache.max_running", 4),))
    line = timeline(escalation=(Escalation(2_000, (more,)),))
    line.feed("TT")
    assert line.values() == [8]
    line.feed("T")
    assert line.values() == [8, 4]


STAGED: list[tuple[str, dict[str, Any], str, list[int]]] = [
    ("seen all the time", {}, "TTTT", [0, 0, 0, 1]),
    ("blind for a while", {}, "TUUUTTT", [0, 0, 0, 0, 0, 0, 1]),
    ("gone twice", {}, "T--T--TT", [0, 0, 0, 0, 0, 0, 0, 1]),
    ("idle", {}, "TIIIITF", [0, 0, 0, 0, 0, 0, 0]),
    ("blind at the moment when it is due", {}, "TTTUUT", [0, 0, 0, 0, 0, 1]),
    ("blind in a ramp", {"recovery": Recovery((0.5, 1.0), 5_000)}, "TFUUUTTT",
     [0, 0, 0, 0, 0, 0, 1, 1]),
    ("warming up", {"warm_up": 2}, "TTUUUTTT", [0, 0, 0, 0, 0, 0, 0, 1]),
    ("a stage that is reached stays", {}, "TTTTUUT", [0, 0, 0, 1, 1, 1, 1]),
    ("where blindness counts as true", {"on_no_data": "fire"}, "TUUU", [0, 0, 0, 1]),
    ("the next firing begins anew", {}, "TUUUFTTTT", [0, 0, 0, 0, 0, 0, 0, 0, 1]),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "letters", "stages"), [r[1:] for r in STAGED],
                         ids=[r[0] for r in STAGED])
def test_an_escalation_counts_only_the_time_in_which_the_trigger_is_seen(
    timeline: Callable[..., Any], fields: dict[str, Any], letters: str, stages: list[int]
) -> None:
    more = Action("e0.0", "cache_degrade", (ClaimSpec("cache.max_running", 4),))
    line = timeline(escalation=(Escalation(3_000, (more,)),), **fields)
    seen = []
    for letter in letters:
        line.feed(letter)
        line.state = EngineState.from_json(line.state.to_json())
        seen.append(line.instance().stages if line.instance() else 0)
    assert seen == stages


def test_pause_drops_claims_and_resume_starts_anew(timeline: Callable[..., Any]) -> None:
    line = timeline()
    line.feed("T")
    assert line.feed("T", operator=[OperatorEvent("pause", "p")]) == [S]
    assert line.values() == []
    assert line.feed("TT") == [S, S]
    assert line.feed("TT", operator=[OperatorEvent("resume", "p")]) == [N, F]
    assert line.instance().firing == 2


def test_a_pause_ends_by_itself(timeline: Callable[..., Any]) -> None:
    line = timeline()
    line.feed("T")
    until = line.now_ms + 2_000
    states = line.feed("TTTT", operator=[OperatorEvent("pause", None, until)])
    assert states == [S, S, N, F]


@pytest.mark.parametrize(("fields", "letters", "then"), [
    ({}, "T", [N, P, P, P, F]),
    ({"recovery": Recovery((0.5, 1.0), 9_000)}, "TF", [N, P, P, P, F]),
    ({}, "TU", [N, P, P, P, F]),
    ({"for_ms": 2_000}, "T", [N, P, P, F, F]),
], ids=["firing", "in a ramp", "held", "only pending: no cooldown"])  # fmt: skip
def test_a_pause_that_ends_a_firing_begins_its_cooldown(
    timeline: Callable[..., Any], fields: dict[str, Any], letters: str, then: list[str]
) -> None:
    line = timeline(limits=Limits(cooldown_ms=5_000), **fields)
    line.feed(letters)
    assert line.feed("T", operator=[OperatorEvent("pause", "p")]) == [S]
    resumed = line.feed("TTTTT", operator=[OperatorEvent("resume", "p")])
    assert [s if s != "inactive" else N for s in resumed] == then


def test_absence_fires_without_labels_and_ends_when_series_are_back(
    timeline: Callable[..., Any],
) -> None:
    line = timeline(on_no_data="fire")
    assert line.feed("--") == [F, F]
    assert line.instance().labels == ()
    assert line.feed("F") == [N]


def test_the_state_survives_as_json(timeline: Callable[..., Any]) -> None:
    line = timeline(for_ms=2_000, recovery=Recovery((0.5, 1.0), 3_000))
    line.feed("TTTFU")
    assert EngineState.from_json(line.state.to_json()) == line.state


def test_nan_is_no_change(timeline: Callable[..., Any]) -> None:
    line = timeline()
    line.feed("T")
    nan = TriggerObservation((SeriesTruth(line.labels, Truth.UNKNOWN, Reason.IDLE, float("nan")),))
    assert len(line.tick(nan)) == 1
    line.now_ms += 1_000
    assert line.tick(nan) == ()
    before = line.state
    line.now_ms += 1_000
    line.tick(nan)
    assert line.state is before


def test_a_firing_over_a_nan_that_grew_old_has_no_value(timeline: Callable[..., Any]) -> None:
    line = timeline(on_no_data="fire")
    old = SeriesTruth(line.labels, Truth.UNKNOWN, Reason.BLIND_STALE, float("nan"))
    line.tick(TriggerObservation((old,)))
    assert line.instance().state.value == F and line.instance().fired_value is None
    assert EngineState.from_json(line.state.to_json()) == line.state


@pytest.mark.parametrize(
    ("annotations", "message", "reason"),
    [
        ((), "", "p"),
        ((("summary", "{{ $labels.model_name }} is slow, {{ $value }}"),), "", "m is slow, 1"),
        ((("summary", "slow"),), "{{ $labels.model_name }} waits {{ $labels.none }}", "m waits "),
    ],
)
def test_a_claim_says_why(
    timeline: Callable[..., Any], annotations: Any, message: str, reason: str
) -> None:
    claim = ClaimSpec("throttle.max_concurrency", 8)
    action = Action("0", "throttle", (claim,), message=message)
    line = timeline(actions=(action,), annotations=annotations)
    line.feed("T")
    assert [c.reason for c in line.instance().claims] == [reason]


def test_on_no_data_resolve_ends_a_firing_that_waits_for_its_resolve(
    timeline: Callable[..., Any],
) -> None:
    line = timeline(on_no_data="resolve", resolve=Resolve("y"))
    assert line.feed("TFFU", "FFFF") == [F, F, F, N]


def test_blindness_that_fires_again_is_not_called_a_relapse(
    timeline: Callable[..., Any],
) -> None:
    line = timeline(on_no_data="fire", recovery=Recovery((0.5, 1.0), 5_000))
    assert line.feed("TFU") == [F, R, F]
    assert line.decisions[-1].reason is Reason.BLIND_STALE


BACK: list[tuple[str, dict[str, Any], str, str | None, list[str]]] = [
    ("without resolve", {"keep_firing_for_ms": 2_000}, "---FFF", None, [F, F, F, F, F, N]),
    ("with resolve, whose series are others", {"resolve": Resolve("y", 2_000)}, "---FFF", "---FFF",
     [F, F, F, F, F, N]),
    ("blind again, it begins again", {"resolve": Resolve("y", 2_000)}, "--F-FFF", "--F-FFF",
     [F, F, F, F, F, F, N]),
    ("stale series are no evidence", {"resolve": Resolve("y")}, "-UUF", "-UUF", [F, F, F, N]),
    ("idle ones are", {"resolve": Resolve("y")}, "-I", "-U", [F, N]),
]


@pytest.mark.parametrize(("fields", "letters", "resolve", "states"), [r[1:] for r in BACK],
                         ids=[r[0] for r in BACK])
def test_what_fired_because_there_was_no_series_ends_when_series_are_back(
    timeline: Callable[..., Any], fields: dict[str, Any], letters: str, resolve: str | None,
    states: list[str],
) -> None:
    line = timeline(on_no_data="fire", **fields)
    seen = []
    for i, letter in enumerate(letters):
        line.feed(letter, None if resolve is None else resolve[i])
        nobody = line.state.of("p").get(instance_id(()))
        seen.append(nobody.state.value if nobody else N)
    assert seen == states
