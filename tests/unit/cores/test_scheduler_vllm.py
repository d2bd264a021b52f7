"""The scheduler's first levers on vLLM's real scheduler, without a model (`scheduler_rig.py`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from resilience.cores.vllm.engine_impulses import reset_prefix_cache
from resilience.cores.vllm.plugin import engine_utility
from resilience.cores.vllm.seats import PATIENCE_MS, PATIENCE_STEPS
from resilience.model import Json

# vLLM's import is full of other people's deprecations.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

MakeRig = Callable[..., Any]
BLOCKS = 200
MAX_RUNNING = 8
BUDGET = 256

both_modes = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@both_modes
def test_running_sequences_are_cut_in_one_step_and_finish_whole(
    make_rig: MakeRig, asynchronous: bool
) -> None:
    rig = make_rig(asynchronous)
    for i in range(MAX_RUNNING):
        rig.add(f"r{i}", 20, 60, salt=100 * i)
    for _ in range(10):
        rig.step()
    assert rig.widths[-1] == MAX_RUNNING
    rig.hold(max_running=2)
    rig.step()
    assert rig.widths[-1] == 2 and len(rig.scheduler.running) == 2
    assert rig.levers.preempted == MAX_RUNNING - 2
    assert [r.request_id for r in rig.scheduler.running] == ["r0", "r1"]
    rig.hold()
    for _ in range(rig.depth + 1):
        rig.step()
    assert len(rig.scheduler.running) == MAX_RUNNING
    rig.run()
    for i in range(MAX_RUNNING):
        rig.check_tokens(f"r{i}", 20, 60)
    assert rig.free_blocks() == BLOCKS - 1


@both_modes
def test_the_step_budget_cuts_a_long_prompt(make_rig: MakeRig, asynchronous: bool) -> None:
    rig = make_rig(asynchronous)
    rig.hold(step_tokens=50)
    rig.add("long", 220, 5)
    sizes: list[int] = []
    for _ in range(5):
        output = rig.scheduler.schedule()
        sizes.append(output.total_num_scheduled_tokens)
        rig.steps.append((output, rig._model(output)))
        rig._finish_one()
    assert sizes == [50, 50, 50, 50, 20]
    rig.hold()
    assert rig.scheduler.max_num_scheduled_tokens == BUDGET
    rig.run()
    rig.check_tokens("long", 220, 5)


@both_modes
def test_the_prefix_cache_misses_but_still_counts(make_rig: MakeRig, asynchronous: bool) -> None:
    rig = make_rig(asynchronous)
    hits: list[int] = []
    for name, values in (("a", {}), ("b", {}), ("c", {"prefix_enabled": False}), ("d", {})):
        rig.hold(**values)
        before = rig.hits
        rig.add(name, 100, 3)
        rig.run()
        hits.append(rig.hits - before)
        rig.check_tokens(name, 100, 3)
    assert hits == [0, 96, 0, 96] and rig.queries == 400


def test_leases_end_while_stepping_and_when_a_request_arrives(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.hold(ttl_ms=100, max_running=1, step_tokens=32, prefix_enabled=False)
    rig.add("a", 20, 50)
    rig.add("b", 20, 50, salt=500)
    rig.step()
    assert len(rig.scheduler.running) == 1
    rig.clock.now += 100
    rig.step()
    assert len(rig.scheduler.running) == 2
    assert rig.scheduler.max_num_scheduled_tokens == BUDGET and not rig.levers.prefix_hidden
    rig.run()
    rig.hold(ttl_ms=100, max_running=1)
    rig.clock.now += 100
    assert rig.scheduler.max_num_active_reqs == 1  # an idle scheduler takes no steps
    rig.add("c", 20, 1)
    assert rig.scheduler.max_num_active_reqs == MAX_RUNNING


def test_with_priorities_the_least_important_is_cut(make_rig: MakeRig) -> None:
    rig = make_rig(policy="priority")
    for i, priority in enumerate((5, 0, 9, 1)):
        rig.add(f"p{priority}", 20, 30, salt=100 * i, priority=priority, arrival=float(i))
    rig.step()
    rig.hold(max_running=2)
    rig.step()
    assert sorted(r.request_id for r in rig.scheduler.running) == ["p0", "p1"]
    rig.hold()
    rig.run()
    for priority in (5, 0, 9, 1):
        rig.check_tokens(f"p{priority}", 20, 30)


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


@both_modes
@pytest.mark.parametrize("seed", range(4))
def test_limits_that_flip_all_the_time_lose_nothing(
    make_rig: MakeRig, asynchronous: bool, seed: int
) -> None:
    chance = random.Random(seed)
    rig = make_rig(asynchronous)
    sizes: dict[str, tuple[int, int]] = {}
    for i in range(24):
        sizes[f"r{i}"] = (chance.randint(1, 150), chance.randint(1, 60))
        rig.add(f"r{i}", *sizes[f"r{i}"], salt=chance.choice((0, 200 * i)))
    for step in range(5_000):
        if not rig.scheduler.has_unfinished_requests():
            break
        if step % 3 == 0:
            flip(rig, chance)
        rig.step()
    rig.run()
    for name, (prompt, outputs) in sizes.items():
        rig.check_tokens(name, prompt, outputs)
    assert rig.levers.preempted > 0 and rig.levers.lost == []
    assert rig.free_blocks() == BLOCKS - 1


def flip(rig: Any, chance: random.Random) -> None:
    values: dict[str, Json] = {}
    if chance.random() < 0.7:
        values["max_running"] = chance.randint(1, MAX_RUNNING)
    if chance.random() < 0.5:
        values["step_tokens"] = chance.choice((16, 64, BUDGET))
    if chance.random() < 0.5:
        values["prefix_enabled"] = False
    rig.hold(**values)
    if chance.random() < 0.1:
        reset_prefix_cache(rig.engine, {"preempt": chance.random() < 0.5})


def test_the_cache_is_forgotten_with_and_without_preempting(make_rig: MakeRig) -> None:
    rig = make_rig()

    def hits_of(name: str) -> int:
        before = rig.hits
        rig.add(name, 100, 40)
        rig.step()
        return int(rig.hits - before)

    assert [hits_of("a"), hits_of("b")] == [0, 96]
    assert reset_prefix_cache(rig.engine, {}) == {"done": True, "how": "evicted"}
    assert hits_of("c") == 0 and rig.levers.preempted == 0
    assert reset_prefix_cache(rig.engine, {"preempt": True})["how"] == "preempted"
    rig.run()
    assert reset_prefix_cache(rig.engine, {})["how"] == "reset"
    for name in "abc":
        rig.check_tokens(name, 100, 40)


@both_modes
def test_a_foreign_scheduler_has_the_attribute_levers(
    make_rig: MakeRig, asynchronous: bool
) -> None:
    rig = make_rig(asynchronous, ours=False)
    levers = rig.levers
    assert {k: c.grade for k, c in levers.knobs.items()} == dict.fromkeys(
        ("cache.max_running", "cache.admit_running", "cache.step_tokens", "cache.kv_blocks_soft",
         "cache.batching"), "attribute",
    )
    assert "not this package's" in levers.dropped[0]["reason"]
    levers._clock_ms = rig.clock
    for i in range(4):
        rig.add(f"r{i}", 20, 20 + 10 * i, salt=100 * i)
    for _ in range(3):
        rig.step()
    rig.hold(ttl_ms=500, max_running=1)
    rig.step()
    assert len(rig.scheduler.running) == 4  # what runs drains by finishing
    rig.clock.now += 500
    rig.step()
    assert rig.scheduler.max_num_active_reqs == MAX_RUNNING
    rig.run()
    for i in range(4):
        rig.check_tokens(f"r{i}", 20, 20 + 10 * i)


def test_a_lever_that_fails_is_reset_and_the_server_goes_on(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    for i in range(4):
        rig.add(f"r{i}", 20, 30, salt=100 * i)
    rig.step()

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("moved")

    monkeypatch.setattr(rig.scheduler, "_preempt_request", broken)
    monkeypatch.setattr(rig.levers, "_as_miss", broken)
    rig.hold(max_running=2, prefix_enabled=False)
    rig.step()
    assert len(rig.scheduler.running) == 4
    assert rig.levers.knobs["cache.max_running"].grade == "attribute"
    rig.hold(prefix_enabled=False)
    rig.add("new", 20, 30)
    rig.step()
    assert "cache.prefix_enabled" not in rig.levers.knobs and not rig.levers.prefix_hidden
    assert [entry["knob"] for entry in rig.levers.lost] == [
        "cache.max_running", "cache.prefix_enabled",
    ]
    monkeypatch.undo()
    rig.run()
    for i in range(4):
        rig.check_tokens(f"r{i}", 20, 30)
    assert rig.free_blocks() == BLOCKS - 1


def test_without_prefix_caching_that_lever_is_dropped(make_rig: MakeRig) -> None:
    rig = make_rig(caching=False)
    assert "cache.prefix_enabled" not in rig.levers.knobs
    assert rig.levers.dropped == [
        {"knob": "cache.prefix_enabled", "reason": "the server runs without prefix caching"}
    ]


def test_the_engines_utility_answers_every_operation(make_rig: MakeRig) -> None:
    rig = make_rig()
    found = engine_utility(rig.engine, {"op": "capabilities"})
    assert found["knobs"]["cache.step_tokens"]["baseline"] == BUDGET
    claims = [{
        "knob": "cache.max_running", "scope": {}, "value": 3, "ttl_ms": 1_000, "keep": False,
        "policy": "p", "reason": "", "priority": 1,
    }]
    document = {"version": 1, "epoch": 2, "generation": 1, "claims": claims}
    put = {"op": "put", "document": document, "received_ms": rig.clock()}
    assert engine_utility(rig.engine, put)["effective"]["cache.max_running"][""]["value"] == 3
    old = {**put, "document": {**document, "epoch": 1}}
    assert engine_utility(rig.engine, old)["refused"] == "fenced"
    bad = {**put, "document": {**document, "claims": [{}]}}
    assert engine_utility(rig.engine, bad)["refused"] == "unprocessable"
    assert engine_utility(rig.engine, {"op": "actual"})["effective"]["cache.max_running"][""] == {
        "value": 3, "policy": "p", "remaining_ms": 1_000,
    }


def test_a_document_that_waited_has_used_up_part_of_its_lease(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.hold(ttl_ms=1_000, max_running=2)
    received = rig.clock.now
    rig.clock.now += 800
    body = {
        "version": 1, "epoch": 1, "generation": 9, "claims": [{
            "knob": "cache.max_running", "scope": {}, "value": 2, "ttl_ms": 1_000, "keep": False,
            "policy": "p", "reason": "", "priority": 1,
        }],
    }
    rig.levers.put(body, received)
    assert rig.levers.effective()["cache.max_running"][""].remaining_ms == 200
