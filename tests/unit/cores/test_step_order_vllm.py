"""Who gets a step's tokens, on vLLM's real scheduler without a model (`scheduler_rig.py`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

# vLLM's import is full of other people's deprecations.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

MakeRig = Callable[..., Any]
BLOCKS = 200
BUDGET = 256
LONG = 1_000

both_modes = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def read(rig: Any, name: str) -> int:
    """Return how many tokens of a request the scheduler has had computed."""
    return int(rig.scheduler.requests[name].num_computed_tokens)


@both_modes
def test_a_prompt_that_is_being_read_gives_its_tokens_to_a_more_important_one(
    make_rig: MakeRig, asynchronous: bool
) -> None:
    """vLLM alone reads a prompt of four steps to its end before it looks at who waits."""
    rig = make_rig(asynchronous, policy="priority")
    rig.add("low", LONG, 5, salt=10_000, priority=20, arrival=1.0)
    rig.step()
    assert read(rig, "low") == BUDGET
    rig.add("core", 100, 5, arrival=2.0)
    rig.step()
    assert read(rig, "core") == 100, "all of it in the very next step"
    assert rig.levers.preempted == 1
    assert "low" in rig.running(), "it has what is left of the step"
    rig.run()
    rig.check_tokens("core", 100, 5)
    rig.check_tokens("low", LONG, 5)
    assert rig.free_blocks() == BLOCKS - 1


def test_what_it_had_read_is_found_in_the_prefix_cache(make_rig: MakeRig) -> None:
    rig = make_rig(policy="priority")
    rig.add("low", LONG, 1, salt=10_000, priority=20, arrival=1.0)
    rig.step()
    rig.add("core", 100, 1, arrival=2.0)
    rig.step()
    assert read(rig, "low") == BUDGET + BUDGET - 100
    rig.run()


def test_as_many_yield_as_its_tokens_need(make_rig: MakeRig) -> None:
    """Four prompts are read side by side, 64 tokens a step each: one of them makes the room."""
    rig = make_rig(policy="priority")
    rig.scheduler.scheduler_config.long_prefill_token_threshold = 64
    for i in range(4):
        rig.add(f"low{i}", 500, 3, salt=1_000 * (i + 1), priority=20, arrival=float(i))
    rig.step()
    assert [read(rig, f"low{i}") for i in range(4)] == [64] * 4
    rig.add("core", 60, 3, arrival=9.0)
    rig.step()
    assert rig.levers.preempted == 1 and read(rig, "core") == 60
    assert [read(rig, f"low{i}") for i in range(3)] == [128] * 3
    rig.run()
    for i in range(4):
        rig.check_tokens(f"low{i}", 500, 3)


@pytest.mark.parametrize(
    ("policy", "priority", "prompt"),
    [
        pytest.param("priority", 0, 100, id="there is room for both"),
        pytest.param("priority", 20, LONG, id="as important"),
        pytest.param("priority", 30, LONG, id="less important"),
        pytest.param("fcfs", 0, LONG, id="no priorities"),
    ],
)
def test_nobody_yields_without_need(
    make_rig: MakeRig, policy: str, priority: int, prompt: int
) -> None:
    rig = make_rig(policy=policy)
    rig.add("low", BUDGET + 50, 5, salt=10_000, priority=20, arrival=1.0)
    rig.step()
    rig.add("next", prompt, 5, priority=priority, arrival=2.0)
    rig.step()
    assert rig.levers.preempted == 0
    assert read(rig, "low") == BUDGET + 50
    rig.run()
    rig.check_tokens("next", prompt, 5)


def test_nobody_yields_for_one_that_could_not_start(make_rig: MakeRig) -> None:
    """More run than a new limit admits: it is approached as they end, and nobody takes a seat."""
    rig = make_rig(policy="priority")
    for i in range(2):
        rig.add(f"low{i}", LONG, 5, salt=10_000 * (i + 1), priority=20, arrival=float(i))
    rig.step()
    rig.scheduler.scheduler_config.long_prefill_token_threshold = 64
    rig.step()
    assert len(rig.running()) == 2
    rig.hold(admit_running=1)
    rig.add("core", LONG, 5, arrival=9.0)
    rig.step()
    assert rig.levers.preempted == 0 and len(rig.running()) == 2
    rig.run()
    rig.check_tokens("core", LONG, 5)


def test_what_writes_its_answer_keeps_its_place(make_rig: MakeRig) -> None:
    """A sequence that needs one token takes nearly nothing: only prompts make room."""
    rig = make_rig(policy="priority")
    for i in range(4):
        rig.add(f"low{i}", 20, 50, salt=1_000 * (i + 1), priority=20, arrival=float(i))
    rig.step()
    rig.add("core", LONG, 5, arrival=9.0)
    rig.step()
    assert rig.levers.preempted == 0 and read(rig, "core") == BUDGET - 4
    rig.run()


def test_the_more_important_of_two_that_run_is_read_first(make_rig: MakeRig) -> None:
    """One that has yielded as often as it may stays, but no longer goes first."""
    rig = make_rig(policy="priority")
    rig.scheduler.scheduler_config.long_prefill_token_threshold = 128
    rig.hold(step_tokens=200)
    rig.add("low", LONG, 3, salt=10_000, priority=20, arrival=1.0)
    rig.scheduler.requests["low"].num_preemptions = 3
    rig.step()
    rig.add("core", 400, 3, arrival=2.0)
    rig.step()
    assert (read(rig, "low"), read(rig, "core")) == (200 + 128, 72)
    rig.step()
    assert (read(rig, "low"), read(rig, "core")) == (328 + 72, 72 + 128)
    assert rig.levers.preempted == 0
    rig.run()
    rig.check_tokens("low", LONG, 3)
    rig.check_tokens("core", 400, 3)


def test_an_order_that_fails_is_given_up_and_the_server_goes_on(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(policy="priority")
    rig.add("low", LONG, 3, salt=10_000, priority=20, arrival=1.0)
    rig.step()

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("moved")

    monkeypatch.setattr(rig.scheduler, "_preempt_request", broken)
    rig.add("core", 100, 3, arrival=2.0)
    rig.step()
    assert rig.levers.preempted == 0 and rig.levers.lost
    rig.run()
    rig.check_tokens("low", LONG, 3)
    rig.check_tokens("core", 100, 3)


@both_modes
@pytest.mark.parametrize("seed", range(4))
def test_requests_of_all_priorities_that_come_at_any_time_lose_nothing(
    make_rig: MakeRig, asynchronous: bool, seed: int
) -> None:
    chance = random.Random(seed)
    rig = make_rig(asynchronous, policy="priority")
    rig.scheduler.scheduler_config.long_prefill_token_threshold = chance.choice((0, 60))
    sizes: dict[str, tuple[int, int]] = {}
    for step in range(400):
        if chance.random() < 0.15:
            name = f"r{step}"
            sizes[name] = (chance.choice((5, 80, 300, 700)), chance.randint(1, 40))
            rig.add(name, *sizes[name], salt=chance.choice((0, 1_000 * step)),
                    priority=chance.choice((0, 10, 20)), arrival=float(step))
        if chance.random() < 0.1:
            rig.hold(**chance.choice(({}, {"step_tokens": 64}, {"max_running": 3})))
        rig.step()
    rig.run()
    for name, (prompt, outputs) in sizes.items():
        rig.check_tokens(name, prompt, outputs)
    assert rig.levers.preempted > 0 and rig.levers.lost == []
    assert rig.free_blocks() == BLOCKS - 1
