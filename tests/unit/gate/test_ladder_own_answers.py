"""What the gate answers itself: templates and stored answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from resilience.gate.config import GateConfig, GateTenant
from resilience.model import Json
from tests.unit.gate.ladder_rig import (
    CACHED,
    CHAT,
    ROUTE,
    SMALL,
    SORRY,
    THROTTLE,
    ask,
    fallbacks,
    scripted,
)

MakeClaim = Callable[..., Json]
NewBench = Callable[[GateConfig], Any]


def test_a_template_needs_no_seat(laddered: Any, claim: MakeClaim) -> None:
    bench = laddered(SORRY)
    bench.hold(claim(ROUTE, {"to": "sorry", "share": 1.0}), claim(THROTTLE, 0))
    answer = ask(bench, {"model": "big", "messages": []}, path=CHAT)
    body = answer.json()
    assert (answer.status, bench.seen) == (200, [])
    assert (body["object"], body["model"]) == ("chat.completion", "sorry")
    assert body["choices"] == [{
        "index": 0, "message": {"role": "assistant", "content": SORRY.text}, "logprobs": None,
        "finish_reason": "stop",
    }]
    assert answer.headers["x-resilience-model"] == "sorry"
    assert fallbacks(bench, "policy", CHAT) == 1
    assert bench.value("resilience_gate_slo_requests_total", tier="best-effort") == 1
    assert bench.value("resilience_gate_slo_good_total", tier="best-effort") == 0


def test_a_template_of_a_completion(laddered: Any) -> None:
    body = ask(laddered(SORRY)).json()
    assert (body["object"], body["choices"][0]["text"]) == ("text_completion", SORRY.text)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_a_template_streams_when_a_stream_is_asked_for(laddered: Any, path: str) -> None:
    asked = {"model": "big", "stream": True, "stream_options": {"include_usage": True}}
    answer = ask(laddered(SORRY), asked, path=path)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, end, rest = answer.body.decode().split("\n\n")
    assert (end, rest) == ("data: [DONE]", "")
    first, last, usage = (json.loads(e.removeprefix("data: ")) for e in events)
    said = first["choices"][0]
    assert (said["delta"]["content"] if path == CHAT else said["text"]) == SORRY.text
    assert last["choices"][0]["finish_reason"] == "stop" and usage["choices"] == []
    assert len({e["id"] for e in (first, last, usage)}) == 1


def test_a_template_after_a_failure_counts_for_no_kept_promise(laddered: Any) -> None:
    bench = laddered(SMALL, SORRY)
    answer = ask(bench, gate=scripted(bench, s=500))
    assert answer.json()["choices"][0]["text"] == SORRY.text
    assert fallbacks(bench, "exception") == 1
    assert bench.value("resilience_gate_slo_good_total", tier="best-effort") == 0


USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
SAME: dict[str, Any] = {"model": "big", "prompt": "a", "temperature": 0}


def completing(bench: Any) -> Any:
    """Return a gate around an application that numbers its answers."""
    count = iter(range(1, 100))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        choice = {"index": 0, "text": f"answer {next(count)}", "finish_reason": "length"}
        body = json.dumps({"model": "big", "choices": [choice], "usage": USAGE}).encode()
        await send({"type": "http.response.start", "status": 200,
                    "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})

    return bench.around(app)


def events(answer: Any) -> list[Any]:
    """Return what a stream told, without its end."""
    told = answer.body.decode().split("\n\n")[:-2]
    return [json.loads(one.removeprefix("data: ")) for one in told]


def said(answer: Any) -> str:
    text: str = answer.json()["choices"][0]["text"]
    return text


def test_an_equal_request_gets_the_stored_answer_marked(laddered: Any, claim: MakeClaim) -> None:
    bench = laddered(CACHED)
    bench.hold()
    gate = completing(bench)
    assert said(ask(bench, SAME, gate)) == "answer 1"
    assert said(ask(bench, SAME, gate)) == "answer 2"  # without a route nothing is given again
    bench.hold(claim(ROUTE, {"to": "ladder", "share": 1.0}), claim(THROTTLE, 0, tier="core"))
    bench.clock.now += 3_000
    answer = ask(bench, SAME, gate, x_slo_tier="core")
    assert said(answer) == "answer 2"
    assert (answer.headers["x-resilience-cached"], answer.headers["age"]) == ("true", "3")
    streamed = ask(bench, {**SAME, "stream": True}, gate)
    assert b"answer 2" in streamed.body and streamed.body.endswith(b"data: [DONE]\n\n")
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *_, last, usage = events(ask(bench, {**SAME, **options}, gate))
    assert last["choices"][0]["finish_reason"] == "length" and usage["usage"] == USAGE
    for other in ({**SAME, "prompt": "b"}, {**SAME, "temperature": 0.5}):
        assert said(ask(bench, other, gate)).startswith("answer ")
        assert "x-resilience-cached" not in ask(bench, other, gate).headers or other == {
            **SAME, "prompt": "b"}
    bench.clock.now += 60_000
    assert "x-resilience-cached" not in ask(bench, SAME, gate).headers


def test_an_answer_that_was_cut_short_is_not_stored(laddered: Any, claim: MakeClaim) -> None:
    bench = laddered(CACHED)
    gate = completing(bench)
    bench.hold(claim("throttle.max_output_tokens", 1))
    assert "x-resilience-reason" in ask(bench, SAME, gate).headers
    bench.hold(claim(ROUTE, {"to": "stored", "share": 1.0}))
    answer = ask(bench, SAME, gate)
    assert said(answer) == "answer 2" and "x-resilience-cached" not in answer.headers


def test_a_stored_answer_is_its_tenants_own(
    config: GateConfig, new_bench: NewBench, claim: MakeClaim
) -> None:
    tenants = {"a": GateTenant(), "b": GateTenant()}
    bench = new_bench(replace(config, ladder=(CACHED,), tenants=tenants))
    gate = completing(bench)
    assert said(ask(bench, SAME, gate, x_tenant="a")) == "answer 1"
    bench.hold(claim(ROUTE, {"to": "stored", "share": 1.0}))
    assert said(ask(bench, SAME, gate, x_tenant="b")) == "answer 2"
    assert said(ask(bench, SAME, gate, x_tenant="a")) == "answer 1"


def test_the_answer_of_another_model_is_stored_for_nobody(laddered: Any, claim: MakeClaim) -> None:
    """It was routed away by name: an equal request that is not gets no word of it."""
    bench = laddered(CACHED, to="other")
    assert said(ask(bench, SAME, completing(bench))) == "answer 1"
    bench.hold(claim(ROUTE, {"to": "stored", "share": 1.0}))
    answer = ask(bench, SAME, completing(bench))
    assert "x-resilience-cached" not in answer.headers


def test_who_waits_is_answered_at_once_when_its_way_needs_no_seat(
    laddered: Any, claim: MakeClaim
) -> None:
    bench = laddered(SORRY)
    bench.state.config = replace(bench.state.config, queue_max=8)
    bench.state.configure(bench.state.config)
    bench.on_the_real_clock()

    async def scenario() -> None:
        bench.hold(claim(THROTTLE, 1))
        server = bench.held_server()
        body = b'{"model": "big", "prompt": "hello"}'
        first, second = [await server.send(name, "core", body=body) for name in ("1", "2")]
        assert bench.state.waiting("core") == 1
        bench.hold(claim(THROTTLE, 1), claim(ROUTE, {"to": "sorry", "share": 1.0}))
        await server.settle()
        assert second.done() and server.names() == ["1"]
        assert second.result().json()["choices"][0]["text"] == SORRY.text
        assert second.result().headers["x-resilience-rung"] == "sorry"
        await server.end()
        assert (await first).headers.get("x-resilience-rung") is None

    asyncio.run(scenario())
    assert (bench.inside, bench.state.waiting("core"), len(bench.seen)) == (0, 0, 1)
    assert bench.value("resilience_gate_requests_total", tier="core", outcome="ok") == 2
