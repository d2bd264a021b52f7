"""The ladder on a real vLLM: every kind of rung answers in its turn, and second engines that start,
never start, run out of memory and end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from resilience.cores.capture import processes
from resilience.cores.client import HttpCore
from resilience.cores.process import ServerProcess
from resilience.model import Claim, EngineConfig, Rung, SecondEngineSettings
from tests.live import serving as kit

pytestmark = pytest.mark.live
MakeClaim = Callable[..., Claim]
Eventually = Callable[..., Any]
SORRY = Rung("sorry", "template", text="please come back later")
START_S = 500.0
# No answer here fails its tier's promise by being slow.
TIERS = tuple(replace(tier, p99_ms=None) for tier in EngineConfig().tiers)
LONG_MS = 600_000  # a claim outlives the start of an engine on a slow machine
TINY = SecondEngineSettings(
    start="ahead", seats=2, kv_mebibytes=64, memory_mebibytes=256, start_timeout_ms=500_000
)


@pytest.fixture
def climb(core: HttpCore, eventually: Eventually) -> Iterator[Callable[..., None]]:
    """Return a function that gives the running gate these rungs; they go at the end."""

    def give(*rungs: Rung) -> None:
        core.configure_gate(replace(EngineConfig(), ladder=rungs, tiers=TIERS), deadline_ms=60_000)

    yield give
    pids = [engine["pid"] for engine in engines(core).values() if engine["pid"]]
    give()
    eventually(lambda: not engines(core) and not any(kit.in_session(pid) for pid in pids))


def engines(core: HttpCore) -> Any:
    return core.gate(deadline_ms=60_000)["engines"]


def state(core: HttpCore, rung: str) -> str | None:
    """Return how the engine of a rung is; None until the server has taken up the ladder."""
    found: str | None = engines(core).get(rung, {}).get("state")
    return found


def judged(api: Any, tier: str) -> tuple[float, float]:
    """Return the tier's requests so far, and those that kept its promise."""
    return (api.metric("resilience_gate_slo_requests_total", tier=tier),
            api.metric("resilience_gate_slo_good_total", tier=tier))


def test_each_kind_of_rung_answers_in_its_turn_and_the_route_ends_by_itself(
    api: Any, driver: Any, claim: MakeClaim, served_names: Any, climb: Callable[..., None],
    eventually: Eventually,
) -> None:
    base, adapter = served_names
    climb(Rung("style", "lora", model=adapter, context=64), Rung("full", "model", model=base),
          Rung("stored", "cached"), SORRY)
    before = api.complete("the ladder", 200).json()
    counted = api.metric("service_fallback_total", reason="policy")
    driver.hold(claim("route.model", {"to": "ladder", "share": 1.0}),
                claim("throttle.max_concurrency", 0, tier="core"))
    first = api.complete("the ladder", 4)
    assert (first.json()["model"], first.headers["x-resilience-rung"]) == (adapter, "style")
    other = api.complete("the ladder", 200, model=adapter)      # too long for the first rung
    assert (other.json()["model"], other.headers["x-resilience-rung"]) == (base, "full")
    kept = judged(api, "core")
    stored = api.complete("the ladder", 200, tier="core")       # full is what it asks for anyway
    assert stored.json()["choices"][0]["text"] == before["choices"][0]["text"]
    assert stored.headers["x-resilience-cached"] == "true"
    last = api.complete("another", 200, tier="core")
    assert last.json()["choices"][0]["text"] == SORRY.text
    assert judged(api, "core") == (kept[0] + 2, kept[1] + 1)    # a canned text keeps no promise
    with api.stream("another", 200) as response:
        lines = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    assert json.loads(lines[0])["choices"][0]["text"] == SORRY.text and lines[-1] == "[DONE]"
    for rung in ("style", "full", "stored", "sorry"):
        assert api.metric("resilience_gate_rungs_total", rung=rung, outcome="served") >= 1
    assert api.metric("service_fallback_total", reason="policy") == counted + 5
    driver.hold(claim("route.model", {"to": "ladder", "share": 1.0}, ttl_ms=1_000))
    eventually(lambda: "x-resilience-rung" not in api.complete("the ladder", 4).headers)


def test_a_second_engine_on_demand_and_one_that_never_starts(
    api: Any, core: HttpCore, driver: Any, claim: MakeClaim, climb: Callable[..., None],
    eventually: Eventually, tiny_model: Any, tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    broken = Rung("broken", "engine", model=str(tmp_path), context=256,
                  engine=replace(TINY, core="torch"))
    cpu = Rung("cpu", "engine", model=str(tiny_model.model), context=256, timeout_ms=60_000,
               engine=replace(TINY, core="torch", start="on_demand", stop_after_ms=0))
    climb(broken, cpu, SORRY)
    eventually(lambda: state(core, "broken") == "failed", START_S)
    assert state(core, "cpu") == "stopped"
    eventually(lambda: "`broken` is failed" in api.client.get("/resilience/health").text)
    eventually(lambda: api.client.get("/resilience/health").status_code == 200)
    driver.hold(claim("route.model", {"to": "ladder", "share": 1.0}, ttl_ms=LONG_MS))
    assert api.complete("who answers", 4).headers["x-resilience-rung"] in ("sorry", "cpu")
    answer = eventually(lambda: by("cpu", api.complete("who answers", 7)), START_S)
    keeper = engines(core)["cpu"]["pid"]
    assert answer.json()["model"] == "cpu"
    assert answer.json()["usage"]["completion_tokens"] == 7
    driver.hold()
    eventually(lambda: state(core, "cpu") == "stopped" and not kit.in_session(keeper))
    assert "x-resilience-rung" not in api.complete("who answers", 4).headers


@pytest.mark.timeout(1_800)
def test_a_second_engine_that_is_killed_or_out_of_memory_gives_way_and_the_first_does_not_notice(
    api: Any, core: HttpCore, server: ServerProcess, driver: Any, claim: MakeClaim,
    climb: Callable[..., None], eventually: Eventually, tiny_model: Any,
) -> None:
    own = Rung("own", "engine", model=str(tiny_model.model), context=4_000, timeout_ms=60_000,
               engine=TINY)
    climb(own, SORRY)
    eventually(lambda: state(core, "own") == "ready", START_S)
    driver.hold(claim(
        "route.model", {"to": "own", "share": 1.0}, tier="best-effort", ttl_ms=LONG_MS))
    answer = eventually(lambda: by("own", api.complete("hello", 5)))
    assert answer.json()["model"] == "own"
    assert answer.json()["usage"]["completion_tokens"] == 5
    driver.hold(claim(
        "route.model", {"to": "ladder", "share": 1.0}, tier="best-effort", ttl_ms=LONG_MS))
    killed = engines(core)["own"]["pid"]
    kill_under_load(api, killed, eventually)
    eventually(lambda: "`own` is failed: it ended" in api.client.get("/resilience/health").text)
    eventually(lambda: not kit.in_session(killed))
    assert api.complete("meanwhile", 5).headers["x-resilience-rung"] == "sorry"
    eventually(lambda: state(core, "own") == "ready", START_S)
    driver.hold(claim(
        "route.model", {"to": "ladder", "share": 1.0}, tier="best-effort", ttl_ms=LONG_MS))
    run_out_of_memory(api, engines(core)["own"]["pid"], eventually)
    assert api.complete("first", 5, tier="core").json()["usage"]["completion_tokens"] == 5
    assert server.exit_code is None


def by(rung: str, answer: httpx.Response) -> httpx.Response | None:
    """Return the answer if that rung gave it: an engine that is slow for a moment is passed over,
    and one that serves may not have been looked at yet."""
    return answer if answer.headers.get("x-resilience-rung") == rung else None


def kill_under_load(api: Any, keeper: int, eventually: Eventually) -> None:
    """Kill it while it answers: who has no byte yet gets the next rung, a stream its end."""
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        response = eventually(
            lambda: by("own", stack.enter_context(api.stream("stream", 3_000))))
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        whole = pool.submit(api.complete, "whole", 3_000)
        eventually(lambda: api.metric("resilience_gate_inflight", tier="best-effort") == 2)
        os.kill(keeper, signal.SIGKILL)
        answer = whole.result()
        assert (answer.status_code, answer.headers["x-resilience-rung"]) == (200, "sorry")
        got = 0
        with suppress(*kit.ENDED):
            for line in lines:
                got += line.startswith("data: {")
        assert got < 3_000


def run_out_of_memory(api: Any, keeper: int, eventually: Eventually) -> None:
    kit.starve(next(p["pid"] for p in processes(keeper) if "orker" in p["name"]))
    turn, seen = count(), set[str]()

    def ends() -> bool:
        """Ask until it has ended and that was said: one slow answer does not mean that."""
        with ThreadPoolExecutor(2) as pool:
            prompts = [f"{next(turn)} {n} " + "long " * 700 for n in range(2)]
            answers = list(pool.map(lambda p: api.complete(p, 60), prompts))
        assert [a.status_code for a in answers] == [200, 200]
        seen.update(a.headers["x-resilience-rung"] for a in answers)
        if "`own` is failed" in api.client.get("/resilience/health").text:
            seen.add("failed")
        return {"sorry", "failed"} <= seen and not kit.in_session(keeper)

    eventually(ends, START_S)
    assert seen <= {"own", "sorry", "failed"}
