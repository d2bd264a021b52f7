"""The bus against a small core that obeys the contract: desired, leases, epochs, read-back."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from resilience.app.bus import BACKOFF_MAX_MS, Bus
from resilience.app.journal import MemoryJournal
from resilience.errors import CoreUnreachableError
from resilience.model import (
    Desired,
    Journal,
    JournalEntry,
)

kit = sys.modules["app_rig"]  # loaded by conftest.py
decision, FullDisk, RESET, T = kit.decision, kit.FullDisk, kit.RESET, kit.T


def test_a_claim_is_sent_read_back_and_reported(bus: Bus, core: Any, claim: Any) -> None:
    throttle = claim(knob="throttle.max_concurrency", value=4, tier="best-effort")
    fired = decision(after=(throttle,))
    (execution,) = bus.drive([fired], [throttle], T, 1_000)
    assert core.values() == {"throttle.max_concurrency": {"tier=best-effort": 4}}
    assert execution.decision_id == fired.id
    assert execution.error is None
    assert execution.read_back["effective"]["throttle.max_concurrency"]
    assert bus.view().in_sync


def test_the_fold_of_two_policies_is_what_the_core_holds(bus: Bus, core: Any, claim: Any) -> None:
    mild, severe = claim("mild", value=16), claim("severe", value=4)
    bus.drive([], [mild, severe], T, 1_000)
    assert core.values() == {"cache.max_running": {"": 4}}
    bus.drive([], [mild], T + 1_000, 1_000)
    assert core.values() == {"cache.max_running": {"": 16}}


def test_nothing_is_sent_again_while_nothing_changes(
    bus: Bus, core: Any, clock: Any, claim: Any
) -> None:
    for _ in range(5):
        bus.drive([], [claim()], clock.now_ms(), 1_000)
        clock.forward(1_000)
    assert len(core.puts) == 1


def test_generations_rise_and_the_epoch_is_newer_than_anyones(
    core: Any, journal: Journal, clock: Any, claim: Any
) -> None:
    core.table.epoch = 7
    journal.append([JournalEntry("intent", "desired", {"epoch": 9, "generation": 3})])
    bus = Bus(core, journal, clock)
    bus.drive([], [claim()], T, 1_000)
    bus.drive([], [], T, 1_000)
    assert [(d.epoch, d.generation) for d in core.puts] == [(10, 1), (10, 2)]


def test_the_intent_is_on_disk_before_the_core_is_asked(
    core: Any, journal: Journal, clock: Any, claim: Any
) -> None:
    seen: list[Any] = []

    def look(body: Any) -> None:
        seen.append(journal.load("intent")["desired"]["claims"][0]["value"])

    core.refuse = look
    Bus(core, journal, clock).drive([], [claim(value=3)], T, 1_000)
    assert seen == [3]


@pytest.mark.parametrize("step_ms", [1_000, 5_000, 7_000])
def test_leases_are_renewed_long_before_they_end(
    bus: Bus, core: Any, clock: Any, claim: Any, step_ms: int
) -> None:
    bus.drive([], [claim(ttl_ms=30_000)], clock.now_ms(), 1_000)
    for _ in range(30):
        clock.forward(step_ms)
        bus.maintain(clock.now_ms(), 1_000)
        left = bus.view().lease_remaining_ms
        assert left is not None
        assert left >= 20_000 - step_ms
        bus.drive([], [claim(ttl_ms=30_000)], clock.now_ms(), 1_000)
        assert core.values() == {"cache.max_running": {"": 8}}


def test_leases_are_not_renewed_for_an_engine_that_stopped_deciding(
    core: Any, journal: Journal, clock: Any, claim: Any
) -> None:
    bus = Bus(core, journal, clock, patience_ms=10_000)
    bus.drive([], [claim(ttl_ms=12_000)], clock.now_ms(), 1_000)
    for _ in range(30):
        clock.forward(1_000)
        bus.maintain(clock.now_ms(), 1_000)
    assert core.values() == {}
    assert "no tick" in str(bus.view().error)


def test_a_wall_clock_jump_does_not_disturb_renewal(
    bus: Bus, core: Any, clock: Any, claim: Any
) -> None:
    bus.drive([], [claim()], clock.now_ms(), 1_000)
    clock.wall_ms -= 3_600_000
    for _ in range(60):
        clock.forward(1_000)
        bus.drive([], [claim()], clock.now_ms(), 1_000)
    assert core.values() == {"cache.max_running": {"": 8}}


def test_a_core_that_is_away_is_tried_again_with_back_off(
    bus: Bus, core: Any, clock: Any, claim: Any
) -> None:
    fired = decision(after=(claim(),))
    core.fail = [CoreUnreachableError("no answer")] * 6
    tries = [bus.drive([fired], [claim()], clock.now_ms(), 1_000)]
    for _ in range(300):
        clock.forward(100)
        tries.append(bus.drive([], [claim()], clock.now_ms(), 1_000))
    attempts = [e.attempt for executions in tries for e in executions]
    assert attempts == [1, 2, 3, 4, 5, 6, 7]
    assert [e.error for e in tries[-1]] == []
    assert core.values() == {"cache.max_running": {"": 8}}
    assert bus.view().error is None


def test_back_off_never_outlasts_a_lease(bus: Bus, core: Any, clock: Any, claim: Any) -> None:
    bus.drive([], [claim(ttl_ms=8_000)], clock.now_ms(), 1_000)
    core.fail = [CoreUnreachableError("no answer")] * 3
    for _ in range(100):
        clock.forward(100)
        bus.maintain(clock.now_ms(), 1_000)
        assert core.values() == {"cache.max_running": {"": 8}}
    assert BACKOFF_MAX_MS > 8_000


def test_a_lost_reply_is_no_second_effect(bus: Bus, core: Any, clock: Any, claim: Any) -> None:
    core.lose = 1
    bus.drive([], [claim()], clock.now_ms(), 1_000)
    assert not bus.view().in_sync
    clock.forward(1_000)
    bus.drive([], [claim()], clock.now_ms(), 1_000)
    assert bus.view().in_sync
    assert [d.generation for d in core.puts] == [1, 2]


def test_a_restarted_core_gets_its_claims_again(
    bus: Bus, core: Any, clock: Any, claim: Any
) -> None:
    bus.drive([], [claim()], clock.now_ms(), 1_000)
    core.restart()
    for _ in range(6):
        clock.forward(1_000)
        bus.drive([], [claim()], clock.now_ms(), 1_000)
    assert core.values() == {"cache.max_running": {"": 8}}


def test_drift_is_reported_and_corrected(bus: Bus, core: Any, clock: Any, claim: Any) -> None:
    bus.drive([], [claim()], clock.now_ms(), 1_000)
    core.table.claims = ()
    clock.forward(5_000)
    (execution,) = bus.drive([], [claim()], clock.now_ms(), 1_000)
    assert execution.error == "drift corrected: `cache.max_running` is at its baseline, wanted `8`"
    assert core.values() == {"cache.max_running": {"": 8}}
    assert bus.view().drifts == 1


def by_hand(core: Any, *claims: Any, generation: int = 40) -> None:
    """What somebody sends with the engine's own epoch, to be accepted."""
    core.put_desired(Desired(core.table.epoch, generation, claims), deadline_ms=1_000)


def test_a_core_that_lost_its_claims_and_does_not_hold_them_yet_was_absent(
    bus: Bus, core: Any, clock: Any, claim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus.drive([], [claim()], clock.now_ms(), 1_000)
    core.table.claims = ()
    clock.forward(5_000)
    monkeypatch.setattr(core.table, "effective", lambda now_ms: {})
    bus.drive([], [claim()], clock.now_ms(), 1_000)
    assert (bus.view().in_sync, bus.absences) == (False, 1)
    monkeypatch.undo()
    clock.forward(5_000)
    bus.drive([], [claim()], clock.now_ms(), 1_000)
    assert (bus.view().in_sync, bus.absences) == (True, 1)


@pytest.mark.parametrize("seconds", [1, 9])
def test_a_document_by_hand_is_drift_whether_a_look_or_a_renewal_finds_it(
    bus: Bus, core: Any, clock: Any, claim: Any, seconds: int
) -> None:
    bus.drive([], [claim()], clock.now_ms(), 1_000)
    if seconds == 1:
        clock.forward(5_000)
    by_hand(core, claim("hand", value=1))
    clock.forward(seconds * 1_000)
    (execution,) = bus.drive([], [claim()], clock.now_ms(), 1_000)
    assert "drift corrected: `cache.max_running` is `1`, wanted `8`" in str(execution.error)
    assert core.values() == {"cache.max_running": {"": 8}}
    view = bus.view()
    assert (view.fenced, view.in_sync, view.drifts, view.drifts_left) == (False, True, 1, 0)


def test_drift_may_be_left_until_the_claims_change(core: Any, clock: Any, claim: Any) -> None:
    bus = Bus(core, MemoryJournal(), clock, correct_drift=False)
    bus.attach(deadline_ms=1_000)
    bus.drive([], [claim()], clock.now_ms(), 1_000)
    by_hand(core, claim("hand", value=1, ttl_ms=3_600_000))
    told = []
    for _ in range(60):
        clock.forward(1_000)
        told += bus.drive([], [claim()], clock.now_ms(), 1_000)
    assert [e.error for e in told] == [
        "drift left as it is: `cache.max_running` is `1`, wanted `8`"]
    assert core.values() == {"cache.max_running": {"": 1}}
    view = bus.view()
    assert (view.in_sync, view.drifts, view.drifts_left) == (False, 1, 1)
    assert view.drift == "`cache.max_running` is `1`, wanted `8`"
    bus.drive([], [claim(value=6)], clock.now_ms(), 1_000)
    assert core.values() == {"cache.max_running": {"": 6}}
    assert (bus.view().in_sync, bus.view().drift) == (True, None)


def test_a_restarted_core_is_no_drift_that_may_be_left(core: Any, clock: Any, claim: Any) -> None:
    bus = Bus(core, MemoryJournal(), clock, correct_drift=False)
    bus.attach(deadline_ms=1_000)
    bus.drive([], [claim()], clock.now_ms(), 1_000)
    core.restart()
    for _ in range(9):
        clock.forward(1_000)
        bus.drive([], [claim()], clock.now_ms(), 1_000)
    assert core.values() == {"cache.max_running": {"": 8}}


def test_a_newer_engine_fences_this_one(bus: Bus, core: Any, clock: Any, claim: Any) -> None:
    bus.drive([], [claim()], clock.now_ms(), 1_000)
    newer = Bus(core, MemoryJournal(), clock)
    newer.drive([], [claim(value=2)], clock.now_ms(), 1_000)
    clock.forward(6_000)
    bus.drive([], [claim()], clock.now_ms(), 1_000)
    fired = decision(after=(claim(value=1),))
    (execution,) = bus.drive([fired], [claim(value=1)], clock.now_ms(), 1_000)
    assert bus.fenced
    assert "another engine took over" in str(execution.error)
    assert core.values() == {"cache.max_running": {"": 2}}
    puts = len(core.puts)
    clock.forward(60_000)
    bus.maintain(clock.now_ms(), 1_000)
    bus.drive([], [], clock.now_ms(), 1_000)
    assert len(core.puts) == puts


def test_shadow_and_off_claims_are_never_sent(bus: Bus, core: Any, claim: Any) -> None:
    bus.drive([decision(after=(claim("s"),), policy="s", mode="shadow", impulses=(RESET,))],
              [claim("s"), claim("p", value=16)], T, 1_000, shadow={"s"})
    assert core.values() == {"cache.max_running": {"": 16}}
    assert core.times_done == []


def test_metric_claims_stay_in_the_engine_and_fold_to_the_largest(
    bus: Bus, core: Any, claim: Any
) -> None:
    both = [claim("a", "metric.pressure", 0.4), claim("b", "metric.pressure", 0.9)]
    bus.drive([], both, T, 1_000)
    assert bus.view().metrics == {"pressure": 0.9}
    assert core.values() == {}
    bus.drive([], [claim("a", "metric.pressure", 0.4)], T, 1_000)
    assert bus.view().metrics == {"pressure": 0.4}
    bus.drive([], [], T, 1_000)
    assert bus.view().metrics == {}


@pytest.mark.parametrize(("away_ms", "kept", "left_ms"), [
    (4_000, False, 26_000), (29_999, False, 1), (30_000, False, None), (90_000, False, None),
    (90_000, True, 0),
])
def test_what_a_silent_core_holds_is_shown_as_old_as_it_is(
    bus: Bus, core: Any, clock: Any, claim: Any, away_ms: int, kept: bool, left_ms: int | None
) -> None:
    held = claim(keep=kept)
    bus.drive([], [held], clock.now_ms(), 1_000)
    core.fail = [CoreUnreachableError("no answer")]
    clock.forward(away_ms)
    bus.drive([], [held], clock.now_ms(), 1_000)
    actual = bus.view().actual
    assert actual is not None
    shown = {scope: e.remaining_ms for scope, e in actual.effective.get(held.knob, {}).items()}
    assert shown == ({} if left_ms is None else {"": left_ms})


def test_without_a_core_only_metric_claims_act(journal: Journal, clock: Any, claim: Any) -> None:
    bus = Bus(None, journal, clock)
    fired = decision(after=(claim(),), impulses=(RESET,))
    assert bus.drive([fired], [claim(), claim("b", "metric.x", 1.0)], T, 1_000) == []
    assert bus.view().metrics == {"x": 1.0}


def test_one_refused_claim_does_not_take_the_others_down(
    bus: Bus, core: Any, clock: Any, claim: Any
) -> None:
    bus.drive([], [claim("old")], clock.now_ms(), 1_000)
    core.refuse = lambda c: "one request needs 4 blocks" if c["value"] == 1 else None
    bad = claim("bad", value=1)
    good = claim("good", "throttle.max_concurrency", 3)
    fired = decision(after=(bad,), policy="bad")
    (execution,) = bus.drive([fired], [claim("old"), bad, good], clock.now_ms(), 1_000)
    assert core.values() == {"cache.max_running": {"": 8}, "throttle.max_concurrency": {"": 3}}
    assert "one request needs 4 blocks" in str(execution.error)
    assert bus.view().refused == (("bad", "cache.max_running", "one request needs 4 blocks"),)
    core.refuse = lambda c: None
    for _ in range(70):
        clock.forward(1_000)
        bus.drive([], [claim("old"), bad, good], clock.now_ms(), 1_000)
    assert core.values()["cache.max_running"] == {"": 1}


def test_a_knob_that_the_core_lacks_is_named_and_the_rest_is_sent(
    bus: Bus, core: Any, claim: Any
) -> None:
    bus.drive([], [claim(), claim("r", "route.model", {"to": "x", "share": 1.0})], T, 1_000)
    assert core.values() == {"cache.max_running": {"": 8}}
    assert bus.view().refused == (("r", "route.model", "the core has no knob `route.model`"),)


def test_a_full_disk_stops_new_claims_but_not_renewal_nor_undo(
    core: Any, clock: Any, claim: Any
) -> None:
    journal = FullDisk()
    bus = Bus(core, journal, clock)
    bus.drive([], [claim()], clock.now_ms(), 1_000)
    journal.full = True
    for _ in range(60):
        clock.forward(1_000)
        bus.drive([], [claim()], clock.now_ms(), 1_000)
    assert core.values() == {"cache.max_running": {"": 8}}
    (execution,) = bus.drive([], [claim(), claim("q", value=1)], clock.now_ms(), 1_000)
    assert "disk full" in str(execution.error)
    assert core.values() == {"cache.max_running": {"": 8}}
    bus.drive([], [], clock.now_ms(), 1_000)
    assert core.values() == {}


def test_release_drops_all_but_the_kept_claims(bus: Bus, core: Any, claim: Any) -> None:
    bus.drive([], [claim("a"), claim("b", "throttle.max_concurrency", 2, keep=True)], T, 1_000)
    bus.release(T, 1_000)
    assert core.values() == {"throttle.max_concurrency": {"": 2}}


def test_more_claims_than_the_limit_keep_the_most_important(
    bus: Bus, core: Any, claim: Any
) -> None:
    many = [claim(f"p{n:03}", value=n + 1, priority=n % 90) for n in range(300)]
    bus.drive([], many, T, 1_000)
    assert len(core.table.claims) == 256
    assert min(c.priority for c in core.table.claims) == 11
    assert len(bus.view().refused) == 44
