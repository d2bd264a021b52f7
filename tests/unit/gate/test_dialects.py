"""Streams of every API that streams tokens: first token, tokens, errors, usage."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from resilience.model import Json

MakeClaim = Callable[..., Json]
TIER = {"tier": "best-effort"}
RULE = {
    "error_rate": None, "failures": None, "consecutive": 1, "p99_ms": None, "window_tokens": None,
    "window_ms": 60_000, "samples": 100, "evaluations": 1, "min_requests": 1, "min_rate": 0.0,
    "open_ms": 1_000, "probes": 1, "probe_timeout_ms": 1_000,
}


def named(kind: str, **body: Any) -> bytes:
    """Return an event as the APIs with named events send it."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **body})}\n\n".encode()


def choice(text: str) -> bytes:
    return f"data: {json.dumps({'choices': [{'text': text}]}, separators=(',', ':'))}\n\n".encode()


USAGE = {"prompt_tokens": 7, "completion_tokens": 3}
CHAT = [choice("a"), choice("b"), choice(".delta\ndata: {"),
        b'data: {"choices":[],"usage":' + json.dumps(USAGE).encode() + b"}\n\n",
        b"data: [DONE]\n\n"]
MESSAGES = [
    named("message_start", message={"usage": {"input_tokens": 0, "output_tokens": 0}}),
    named("content_block_start", index=0),
    *(named("content_block_delta", delta={"text": t}) for t in ("a", "event: error", "c")),
    named("content_block_stop", index=0),
    named("message_delta", usage={"input_tokens": 7, "output_tokens": 3}),
    named("message_stop"),
]
RESPONSES = [
    named("response.created", response={"usage": None}), named("response.in_progress"),
    named("response.output_item.added"),
    *(named("response.output_text.delta", delta=t) for t in ("a", "b", "event: response.failed")),
    named("response.output_text.done"),
    named("response.completed", response={"usage": {"input_tokens": 7, "output_tokens": 3}}),
]
# Path, events, and how many of them come before the first token.
STREAMS: list[tuple[str, list[bytes], int]] = [
    ("/v1/chat/completions", CHAT, 0), ("/v1/completions", CHAT, 0), ("/v1/messages", MESSAGES, 2),
    ("/v1/responses", RESPONSES, 3),
]


def streaming(bench: Any, events: list[bytes], pause_ms: int = 100) -> Any:
    """Return a gate around a server that sends an event every `pause_ms`."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for event in events:
            bench.clock.now += pause_ms
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return bench.around(app)


@pytest.mark.parametrize(("path", "events", "before"), STREAMS)
def test_the_first_token_is_timed_and_all_are_counted(
    bench: Any, claim: MakeClaim, path: str, events: list[bytes], before: int
) -> None:
    bench.hold(claim("throttle.max_outstanding_tokens", 10_000))
    answer = bench.send(gate=streaming(bench, events), path=path)
    assert answer.body == b"".join(events)
    assert bench.value("resilience_gate_ttft_seconds_count", **TIER) == 1
    ttft_s = bench.value("resilience_gate_ttft_seconds_sum", **TIER)
    assert ttft_s == pytest.approx(0.1 * (before + 1))
    gap_s = bench.value("resilience_gate_time_per_token_seconds_sum", **TIER)
    assert gap_s == pytest.approx(0.1)
    tokens = [bench.value("resilience_gate_tokens_total", kind=k, **TIER)
              for k in ("prompt", "output")]
    assert tokens == [7, 3]


@pytest.mark.parametrize(("path", "error"), [
    ("/v1/chat/completions", b'data: {"error": {"message": "KV cache allocation"}}\n\n'),
    ("/v1/messages", named("error", error={"message": "KV cache allocation"})),
    ("/v1/responses", named("response.failed", response={"error": "KV cache allocation"})),
    ("/v1/responses", named("error", message="KV cache allocation")),
])
def test_an_error_inside_a_stream_is_a_failure(
    bench: Any, claim: MakeClaim, path: str, error: bytes
) -> None:
    bench.hold(claim("breaker.rule", RULE))
    first = {"/v1/messages": MESSAGES, "/v1/responses": RESPONSES}.get(path, CHAT)[:4]
    answer = bench.send(gate=streaming(bench, [*first, error]), path=path)
    assert answer.body == b"".join([*first, error]), "what the server said stays as it is"
    assert bench.state.breakers() == {"all": "open"}
    assert bench.value("resilience_gate_causes_total", cause="kv_allocation", **TIER) == 1


def test_an_error_behind_a_token_in_one_chunk_is_a_failure(bench: Any, claim: MakeClaim) -> None:
    """Another server's events come as the network cuts them."""
    bench.hold(claim("breaker.rule", RULE))
    error = b'data: {"error": {"message": "KV cache allocation"}}\n\n'
    bench.send(gate=streaming(bench, [choice("a") + error + CHAT[-1]]), path="/v1/completions")
    assert bench.state.breakers() == {"all": "open"}


def test_what_a_model_writes_of_events_is_no_event(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim("throttle.max_outstanding_tokens", 10_000))
    events = [choice('data: {data: {data: {"error"'), choice('\n\ndata: {"error"'), CHAT[-1]]
    bench.send(gate=streaming(bench, events), path="/v1/completions")
    assert bench.value("resilience_gate_tokens_total", kind="output", **TIER) == 2
    assert bench.value("resilience_gate_requests_total", outcome="ok", **TIER) == 1


# What a client may say of its own, and finds in its answer again as JSON.
ECHO = {"finish_reason": "abort", "usage": {"input_tokens": 0, "output_tokens": 0}}


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize(("path", "whole", "events"), [
    ("/v1/responses", {"metadata": ECHO, "tools": [ECHO],
                       "usage": {"input_tokens": 7, "output_tokens": 3}},
     [named("response.created", response={"metadata": ECHO, "usage": None}), *RESPONSES[1:-1],
      named("response.completed", response={
          "metadata": ECHO, "usage": {"input_tokens": 7, "output_tokens": 3},
          "user": "u" * 5_000})]),
    ("/v1/messages", {"content": [{"type": "tool_use", "input": ECHO}],
                      "usage": {"input_tokens": 7, "output_tokens": 3}},
     [MESSAGES[0], named("content_block_start", content_block={"input": ECHO}), *MESSAGES[2:]]),
])
def test_what_a_client_wrote_into_its_answer_is_not_the_servers_word(
    bench: Any, claim: MakeClaim, path: str, whole: Any, events: list[bytes], streams: bool
) -> None:
    bench.hold(claim("breaker.rule", RULE), claim("throttle.max_outstanding_tokens", 10_000))
    body = json.dumps(whole).encode()
    gate = streaming(bench, events) if streams else bench.answering(body)
    answer = bench.send(gate=gate, path=path)
    assert answer.body == (b"".join(events) if streams else body)
    assert bench.state.breakers() == {"all": "closed"}
    tokens = [bench.value("resilience_gate_tokens_total", kind=k, **TIER)
              for k in ("prompt", "output")]
    assert tokens == [7, 3]


def test_a_client_that_leaves_gets_no_prompt_back_by_its_own_word(
    bench: Any, claim: MakeClaim
) -> None:
    bench.hold(claim("throttle.max_prompt_tokens_per_second", 100.0))
    first = named("response.created", response={"metadata": ECHO, "usage": None})

    async def stops(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": first, "more_body": True})

    asked = json.dumps({"input": "x" * 400}).encode()
    bench.send(asked, gate=bench.around(stops), path="/v1/responses")
    assert bench.send(asked, path="/v1/responses").status == 429


@pytest.mark.parametrize(("last", "number"), [
    (named("response.output_text.delta", delta='"sequence_number": 9', sequence_number=4), 5),
    (b"", 0),
])
def test_the_event_that_ends_a_stream_of_responses_has_the_next_number(
    bench: Any, last: bytes, number: int
) -> None:
    first = named("response.created", response={"usage": None})

    async def stops(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": first + last, "more_body": True})

    answer = bench.send(gate=bench.around(stops), path="/v1/responses")
    told = json.loads(answer.body.removeprefix(first + last).partition(b"data: ")[2])
    assert (told["type"], told["sequence_number"]) == ("error", number)


def test_a_tier_is_held_to_its_first_token_in_every_api(bench: Any) -> None:
    """The core tier's p99 is 100 ms here; its first token comes after 300 ms."""
    for path, events, _ in STREAMS:
        gate = streaming(bench, events, pause_ms=300)
        asyncio.run(bench.ask(gate=gate, path=path, x_slo_tier="core"))
    assert bench.value("resilience_gate_slo_requests_total", tier="core") == len(STREAMS)
    assert bench.value("resilience_gate_slo_good_total", tier="core") == 0
