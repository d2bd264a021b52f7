"""Bodies above 4 MiB: stripped while there is memory for them, else passed as they come."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from resilience.gate.body import BODY_MAX, LARGE_MAX, BodyReader, LargeBodies
from resilience.gate.config import GateConfig

PIECE = 1024 * 1024


def pieces_of(body: bytes) -> list[Any]:
    parts = [body[i:i + PIECE] for i in range(0, len(body), PIECE)]
    return [{"type": "http.request", "body": part, "more_body": n < len(parts) - 1}
            for n, part in enumerate(parts)]


def send(bench: Any, drive: Any, scope_of: Any, body: bytes) -> Any:
    messages = pieces_of(body)

    async def receive() -> Any:
        return messages.pop(0) if messages else await asyncio.Event().wait()

    answer = drive(bench.gate, scope_of(), receive)
    assert answer.status == 200
    return bench.seen[-1][1]


LARGE = b'{"priority": -5, "prompt": "' + b"x" * (BODY_MAX + PIECE // 2) + b'", "tier": "core"}'


def test_a_large_body_is_stripped(bench: Any, drive: Any, scope_of: Any) -> None:
    left = bench.state.large_bodies.left
    passed = json.loads(send(bench, drive, scope_of, LARGE))
    assert set(passed) == {"prompt"} and len(passed["prompt"]) == BODY_MAX + PIECE // 2
    assert bench.state.large_bodies.left == left


def test_one_that_says_nothing_of_itself_passes_byte_for_byte(
    bench: Any, drive: Any, scope_of: Any
) -> None:
    body = b'{"prompt": "' + b"x" * (BODY_MAX + 1) + b'"}'
    assert send(bench, drive, scope_of, body) == body


@pytest.mark.parametrize(("knob", "scope", "status"), [
    ("throttle.max_output_tokens", {}, 200), ("throttle.max_concurrency", {"model": "big"}, 429),
])
def test_its_size_gets_nobody_past_a_limit(
    bench: Any, drive: Any, scope_of: Any, claim: Any, knob: str, scope: Any, status: int
) -> None:
    """What is too much for a server's model need not be: a key that no server reads is enough."""
    bench.hold(claim(knob, 5 if status == 200 else 0, **scope))
    body = b'{"max_tokens": 9000, "model": "big", "junk": "' + b"x" * BODY_MAX + b'"}'
    messages = pieces_of(body)

    async def receive() -> Any:
        return messages.pop(0) if messages else await asyncio.Event().wait()

    answer = drive(bench.gate, scope_of(), receive)
    assert answer.status == status
    assert status != 200 or json.loads(bench.seen[-1][1])["max_tokens"] == 5


def test_without_memory_it_passes_as_it_comes(bench: Any, drive: Any, scope_of: Any) -> None:
    bench.state.large_bodies.left = 100
    assert send(bench, drive, scope_of, LARGE) == LARGE
    assert bench.state.large_bodies.left == 100


@pytest.mark.parametrize("size", [BODY_MAX, BODY_MAX + 1, LARGE_MAX, LARGE_MAX + 1])
def test_the_bounds(size: int) -> None:
    """What is borrowed is exactly what lies above the first bound, until the reader is closed."""
    async def scenario() -> None:
        large = LargeBodies(LARGE_MAX)
        messages = pieces_of(b"x" * size)

        async def receive() -> Any:
            return messages.pop(0)

        reader = BodyReader(receive, large)
        body = await reader.read()
        assert (body is not None) == (size <= LARGE_MAX) == reader.complete
        if body is not None:
            assert large.left == LARGE_MAX - (size - BODY_MAX)
        again = b""
        while len(again) < size:
            again += (await reader.replay())["body"]
        reader.close()
        assert large.left == LARGE_MAX

    asyncio.run(scenario())


def test_a_client_that_leaves_in_the_middle_gives_its_memory_back() -> None:
    async def scenario() -> None:
        large = LargeBodies()
        before, messages = large.left, pieces_of(LARGE)[:-1]
        messages.append({"type": "http.disconnect"})

        async def receive() -> Any:
            return messages.pop(0)

        reader = BodyReader(receive, large)
        assert await reader.read() is None and reader.left
        reader.close()
        assert large.left == before

    asyncio.run(scenario())


def test_who_waits_before_its_body_is_read_sends_all_of_it(
    bench: Any, config: GateConfig, scope_of: Any, claim: Any
) -> None:
    """Nobody looks for its leaving meanwhile: what would come is its body."""
    bench.state.configure(replace(config, queue_max=4))
    bench.state.large_bodies.left = 0
    bench.hold(claim("throttle.max_concurrency", 1))
    body = LARGE + b" " * 2 * PIECE  # so that some of it has not come yet
    messages = pieces_of(body)

    async def receive() -> Any:
        return messages.pop(0) if messages else await asyncio.Event().wait()

    async def send(_: Any) -> None:
        return None

    async def scenario() -> None:
        server = bench.held_server()
        first = await server.send("first", "core")
        second = asyncio.ensure_future(server.gate(scope_of(), receive, send))
        await server.settle()
        assert len(bench.state.admission.queue) == 1
        for _ in range(2):
            await server.end()
        await asyncio.gather(first, second)

    asyncio.run(scenario())
    assert bench.seen[-1][1] == body
    assert not bench.value("resilience_gate_failed_open_total", stage="admit")
