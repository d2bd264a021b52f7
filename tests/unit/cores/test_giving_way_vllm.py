"""Who gets a seat when all are taken, on vLLM's real scheduler without a model
(`scheduler_rig.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from resilience.cores.vllm.seats import PATIENCE_MS, PATIENCE_STEPS

# vLLM's import is full of other people's deprecations.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

MakeRig = Callable[..., Any]
MAX_RUNNING = 8

both_modes = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def crowd(rig: Any, count: int, priority: int, outputs: int = 40) -> None:
    """Add requests of one priority, each with a prompt of its own."""
    for i in range(count):
        rig.add(f"p{priority}.{i}", 20, outputs, salt=1000 * priority + 100 * i,
                priority=priority, arrival=float(priority * 100 + i))


def be_patient(rig: Any) -> None:
    """Take the first of the steps that who waits sits out, and let its time for all of them pass:
    with the next one its patience is over."""
    rig.step()
    rig.clock.now += PATIENCE_MS


@both_modes
def test_a_more_important_request_gets_a_seat_when_none_falls_free(
    make_rig: MakeRig, asynchronous: bool
) -> None:
    """vLLM alone lets it wait until a sequence ends; here the newest, least important gives way."""
    rig = make_rig(asynchronous, policy="priority")
    crowd(rig, MAX_RUNNING, 20)
    for _ in range(3):
        rig.step()
    crowd(rig, 2, 0)
    for _ in range(PATIENCE_STEPS):
        rig.step()
        assert rig.levers.preempted == 0 and "p0.0" not in rig.running()
    rig.step()
    assert "p0.0" in rig.running() and "p20.7" not in rig.running()
    rig.step()
    assert "p0.1" in rig.running() and "p20.6" not in rig.running(), "it has waited as long"
    assert len(rig.running()) == MAX_RUNNING and rig.levers.preempted == 2
    rig.run()
    for i in range(MAX_RUNNING):
        rig.check_tokens(f"p20.{i}", 20, 40)
    for i in range(2):
        rig.check_tokens(f"p0.{i}", 20, 40)


def test_where_steps_are_long_patience_ends_by_time(make_rig: MakeRig) -> None:
    rig = make_rig(policy="priority")
    crowd(rig, MAX_RUNNING, 20)
    rig.step()
    crowd(rig, 1, 0)
    rig.step()
    rig.clock.now += PATIENCE_MS - 1
    rig.step()
    assert rig.levers.preempted == 0
    rig.clock.now += 1
    rig.step()
    assert "p0.0" in rig.running() and rig.levers.preempted == 1


def test_a_seat_that_falls_free_in_time_costs_nobody_his_work(make_rig: MakeRig) -> None:
    rig = make_rig(policy="priority")
    crowd(rig, MAX_RUNNING - 1, 20)
    rig.add("short", 20, PATIENCE_STEPS, salt=7000, priority=20, arrival=1.0)
    rig.step()
    crowd(rig, 1, 0)
    for _ in range(PATIENCE_STEPS):
        rig.step()
    assert "p0.0" in rig.running() and "short" not in rig.running()
    rig.run()
    assert rig.levers.preempted == 0


@pytest.mark.parametrize("how", ["its seat", "its end", "a mode that lets nobody give way"])
def test_who_waits_after_that_has_all_the_patience(make_rig: MakeRig, how: str) -> None:
    """Steps and time that one has waited are not the next one's, after any end of its wait."""
    from vllm.v1.request import RequestStatus

    rig = make_rig(policy="priority")
    crowd(rig, MAX_RUNNING, 20, outputs=200)
    rig.step()
    rig.add("core", 20, 100, salt=8000, arrival=500.0)
    be_patient(rig)
    if how == "its end":
        rig.scheduler.finish_requests("core", RequestStatus.FINISHED_ABORTED)
    elif how != "its seat":
        rig.hold(mode="stream")
    rig.step()
    rig.step()
    seats_taken = rig.levers.preempted
    assert seats_taken == (how == "its seat")
    if how == "a mode that lets nobody give way":
        rig.hold()
    else:
        rig.add("next", 20, 5, salt=8500, arrival=501.0)
    for _ in range(PATIENCE_STEPS):
        rig.step()
    assert rig.levers.preempted == seats_taken
    rig.step()
    assert rig.levers.preempted == seats_taken + 1


@pytest.mark.parametrize(("policy", "second"), [("fcfs", 0), ("priority", 20), ("priority", 30)])
def test_nobody_gives_way_to_an_equal_or_without_priorities(
    make_rig: MakeRig, policy: str, second: int
) -> None:
    rig = make_rig(policy=policy)
    crowd(rig, MAX_RUNNING, 20)
    rig.step()
    rig.add("late", 20, 5, salt=9000, priority=second, arrival=9_999.0)
    be_patient(rig)
    rig.step()
    assert "late" not in rig.running() and rig.levers.preempted == 0
    rig.run()
    rig.check_tokens("late", 20, 5)


def test_nobody_gives_way_for_what_could_not_start(make_rig: MakeRig) -> None:
    """While the server is paused, or a mode holds requests of that kind back."""
    from vllm.v1.core.sched.interface import PauseState

    rig = make_rig(policy="priority")
    crowd(rig, MAX_RUNNING, 20)
    rig.step()
    rig.add("core", 20, 5, salt=9000, arrival=500.0)
    rig.hold(mode="stream")
    be_patient(rig)
    rig.step()
    assert len(rig.running()) == MAX_RUNNING and rig.levers.preempted == 0
    rig.hold()
    rig.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    be_patient(rig)
    rig.step()
    assert rig.levers.preempted == 0
    rig.scheduler.set_pause_state(PauseState.UNPAUSED)
    be_patient(rig)
    rig.step()
    assert "core" in rig.running() and rig.levers.preempted == 1
    rig.run()
    rig.check_tokens("core", 20, 5)


def test_who_gave_way_three_times_keeps_its_seat(make_rig: MakeRig) -> None:
    rig = make_rig(policy="priority")
    rig.add("low", 20, 60, salt=7000, priority=20, arrival=500.0)
    crowd(rig, MAX_RUNNING - 1, 1, outputs=300)
    rig.step()
    for turn in range(4):
        assert "low" in rig.running()
        rig.add(f"core{turn}", 20, 3, salt=8000 + 100 * turn, arrival=600.0 + turn)
        be_patient(rig)
        rig.step()
        assert ("low" in rig.running()) == (turn == 3)
        while turn < 3 and "low" not in rig.running():
            rig.step()
    assert rig.levers.preempted == 4, "the fourth takes the seat of another one"
    rig.run()
    rig.check_tokens("low", 20, 60)


def test_making_room_that_fails_is_given_up_and_the_server_goes_on(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(policy="priority")
    crowd(rig, MAX_RUNNING, 20)
    rig.step()

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("moved")

    monkeypatch.setattr(rig.scheduler, "_preempt_request", broken)
    crowd(rig, 1, 0)
    be_patient(rig)
    rig.step()
    assert rig.levers.preempted == 0 and rig.levers.lost
    monkeypatch.undo()
    rig.run()
    rig.check_tokens("p0.0", 20, 40)
