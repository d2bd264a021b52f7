"""Impulses through the bus: at most once by key, journalled first, whatever dies or is lost."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience.app.bus import Bus
from resilience.app.impulses import planned
from resilience.app.journal import BODY_MAX_CHARS, SqliteJournal
from resilience.app.records import Records
from resilience.errors import CoreRefusedError, CoreUnreachableError
from resilience.model import (
    Decision,
    Desired,
    Journal,
    JournalEntry,
)

kit = sys.modules["app_rig"]  # loaded by conftest.py
decision, FullDisk, RESET, T = kit.decision, kit.FullDisk, kit.RESET, kit.T


def impulse_states(journal: Journal) -> list[str]:
    return [row["state"] for row in journal.load("impulse").values()]


def test_an_impulse_is_done_once_and_journalled(bus: Bus, core: Any, journal: Journal) -> None:
    fired = decision(impulses=(RESET,))
    executions = bus.drive([fired], [], T, 1_000)
    assert executions[-1].read_back["state"] == "done"
    assert impulse_states(journal) == ["done"]
    bus.drive([fired], [], T, 1_000)
    assert core.times_done == [RESET.key]


def test_an_impulse_is_journalled_before_the_core_is_asked(
    core: Any, journal: Journal, clock: Any
) -> None:
    core.lose = 0
    bus = Bus(core, journal, clock)
    bus.drive([], [], T, 1_000)
    core.fail = [CoreUnreachableError("no answer")]
    bus.drive([decision(impulses=(RESET,))], [], T, 1_000)
    assert impulse_states(journal) == ["started"]


def test_a_lost_reply_is_asked_for_again_with_the_same_key(
    bus: Bus, core: Any, clock: Any, journal: Journal
) -> None:
    bus.drive([], [], T, 1_000)
    core.lose = 1
    bus.drive([decision(impulses=(RESET,))], [], T, 1_000)
    clock.forward(1_000)
    bus.drive([], [], T + 1_000, 1_000)
    assert core.times_done == [RESET.key]
    assert impulse_states(journal) == ["done"]


def test_after_a_crash_the_next_engine_asks_once_more_and_nothing_is_repeated(
    core: Any, clock: Any, journal: Journal
) -> None:
    first = Bus(core, journal, clock)
    first.drive([], [], T, 1_000)
    core.lose = 1
    first.drive([decision(impulses=(RESET,))], [], T, 1_000)  # the engine dies here
    second = Bus(core, journal, clock)
    second.drive([decision(impulses=(RESET,))], [], T + 1_000, 1_000)
    assert core.times_done == [RESET.key]
    assert impulse_states(journal) == ["done"]


@pytest.mark.parametrize("crash", [False, True])
def test_a_restarted_core_is_not_asked_again(
    core: Any, clock: Any, journal: Journal, crash: bool
) -> None:
    bus = Bus(core, journal, clock)
    bus.drive([], [], T, 1_000)
    core.lose = 1
    bus.drive([decision(impulses=(RESET,))], [], T, 1_000)
    core.restart()
    clock.forward(10_000)
    if crash:
        bus = Bus(core, journal, clock)
    bus.drive([], [], T + 10_000, 1_000)
    assert core.times_done == [RESET.key]
    assert impulse_states(journal) == ["lost"]


def test_a_restart_that_nothing_else_would_notice_is_looked_for(
    bus: Bus, core: Any, clock: Any, journal: Journal
) -> None:
    bus.drive([], [], T, 1_000)
    core.lose = 1
    bus.drive([decision(impulses=(RESET,))], [], T, 1_000)
    core.restart()
    (execution,) = bus.drive([], [], T, 1_000)
    assert core.times_done == [RESET.key]
    assert impulse_states(journal) == ["lost"]
    assert "the core restarted" in str(execution.error)


def test_an_impulse_that_comes_too_late_is_not_done(
    bus: Bus, core: Any, clock: Any, journal: Journal
) -> None:
    core.fail = [CoreUnreachableError("no answer")] * 1_000
    bus.drive([decision(impulses=(RESET,))], [], T, 1_000)
    core.fail = []
    clock.forward(90_000)
    (execution,) = bus.drive([], [], T + 90_000, 1_000)
    assert "not done within 60 s" in str(execution.error)
    assert core.times_done == []
    assert impulse_states(journal) == ["expired"]


def test_a_refused_impulse_is_final(bus: Bus, core: Any, clock: Any, journal: Journal) -> None:
    bus.drive([], [], T, 1_000)
    core.fail = [CoreRefusedError("the cache is in use")]
    (execution,) = bus.drive([decision(impulses=(RESET,))], [], T, 1_000)
    assert execution.error == "the cache is in use"
    clock.forward(1_000)
    bus.drive([], [], T + 1_000, 1_000)
    assert impulse_states(journal) == ["failed"]
    assert core.times_done == []


def test_an_impulse_is_not_done_when_the_disk_is_full(core: Any, clock: Any) -> None:
    journal = FullDisk()
    bus = Bus(core, journal, clock)
    bus.drive([], [], T, 1_000)
    journal.full = True
    bus.drive([decision(impulses=(RESET,))], [], T, 1_000)
    assert core.times_done == []
    journal.full = False
    clock.forward(1_000)
    bus.drive([], [], T + 1_000, 1_000)
    assert core.times_done == [RESET.key]


def test_a_fenced_engine_does_no_impulse(bus: Bus, core: Any, clock: Any) -> None:
    bus.drive([], [], T, 1_000)
    core.table.put(Desired(99, 1).to_json(), clock.monotonic_ms())
    bus.drive([decision(impulses=(RESET,))], [], T, 1_000)
    assert bus.fenced
    assert core.times_done == []


def test_an_impulse_survives_a_crash_between_its_decision_and_the_bus(
    core: Any, journal: Journal, clock: Any
) -> None:
    fired = decision(impulses=(RESET,))
    shadow = decision(impulses=(replace(RESET, firing=2),), mode="shadow")
    journal.append([*planned(fired), *planned(shadow)])       # as the engine does, and dies here
    for _ in range(2):
        again = Bus(core, journal, clock)
        again.attach(deadline_ms=1_000)
        again.drive([], [], T, 1_000)
    assert core.times_done == [RESET.key]
    assert impulse_states(journal) == ["done"]


def test_a_planned_impulse_is_not_done_late(core: Any, journal: Journal, clock: Any) -> None:
    journal.append(planned(decision(impulses=(RESET,))))
    again = Bus(core, journal, clock)
    again.attach(deadline_ms=1_000)
    (told,) = again.drive([], [], T + 61_000, 1_000)
    assert core.times_done == [] and "not done within" in str(told.error)


class Slow:
    """A core every call of which takes 300 ms; `asked` is when each call ends at the latest."""

    def __init__(self, core: Any, clock: Any) -> None:
        self._core, self._clock = core, clock
        self.asked: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._core, name)

        def call(*args: Any, deadline_ms: int, **kwargs: Any) -> Any:
            self.asked.append((name, self._clock.monotonic_ms() + deadline_ms))
            self._clock.forward(300)
            return method(*args, deadline_ms=deadline_ms, **kwargs)

        return call


def test_all_calls_of_a_turn_share_one_deadline(
    core: Any, clock: Any, journal: Journal, claim: Any
) -> None:
    slow: Any = Slow(core, clock)
    bus = Bus(slow, journal, clock)

    def turn(decisions: Sequence[Decision]) -> list[str]:
        """Drive once; the calls of this turn, all of which end at the turn's end at the latest."""
        began = clock.monotonic_ms()
        slow.asked.clear()
        bus.drive(decisions, [claim()], clock.now_ms(), 3_000)
        assert {ends for _, ends in slow.asked} == {began + 3_000}
        clock.forward(1_000)
        return [name for name, _ in slow.asked]

    assert turn([]) == ["capabilities", "put_desired"]
    core.lose = 1
    both = (RESET, replace(RESET, action="2"))
    assert turn([decision(impulses=both)]) == ["impulse"]
    assert turn([]) == ["actual", "impulse", "impulse"]


def test_impulses_without_room_are_given_up_told_and_counted(
    core: Any, clock: Any, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resilience.app.impulses.PENDING_MAX", 2)
    bus = Bus(core, journal, clock)
    bus.drive([], [], T, 1_000)
    impulses = tuple(replace(RESET, firing=n) for n in range(1, 6))
    fired = decision(impulses=impulses)
    journal.append(planned(fired))
    core.fail = [CoreUnreachableError("no answer")]
    bus.drive([fired], [], T, 1_000)
    clock.forward(1_000)
    told = bus.drive([], [], T + 1_000, 1_000)
    assert bus.view().impulses_dropped == 3
    assert sorted(impulse_states(journal)) == ["done", "done", "dropped", "dropped", "dropped"]
    assert core.times_done == [i.key for i in impulses[:2]]
    assert {e.decision_id for e in told} == {fired.id}
    Bus(core, journal, clock).drive([], [], T + 2_000, 1_000)
    assert len(core.times_done) == 2, "no restart does them either"


@pytest.mark.parametrize("answer", ["\udc80", "x" * BODY_MAX_CHARS], ids=["half", "large"])
def test_an_answer_that_the_journal_cannot_take_as_it_is_holds_up_nothing(
    core: Any, clock: Any, claim: Any, tmp_path: Path, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    bus = Bus(core, journal, clock)
    bus.drive([], [], T, 1_000)
    monkeypatch.setattr(core, "impulse", lambda *_, **__: {"path": answer})
    told = bus.drive([decision(impulses=(RESET,))], [], T, 1_000)
    assert impulse_states(journal) == ["done"] and bus.view().impulses_pending == 0
    core.restart()
    clock.forward(6_000)
    bus.drive([], [claim()], T, 1_000)
    assert core.values()
    records = Records(journal, clock, lambda *_: None)
    records.write([JournalEntry("execution", str(n), e.to_json()) for n, e in enumerate(told)])
    assert len(journal.load("execution")) == len(told) > 0 and records.dropped == 0
    journal.close()


@pytest.mark.parametrize("answered", [True, False], ids=["done", "reply lost"])
@pytest.mark.parametrize("crash", [True, False], ids=["crash", "room"])
def test_a_core_that_restarts_while_the_disk_is_full_does_nothing_twice(
    core: Any, clock: Any, claim: Any, monkeypatch: pytest.MonkeyPatch, answered: bool, crash: bool
) -> None:
    """A document in our epoch would make it look like the core that was asked."""
    journal, work = FullDisk(), core.impulse
    bus = Bus(core, journal, clock, jitter=lambda: 1.0)
    bus.drive([], [], T, 1_000)

    def impulse(*args: Any, **options: Any) -> Any:
        journal.full = True
        core.lose = 0 if answered else 1
        return work(*args, **options)

    monkeypatch.setattr(core, "impulse", impulse)
    bus.drive([decision(impulses=(RESET,))], [], T, 1_000)
    assert impulse_states(journal) == ["started"]
    core.restart()
    for _ in range(3):
        clock.forward(6_000)
        bus.drive([], [], T, 1_000)
        bus.maintain(T, 1_000)
    assert core.table.epoch == 0, "no document before the journal knows"
    monkeypatch.setattr(core, "impulse", work)
    journal.full = False
    if crash:
        bus = Bus(core, journal, clock)
    for _ in range(3):
        clock.forward(6_000)
        bus.drive([], [claim()], T, 1_000)
    assert core.times_done == [RESET.key] and core.values()
    known = "done" if answered and not crash else "lost"
    assert impulse_states(journal) == [known]
    assert bus.view().impulses_pending == 0
