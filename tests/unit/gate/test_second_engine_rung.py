"""A rung whose second engine is ready, starting, not there, or gone between plan and call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from resilience.gate.config import GateConfig
from resilience.model import Json, Rung, SecondEngineSettings

OWN = Rung("own", "engine", model="/models/small", context=200, timeout_ms=5_000,
           engine=SecondEngineSettings())
SORRY = Rung("sorry", "template", text="please come back later")
BODY = json.dumps({"model": "big", "prompt": "hello"}).encode()


class Engines:
    """What a server says of its engines: the addresses that are asked for in turn."""

    def __init__(self, *urls: str | None, starting: bool = False) -> None:
        self._urls = list(urls)
        self._starting = starting
        self.used = 0

    def url(self, rung: str) -> str | None:
        assert rung == "own"
        return self._urls.pop(0) if len(self._urls) > 1 else self._urls[0]

    def is_starting(self, rung: str) -> bool:
        return self._starting

    @contextmanager
    def using(self, rung: str) -> Generator[None]:
        self.used += 1
        yield

    def states(self) -> Mapping[str, Json]:
        return {}


@pytest.fixture
def bench(config: GateConfig, new_bench: Any, claim: Callable[..., Json]) -> Any:
    made = new_bench(replace(config, ladder=(OWN, SORRY)))
    made.hold(claim("route.model", {"to": "ladder", "share": 1.0}, policy="burn"))
    return made


def outcome(bench: Any, name: str) -> float:
    return float(bench.value("resilience_gate_rungs_total", rung="own", outcome=name))


@pytest.mark.parametrize(
    ("engines", "why"),
    [(None, "not_running"), (Engines(None), "not_running"),
     (Engines(None, starting=True), "starting")],
)
def test_one_that_is_not_there_is_passed_over(bench: Any, engines: Any, why: str) -> None:
    bench.state.ladder.engines = engines
    answer = asyncio.run(bench.ask(BODY))
    assert answer.headers["x-resilience-rung"] == "sorry" and outcome(bench, why) == 1


def test_one_that_ends_before_it_is_asked_gives_way_and_does_not_rest(bench: Any) -> None:
    bench.state.ladder.engines = Engines("http://127.0.0.1:9", None)
    assert asyncio.run(bench.ask(BODY)).headers["x-resilience-rung"] == "sorry"
    assert outcome(bench, "not_running") == 1
    assert not bench.state.ladder.is_resting(OWN, bench.clock())


def test_one_that_is_gone_without_a_word_gives_way_and_rests(bench: Any) -> None:
    bench.state.ladder.engines = Engines("http://127.0.0.1:9")
    assert asyncio.run(bench.ask(BODY)).headers["x-resilience-rung"] == "sorry"
    assert outcome(bench, "exception") == 1 and bench.state.ladder.is_resting(OWN, bench.clock())


def test_its_requests_ask_for_the_rung_by_name_and_are_counted_as_users(bench: Any) -> None:
    seen: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        seen.append(await reader.readuntil(b"}"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async def scenario() -> Any:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        engines = Engines(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        bench.state.ladder.engines = engines
        answer = await bench.ask(BODY)
        await bench.state.ladder.servers.client().aclose()
        server.close()
        await server.wait_closed()
        return answer, engines.used

    answer, used = asyncio.run(scenario())
    assert answer.headers["x-resilience-rung"] == answer.headers["x-resilience-model"] == "own"
    assert json.loads(seen[0])["model"] == "own" and used == 1
    assert outcome(bench, "served") == 1
