"""Streams that break, stall or are not read: each says why it ends, and none ends cleanly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from resilience.gate.config import GateConfig
from resilience.model import BudgetSettings
from tests.unit.gate.conftest import make_scope
from tests.unit.gate.failing_servers import (
    ALWAYS,
    DONE,
    EVENT,
    FAST,
    SHORT,
    SSE,
    TIER,
    Hanging,
    ask,
    config_of,
    stream_of,
)

NewBench = Callable[[GateConfig], Any]
MakeClaim = Callable[..., Any]


def errors_in(answer: Any) -> list[Any]:
    events = [e for e in answer.body.split(b"\n\n") if e.startswith(b"data: {")]
    return [json.loads(e[6:])["error"] for e in events if b'"error"' in e]


@pytest.mark.parametrize("whole", [False, True])
def test_a_client_that_does_not_read_is_not_the_servers_failure(
    new_bench: NewBench, claim: MakeClaim, whole: bool
) -> None:
    bench = new_bench(config_of(SHORT))
    bench.hold(claim("breaker.rule", {**ALWAYS, "consecutive": 1}))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": SSE})
        await send({"type": "http.response.body", "body": EVENT, "more_body": not whole})

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    asyncio.run(bench.around(app)(make_scope(), receive, send))
    outcome = "ok" if whole else "disconnected"
    assert bench.value("resilience_gate_requests_total", outcome=outcome, **TIER) == 1
    left = bench.value("resilience_gate_causes_total", cause="client_left", **TIER)
    assert left == (not whole)
    assert bench.state.breakers() == {"all": "closed"}
    assert bench.inside == 0


def test_a_stream_that_stalls_ends_with_an_error_event(new_bench: NewBench) -> None:
    bench, app = new_bench(config_of(SHORT)), Hanging(*stream_of(EVENT))
    answer = ask(bench, app)
    assert app.ended == "http.disconnect"
    assert answer.status == 200 and answer.body.startswith(EVENT) and DONE not in answer.body
    assert [e["code"] for e in errors_in(answer)] == ["timeout"]
    assert bench.value("resilience_gate_requests_total", outcome="server_error", **TIER) == 1


def test_a_stream_has_a_whole_deadline_from_token_to_token_however_late_it_began(
    new_bench: NewBench,
) -> None:
    """The first attempt uses most of the deadline. The second one's stream pauses for longer than
    was left then, as one does that gives way to others on a full server."""
    bench = new_bench(config_of(BudgetSettings(deadline_ms=600, backoff_ms=1, attempts=2)))
    bench.on_the_real_clock()
    calls = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        calls.append(scope)
        if len(calls) == 1:
            await asyncio.sleep(0.35)
            raise RuntimeError("boom")
        for message in stream_of(EVENT, EVENT):
            await send(message)
        for _ in range(2):
            await asyncio.sleep(0.4)
            await send(stream_of(EVENT)[1])
        await send({"type": "http.response.body", "body": DONE})

    answer = ask(bench, app)
    assert answer.body == EVENT * 4 + DONE and len(calls) == 2
    assert bench.value("resilience_gate_requests_total", outcome="ok", **TIER) == 1


@pytest.mark.parametrize("budget", [None, FAST])
@pytest.mark.parametrize("last", [EVENT, EVENT + b'data: {"cho'])
def test_a_stream_that_breaks_says_why_and_is_never_tried_again(
    new_bench: NewBench, budget: BudgetSettings | None, last: bytes
) -> None:
    bench, calls = new_bench(config_of(budget)), []

    async def breaking(scope: Any, receive: Any, send: Any) -> None:
        calls.append(scope)
        for message in stream_of(last):
            await send(message)
        raise RuntimeError("CUDA out of memory")

    answers: list[Any] = []

    async def scenario() -> None:
        answer, gate = bench.answer(), bench.around(breaking)
        answers.append(answer)
        await bench.ask(gate=gate, answer=answer)

    with pytest.raises(RuntimeError, match="out of memory"):
        asyncio.run(scenario())
    assert len(calls) == 1
    assert [e["code"] for e in errors_in(answers[0])] == ["out_of_memory"]
    assert not answers[0].ended, "the connection must not end as if all were well"


def test_a_stream_that_just_stops_is_broken(new_bench: NewBench) -> None:
    bench = new_bench(config_of(None))

    async def stopping(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        for message in stream_of(EVENT):
            await send(message)

    answer = ask(bench, stopping)
    assert [e["code"] for e in errors_in(answer)] == ["stream_broken"]
    assert not answer.ended
    assert bench.value("resilience_gate_causes_total", cause="stream_broken", **TIER) == 1


def test_an_aborted_stream_does_not_end_in_done(new_bench: NewBench) -> None:
    bench = new_bench(config_of(None))
    aborted = b'data: {"choices":[{"text":"","finish_reason":"abort"}]}\n\n'

    async def aborting(scope: Any, receive: Any, send: Any) -> None:
        for message in stream_of(EVENT, aborted, DONE):
            await send(message)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    answer = ask(bench, aborting)
    assert answer.body.startswith(EVENT + aborted) and DONE not in answer.body
    assert [e["code"] for e in errors_in(answer)] == ["stream_broken"]


def test_an_abort_that_is_cut_in_two_is_passed_on_whole(new_bench: NewBench) -> None:
    bench = new_bench(config_of(None))
    aborted = b'data: {"choices":[{"text":"","finish_reason":"abort"}]}\n\n'

    async def aborting(scope: Any, receive: Any, send: Any) -> None:
        for message in stream_of(EVENT, aborted[:30], aborted[30:], DONE):
            await send(message)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    answer = ask(bench, aborting, path="/inference/v1/generate")
    assert answer.body.startswith(EVENT + aborted + b"data: {") and DONE not in answer.body
    assert [e["code"] for e in errors_in(answer)] == ["stream_broken"]


@pytest.mark.parametrize(
    ("path", "begins"), [("/v1/messages", b"event: error\n"), ("/v1/responses", b"event: error\n")]
)
def test_errors_are_told_in_the_words_of_the_api(
    new_bench: NewBench, path: str, begins: bytes
) -> None:
    answer = ask(new_bench(config_of(SHORT)), Hanging(*stream_of(EVENT)), path=path)
    event = answer.body[len(EVENT):]
    assert event.startswith(begins)
    assert json.loads(event.partition(b"data: ")[2])["type"] == "error"
