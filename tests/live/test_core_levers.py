"""KV limits, draining, batching, modes, impulses and health of the vLLM core on a real server."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from resilience.cores.capture import processes
from resilience.cores.client import HttpCore
from resilience.cores.process import ServerProcess
from resilience.errors import CoreRefusedError
from resilience.model import Claim, Json
from tests.live import serving as kit

pytestmark = pytest.mark.live
MakeClaim = Callable[..., Claim]
Eventually = Callable[..., None]

SEATS = 8
LEAST = 32  # blocks of 128 tokens that a request of the greatest length needs
PROMPT = "p" * 1500  # twelve blocks
LONG = 600
ENDLESS = kit.TOKENS_MAX  # far more than any machine makes before the test ends it
_KEYS = itertools.count()


def running(api: Any) -> float:
    return float(api.metric("vllm:num_requests_running"))


def waiting(api: Any) -> float:
    return float(api.metric("vllm:num_requests_waiting_by_reason"))


def blocks(api: Any, state: str) -> float:
    return float(api.metric("resilience_core_kv_blocks", state=state))


def settled(api: Any, eventually: Eventually) -> None:
    """Wait until the server has told of its pool, is idle and holds no block."""
    eventually(
        lambda: blocks(api, "total") > 0 and running(api) == 0 and blocks(api, "used") == 0
    )


def begin(stack: ExitStack, api: Any, prompt: str, tokens: int = LONG) -> Any:
    """Open a stream, until `stack` ends, and wait for its first token."""
    response = stack.enter_context(api.stream(prompt, tokens))
    assert response.status_code == 200
    lines = stack.enter_context(closing(response.iter_lines()))
    assert next(lines).startswith("data: ")
    return lines


@pytest.fixture
def impulse(core: HttpCore, driver: Any) -> Iterator[Callable[..., Json]]:
    driver.hold()

    def give(name: str, **args: Json) -> Json:
        return core.impulse(
            f"lever-{next(_KEYS)}", name, args, epoch=driver.epoch, deadline_ms=60_000
        )

    yield give
    give("resume")


def test_the_hard_cap_cuts_the_pool_and_gives_it_back(
    api: Any, core: HttpCore, driver: Any, claim: MakeClaim, eventually: Eventually
) -> None:
    settled(api, eventually)
    total = blocks(api, "total")
    with kit.Users(lambda who: api.complete(who + PROMPT, LONG), 4) as users:
        eventually(lambda: running(api) == 4)
        held = driver.hold(claim("cache.kv_blocks", LEAST))
        assert held.effective["cache.kv_blocks"][""].value == LEAST
        eventually(lambda: blocks(api, "held") == total - LEAST)
        eventually(lambda: running(api) <= 2 and blocks(api, "used") <= LEAST)
        driver.hold()
        eventually(lambda: blocks(api, "held") == 0 and running(api) == 4)
    assert users.lengths() == {LONG}
    settled(api, eventually)
    assert blocks(api, "free") == total
    with pytest.raises(CoreRefusedError, match="least it takes is 32"):
        driver.hold(claim("cache.kv_blocks", LEAST - 1))
    assert core.actual(deadline_ms=60_000).effective == {}


def test_the_soft_cap_binds_admission(
    api: Any, driver: Any, claim: MakeClaim, eventually: Eventually
) -> None:
    settled(api, eventually)
    preempted = api.metric("vllm:num_preemptions_total")
    # Two prompts fit however far the first is (17 + 12 blocks), three do not even at their start.
    driver.hold(claim("cache.kv_blocks_soft", 34))
    with kit.Users(lambda who: api.complete(who + PROMPT, LONG), 4) as users:
        eventually(lambda: running(api) == 2 and api.metric("vllm:num_requests_waiting") == 2)
        driver.hold()
        eventually(lambda: running(api) == 4)
    assert users.lengths() == {LONG}
    assert api.metric("vllm:num_preemptions_total") == preempted


def test_draining_lets_what_runs_finish(
    api: Any, driver: Any, claim: MakeClaim, eventually: Eventually
) -> None:
    settled(api, eventually)
    preempted = api.metric("vllm:num_preemptions_total")
    with kit.Users(lambda who: api.complete(who, LONG), 4) as users:
        eventually(lambda: running(api) == 4)
        driver.hold(claim("cache.admit_running", 1))
        eventually(lambda: running(api) == 1 and api.metric("vllm:num_requests_waiting") == 3)
        driver.hold()
        eventually(lambda: running(api) == 4)
    assert users.lengths() == {LONG}
    assert api.metric("vllm:num_preemptions_total") == preempted


def test_a_static_batch_is_not_joined(
    api: Any, driver: Any, claim: MakeClaim, eventually: Eventually
) -> None:
    settled(api, eventually)
    driver.hold(claim("cache.batching", "static"))
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        begin(stack, api, "first", ENDLESS)
        second = pool.submit(api.complete, "second", 4)
        eventually(lambda: api.metric("vllm:num_requests_waiting") == 1)
        assert running(api) == 1
        driver.hold()
        assert second.result().status_code == 200


def test_stream_mode_holds_back_who_does_not_stream(
    api: Any, driver: Any, claim: MakeClaim, eventually: Eventually
) -> None:
    settled(api, eventually)
    driver.hold(claim("cache.mode", "stream"))
    with ThreadPoolExecutor(1) as pool:
        whole = pool.submit(api.complete, "whole", 4)
        eventually(lambda: waiting(api) == 1)
        with ExitStack() as stack:
            begin(stack, api, "stream", 4)
        assert not whole.done()
        eventually(lambda: api.client.get("/resilience/health").json()["status"] == "well")
        driver.hold(claim("cache.mode", "hybrid"))
        assert whole.result().status_code == 200


def test_a_pause_keeps_and_resumes(api: Any, impulse: Any, eventually: Eventually) -> None:
    with ExitStack() as stack:
        lines = begin(stack, api, "kept", 2 * LONG)
        eventually(lambda: impulse("pause", mode="keep", for_ms=600_000)["settled"])
        eventually(lambda: "paused" in api.client.get("/resilience/health").text)
        eventually(lambda: api.client.get("/resilience/health").status_code == 200)
        # What was made before is counted in a moment; then nothing is.
        eventually(
            lambda: len({api.metric("vllm:generation_tokens_total") for _ in range(5)}) == 1)
        assert impulse("resume") == {"done": True}
        rest = [line for line in lines if line.startswith("data: ")]
    assert rest[-1] == "data: [DONE]"


def test_a_pause_ends_by_itself(api: Any, impulse: Any) -> None:
    impulse("pause", mode="wait", for_ms=1_000)
    assert api.complete("queued meanwhile", 4).status_code == 200


def test_a_pause_that_aborts_ends_what_runs(
    api: Any, impulse: Any, eventually: Eventually
) -> None:
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(api.complete, f"aborted {i}", ENDLESS) for i in range(2)]
        eventually(lambda: running(api) == 2)
        impulse("pause", mode="abort", for_ms=600_000)
        choices = [a.result().json()["choices"][0] for a in answers]
        impulse("resume")
    assert [c["finish_reason"] for c in choices] == ["abort"] * 2
    settled(api, eventually)


def test_a_drain_refuses_new_ones_and_lets_others_finish(
    api: Any, impulse: Any, eventually: Eventually
) -> None:
    with ExitStack() as stack:
        lines = begin(stack, api, "under way", ENDLESS)
        assert impulse("drain", for_ms=600_000)["in_flight"] == 1
        refused = api.complete("new", tier="core")
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        assert "draining" in refused.headers["x-resilience-reason"]
        assert api.client.get("/resilience/health").status_code == 503
        eventually(lambda: "draining" in api.client.get("/resilience/health").text)
        rest = [line for line in lines if line.startswith("data: ")]
    assert rest[-1] == "data: [DONE]"
    impulse("resume")
    assert api.complete("new", 2).status_code == 200
    eventually(lambda: api.client.get("/resilience/health").status_code == 200)


def test_requests_are_aborted_by_condition(
    api: Any, impulse: Any, eventually: Eventually
) -> None:
    def large_is_aborted() -> bool:
        """Say whether it was: between two answers its user has none that runs."""
        return bool(impulse("abort_requests", tokens_at_least=1_500) ==
                    {"done": True, "aborted": 1})

    with kit.Users(lambda who: api.complete(who + PROMPT, LONG), 1) as large, \
            kit.Users(lambda who: api.complete(who + "small", 1_400), 1) as small:
        eventually(lambda: running(api) == 2)
        eventually(large_is_aborted)
    ends = [answer.json()["choices"][0]["finish_reason"] for answer in large.answers]
    assert sorted(set(ends)) in (["abort"], ["abort", "length"]) and ends.count("abort") == 1
    assert small.lengths() == {1_400}
    with pytest.raises(CoreRefusedError, match="`colour`"):
        impulse("abort_requests", colour="red")


def statuses(bundle: Json) -> set[str]:
    """Return how the requests were that its samples show; an engine may be too busy for one."""
    engines = [sample["engine"] for sample in bundle["samples"]]
    return {
        request["status"] for engine in engines if engine != "silent"
        for request in engine["requests"]
    }


def test_an_incident_is_captured(
    api: Any, impulse: Any, eventually: Callable[..., Any]
) -> None:
    def captured() -> Json:
        begun = impulse("capture_incident", duration_ms=1_000)
        assert begun["done"] is True
        eventually(Path(begun["file"]).exists)
        found = json.loads(Path(begun["file"]).read_text())
        return found if "RUNNING" in statuses(found) else None

    with kit.Users(lambda who: api.complete(f"{who}in the bundle", LONG), 1):
        bundle = eventually(captured)
    assert len(bundle["samples"]) == 5
    assert len(bundle["samples"][-1]["processes"]) >= 3
    assert "vllm:num_requests_running" in bundle["metrics_after"]
    assert "Starting vLLM" in bundle["log"] or len(bundle["log"]) > 100


def test_answers_tell_the_models_latency_and_the_core_its_series(
    api: Any, eventually: Eventually
) -> None:
    whole = api.complete("latency", 8)
    assert int(whole.headers["x-model-latency"]) > 0
    with api.stream("latency", 8) as response:
        assert int(response.headers["x-model-latency"]) > 0
        response.read()
    health = api.client.get("/resilience/health")
    assert int(health.headers["x-model-latency"]) > 0
    eventually(lambda: api.metric("resilience_core_allocation_seconds", place="worker0") > 0)
    settled(api, eventually)
    assert api.metric("resilience_core_kv_residence_seconds_count") > 0
    eventually(lambda: api.metric("resilience_core_health", status="well") == 1.0)
    assert api.metric("resilience_core_memory_bytes", state="available") > 0


def engine_process(server: ServerProcess) -> int:
    return int(next(p["pid"] for p in processes(server.pid) if "Engine" in p["name"]))


def test_an_engine_that_hangs_is_stuck_and_then_well_again(
    api: Any, server: ServerProcess, eventually: Eventually
) -> None:
    pid = engine_process(server)

    def status() -> tuple[int, str]:
        answer = api.client.get("/resilience/health")
        return answer.status_code, answer.json()["status"]

    eventually(lambda: status() == (200, "well"))
    with ExitStack() as stack:
        lines = begin(stack, api, "hangs", ENDLESS)
        os.kill(pid, signal.SIGSTOP)
        try:
            eventually(lambda: status() == (503, "stuck"))
        finally:
            os.kill(pid, signal.SIGCONT)
        eventually(lambda: status() == (200, "well"))
        assert [line for line in lines if line.startswith("data: ")][-1] == "data: [DONE]"


CHOICES: dict[str, list[Json]] = {
    "cache.max_running": [1, 3, 6], "cache.admit_running": [1, 4],
    "cache.step_tokens": [8, 64, 512],
    "cache.kv_blocks": [LEAST, 40, 80], "cache.kv_blocks_soft": [5, 30],
    "cache.prefix_enabled": [False], "cache.batching": ["static"],
    "cache.mode": ["hybrid", "stream"],
}


def test_levers_flipped_together_lose_and_leak_nothing(
    api: Any, core: HttpCore, driver: Any, server: ServerProcess, claim: MakeClaim,
    eventually: Eventually,
) -> None:
    settled(api, eventually)
    chance = random.Random(5)
    pid = engine_process(server)

    def resident() -> int:
        return int(next(p for p in processes(server.pid) if p["pid"] == pid)["resident_bytes"])

    before, failed = resident(), api.metric("resilience_gate_failed_open_total")
    with ThreadPoolExecutor(8) as pool:
        answers = [
            pool.submit(api.complete, f"{i}{PROMPT}"[:chance.randint(10, 1_500)], 250)
            for i in range(12)
        ]
        for _ in range(150):
            knobs = chance.sample(sorted(CHOICES), chance.randint(0, 4))
            held = driver.hold(*(claim(k, chance.choice(CHOICES[k])) for k in knobs))
            assert sorted(held.effective) == sorted(knobs) and held.dropped == ()
        driver.hold()
        done = [a.result().json() for a in answers]
    assert [d["usage"]["completion_tokens"] for d in done] == [250] * 12
    settled(api, eventually)
    assert blocks(api, "free") == blocks(api, "total")
    assert core.capabilities(deadline_ms=60_000).dropped == ()
    assert api.metric("resilience_gate_failed_open_total") == failed
    assert resident() - before < 64 * 1024 * 1024


def test_a_lease_that_ends_gives_the_pool_back(
    api: Any, driver: Any, claim: MakeClaim, eventually: Eventually
) -> None:
    settled(api, eventually)
    claims = claim("cache.kv_blocks", LEAST, ttl_ms=3_000), claim(
        "cache.mode", "stream", ttl_ms=3_000)

    def takes_a_step_and_holds() -> bool:
        driver.hold(*claims)
        with ExitStack() as stack:
            begin(stack, api, "takes a step", 2)
        return blocks(api, "held") > 0

    eventually(takes_a_step_and_holds)      # renewed until it is seen; from here on nobody renews
    assert api.complete("after the lease", 2).status_code == 200
    eventually(lambda: blocks(api, "held") == 0)
