"""A bad day in small on a real vLLM: refused floods, clients that leave, trickles, nonsense.

The large counts run against a real uvicorn in tests/unit/gate/test_flood.py; here it is seen that
vLLM's own parts hold nothing either: memory, descriptors, requests in flight.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from resilience.addresses import IDLE_MAX_S
from resilience.cores.client import HttpCore
from resilience.cores.process import ServerProcess
from resilience.model import BudgetSettings, Claim, EngineConfig, QueueSettings
from tests.live import serving as kit

pytestmark = pytest.mark.live
MakeClaim = Callable[..., Claim]
Eventually = Callable[..., None]
REFUSED, LEAVING, TRICKLES, LARGE, NONSENSE = 1_500, 60, 20, 4, 60
LARGE_BYTES = 50 * 1024 * 1024
LEAK_BYTES = 96 * 1024 * 1024  # less than two of the large bodies
CONFIG = EngineConfig(budget=BudgetSettings(deadline_ms=120_000), queue=QueueSettings(16))
JSON = "application/json"
NEVER_IDLE = httpx.Limits(keepalive_expiry=IDLE_MAX_S)
GOOD = {"model": "base", "prompt": "x", "max_tokens": 1}


@pytest.fixture
def budgeted(core: HttpCore) -> Iterator[None]:
    core.configure_gate(CONFIG, deadline_ms=60_000)
    yield
    core.configure_gate(EngineConfig(), deadline_ms=60_000)


def descriptors(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


def resident_bytes(server: ServerProcess) -> int:
    pages = Path(f"/proc/{server.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def is_quiet(core: HttpCore, api: Any) -> bool:
    """Nothing is in flight, neither in the gate nor in vLLM."""
    gate = core.gate(deadline_ms=60_000)
    inside = api.metric("vllm:num_requests_running") + api.metric("vllm:num_requests_waiting")
    return bool(gate["in_flight"] == gate["waiting"] == inside == 0)


async def all_of(url: str, work: Callable[[httpx.AsyncClient, int], Awaitable[None]], count: int,
                 at_once: int = 20) -> None:
    """Do `work` for each number, so many at once, over connections that are kept."""
    numbers = iter(range(count))
    async with httpx.AsyncClient(
        base_url=url, timeout=120, trust_env=False, limits=NEVER_IDLE
    ) as http:
        async def worker() -> None:
            for number in numbers:
                try:
                    await work(http, number)
                except kit.ENDED:   # a server that stood still for 5 s has closed what it kept
                    await work(http, number)

        await asyncio.gather(*(worker() for _ in range(at_once)))


async def refused(http: httpx.AsyncClient, _: int) -> None:
    answer = await http.post("/v1/completions", json=GOOD)
    assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
    assert answer.headers["x-resilience-policy"] == "live-test"


async def leaving(http: httpx.AsyncClient, _: int) -> None:
    body = {**GOOD, "max_tokens": 4_000, "ignore_eos": True, "stream": True}
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                return


async def large(http: httpx.AsyncClient, _: int) -> None:
    text = json.dumps(GOOD).encode()[:-1] + b', "user": "' + b"x" * LARGE_BYTES + b'"}'
    answer = await http.post("/v1/completions", content=text, headers={"content-type": JSON})
    assert answer.status_code == 200


BAD: tuple[tuple[bytes, str], ...] = (
    (b"{", JSON), (b"\xff\xfe", JSON), (b"[1]", JSON), (b"", JSON),
    (b'{"model": "nobody", "prompt": "x"}', JSON), (b'{"model": 1}', JSON),
    (b"model=base", "text/plain"),
)


async def nonsense(http: httpx.AsyncClient, number: int) -> None:
    body, kind = BAD[number % len(BAD)]
    answer = await http.post("/v1/completions", content=body, headers={"content-type": kind})
    assert 400 <= answer.status_code < 500, (body, answer.text)


def test_nothing_stays_behind(
    server: ServerProcess, api: Any, core: HttpCore, driver: Any, claim: MakeClaim,
    budgeted: None, eventually: Eventually,
) -> None:
    """All floods twice: the first time fills caches and pools, the second one must add nothing."""
    files = memory = 0
    for turn in range(2):
        driver.hold(claim("throttle.max_concurrency", 0))
        asyncio.run(all_of(server.url, refused, REFUSED // 2))
        driver.hold()
        asyncio.run(all_of(server.url, leaving, LEAVING // 2))
        asyncio.run(all_of(server.url, large, LARGE // 2, 2))
        asyncio.run(all_of(server.url, nonsense, NONSENSE // 2))
        eventually(lambda: is_quiet(core, api))
        if turn == 0:
            files, memory = descriptors(server), resident_bytes(server)
    # A connection that its client has just closed, or a body just read, may be there for a moment.
    eventually(lambda: descriptors(server) <= files + 4)
    eventually(lambda: resident_bytes(server) - memory < LEAK_BYTES)
    assert api.complete("x", 1).status_code == 200


def test_bodies_that_trickle_take_no_place_and_end(
    server: ServerProcess, api: Any, core: HttpCore, driver: Any, claim: MakeClaim,
    eventually: Eventually,
) -> None:
    core.configure_gate(EngineConfig(budget=BudgetSettings(deadline_ms=2_000)), deadline_ms=60_000)
    host, port = server.url.removeprefix("http://").split(":")
    before = descriptors(server)
    slow = api.metric("resilience_gate_causes_total", cause="slow_body")

    async def trickle() -> int:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: {JSON}\r\n"
                     "content-length: 1000\r\n\r\n{".encode())
        status = int((await reader.readline()).split()[1])
        writer.close()
        return status

    async def all_trickles() -> list[int]:
        return list(await asyncio.gather(*(trickle() for _ in range(TRICKLES))))

    try:
        driver.hold(claim("throttle.max_concurrency", 1))
        assert asyncio.run(all_trickles()) == [408] * TRICKLES
        eventually(lambda: is_quiet(core, api))
        seen = api.metric("resilience_gate_causes_total", cause="slow_body")
        assert seen == slow + TRICKLES
        eventually(lambda: descriptors(server) <= before + 4)
    finally:
        core.configure_gate(EngineConfig(), deadline_ms=60_000)
    assert api.complete("x", 1).status_code == 200
