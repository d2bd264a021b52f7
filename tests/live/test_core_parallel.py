"""Data parallelism on a real vLLM: two engine processes behind one gate are driven as one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from resilience.cores.capture import processes
from resilience.cores.client import HttpCore
from resilience.cores.process import ServerProcess
from resilience.model import Claim
from tests.live import serving as kit

pytestmark = pytest.mark.live
ENGINES, SEATS = 2, 8
END_S = 90.0
ENDLESS = kit.TOKENS_MAX


def test_claims_and_impulses_reach_every_engine_process_and_one_that_dies_is_not_hidden(
    new_server: Callable[..., ServerProcess], connect: Any, drive: Any,
    claim: Callable[..., Claim], eventually: Any,
) -> None:
    # vLLM binds the threads of each rank to a memory node of its own, and here is but one.
    server = new_server("--data-parallel-size", str(ENGINES), VLLM_CPU_OMP_THREADS_BIND="nobind")
    api = connect(server.url)
    with HttpCore(server.url, server.token) as core, ThreadPoolExecutor(4) as pool:
        found = core.capabilities(deadline_ms=60_000)
        assert found.knobs["throttle.max_concurrency"].capacity == ENGINES * SEATS
        assert found.knobs["cache.max_running"].capacity == SEATS
        eventually(lambda: api.metric("resilience_core_seats") == ENGINES * SEATS)
        driver = drive(core)
        held = driver.hold(claim("cache.max_running", 1, ttl_ms=600_000))
        assert held.effective["cache.max_running"][""].value == 1
        answers = [pool.submit(kit.how_it_ended, api, f"{n} long", ENDLESS) for n in range(4)]
        eventually(lambda: [
            api.metric("vllm:num_requests_running", engine=str(n)) for n in range(ENGINES)
        ] == [1, 1] and api.metric("vllm:num_requests_waiting") == 2)
        driver.hold()
        eventually(lambda: api.metric("vllm:num_requests_running") == 4)
        done = core.impulse("all", "abort_requests", {}, epoch=driver.epoch, deadline_ms=60_000)
        assert done == {"done": True, "aborted": 4}
        assert [a.result(timeout=END_S) for a in answers] == ["abort"] * 4
        eventually(lambda: api.metric("resilience_core_kv_blocks", state="used") == 0)
        eventually(lambda: api.client.get("/resilience/health").json()["status"] == "well")
        last = pool.submit(kit.how_it_ended, api, "last", ENDLESS)
        one_dies(server, core, last, api, eventually)


def one_dies(server: ServerProcess, core: HttpCore, last: Any, api: Any, eventually: Any) -> None:
    """vLLM ends the server with one of its engines; its client and the balancer see that."""
    eventually(lambda: api.metric("vllm:num_requests_running") == 1)
    pids = [p["pid"] for p in processes(server.pid) if "Engine" in p["name"]]
    assert len(pids) == ENGINES
    os.kill(pids[1], signal.SIGKILL)
    # The engine that lives was told to end, so its request may end in order.
    end = last.result(timeout=END_S)
    assert kit.is_told(end), end
    eventually(
        lambda: not core.is_healthy(deadline_ms=1_000) and not kit.in_group(server.pgid), END_S)
