"""The gate on the request path: admission, tiers, refusals and routing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from resilience.gate.body import BODY_MAX
from resilience.gate.config import GateConfig, GateTier
from resilience.gate.guarded import guards
from resilience.gate.middleware import Gate
from resilience.model import Json

MakeClaim = Callable[..., Json]
THROTTLE, ROUTE = "throttle.max_concurrency", "route.model"
SSE = b"text/event-stream; charset=utf-8"


@pytest.mark.parametrize(
    ("path", "method", "passes"),
    [
        ("/v1/chat/completions", "POST", True), ("/v1/completions", "POST", True),
        ("/invocations", "POST", True), ("/inference/v1/generate", "POST", True),
        ("/cohere/v2/chat", "POST", True), ("/v2/embed", "POST", True),
        ("/v1/models", "GET", False), ("/metrics", "GET", False),
        ("/v1/load_lora_adapter", "POST", False), ("/resilience/v1/desired", "PUT", False),
        ("/v1/responses/abc/cancel", "POST", False), ("/tokenize", "POST", False),
        ("/v1/messages/count_tokens", "POST", False), ("/resilience/v1/impulses/k", "POST", False),
    ],
)
def test_only_what_costs_inference_is_guarded(path: str, method: str, passes: bool) -> None:
    assert guards(path, method) is passes


@pytest.mark.parametrize(("root", "path"), [("", "/v1/completions"), ("/llm", "/v1/completions"),
                                            ("/llm", "/llm/v1/completions")])
def test_a_mounted_server_is_guarded_with_and_without_its_prefix(
    bench: Any, claim: MakeClaim, scope_of: Any, drive: Any, root: str, path: str
) -> None:
    bench.hold(claim(THROTTLE, 0))

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    scope = {**scope_of(path), "root_path": root}
    assert drive(bench.gate, scope, receive).status == 429


def test_without_claims_a_request_passes_untouched(bench: Any) -> None:
    answer = bench.send(b'{"model": "m"}', x_slo_tier="core")
    assert (answer.status, answer.body) == (200, b'{"model": "m"}')
    assert bench.inside == 0
    assert bench.value("resilience_gate_requests_total", tier="core", outcome="ok") == 1


def test_a_full_tier_is_refused_and_the_others_go_on(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim(THROTTLE, 0, tier="best-effort", policy="kv", reason="kv_pressure"))
    answer = bench.send()
    assert answer.status == 429
    assert 1 <= int(answer.headers["retry-after"]) <= 5
    assert answer.headers["x-resilience-reason"] == "kv_pressure"
    assert answer.headers["x-resilience-policy"] == "kv"
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert "the limit is 0" in answer.json()["error"]["message"]
    assert bench.send(x_slo_tier="core").status == 200
    assert bench.value("resilience_gate_refused_total", tier="best-effort", policy="kv") == 1
    bench.hold()
    assert bench.send().status == 200


def test_the_limit_counts_requests_in_flight(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim(THROTTLE, 2, tier="core"))

    async def scenario() -> list[int]:
        gate, release = hanging(bench)
        calls = [asyncio.ensure_future(bench.ask(gate=gate, x_slo_tier="core")) for _ in range(3)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        assert bench.value("resilience_gate_inflight", tier="core") == 2
        release.set()
        return [(await call).status for call in calls]

    assert asyncio.run(scenario()) == [200, 200, 429]
    assert bench.inside == 0 and bench.state.inflight("core") == 0


def hanging(bench: Any) -> tuple[Gate, asyncio.Event]:
    """Return a gate around an application that answers only after the event."""
    release = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()
        await bench.echo(scope, receive, send)

    return bench.around(app), release


def test_the_whole_server_has_a_limit_of_its_own(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim(THROTTLE, 1))

    async def scenario() -> tuple[int, int]:
        gate, release = hanging(bench)
        first = asyncio.ensure_future(bench.ask(gate=gate, x_slo_tier="core"))
        await asyncio.sleep(0)
        second = await bench.ask(gate=gate, x_slo_tier="elastic")
        release.set()
        return (await first).status, second.status

    assert asyncio.run(scenario()) == (200, 429)


def test_a_lease_ends_without_anyone_acting(bench: Any, claim: MakeClaim) -> None:
    bench.hold(
        claim(THROTTLE, 0, ttl_ms=500, tier="core"),
        claim(THROTTLE, 0, ttl_ms=900, tier="elastic"),
        claim(THROTTLE, 0, ttl_ms=500, tier="best-effort", keep=True),
    )
    tiers = ("core", "elastic", "best-effort")

    def statuses() -> list[int]:
        return [bench.send(x_slo_tier=tier).status for tier in tiers]

    assert statuses() == [429, 429, 429]
    bench.clock.now += 500
    assert statuses() == [200, 429, 429]
    bench.clock.now += 400
    assert statuses() == [200, 200, 429]


@pytest.mark.parametrize(
    ("peer", "sent", "tier", "passed_on"),
    [
        ("127.0.0.1", "core", "core", True), ("::1", "core", "core", True),
        ("::ffff:127.0.0.1", "core", "core", True), ("10.1.2.3", "core", "best-effort", False),
        (None, "core", "best-effort", False), ("not-an-address", "core", "best-effort", False),
        ("127.0.0.1", "unheard-of", "best-effort", True), ("127.0.0.1", None, "best-effort", False),
    ],
)
def test_a_tier_is_believed_from_trusted_peers_only(
    bench: Any, peer: str | None, sent: str | None, tier: str, passed_on: bool
) -> None:
    headers: dict[str, Any] = {} if sent is None else {"x_slo_tier": sent}
    assert bench.send(peer=peer, **headers).status == 200
    scope, _ = bench.seen[-1]
    assert any(name == b"x-slo-tier" for name, _ in scope["headers"]) is passed_on
    assert bench.value("resilience_gate_requests_total", tier=tier, outcome="ok") == 1


def test_a_tier_may_have_a_cap_of_its_own(
    config: GateConfig, new_bench: Callable[[GateConfig], Any], claim: MakeClaim
) -> None:
    bench = new_bench(replace(config, tiers={**config.tiers, "core": GateTier(0)}))
    refused = bench.send(x_slo_tier="core")
    assert refused.status == 429 and refused.headers["x-resilience-reason"] == "tier_limit"
    bench.hold(claim(THROTTLE, 5, tier="core"))
    assert bench.send(x_slo_tier="core").status == 429  # a claim tightens, it never widens


def test_other_tiers_can_be_configured_while_requests_run(bench: Any, config: GateConfig) -> None:
    async def scenario() -> None:
        gate, release = hanging(bench)
        running = asyncio.ensure_future(bench.ask(gate=gate, x_slo_tier="core"))
        await asyncio.sleep(0)
        bench.state.configure(replace(config, tiers={"gold": GateTier(0)}, default="gold"))
        assert (await bench.ask()).status == 429
        release.set()
        assert (await running).status == 200

    asyncio.run(scenario())
    assert bench.inside == 0


def test_a_route_rewrites_the_model_and_says_so(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim(ROUTE, {"to": "small", "share": 1.0}, policy="fallback", reason="slo_burn"))
    sent = json.dumps({"model": "big", "prompt": "grüße", "n": 1}).encode()
    answer = bench.send(sent, content_length=str(len(sent)))
    assert answer.json() == {"model": "small", "prompt": "grüße", "n": 1}
    assert answer.headers["x-resilience-model"] == "small"
    assert answer.headers["x-resilience-policy"] == "fallback"
    scope, body = bench.seen[-1]
    assert (b"content-length", str(len(body)).encode()) in scope["headers"]
    labels = {"service": "vllm", "method": "/v1/completions", "reason": "policy"}
    assert bench.value("service_fallback_total", **labels) == 1


def test_an_adapter_in_a_header_is_the_model(bench: Any, claim: MakeClaim) -> None:
    """SageMaker's clients name it so, and the server does not look at the model in such a body."""
    asked: Any = {"path": "/invocations", "x_amzn_sagemaker_adapter_identifier": "adapter"}

    def adapters() -> list[bytes]:
        scope, _ = bench.seen[-1]
        return [value for name, value in scope["headers"] if b"sagemaker" in name]

    bench.hold(claim(THROTTLE, 0, model="adapter"))
    assert bench.send(b'{"model": "big"}', **asked).status == 429
    bench.hold(claim(ROUTE, {"to": "small", "share": 1.0}))
    answer = bench.send(b'{"model": "big"}', **asked)
    assert answer.headers["x-resilience-model"] == "small" and adapters() == [b"small"]
    bench.hold()
    bench.send(b'{"model": "big"}', **asked)
    assert adapters() == [b"adapter"]


def test_a_share_is_spread_evenly(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim(ROUTE, {"to": "small", "share": 0.25}, tier="core"))
    sent = b'{"model": "big"}'
    models = [bench.send(sent, x_slo_tier="core").json()["model"] for _ in range(8)]
    assert models == ["big", "big", "big", "small"] * 2
    assert bench.send(sent, x_slo_tier="elastic").json()["model"] == "big"


def test_a_tiers_own_route_comes_first(bench: Any, claim: MakeClaim) -> None:
    bench.hold(
        claim(ROUTE, {"to": "any", "share": 1.0}, priority=90),
        claim(ROUTE, {"to": "mine", "share": 1.0}, tier="core", priority=10),
    )
    sent = b'{"model": "big"}'
    assert bench.send(sent, x_slo_tier="core").json()["model"] == "mine"
    assert bench.send(sent).json()["model"] == "any"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"not json", "not_json"), (b"[" * 100_000, "not_json"), (b"[1]", "no_model"),
        (b'{"model": 3}', "no_model"), (b'{"model": "small"}', "same_model"),
        (b'{"model": "' + b"x" * BODY_MAX + b'"}', "too_large"),
    ],
)
def test_what_cannot_be_routed_passes_byte_for_byte(
    bench: Any, claim: MakeClaim, body: bytes, reason: str
) -> None:
    bench.hold(claim(ROUTE, {"to": "small", "share": 1.0}))
    answer = bench.send(body)
    assert (answer.status, answer.body) == (200, body)
    assert "x-resilience-model" not in answer.headers
    assert bench.value("resilience_gate_reroute_skipped_total", reason=reason) == 1


def test_a_body_in_pieces_is_routed_and_the_disconnect_stays_visible(
    bench: Any, claim: MakeClaim, scope_of: Any, drive: Any
) -> None:
    bench.hold(claim(ROUTE, {"to": "small", "share": 1.0}))
    pieces = [
        {"type": "http.request", "body": b'{"mod', "more_body": True},
        {"type": "http.request", "body": b'el": "big"}', "more_body": False},
        {"type": "http.disconnect"},
    ]
    got: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        got.extend([await receive(), await receive()])

    async def receive() -> Any:
        return pieces.pop(0)

    drive(bench.around(app), scope_of(), receive)
    assert json.loads(got[0]["body"]) == {"model": "small"}
    assert got[1] == {"type": "http.disconnect"}
    outcome = {"tier": "best-effort", "outcome": "disconnected"}
    assert bench.value("resilience_gate_requests_total", **outcome) == 1


@pytest.mark.parametrize(
    ("chunks", "streams", "outcome"),
    [
        ((b"data: a\n\n", b"data: b\n\n"), 1, "ok"),
        ((b": keep-alive\n\n", b"data: a\n\n"), 1, "ok"),
        ((b": keep-alive\n\n",), 0, "ok"),
        ((b'data: {"error": {"code": 503}}\n\n',), 0, "server_error"),
        ((b"data: a\n\n", b'data: {"error": {}}\n\n'), 1, "server_error"),
    ],
)
def test_a_stream_passes_chunk_by_chunk_and_its_first_token_is_timed(
    bench: Any, chunks: tuple[bytes, ...], streams: int, outcome: str
) -> None:
    answer = bench.send(gate=bench.answering(*chunks, kind=SSE))
    assert answer.chunks == [*chunks, b""]
    tier = "best-effort"
    assert bench.value("resilience_gate_ttft_seconds_count", tier=tier) == streams
    assert bench.value("resilience_gate_requests_total", tier=tier, outcome=outcome) == 1


def test_a_stream_that_opens_with_an_event_is_not_timed(bench: Any) -> None:
    gate = bench.answering(b"event: response.created\n\n", kind=SSE)
    asyncio.run(bench.ask(gate=gate, path="/v1/responses"))
    assert bench.value("resilience_gate_ttft_seconds_count", tier="best-effort") == 0


def test_what_the_application_raises_passes_and_is_counted_down(bench: Any) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        asyncio.run(bench.ask(gate=bench.around(broken)))
    assert bench.inside == 0
    outcome = {"tier": "best-effort", "outcome": "error"}
    assert bench.value("resilience_gate_requests_total", **outcome) == 1


def test_the_gate_can_be_switched_off(
    bench: Any, claim: MakeClaim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESILIENCE_GATE", "off")
    bench.hold(claim(THROTTLE, 0))
    assert asyncio.run(bench.ask(gate=Gate(bench.echo, bench.state))).status == 200
    assert bench.value("resilience_gate_requests_total", tier="best-effort", outcome="ok") == 0


def test_headers_cannot_be_split_by_a_policys_words(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim(THROTTLE, 0, reason="a\r\nset-cookie: x", policy="grüße"))
    answer = bench.send()
    assert answer.headers["x-resilience-reason"] == "a??set-cookie: x"
    assert answer.headers["x-resilience-policy"] == "gr??e"
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("said", [[], [(b"x-slo-tier", b"core")]])
def test_headers_behind_the_body_are_none(bench: Any, said: list[tuple[bytes, bytes]]) -> None:
    """uvicorn with httptools adds a chunked body's trailers to the headers that it gave before."""
    bench.state.by_priority = bench.state.priority_header = True
    headers = [*said]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers}

    async def receive() -> Any:
        headers.extend([(b"x-slo-tier", b"core"), (b"x-vllm-priority", b"-9")])
        return {"type": "http.request", "body": b"{}"}

    async def send(_: Any) -> None:
        return None

    asyncio.run(bench.gate(scope, receive, send))
    (passed, _), = bench.seen
    assert [pair for pair in passed["headers"] if pair[0] != b"traceparent"] == [
        (b"x-vllm-priority", b"20")]


def test_what_is_no_request_passes(bench: Any) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    async def scenario() -> None:
        for kind in ("lifespan", "websocket"):
            await bench.around(app)({"type": kind, "path": "/live"}, None, None)

    asyncio.run(scenario())
    assert seen == ["lifespan", "websocket"]


def test_a_client_that_leaves_in_the_middle_of_its_body_takes_no_place(
    bench: Any, claim: MakeClaim, drive: Any, scope_of: Any
) -> None:
    """Neither in the server nor in the queue, where nobody would see that it has left."""
    bench.hold(claim("throttle.max_concurrency", 0))
    messages = [{"type": "http.request", "body": b'{"mod', "more_body": True},
                {"type": "http.disconnect"}]

    async def receive() -> Any:
        return messages.pop(0)

    assert drive(bench.gate, scope_of(), receive).status == 0
    assert bench.seen == [] and bench.inside == 0
    cause = {"tier": "best-effort", "cause": "client_left"}
    assert bench.value("resilience_gate_causes_total", **cause) == 1
