"""Floods against a real uvicorn with the gate in front: nothing crashes and nothing stays behind.

One small application stands for the model server; the counts are those of a bad day.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from prometheus_client import CollectorRegistry

from resilience.gate.config import GateConfig
from resilience.gate.metrics import GateMetrics
from resilience.gate.middleware import Gate
from resilience.gate.state import GateState
from resilience.model import BudgetSettings, EngineConfig, Json, QueueSettings, Tier

MakeClaim = Callable[..., Json]
REFUSED, LEAVING, SLOW, LARGE = 10_000, 1_000, 100, 4
LARGE_BYTES = 50 * 1024 * 1024
EVENT = b'data: {"choices":[{"text":"t"}]}\n\n'
LEAK_OBJECTS, LEAK_BYTES = 300, 64 * 1024 * 1024


class Model:
    """Answers like a model server: errors for what is no request, endless streams for `stream`."""

    def __init__(self) -> None:
        self.inside = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.inside += 1
        try:
            await self._answer(scope, receive, send)
        finally:
            self.inside -= 1

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        parts, more = [], True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        status, asked = self._judge(scope, b"".join(parts))
        if asked.get("stream"):
            await self._stream(receive, send)
            return
        await send({"type": "http.response.start", "status": status,
                    "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"{}"})

    def _judge(self, scope: Any, body: bytes) -> tuple[int, dict[str, Any]]:
        if dict(scope["headers"]).get(b"content-type") != b"application/json":
            return 415, {}
        try:
            asked = json.loads(body)
        except ValueError:
            return 400, {}
        if not isinstance(asked, dict) or asked.get("model") != "m":
            return 404, {}
        return 200, asked

    async def _stream(self, receive: Any, send: Any) -> None:
        left = asyncio.ensure_future(receive())
        await send({"type": "http.response.start", "status": 200,
                    "headers": [(b"content-type", b"text/event-stream")]})
        try:
            await send({"type": "http.response.body", "body": EVENT, "more_body": True})
            await left
        finally:
            left.cancel()


class Server:
    """The gate and the model on a port, and what they hold."""

    def __init__(self, state: GateState, model: Model, port: int) -> None:
        self.state = state
        self.model = model
        self.port = port

    @property
    def held(self) -> tuple[int, int, int]:
        admission = self.state.admission
        return admission.usage.total, len(admission.queue), self.model.inside

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def is_idle(self) -> None:
        async with asyncio.timeout(30):
            while self.held != (0, 0, 0):
                await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(config: EngineConfig, *claims: Json) -> AsyncGenerator[Server]:
    state = GateState(GateConfig.from_engine(config), GateMetrics(CollectorRegistry()))
    state.table.put(
        {"version": 1, "epoch": 1, "generation": 1, "claims": list(claims)}, state.clock_ms())
    state.refresh()
    model = Model()
    with socket.socket(proto=socket.IPPROTO_TCP) as listening:  # so that asyncio sets no-delay
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(
            Gate(model, state), log_config=None, access_log=False, lifespan="off", backlog=2_048))
        task = asyncio.ensure_future(server.serve([listening]))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            yield Server(state, model, listening.getsockname()[1])
        finally:
            server.should_exit = True
            await task


def request(
    body: bytes, kind: str = "application/json", length: int | None = None, path: str = "",
    tier: str = "best-effort",
) -> bytes:
    size = len(body) if length is None else length
    return (f"POST {path or '/v1/completions'} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\n"
            f"x-slo-tier: {tier}\r\ncontent-length: {size}\r\n\r\n").encode() + body


async def answer_on(reader: asyncio.StreamReader) -> int:
    """Read one whole answer with a length, and return its status."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n")
                  if line.startswith(b"content-length:"))
    await reader.readexactly(length)
    return int(head[9:12])


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def all_of(work: Callable[[int], Awaitable[None]], count: int, at_once: int = 50) -> None:
    """Do `work` for each number, so many at once."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    await asyncio.gather(*(worker() for _ in range(at_once)))


async def unchanged(server: Server, flood: Callable[[], Awaitable[None]]) -> None:
    """Run a flood twice, the first time to warm up, and compare what is held before and after."""
    held: list[tuple[int, int, int]] = []
    for _ in range(2):
        await flood()
        await server.is_idle()
        gc.collect()
        held.append((len(gc.get_objects()), descriptors(), resident_bytes()))
    (objects, files, memory), (objects_after, files_after, memory_after) = held
    assert objects_after - objects < LEAK_OBJECTS
    assert files_after <= files + 2
    assert memory_after - memory < LEAK_BYTES


WITH_BUDGET = EngineConfig(budget=BudgetSettings(), queue=QueueSettings(16))
CONFIGS = pytest.mark.parametrize("config", [EngineConfig(), WITH_BUDGET])
GOOD = b'{"model": "m"}'


def test_a_flood_of_refused_requests(claim: MakeClaim) -> None:
    async def scenario() -> None:
        claims = claim("throttle.max_concurrency", 0, ttl_ms=600_000)
        async with serving(WITH_BUDGET, claims) as server:
            async def flood() -> None:
                async def connection(_: int) -> None:
                    reader, writer = await server.open()
                    for _ in range(REFUSED // 100):
                        writer.write(request(GOOD))
                        assert await answer_on(reader) == 429
                    await close(writer)

                await all_of(connection, 50, 10)

            await unchanged(server, flood)

    asyncio.run(scenario())


@CONFIGS
def test_clients_that_leave_in_the_middle_of_a_stream(config: EngineConfig) -> None:
    async def scenario() -> None:
        async with serving(config) as server:
            async def leave(_: int) -> None:
                reader, writer = await server.open()
                writer.write(request(b'{"model": "m", "stream": true}'))
                await reader.readuntil(EVENT)
                writer.transport.abort()
                await close(writer)

            await unchanged(server, lambda: all_of(leave, LEAVING // 2))

    asyncio.run(scenario())


def test_bodies_that_trickle_hold_nothing_and_end(claim: MakeClaim) -> None:
    tiers = Tier("core", deadline_ms=60_000), Tier("best-effort")
    config = replace(WITH_BUDGET, budget=BudgetSettings(deadline_ms=200), tiers=tiers)

    async def scenario() -> None:
        one = claim("throttle.max_concurrency", 1, ttl_ms=600_000)
        async with serving(config, one) as server:
            async def trickle(_: int) -> None:
                reader, writer = await server.open()
                writer.write(request(b"{", length=1_000))
                assert await answer_on(reader) == 408
                await close(writer)

            slow = asyncio.ensure_future(all_of(trickle, SLOW))
            reader, writer = await server.open()
            writer.write(request(GOOD, tier="core"))
            assert await answer_on(reader) == 200, "they take nobody's place"
            await close(writer)
            await slow
            await server.is_idle()

    asyncio.run(scenario())


@CONFIGS
def test_large_bodies_pass(config: EngineConfig) -> None:
    body = b'{"model": "m", "prompt": "' + b"x" * LARGE_BYTES + b'"}'

    async def scenario() -> None:
        async with serving(config) as server:
            async def send(_: int) -> None:
                reader, writer = await server.open()
                writer.write(request(body))
                assert await answer_on(reader) == 200
                await close(writer)

            await unchanged(server, lambda: all_of(send, LARGE // 2, 2))

    asyncio.run(scenario())


BAD = [
    (b"{", "application/json", 400), (b"\xff\xfe", "application/json", 400),
    (b"[1]", "application/json", 404),
    (b'{"model": "unknown"}', "application/json", 404), (b'{"model": 1}', "application/json", 404),
    (GOOD, "text/plain", 415), (b"", "application/json", 400),
]


@CONFIGS
def test_nonsense_gets_the_servers_own_answer(config: EngineConfig, claim: MakeClaim) -> None:
    """With a limit on tokens, too, for which the gate reads every body."""
    tokens = claim("throttle.max_outstanding_tokens", 10**9, ttl_ms=600_000)

    async def scenario() -> None:
        async with serving(config, tokens) as server:
            async def nonsense(number: int) -> None:
                body, kind, expected = BAD[number % len(BAD)]
                reader, writer = await server.open()
                writer.write(request(body, kind))
                assert await answer_on(reader) == expected, (body, kind)
                await close(writer)

            await unchanged(server, lambda: all_of(nonsense, 200))

    asyncio.run(scenario())
