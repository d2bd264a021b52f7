"""The ladder on the request path: rung after rung until the first byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from resilience.gate.config import GateConfig, GateTenant
from resilience.gate.descent import Descent
from resilience.model import Json, Rung

MakeClaim = Callable[..., Json]
NewBench = Callable[[GateConfig], Any]
ROUTE, THROTTLE = "route.model", "throttle.max_concurrency"
CHAT = "/v1/chat/completions"
SMALL = Rung("small", "model", model="s", context=200)
TINY = Rung("tiny", "model", model="t", tools=True)
CACHED = Rung("stored", "cached", max_age_ms=10_000)
SORRY = Rung("sorry", "template", text="please come back later")


@pytest.fixture
def laddered(config: GateConfig, new_bench: NewBench, claim: MakeClaim) -> Callable[..., Any]:
    """Return a function that makes a bench with these rungs and a route down them."""

    def make(*rungs: Rung, to: str = "ladder", **scope: str) -> Any:
        bench = new_bench(replace(config, ladder=rungs))
        bench.hold(claim(ROUTE, {"to": to, "share": 1.0}, policy="burn", reason="slo_burn",
                         **scope))
        return bench

    return make


def ask(bench: Any, fields: Json = None, gate: Any = None, **scope: Any) -> Any:
    body = {"model": "big", "prompt": "hello"} if fields is None else fields
    return asyncio.run(bench.ask(json.dumps(body).encode(), gate=gate, **scope))


def fallbacks(bench: Any, reason: str, method: str = "/v1/completions") -> float:
    labels = {"service": "vllm", "method": method, "reason": reason}
    found: float = bench.value("service_fallback_total", **labels)
    return found


def scripted(bench: Any, *failing: str, **answers: Any) -> Any:
    """Return a gate around an application that fails for some models: 5xx, raise, hang, break."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        how = answers.get(body["model"], "ok")
        if how == "raise":
            raise RuntimeError("no engine")
        if how == "hang":
            await asyncio.Event().wait()
        status = how if isinstance(how, int) else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        if how == "late":
            raise RuntimeError("after the start, before the first byte")
        text = body["model"].encode()
        await send({"type": "http.response.body", "body": text, "more_body": how == "break"})
        if how == "break":
            raise RuntimeError("in the middle")

    return bench.around(app)


def test_the_first_rung_serves_and_says_so(laddered: Any) -> None:
    bench = laddered(SMALL, SORRY)
    answer = ask(bench)
    assert answer.json() == {"model": "s", "prompt": "hello"}
    assert {k: v for k, v in answer.headers.items() if k.startswith("x-resilience")} == {
        "x-resilience-model": "s", "x-resilience-policy": "burn",
        "x-resilience-reason": "slo_burn", "x-resilience-rung": "small",
    }
    assert fallbacks(bench, "policy") == 1
    assert bench.value("resilience_gate_rungs_total", rung="small", outcome="served") == 1
    headers, body = bench.seen[-1]
    assert (b"content-length", str(len(body)).encode()) in headers["headers"]


def test_one_rung_can_be_named_and_other_names_are_served_models(laddered: Any) -> None:
    assert ask(laddered(SMALL, TINY, to="tiny")).json()["model"] == "t"
    assert ask(laddered(SMALL, TINY, to="huge")).json()["model"] == "huge"


def test_only_the_tier_of_the_route_goes_down(laddered: Any) -> None:
    bench = laddered(SMALL, tier="core")
    assert ask(bench).json()["model"] == "big"
    assert ask(bench, x_slo_tier="core").json()["model"] == "s"


def test_what_does_not_fit_skips_a_rung(laddered: Any) -> None:
    bench = laddered(SMALL, TINY)
    long = {"model": "big", "prompt": "x" * 4_000, "max_tokens": 10}
    assert ask(bench, long).json()["model"] == "t"
    tools = {"model": "big", "messages": [], "tools": [{"type": "function"}]}
    assert ask(bench, tools, path=CHAT).json()["model"] == "t"
    assert ask(bench, {"model": "s", "prompt": ""}).json()["model"] == "t"
    for why in ("context", "tools", "same_model"):
        assert bench.value("resilience_gate_rungs_total", rung="small", outcome=why) == 1


def test_without_a_rung_that_fits_a_request_keeps_its_model(laddered: Any) -> None:
    bench = laddered(replace(SMALL, context=1), CACHED)
    answer = ask(bench)
    assert answer.json()["model"] == "big" and "x-resilience-model" not in answer.headers
    assert bench.value("resilience_gate_reroute_skipped_total", reason="no_rung") == 1
    asyncio.run(bench.ask(b"not json"))
    assert bench.value("resilience_gate_reroute_skipped_total", reason="not_json") == 1


def test_a_ladder_that_was_taken_away_changes_no_model(laddered: Any) -> None:
    bench = laddered()
    assert ask(bench).json()["model"] == "big"
    assert bench.value("resilience_gate_reroute_skipped_total", reason="no_rung") == 1


@pytest.mark.parametrize(
    ("how", "reason"),
    [("raise", "exception"), (500, "exception"), (504, "timeout"), ("late", "exception"),
     ("hang", "timeout")],
)
def test_a_rung_that_fails_before_its_first_byte_gives_way(
    laddered: Any, how: str | int, reason: str
) -> None:
    bench = laddered(replace(SMALL, timeout_ms=20), TINY)
    answer = ask(bench, gate=scripted(bench, s=how))
    assert (answer.status, answer.body) == (200, b"t")
    assert answer.headers["x-resilience-rung"] == "tiny"
    assert fallbacks(bench, reason) == 1 and fallbacks(bench, "policy") == 0
    assert bench.inside == 0
    again = ask(bench, gate=scripted(bench))
    assert again.body == b"t"  # a rung that failed rests
    bench.clock.now += 5_000
    assert ask(bench, gate=scripted(bench)).body == b"s"


def test_after_the_first_byte_there_is_no_other_rung(laddered: Any) -> None:
    bench = laddered(SMALL, TINY)
    with pytest.raises(RuntimeError, match="in the middle"):
        ask(bench, gate=scripted(bench, s="break"))
    assert bench.value("resilience_gate_rungs_total", rung="tiny", outcome="served") == 0
    assert bench.inside == 0


def test_the_last_rung_fails_as_the_server_does(laddered: Any) -> None:
    bench = laddered(SMALL, TINY)
    assert ask(bench, gate=scripted(bench, s=500, t=503)).status == 503
    bench = laddered(SMALL)
    with pytest.raises(RuntimeError, match="no engine"):
        ask(bench, gate=scripted(bench, s="raise"))
    bench = laddered(replace(SMALL, timeout_ms=20))
    answer = ask(bench, gate=scripted(bench, s="hang"))
    assert answer.status == 504 and "no rung" in answer.json()["error"]["message"]
    assert fallbacks(bench, "policy") == 0


def test_a_client_error_is_an_answer(laddered: Any) -> None:
    bench = laddered(SMALL, TINY)
    assert ask(bench, gate=scripted(bench, s=400)).status == 400
    assert fallbacks(bench, "policy") == 0


def test_a_rung_whose_breaker_is_open_is_passed_over(laddered: Any, claim: MakeClaim) -> None:
    bench = laddered(SMALL, SORRY)
    rule = {
        "error_rate": None, "failures": None, "consecutive": 1, "p99_ms": None,
        "window_tokens": None, "window_ms": 60_000, "samples": 1, "evaluations": 1,
        "min_requests": 1, "min_rate": 0, "open_ms": 60_000, "probes": 1,
        "probe_timeout_ms": 1_000,
    }
    bench.hold(claim(ROUTE, {"to": "ladder", "share": 1.0}),
               claim("breaker.rule", rule, model="s"))
    with pytest.raises(RuntimeError):
        ask(bench, {"model": "s", "prompt": ["a", "b"]}, gate=scripted(bench, s="raise"))
    answer = ask(bench)
    assert answer.headers["x-resilience-rung"] == "sorry"
    assert fallbacks(bench, "circuit_break") == 1


# --- what the gate answers itself -----------------------------------------------------------------


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


SAME: dict[str, Any] = {"model": "big", "prompt": "a", "temperature": 0}


def completing(bench: Any) -> Any:
    """Return a gate around an application that numbers its answers."""
    count = iter(range(1, 100))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        choice = {"index": 0, "text": f"answer {next(count)}", "finish_reason": "stop"}
        body = json.dumps({"model": "big", "choices": [choice]}).encode()
        await send({"type": "http.response.start", "status": 200,
                    "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})

    return bench.around(app)


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
    for other in ({**SAME, "prompt": "b"}, {**SAME, "temperature": 0.5}):
        assert said(ask(bench, other, gate)).startswith("answer ")
        assert "x-resilience-cached" not in ask(bench, other, gate).headers or other == {
            **SAME, "prompt": "b"}
    bench.clock.now += 60_000
    assert "x-resilience-cached" not in ask(bench, SAME, gate).headers


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


# --- another server -------------------------------------------------------------------------------


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


OK = (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n"
      b"connection: close\r\n\r\n{}")


def test_another_server_answers(laddered: Any) -> None:
    answer, seen = through_another(lambda rung: laddered(rung, SORRY), OK)
    assert (answer.status, answer.body) == (200, b"{}")
    assert answer.headers["x-resilience-rung"] == "cpu"
    (sent,) = seen
    assert b'"model": "torch"' in sent and b"x-resilience-rung: cpu" in sent.lower()
    assert b"secret" not in sent


@pytest.mark.parametrize(
    ("answer", "hang"), [(b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n", False), (OK, True),
                         (b"nonsense", False)],
)
def test_another_server_that_fails_gives_way(laddered: Any, answer: bytes, hang: bool) -> None:
    found, _ = through_another(lambda rung: laddered(rung, SORRY), answer, hang)
    assert found.json()["choices"][0]["text"] == SORRY.text


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


def test_without_a_plan_the_application_is_called_as_before() -> None:
    calls: list[Any] = []

    async def app(*args: Any) -> None:
        calls.append(args)

    scope: dict[str, Any] = {}
    asyncio.run(Descent(app)(scope, None, None))  # type: ignore[arg-type]
    assert calls == [(scope, None, None)]
