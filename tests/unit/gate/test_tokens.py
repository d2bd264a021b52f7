"""The gate's token limits on the request path."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from resilience.model import Json

MakeClaim = Callable[..., Json]
CONCURRENCY = "throttle.max_concurrency"


class Words:
    """A tokenizer that counts words; long texts in its own time."""

    factor = 1.0

    def __init__(self) -> None:
        self.long = 0

    def count(self, text: str) -> int:
        return len(text.split())

    async def count_long(self, text: str) -> int:
        self.long += 1
        return len(text.split())


def completion(prompt: str, **more: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": prompt, **more}).encode()


def test_prompt_tokens_are_counted_by_the_servers_tokenizer(bench: Any, claim: MakeClaim) -> None:
    bench.state.counter = Words()
    bench.hold(claim("throttle.max_prompt_tokens_per_second", 10.0))
    assert bench.send(completion("one two three four five six seven")).status == 200
    refused = bench.send(completion("one two three four"))
    assert refused.status == 429 and refused.headers["x-resilience-cause"] == "tokens"
    bench.clock.now += 1_000
    assert bench.send(completion("one two three four")).status == 200


def test_a_long_text_is_counted_off_the_event_loop(bench: Any, claim: MakeClaim) -> None:
    bench.state.counter = Words()
    bench.hold(claim("throttle.max_context_tokens", 500))
    assert bench.send(completion("word " * 1_000)).status == 429
    assert bench.state.counter.long == 1
    assert bench.send(completion("word " * 100)).status == 200
    assert bench.state.counter.long == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"prompt": "a b c", "max_tokens": 7}, 200), ({"prompt": "a b c", "max_tokens": 8}, 429),
        ({"prompt": [1, 2, 3], "max_tokens": 8}, 429), ({"prompt": [[1, 2], [3]]}, 200),
        ({"prompt": "a", "max_tokens": 3, "n": 4}, 429),
        ({"prompt": "a", "max_tokens": 1, "n": 129}, 429),
        ({"prompt": "a", "max_tokens": 10.0}, 429), ({"prompt": "a", "max_tokens": "10"}, 429),
        ({"prompt": "a", "max_tokens": 1, "n": "10"}, 429),
        ({"prompt": "a", "max_tokens": "many"}, 200), ({"prompt": "a", "max_tokens": 9.5}, 200),
        ({"prompt": "a", "max_tokens": 1, "n": 1_000}, 429),
        ({"prompt": "a", "max_tokens": "3", "n": 4.0}, 429),
        ({"prompt": "a", "max_tokens": 99, "max_completion_tokens": 1}, 429),
        ({"prompt": "a", "max_tokens": 99, "sampling_params": {"max_tokens": 1}}, 429),
        ({"prompt": ["a", "b", "c"], "max_tokens": 2}, 200),
        ({"prompt": ["a", "b", "c"], "max_tokens": 3}, 429),
        ({"prompt": [[1], [2], [3]], "max_tokens": 3}, 429),
        ({"prompt": "a", "max_tokens": True}, 200),
        ({"messages": [{"role": "user", "content": "a b c"}], "max_completion_tokens": 4}, 429),
        ({"messages": [{"content": [{"type": "text", "text": "a"}]}], "max_tokens": 5}, 200),
        ({"messages": [{"content": [{"image_url": {"url": "a " * 99}}]}]}, 200),
        ({"messages": [{"content": "a"}], "tools": [{"function": {"strict": "a " * 9}}]}, 429),
        ({"messages": [{"content": None, "tool_calls": [
            {"function": {"name": "f", "arguments": "a " * 9}}]}]}, 429),
        ({"messages": [{"content": [{"type": "tool_use", "input": {"q": {"r": "a " * 9}}}]}]}, 429),
        ({"messages": [{"content": "a", "reasoning_content": "a " * 9}]}, 429),
        ({"input": [{"type": "function_call_output", "output": "a " * 11}]}, 429),
        ({"text_1": "a", "text_2": ["a " * 10]}, 429), ({"texts": ["a " * 11]}, 429),
        ({"prompt": "a", "max_tokens": None}, 200), ({"prompt": "a", "max_tokens": 0}, 200),
        ({"prompt": "a", "max_tokens": -5}, 200), ({"prompt": "a", "max_tokens": 10**40}, 429),
        ({"prompt": "a", "max_tokens": 9, "max_completion_tokens": None}, 200),
    ],
)
def test_the_largest_context(bench: Any, claim: MakeClaim, body: Any, status: int) -> None:
    bench.state.counter = Words()
    bench.hold(claim("throttle.max_context_tokens", 10))
    assert bench.send(json.dumps({"model": "m", **body}).encode()).status == status


@pytest.mark.parametrize(
    ("path", "body", "passed_on"),
    [
        ("/v1/completions", {"max_tokens": 99}, {"max_tokens": 10}),
        ("/v1/completions", {"max_tokens": 9}, {"max_tokens": 9}),
        ("/v1/completions", {}, {"max_tokens": 10}),
        ("/v1/completions", {"max_tokens": None}, {"max_tokens": 10}),
        ("/v1/completions", {"max_tokens": -1}, {"max_tokens": -1}),
        ("/v1/chat/completions", {}, {"max_completion_tokens": 10}),
        ("/v1/chat/completions", {"max_completion_tokens": 11}, {"max_completion_tokens": 10}),
        ("/v1/responses", {}, {"max_output_tokens": 10}),
        ("/v1/completions", {"max_tokens": 99.0}, {"max_tokens": 10}),
        ("/v1/chat/completions", {"max_tokens": 9, "max_completion_tokens": "9_9"},
         {"max_tokens": 9, "max_completion_tokens": 10}),
        ("/v1/chat/completions", {"max_tokens": "9"}, {"max_tokens": "9"}),
        ("/v1/embeddings", {"input": "x"}, {"input": "x"}),
        ("/v2/embed", {"texts": ["x"]}, {"texts": ["x"]}),
        ("/v1/score", {"text_1": "x"}, {"text_1": "x"}),
        ("/v2/rerank", {"query": "x"}, {"query": "x"}),
        ("/generative_scoring", {"query": "x"}, {"query": "x"}),
        ("/v2/rerank", {"query": "x", "documents": []}, {"query": "x", "documents": []}),
        ("/v1/messages", {"max_tokens": 99}, {"max_tokens": 10}),
        ("/v1/completions", {"max_tokens": "99"}, {"max_tokens": 10}),
        ("/v1/completions", {"max_completion_tokens": 5},
         {"max_completion_tokens": 5, "max_tokens": 10}),
        ("/v1/completions", {"max_tokens": 99, "min_tokens": 20},
         {"max_tokens": 10, "min_tokens": 10}),
        ("/v1/chat/completions", {"max_output_tokens": 5},
         {"max_output_tokens": 5, "max_completion_tokens": 10}),
        ("/invocations", {"messages": [], "max_output_tokens": 5},
         {"messages": [], "max_output_tokens": 5, "max_completion_tokens": 10}),
        ("/invocations", {"input": "x"}, {"input": "x"}),
        ("/invocations", {"prompt": "x", "max_completion_tokens": 5},
         {"prompt": "x", "max_completion_tokens": 5, "max_tokens": 10}),
        ("/inference/v1/generate", {"sampling_params": {}},
         {"sampling_params": {"max_tokens": 10}}),
        ("/inference/v1/generate", {"sampling_params": {"max_tokens": 99}},
         {"sampling_params": {"max_tokens": 10}}),
    ],
)
def test_the_largest_output_is_cut_and_said(
    bench: Any, claim: MakeClaim, path: str, body: Any, passed_on: Any
) -> None:
    bench.hold(claim("throttle.max_output_tokens", 10, policy="kv", reason="kv_pressure"))
    answer = bench.send(json.dumps({"model": "m", **body}).encode(), path=path)
    assert json.loads(bench.seen[-1][1]) == {"model": "m", **passed_on}
    assert ("x-resilience-reason" in answer.headers) is (body != passed_on)
    if body != passed_on:
        assert answer.headers["x-resilience-policy"] == "kv"
        assert answer.headers["x-resilience-model"] == "m"


@pytest.mark.parametrize(("path", "body"), [
    ("/v1/completions", {}), ("/v1/completions", {"max_tokens": None}),
    ("/v1/completions", {"max_tokens": 0}),
])
def test_a_limit_above_what_a_server_writes_unasked_changes_nothing(
    bench: Any, claim: MakeClaim, path: str, body: Any
) -> None:
    bench.hold(claim("throttle.max_output_tokens", 32))
    answer = bench.send(json.dumps(body).encode(), path=path)
    assert json.loads(bench.seen[-1][1]) == body
    assert "x-resilience-reason" not in answer.headers


def test_the_estimate_is_settled_by_what_the_answer_says(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim("throttle.max_prompt_tokens_per_second", 100.0, tier="best-effort"))
    said = b'{"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 3}}'
    prompt = completion("x" * 400)  # a hundred tokens by length: the whole second's worth
    assert bench.send(prompt, gate=bench.answering(said)).status == 200
    assert bench.send(completion("x" * 300)).status == 200  # eighty of them were given back
    error = bench.value("resilience_gate_token_estimate_error_tokens_total", tier="best-effort")
    actual = bench.value("resilience_gate_token_estimate_checked_tokens_total", tier="best-effort")
    assert (error, actual) == (80, 20)
    output = {"tier": "best-effort", "kind": "output"}
    assert bench.value("resilience_gate_tokens_total", **output) == 3


@pytest.mark.parametrize("parts", [1, 2, 40])
def test_the_usage_is_found_before_a_long_end(bench: Any, claim: MakeClaim, parts: int) -> None:
    """An answer may go on for long after its usage, with the prompt's tokens for example."""
    bench.hold(claim("throttle.token_quota", {"tokens": 125, "window_ms": 10_000}))
    said = b'{"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 90}, "ids": [%s]}'
    body = said % b",".join([b"1"] * 9_000)
    size = -(-len(body) // parts)
    gate = bench.answering(*(body[at:at + size] for at in range(0, len(body), size)))
    assert bench.send(completion("x" * 40), gate=gate).status == 200
    assert bench.send(completion("x" * 40)).status == 429  # a quota of 100 is used up


def test_streamed_tokens_count_in_the_window_they_come_in(bench: Any, claim: MakeClaim) -> None:
    """125 tokens in 10 s make a quota of 100; the stream's 60 straddle two windows."""
    bench.hold(claim("throttle.token_quota", {"tokens": 125, "window_ms": 10_000}))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(60):
            bench.clock.now += 200
            event = b'data: {"choices":[{"text":"t"}]}\n\n'
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    asyncio.run(bench.ask(completion("x" * 40), gate=bench.around(app)))
    asked = completion("x" * 4 * 56)
    assert bench.send(asked).status == 429     # the prompt of 12 s ago is gone, 50 tokens are not
    assert bench.send(completion("x" * 4 * 45)).status == 200
    bench.clock.now += 9_000
    assert bench.send(completion("x" * 4 * 40)).status == 200


def test_a_stream_that_is_left_counts_what_has_come(bench: Any, claim: MakeClaim) -> None:
    """Its only word about usage is that of its first event, which knows of no output yet."""
    bench.hold(claim("throttle.max_outstanding_tokens", 10_000))
    start = b'event: message_start\ndata: {"usage":{"input_tokens":9,"output_tokens":0}}\n\n'
    delta = b'event: content_block_delta\ndata: {"delta":{"text":"t"}}\n\n'

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for event in (start, delta, delta, delta):
            await send({"type": "http.response.body", "body": event, "more_body": True})
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        asyncio.run(bench.ask(completion("x"), gate=bench.around(app), path="/v1/messages"))
    tokens = {kind: bench.value("resilience_gate_tokens_total", tier="best-effort", kind=kind)
              for kind in ("prompt", "output")}
    assert tokens == {"prompt": 9, "output": 3}


class Letters:
    """A tokenizer whose tokens are letters: four of them are worth one of the reference."""

    factor = 0.25

    def count(self, text: str) -> int:
        return len(text)

    async def count_long(self, text: str) -> int:
        return len(text)


def test_streamed_tokens_that_are_worth_little_are_not_rounded_away(
    bench: Any, claim: MakeClaim
) -> None:
    """125 tokens in 10 s make a quota of 100 of the reference, 400 letters."""
    bench.state.counter = Letters()
    bench.hold(claim("throttle.token_quota", {"tokens": 125, "window_ms": 10_000}))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(380):
            event = b'data: {"choices":[{"text":"t"}]}\n\n'
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    asyncio.run(bench.ask(completion("x"), gate=bench.around(app)))
    assert bench.send(completion("x" * 40)).status == 429
    assert bench.send(completion("x" * 10)).status == 200


def test_outstanding_tokens_are_reserved_until_the_end(bench: Any, claim: MakeClaim) -> None:
    bench.state.counter = Words()
    bench.hold(claim("throttle.max_outstanding_tokens", 50))

    async def scenario() -> list[int]:
        server = bench.held_server()
        big = completion("a b c", max_tokens=30)
        first = asyncio.ensure_future(bench.ask(big, gate=server.gate))
        await server.settle()
        assert bench.state.admission.usage.tally(("", "", "")).tokens == 33
        second = await bench.ask(big, gate=server.gate)
        await server.end()
        return [(await first).status, second.status]

    assert asyncio.run(scenario()) == [200, 429]
    assert bench.state.admission.usage.tally(("", "", "")).tokens == 0


@pytest.mark.parametrize(("path", "body", "reserved"), [
    ("/v1/completions", {"prompt": ["a b", "c"], "max_tokens": 5}, 3 + 10),
    ("/v1/completions", {"prompt": ["a b", "c"], "max_tokens": 5, "n": 3}, 3 + 30),
    ("/v1/completions", {"prompt": ["a"] * 4}, 4 + 4 * 16),
    ("/v1/chat/completions/batch",
     {"messages": [[{"content": "a b"}], [{"content": "c"}]], "max_tokens": 5}, 3 + 2 * 4 + 10),
    ("/v1/messages", {"system": "a", "messages": [{"content": "b"}], "max_tokens": 7}, 2 + 4 + 7),
    ("/v1/responses", {"instructions": "a", "input": "b c", "max_output_tokens": 7}, 3 + 7),
    ("/inference/v1/generate",
     {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 5, "n": 2}}, 3 + 10),
    ("/v1/embeddings", {"input": [[1, 2], [3]], "max_tokens": 99}, 3),
    ("/v1/embeddings", {"input": ["a b", "c"], "n": 9}, 3),
    ("/v2/embed", {"texts": ["a b", "c"]}, 3),
    ("/invocations", {"input": ["a b", "c"]}, 3), ("/invocations", {"prompt": "a"}, 1 + 16),
    ("/v1/score", {"queries": "a", "documents": ["b c", "d"]}, 4),
    ("/v2/rerank", {"query": "a", "documents": [{"text": "b c"}]}, 3),
])
def test_every_answer_of_a_request_is_reserved_for(
    bench: Any, claim: MakeClaim, path: str, body: Any, reserved: int
) -> None:
    bench.state.counter = Words()
    bench.hold(claim("throttle.max_outstanding_tokens", 10_000))

    async def scenario() -> int:
        server = bench.held_server()
        task = asyncio.ensure_future(
            bench.ask(json.dumps(body).encode(), gate=server.gate, path=path))
        await server.settle()
        held = bench.state.admission.usage.tally(("", "", "")).tokens
        await server.end()
        await task
        return int(held)

    assert asyncio.run(scenario()) == reserved


def test_a_limit_for_one_model_leaves_the_others(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim(CONCURRENCY, 0, model="big"))
    assert bench.send(b'{"model": "big"}').status == 429
    assert bench.send(b'{"model": "small"}').status == 200
    assert bench.send(b"not json").status == 200


def test_a_tokenizer_that_fails_stops_nothing(bench: Any, claim: MakeClaim) -> None:
    class Broken(Words):
        def count(self, text: str) -> int:
            raise RuntimeError("no vocabulary")

    bench.state.counter = Broken()
    bench.hold(claim("throttle.max_context_tokens", 10))
    assert bench.send(completion("x" * 40)).status == 200
    assert bench.send(completion("x" * 44)).status == 429
