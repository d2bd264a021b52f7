"""A rung that is another server: what it answers, and when it fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from resilience.gate.other_server import OtherServers, events_of
from resilience.model import Rung
from tests.unit.gate.ladder_rig import SMALL, SORRY, ask


async def other_server(answer: bytes, seen: list[bytes], hang: bool = False) -> Any:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n")
                      if line.startswith(b"content-length"))
        seen.append(head + await reader.readexactly(length))
        if hang:
            await reader.read()
        writer.write(answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    return await asyncio.start_server(handle, "127.0.0.1", 0)


def through_another(bench_of: Any, answer: bytes, hang: bool = False) -> tuple[Any, list[bytes]]:
    seen: list[bytes] = []

    async def scenario() -> Any:
        server = await other_server(answer, seen, hang)
        port = server.sockets[0].getsockname()[1]
        url = Rung("cpu", "url", model="torch", url=f"http://127.0.0.1:{port}", timeout_ms=2_000)
        bench = bench_of(replace(url, timeout_ms=50) if hang else url)
        body = json.dumps({"model": "big", "prompt": "hello"}).encode()
        found = await bench.ask(body, authorization="Bearer secret")
        await bench.state.ladder.servers.client().aclose()
        server.close()
        await server.wait_closed()
        return found

    return asyncio.run(scenario()), seen


def said(body: bytes, kind: bytes = b"application/json", missing: int = 0) -> bytes:
    """Return an answer of 200, of which the last `missing` bytes never come."""
    return (b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%s" % (kind, len(body) + missing, body))


ABORTED = b'{"choices":[{"text":"ab%s","finish_reason":"abort"}]}'
EVENTS = b"text/event-stream"
OK = said(b"{}")


def test_another_server_answers(laddered: Any) -> None:
    answer, seen = through_another(lambda rung: laddered(rung, SORRY), OK)
    assert (answer.status, answer.body) == (200, b"{}")
    assert answer.headers["x-resilience-rung"] == "cpu"
    (sent,) = seen
    assert b'"model": "torch"' in sent and b"x-resilience-rung: cpu" in sent.lower()
    assert b"secret" not in sent


@pytest.mark.parametrize(
    ("answer", "hang"), [(b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n", False), (OK, True),
                         (b"nonsense", False), (said(ABORTED % b""), False),
                         (said(ABORTED.replace(b":", b": ") % (b"c" * 200_000)), False),
                         (said(b'{"choices":[', missing=9), False), (said(b"", missing=9), False),
                         (said(b"data: " + ABORTED % b"" + b"\n\n", EVENTS), False),
                         (said(b"", EVENTS, missing=9), False)],
)
def test_another_server_that_fails_gives_way(laddered: Any, answer: bytes, hang: bool) -> None:
    found, _ = through_another(lambda rung: laddered(rung, SORRY), answer, hang)
    assert found.json()["choices"][0]["text"] == SORRY.text


@pytest.mark.parametrize(
    ("status", "outcome", "rests"),
    [(400, "form", False), (429, "exception", True), (404, "exception", True),
     (-404, "form", False)],
)
def test_what_another_server_does_not_take_the_next_rung_answers(
    laddered: Any, status: int, outcome: str, rests: bool
) -> None:
    """-404: the client chose the model, and can keep the rung from nobody else."""
    benches: list[Any] = []

    def of(rung: Rung) -> Any:
        benches.append(laddered(rung if status > 0 else replace(rung, model=None), SORRY))
        return benches[0]

    found, _ = through_another(of, b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % abs(status))
    bench, rung = benches[0], benches[0].state.ladder.rungs[0]
    assert found.json()["choices"][0]["text"] == SORRY.text
    assert bench.value("resilience_gate_rungs_total", rung="cpu", outcome=outcome) == 1
    assert bench.state.ladder.is_resting(rung, bench.clock()) is rests


@pytest.mark.parametrize(("answer", "status", "body"), [
    (b"HTTP/1.1 400 X\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}", 400, b"{}"),
    (said(ABORTED % b""), 200, ABORTED % b""),
])
def test_what_the_last_other_server_says_of_a_request_is_the_answer(
    laddered: Any, answer: bytes, status: int, body: bytes
) -> None:
    found, _ = through_another(laddered, answer)
    assert (found.status, found.body) == (status, body)


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_a_stream_comes_event_by_event_however_it_was_cut(size: int, end: bytes) -> None:
    text = b"".join([b'data: {"choices":[]}', end, b": a comment", end, b"data: [DONE]", end])

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(text), size):
            yield text[at:at + size]

    async def collected() -> list[bytes]:
        return [event async for event in events_of(pieces())]

    events = asyncio.run(collected())
    assert b"".join(events) == text and len(events) == 3


def test_an_abort_that_comes_with_the_end_in_one_piece_does_not_end_in_done(laddered: Any) -> None:
    text = b'data: {"choices":[{"text":"a"}]}\n\n'
    stream = text + b"data: " + ABORTED % b"" + b"\n\ndata: [DONE]\n\n"
    found, _ = through_another(laddered, said(stream, EVENTS))
    assert found.body.startswith(text) and b"[DONE]" not in found.body
    assert found.body.endswith(b'"code": "stream_broken"}}\n\n')


@pytest.mark.parametrize("size", [10, 300_000])
def test_an_answer_of_any_size_arrives_whole(laddered: Any, size: int) -> None:
    found, _ = through_another(lambda rung: laddered(rung, SORRY), said(b"x" * size))
    assert found.body == b"x" * size


def test_certificates_are_read_for_https_only_and_held_against_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verified: list[object] = []

    class Client(httpx.AsyncClient):
        def __init__(self, *, verify: bool, **more: Any) -> None:
            verified.append(verify)
            super().__init__(verify=verify, **more)

    async def run() -> None:
        servers = OtherServers()
        assert servers.client() is servers.client() is not servers.client(secure=True)
        for secure in (False, True):
            await servers.client(secure).aclose()

    monkeypatch.setattr(httpx, "AsyncClient", Client)
    asyncio.run(run())
    assert verified == [False, True]


def test_nobody_at_the_last_rung_is_said(laddered: Any) -> None:
    bench = laddered(Rung("cpu", "url", url="http://127.0.0.1:9", timeout_ms=2_000))
    answer = ask(bench)
    assert answer.status == 502 and bench.inside == 0


def test_a_request_from_another_gates_ladder_ends_here(laddered: Any) -> None:
    bench = laddered(SMALL)
    assert ask(bench, x_resilience_rung="cpu").json()["model"] == "big"
    assert ask(bench, x_resilience_rung="cpu", peer="10.0.0.1").json()["model"] == "s"


def test_a_client_that_leaves_ends_the_other_servers_work(laddered: Any) -> None:
    """Nothing is sent any more, and the gate counts nobody in."""
    seen: list[bytes] = []

    async def scenario() -> Any:
        server = await other_server(OK, seen, hang=True)
        port = server.sockets[0].getsockname()[1]
        bench = laddered(Rung("cpu", "url", url=f"http://127.0.0.1:{port}", timeout_ms=60_000))
        messages: list[Any] = [
            {"type": "http.request", "body": b'{"model": "big", "prompt": "a"}'},
            {"type": "http.disconnect"},
        ]
        sent: list[Any] = []

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [],
                 "client": ("127.0.0.1", 1)}
        await bench.gate(scope, receive, send)
        await bench.state.ladder.servers.client().aclose()
        server.close()
        await server.wait_closed()
        return bench, sent

    bench, sent = asyncio.run(scenario())
    assert sent == [] and bench.inside == 0
