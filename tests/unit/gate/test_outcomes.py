"""What became of a request, and what follows: breakers, causes, compliance."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from prometheus_client import generate_latest

from resilience.gate.breaker import BreakerRule
from resilience.gate.causes import CAUSES, failure_of
from resilience.gate.config import GateConfig
from resilience.gate.middleware import Gate
from resilience.model import Json
from tests.unit.gate.conftest import make_scope

MakeClaim = Callable[..., Json]
NewBench = Callable[[GateConfig], Any]
CONCURRENCY = "throttle.max_concurrency"


def rule(**changes: Any) -> Json:
    return asdict(replace(BreakerRule(failures=1, open_ms=1_000, probes=1), **changes))


def test_a_breaker_opens_probes_and_closes(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim("breaker.rule", rule(), policy="failing", tier="core"))
    broken, well = bench.answering(b"out of memory", status=500), bench.answering(b"{}")

    def state(gate: Gate, tier: str = "core") -> int:
        return int(bench.send(b"{}", gate=gate, x_slo_tier=tier).status)

    assert [state(broken) for _ in range(2)] == [500, 500]
    refused = bench.send(b"{}", gate=well, x_slo_tier="core")
    assert refused.status == 503 and refused.headers["x-resilience-cause"] == "breaker_open"
    assert refused.headers["x-resilience-policy"] == "failing"
    assert refused.json()["error"]["type"] == "service_unavailable_error"
    assert state(well, "elastic") == 200  # its breaker is its own
    shows = {"name": "tier=core", "state": "half_open"}
    assert bench.value("resilience_gate_breaker_state", **shows) == 0
    bench.clock.now += 1_000
    assert bench.value("resilience_gate_breaker_state", **shows) == 1, "before anybody asks"
    assert state(broken) == 500
    assert state(well) == 503
    bench.clock.now += 1_000
    assert [state(well), state(well)] == [200, 200]
    labels = {"name": "tier=core", "from": "half_open", "to": "closed"}
    assert bench.value("resilience_gate_breaker_transitions_total", **labels) == 1
    shown = {"name": "tier=core", "state": "closed"}
    assert bench.value("resilience_gate_breaker_state", **shown) == 1
    cause = {"tier": "core", "cause": "out_of_memory"}
    assert bench.value("resilience_gate_causes_total", **cause) == 3


@pytest.mark.parametrize(("kind", "first_ms", "rest_ms", "opens"), [
    (b"text/event-stream", 100, 30_000, False),    # a long answer of a server that is well
    (b"text/event-stream", 9_000, 0, True),
    (b"application/json", 0, 9_000, True),
])
def test_a_breaker_judges_how_long_a_stream_took_to_its_first_token(
    bench: Any, claim: MakeClaim, kind: bytes, first_ms: int, rest_ms: int, opens: bool
) -> None:
    slow = rule(failures=None, p99_ms=8_000, window_ms=3_600_000, min_requests=20)
    bench.hold(claim("breaker.rule", slow, ttl_ms=3_600_000))

    async def answers(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200,
                    "headers": [(b"content-type", kind)]})
        bench.clock.now += first_ms
        event = b'data: {"choices":[{"text":"t"}]}\n\n'
        await send({"type": "http.response.body", "body": event, "more_body": True})
        bench.clock.now += rest_ms
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    for _ in range(20):
        assert bench.send(b"{}", gate=bench.around(answers)).status == 200
    assert (bench.send(b"{}").status == 503) is opens


@pytest.mark.parametrize(("path", "kind"), [
    ("/v1/embeddings", b"application/json"), ("/v1/completions", b"text/event-stream"),
    ("/v1/audio/transcriptions", b"text/event-stream"),
])
def test_how_long_a_client_takes_to_read_says_nothing_about_the_server(
    bench: Any, claim: MakeClaim, path: str, kind: bytes
) -> None:
    slow = rule(failures=None, p99_ms=8_000, window_ms=3_600_000, min_requests=1)
    bench.hold(claim("breaker.rule", slow, ttl_ms=3_600_000))
    gate = bench.answering(b'data: {"choices":[{"text":"t"}]}\n\n', kind=kind)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def reads_slowly(message: Any) -> None:
        bench.clock.now += 9_000 if message["type"] == "http.response.body" else 0

    if kind == b"application/json":

        async def at_once(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"large"})

        gate = bench.around(at_once)
    asyncio.run(gate(make_scope(path=path), receive, reads_slowly))
    assert bench.state.breakers() == {"all": "closed"}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/audio/transcriptions"])
def test_an_answer_longer_than_the_time_of_a_probe_closes_the_breaker(
    bench: Any, claim: MakeClaim, path: str
) -> None:
    bench.hold(claim("breaker.rule", rule(probe_timeout_ms=5_000), ttl_ms=3_600_000))
    broken, well = bench.answering(status=500), bench.answering(b"{}")
    assert [bench.send(b"{}", gate=broken).status for _ in range(3)] == [500, 500, 503]
    bench.clock.now += 1_000
    while_it_runs = []

    async def answers(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200,
                    "headers": [(b"content-type", b"text/event-stream")]})
        event = b'data: {"choices":[{"text":"t"}]}\n\n'
        for _ in range(3):
            bench.clock.now += 3_000
            await send({"type": "http.response.body", "body": event, "more_body": True})
            while_it_runs.append((await bench.ask(gate=well)).status)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    assert bench.send(b"{}", gate=bench.around(answers), path=path).status == 200
    assert while_it_runs == [503, 200, 200]
    assert bench.state.breakers() == {"all": "closed"}


def test_what_the_limiter_refused_never_counts(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim("breaker.rule", rule()), claim(CONCURRENCY, 0))
    for _ in range(10):
        assert bench.send(b"{}").status == 429
    bench.hold(claim("breaker.rule", rule()))
    assert bench.send(b"{}").status == 200


def test_redirects_thin_out_no_failure_rate(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim("breaker.rule", rule(failures=None, error_rate=0.6, min_requests=3)))
    moved, broken = bench.answering(b"", status=307), bench.answering(b"no", status=500)
    for gate in (moved, broken, moved, broken, moved, broken):
        bench.send(b"{}", gate=gate)
    assert bench.send(b"{}").status == 503
    labels = {"tier": "best-effort", "outcome": "client_error"}
    assert bench.value("resilience_gate_requests_total", **labels) == 3


@pytest.mark.parametrize("status", [307, 400, 404, 422, 429])
def test_the_clients_own_errors_never_count(bench: Any, claim: MakeClaim, status: int) -> None:
    bench.hold(claim("breaker.rule", rule()))
    for _ in range(10):
        assert bench.send(b"{}", gate=bench.answering(b"no", status=status)).status == status


def test_a_stream_is_judged_at_its_end(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim("breaker.rule", rule(failures=0)))
    error = b'data: {"error": {"message": "EngineDeadError"}}\n\n'
    gate = bench.answering(b'data: {"choices":[]}\n\n', error, kind=b"text/event-stream")
    assert bench.send(b"{}", gate=gate).status == 200
    assert bench.send(b"{}").status == 503
    cause = {"tier": "best-effort", "cause": "engine_dead"}
    assert bench.value("resilience_gate_causes_total", **cause) == 1


@pytest.mark.parametrize("parts", [1, 2, 7])
@pytest.mark.parametrize("limits", [False, True])
def test_a_whole_answer_that_was_aborted_is_passed_on_and_no_success(
    bench: Any, claim: MakeClaim, limits: bool, parts: int
) -> None:
    tokens = [claim("throttle.max_outstanding_tokens", 10_000)] if limits else []
    bench.hold(claim("breaker.rule", rule(failures=0)), *tokens)
    body = b'{"choices":[{"text":"ab","finish_reason":"abort"}]}'
    size = -(-len(body) // parts)
    chunks = [body[at:at + size] for at in range(0, len(body), size)]
    answer = bench.send(b'{"prompt": "a"}', gate=bench.answering(*chunks))
    assert (answer.status, answer.body) == (200, body)
    assert bench.send(b"{}").status == 503
    cause = {"tier": "best-effort", "cause": "stream_broken"}
    assert bench.value("resilience_gate_causes_total", **cause) == 1


@pytest.mark.parametrize(("model", "shown"), [
    ("größe", "größe"), ("m\n2026 fake: line", "m\\n2026 fake: line"), ("\x1b[2J", "\\x1b[2J"),
])
def test_a_scopes_words_stay_in_one_line_of_log_metrics_and_headers(
    bench: Any, claim: MakeClaim, caplog: pytest.LogCaptureFixture, model: str, shown: str
) -> None:
    bench.hold(claim("breaker.rule", rule(failures=0), model=model))
    body = json.dumps({"model": model}).encode()
    bench.send(body, gate=bench.answering(b"", status=500))
    assert caplog.messages == [f"breaker model={shown}: closed -> open"]
    refused = bench.send(body)
    assert refused.status == 503 and refused.headers["x-resilience-model"].isascii()
    assert refused.headers["x-resilience-model"].isprintable() and refused.json()
    changes = generate_latest(bench.registry).decode().splitlines()
    assert len([line for line in changes if "transitions_total{" in line]) == 1


def test_a_breaker_goes_with_its_claim(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim("breaker.rule", rule(failures=0)))
    bench.send(b"{}", gate=bench.answering(b"", status=500))
    assert bench.send(b"{}").status == 503
    bench.hold()
    assert bench.send(b"{}").status == 200
    assert bench.state.breakers() == {}


def test_the_adaptive_limit_is_a_limit_like_any(bench: Any, claim: MakeClaim) -> None:
    value = {"queue_time_ms": 100, "time_per_token_ms": None, "kv_usage": None, "increase": 0.15,
             "decrease": 0.1, "minimum": 1, "maximum": 1, "headroom": None}
    bench.hold(claim("limiter.rule", value, policy="ramp"))

    async def scenario() -> Any:
        server = bench.held_server()
        first = await server.send("first", "core")
        refused = await bench.ask(gate=server.gate)
        await server.end()
        await first
        return refused

    refused = asyncio.run(scenario())
    assert refused.status == 429 and refused.headers["x-resilience-policy"] == "ramp"
    assert bench.value("resilience_gate_adaptive_limit") == 1


def test_compliance_follows_the_objectives(config: GateConfig, new_bench: NewBench) -> None:
    bench = new_bench(config)
    event = b'data: {"choices":[{"text":"t"}]}\n\n'

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        bench.clock.now += 300
        await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    for tier in ("core", "elastic", "best-effort"):
        bench.send(b"{}", gate=bench.around(slow), x_slo_tier=tier)
        bench.send(b"{}", gate=bench.answering(b"{}"), x_slo_tier=tier)
    bench.send(b"{}", gate=bench.answering(b"", status=500), x_slo_tier="best-effort")
    values = {t: bench.value("resilience_gate_compliance", tier=t) for t in config.tiers}
    assert values == {"core": 0.5, "elastic": 1.0, "best-effort": pytest.approx(2 / 3)}
    assert bench.value("resilience_gate_slo_requests_total", tier="core") == 2
    assert bench.value("resilience_gate_slo_good_total", tier="core") == 1


def test_a_stream_that_breaks_off_has_its_cause(bench: Any) -> None:
    async def breaking(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        asyncio.run(bench.ask(gate=bench.around(breaking)))
    cause = {"tier": "best-effort", "cause": "stream_broken"}
    assert bench.value("resilience_gate_causes_total", **cause) == 1


@pytest.mark.parametrize(
    ("status", "text", "cause"),
    [
        (500, b"CUDA out of memory. Tried to allocate", "out_of_memory"),
        (500, b"could not allocate KV cache blocks in time", "kv_allocation"),
        (500, b"KV block released twice", "kv_release"),
        (500, b"Cannot get 5 free blocks from the pool", "kv_allocation"),
        (500, b"no free KV blocks to allocate", "kv_allocation"),
        (500, b"No free blocks available", "kv_allocation"),
        (500, b"not enough free KV cache space", "kv_allocation"),
        (500, b"could not free the KV blocks", "kv_release"),
        (500, b"EngineDeadError: EngineCore encountered an issue", "engine_dead"),
        (500, b"Tokenizer failed to decode", "tokenizer"), (504, b"", "timeout"),
        (503, b"", "overloaded"), (500, b"something", "internal"),
    ],
)
def test_causes_are_read_from_what_servers_say(status: int, text: bytes, cause: str) -> None:
    assert failure_of(status, text) == cause
    assert cause in CAUSES


def test_a_server_that_writes_on_is_not_silent(bench: Any) -> None:
    event = b'data: {"choices":[{"text":"t"}]}\n\n'
    silences: list[int] = []

    async def long(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200,
                    "headers": [(b"content-type", b"text/event-stream")]})
        for _ in range(3):
            bench.clock.now += 5_000
            silences.append(bench.state.silent_ms())
            await send({"type": "http.response.body", "body": event, "more_body": True})
        silences.append(bench.state.silent_ms())
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    assert bench.send(b"{}", gate=bench.around(long)).status == 200
    assert silences == [5_000, 5_000, 5_000, 0]
