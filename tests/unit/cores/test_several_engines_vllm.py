"""A document for several engine processes is taken by all of them or by none, and the read-back
says what rules in each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from resilience.cores.link import EngineSilentError
from resilience.cores.memory import Free, Memory
from resilience.cores.vllm.link import UtilityLink
from resilience.cores.vllm.plugin import engine_utility
from resilience.cores.vllm.several import refusal
from resilience.model import Json

# vLLM's import is full of other people's deprecations.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

MakeRig = Callable[..., Any]
TIME_S = 30.0


class Engines:
    """vLLM's client of several engine processes, over real schedulers; `stuck` never answer."""

    def __init__(self, rigs: Sequence[Any]) -> None:
        self.rigs = rigs
        self.asked: list[str] = []
        self.stuck: set[int] = set()
        self.link = UtilityLink(SimpleNamespace(engine_core=self))

    async def call_utility_all_async(self, name: str, payload: Json) -> list[Json]:
        assert name == "resilience"
        self.asked.append(payload["op"])
        return list(await asyncio.gather(
            *(self._ask(number, payload) for number in range(len(self.rigs)))))

    async def _ask(self, number: int, payload: Json) -> Json:
        if number in self.stuck:
            await asyncio.Event().wait()
        return engine_utility(self.rigs[number].engine, payload)

    def call(self, op: str, timeout_s: float = TIME_S, **payload: Json) -> Json:
        return asyncio.run(self.link.call({"op": op, **payload}, timeout_s))

    def put(self, generation: int, timeout_s: float = TIME_S, **values: Json) -> Json:
        claims = [
            {"knob": f"cache.{name}", "scope": {}, "value": value, "ttl_ms": 60_000,
             "keep": False, "policy": "p", "reason": "", "priority": 1}
            for name, value in values.items()
        ]
        body = {"version": 1, "epoch": 1, "generation": generation, "claims": claims}
        return self.call("put", timeout_s, document=body, received_ms=self.rigs[0].clock())

    def running(self) -> list[int]:
        return [rig.scheduler.max_num_active_reqs for rig in self.rigs]


@pytest.fixture
def engines(make_rig: MakeRig) -> Engines:
    return Engines([make_rig(), make_rig()])


class Little(Memory):
    """Memory for 95 blocks: a twentieth is kept back."""

    def look(self) -> Free:
        return Free(100, 100)


def fill_memory(rig: Any) -> None:
    rig.levers.memory = Little(rig.levers.pool.total, 1, sequence_blocks=1)


def test_what_one_engine_refuses_no_engine_takes(engines: Engines) -> None:
    engines.put(1, max_running=3)
    fill_memory(engines.rigs[1])
    answer = engines.put(2, max_running=2, kv_blocks=150)
    assert answer["refused"] == "unprocessable"
    assert "memory" in answer["message"] and "(in engine process 1 of 2)" in answer["message"]
    assert engines.running() == [3, 3]
    assert [rig.levers.pool.hard for rig in engines.rigs] == [None, None]
    held = engines.call("actual")
    assert held["dropped"] == [] and list(held["effective"]) == ["cache.max_running"]
    assert engines.put(2, max_running=2)["effective"]["cache.max_running"][""]["value"] == 2


def test_memory_that_shrinks_after_the_check_parts_no_engines(engines: Engines) -> None:
    real = engines.call_utility_all_async

    async def shrinking(name: str, payload: Json) -> list[Json]:
        found = await real(name, payload)
        if payload["op"] == "check":
            fill_memory(engines.rigs[0])
        return found

    engines.call_utility_all_async = shrinking  # type: ignore[method-assign]
    answer = engines.put(1, kv_blocks=150)
    assert answer["effective"]["cache.kv_blocks"][""]["value"] == 150
    assert [rig.levers.pool.hard for rig in engines.rigs] == [150, 150]


def test_an_engine_that_stands_still_keeps_a_claim_from_no_other(engines: Engines) -> None:
    engines.stuck = {1}
    with pytest.raises(EngineSilentError):
        engines.put(1, timeout_s=1.0, max_running=2)
    assert engines.running() == [2, 8]
    engines.stuck = set()
    held = engines.call("actual")
    assert held["effective"] == {} and held["dropped"] == [
        {"knob": "cache.max_running", "reason": "the engine processes differ: `2`, nothing"}]
    assert engines.put(2, max_running=2)["dropped"] == []


def test_a_lever_that_one_engine_lost_is_offered_by_none(engines: Engines) -> None:
    engines.rigs[1].levers._lose("cache.mode", "it failed")
    found = engines.call("capabilities")
    assert "cache.mode" not in found["knobs"] and "cache.max_running" in found["knobs"]
    assert [entry["knob"] for entry in found["dropped"]] == ["cache.mode"]
    held = engines.put(1, mode="stream")
    assert held["effective"] == {} and [e["knob"] for e in held["dropped"]] == ["cache.mode"]


def test_one_engine_is_asked_once(make_rig: MakeRig) -> None:
    alone = Engines([make_rig()])
    alone.call("capabilities")
    assert alone.put(1, max_running=2)["effective"]["cache.max_running"][""]["value"] == 2
    assert alone.put(2)["effective"] == {}
    assert alone.asked == ["capabilities", "put", "put"]


def test_a_refusal_of_all_is_told_as_it_is() -> None:
    refused = {"refused": "fenced", "message": "older"}
    assert refusal([refused, refused]) is refused and refusal([{}, {}]) is None
