"""Impulses through the bus: at most once by key, journalled first, whatever dies or is lost."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from resilience.app.bus import Bus
from resilience.app.impulses import planned
from resilience.errors import CoreRefusedError, CoreUnreachableError
from resilience.model import (
    Desired,
    Journal,
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
