"""The scheduler's first levers on vLLM's real scheduler, without a model (`scheduler_rig.py`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from resilience.cores.vllm.engine_impulses import reset_prefix_cache
from resilience.cores.vllm.plugin import engine_utility
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
