"""The gate's queue, token limits and breakers on the request path."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from resilience.gate.breaker import BreakerRule
from resilience.gate.causes import CAUSES, failure_of
from resilience.gate.config import GateConfig, GateTenant, GateTier
from resilience.gate.middleware import Gate
from resilience.gate.state import monotonic_ms
from resilience.model import Json

MakeClaim = Callable[..., Json]
NewBench = Callable[[GateConfig], Any]
CONCURRENCY = "throttle.max_concurrency"


@pytest.fixture
def queueing(config: GateConfig, new_bench: NewBench) -> Any:
    """A gate with a queue, on the real clock: its timers are the event loop's."""
    tiers = {name: replace(tier, queue_timeout_ms=20_000) for name, tier in config.tiers.items()}
    tiers["elastic"] = replace(tiers["elastic"], queue_timeout_ms=30)
    made = new_bench(replace(config, tiers=tiers, queue_max=4))
    return on_the_real_clock(made)


def on_the_real_clock(bench: Any) -> Any:
    bench.clock = bench.state.clock_ms = monotonic_ms
    return bench


class Server:
    """An application whose requests end when they are told to."""

    def __init__(self, bench: Any) -> None:
        self._bench = bench
        self.inside: list[tuple[str, asyncio.Event]] = []
        self.gate: Gate = bench.around(self.app)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        end = asyncio.Event()
        name = dict(scope["headers"]).get(b"name", b"").decode()
        self.inside.append((name, end))
        await end.wait()
        self.inside.remove((name, end))
        await self._bench.echo(scope, receive, send)

    async def send(self, name: str, tier: str, **more: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(
            self._bench.ask(gate=self.gate, name=name, x_slo_tier=tier, **more))
        await settle()
        return task

    async def end(self) -> None:
        self.inside[0][1].set()
        await settle()

    def names(self) -> list[str]:
        return [name for name, _ in self.inside]


async def settle() -> None:
    """Let every callback that is ready run."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_who_waits_goes_by_importance(queueing: Any, claim: MakeClaim) -> None:
    queueing.hold(claim(CONCURRENCY, 1))

    async def scenario() -> list[str]:
        server = Server(queueing)
        tasks = [await server.send("first", "best-effort")]
        for name, tier in (("b1", "best-effort"), ("b2", "best-effort"), ("c", "core")):
            tasks.append(await server.send(name, tier))
        order: list[str] = []
        while server.inside:
            order += server.names()
            assert len(server.inside) == 1
            await server.end()
        assert [(await t).status for t in tasks] == [200] * 4
        return order

    assert asyncio.run(scenario()) == ["first", "c", "b1", "b2"]
    assert queueing.inside == 0
    assert queueing.value("resilience_gate_queue_seconds_count", tier="core") == 1
    assert queueing.value("resilience_gate_waiting", tier="core") == 0


def test_who_waits_too_long_is_refused(queueing: Any, claim: MakeClaim) -> None:
    queueing.hold(claim(CONCURRENCY, 1, policy="kv"))

    async def scenario() -> Any:
        server = Server(queueing)
        first = await server.send("first", "elastic")
        late = await (await server.send("late", "elastic"))
        await server.end()
        await first
        return late

    answer = asyncio.run(scenario())
    assert answer.status == 429 and answer.headers["x-resilience-cause"] == "queue_timeout"
    assert answer.headers["x-resilience-policy"] == "kv"
    assert "waited 0.03 s in the queue" in answer.json()["error"]["message"]
    assert queueing.value(
        "resilience_gate_causes_total", tier="elastic", cause="queue_timeout") == 1
    assert queueing.value("resilience_gate_cause_share", cause="queue_timeout") == 1.0


def test_a_client_that_leaves_frees_its_place(queueing: Any, claim: MakeClaim) -> None:
    queueing.hold(claim(CONCURRENCY, 1))

    async def scenario() -> None:
        server = Server(queueing)
        first = await server.send("first", "core")
        gone = asyncio.Event()
        body = [{"type": "http.request", "body": b"{}", "more_body": False}]

        async def receive() -> Any:
            if body:
                return body.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            raise AssertionError("nothing is sent to who left")

        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [],
                 "client": ("127.0.0.1", 1)}
        waiting = asyncio.ensure_future(server.gate(scope, receive, send))
        await settle()
        assert len(queueing.state.admission.queue) == 1
        gone.set()
        await waiting
        assert len(queueing.state.admission.queue) == 0
        await server.end()
        await first

    asyncio.run(scenario())
    outcome = {"tier": "best-effort", "outcome": "disconnected"}
    assert queueing.value("resilience_gate_requests_total", **outcome) == 1
    assert queueing.inside == 0


def test_a_claim_that_goes_lets_everybody_in(queueing: Any, claim: MakeClaim) -> None:
    queueing.hold(claim(CONCURRENCY, 1))

    async def scenario() -> None:
        server = Server(queueing)
        tasks = [await server.send(str(n), "core") for n in range(3)]
        assert server.names() == ["0"]
        queueing.hold()
        await settle()
        assert server.names() == ["0", "1", "2"]
        for _ in range(3):
            await server.end()
        await asyncio.gather(*tasks)

    asyncio.run(scenario())


def test_a_lease_that_ends_lets_everybody_in(queueing: Any, claim: MakeClaim) -> None:
    async def scenario() -> None:
        queueing.hold(claim(CONCURRENCY, 1, ttl_ms=40))
        server = Server(queueing)
        first = await server.send("first", "core")
        second = await server.send("second", "core")
        async with asyncio.timeout(10):
            while len(server.inside) < 2:
                await asyncio.sleep(0.005)
        for _ in range(2):
            await server.end()
        await asyncio.gather(first, second)

    asyncio.run(scenario())


def test_a_tenant_with_a_backlog_does_not_hold_up_another(
    config: GateConfig, new_bench: NewBench, claim: MakeClaim
) -> None:
    tenants = {"noisy": GateTenant(), "quiet": GateTenant()}
    tiers = {"t": GateTier(queue_timeout_ms=20_000)}
    bench = new_bench(replace(config, tiers=tiers, default="t", tenants=tenants, queue_max=50))
    on_the_real_clock(bench).hold(claim(CONCURRENCY, 1))

    async def scenario() -> list[str]:
        server = Server(bench)
        tasks = [await server.send("n", "t", x_tenant="noisy") for _ in range(10)]
        tasks.append(await server.send("q", "t", x_tenant="quiet"))
        order: list[str] = []
        while server.inside:
            order += server.names()
            await server.end()
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(scenario()).index("q") <= 2
    labels = {"tenant": "noisy", "outcome": "ok"}
    assert bench.value("resilience_gate_tenant_requests_total", **labels) == 10


# --- tokens -------------------------------------------------------------------------------------


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


def ask(bench: Any, body: bytes, **more: Any) -> Any:
    return asyncio.run(bench.ask(body, **more))


def test_prompt_tokens_are_counted_by_the_servers_tokenizer(bench: Any, claim: MakeClaim) -> None:
    bench.state.counter = Words()
    bench.hold(claim("throttle.max_prompt_tokens_per_second", 10.0))
    assert ask(bench, completion("one two three four five six seven")).status == 200
    refused = ask(bench, completion("one two three four"))
    assert refused.status == 429 and refused.headers["x-resilience-cause"] == "tokens"
    bench.clock.now += 1_000
    assert ask(bench, completion("one two three four")).status == 200


def test_a_long_text_is_counted_off_the_event_loop(bench: Any, claim: MakeClaim) -> None:
    bench.state.counter = Words()
    bench.hold(claim("throttle.max_context_tokens", 500))
    assert ask(bench, completion("word " * 1_000)).status == 429
    assert bench.state.counter.long == 1
    assert ask(bench, completion("word " * 100)).status == 200
    assert bench.state.counter.long == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"prompt": "a b c", "max_tokens": 7}, 200), ({"prompt": "a b c", "max_tokens": 8}, 429),
        ({"prompt": [1, 2, 3], "max_tokens": 8}, 429), ({"prompt": [[1, 2], [3]]}, 200),
        ({"prompt": "a", "max_tokens": 3, "n": 4}, 429),
        ({"messages": [{"role": "user", "content": "a b c"}], "max_completion_tokens": 4}, 429),
        ({"messages": [{"content": [{"type": "text", "text": "a"}]}], "max_tokens": 5}, 200),
    ],
)
def test_the_largest_context(bench: Any, claim: MakeClaim, body: Any, status: int) -> None:
    bench.state.counter = Words()
    bench.hold(claim("throttle.max_context_tokens", 10))
    assert ask(bench, json.dumps({"model": "m", **body}).encode()).status == status


@pytest.mark.parametrize(
    ("path", "body", "passed_on"),
    [
        ("/v1/completions", {"max_tokens": 99}, {"max_tokens": 10}),
        ("/v1/completions", {"max_tokens": 9}, {"max_tokens": 9}),
        ("/v1/completions", {}, {"max_tokens": 10}),
        ("/v1/chat/completions", {}, {"max_completion_tokens": 10}),
        ("/v1/chat/completions", {"max_completion_tokens": 11}, {"max_completion_tokens": 10}),
        ("/v1/responses", {}, {"max_output_tokens": 10}),
        ("/v1/embeddings", {"input": "x"}, {"input": "x"}),
    ],
)
def test_the_largest_output_is_cut_and_said(
    bench: Any, claim: MakeClaim, path: str, body: Any, passed_on: Any
) -> None:
    bench.hold(claim("throttle.max_output_tokens", 10, policy="kv", reason="kv_pressure"))
    answer = ask(bench, json.dumps({"model": "m", **body}).encode(), path=path)
    assert json.loads(bench.seen[-1][1]) == {"model": "m", **passed_on}
    assert ("x-resilience-reason" in answer.headers) is (body != passed_on)
    if body != passed_on:
        assert answer.headers["x-resilience-policy"] == "kv"
        assert answer.headers["x-resilience-model"] == "m"


def answering(bench: Any, *chunks: bytes, kind: bytes = b"application/json", status: int = 200,
              ) -> Gate:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", kind)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    gate: Gate = bench.around(app)
    return gate


def test_the_estimate_is_settled_by_what_the_answer_says(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim("throttle.max_prompt_tokens_per_second", 100.0, tier="best-effort"))
    said = b'{"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 3}}'
    prompt = completion("x" * 400)  # a hundred tokens by length: the whole second's worth
    assert ask(bench, prompt, gate=answering(bench, said)).status == 200
    assert ask(bench, completion("x" * 300)).status == 200  # eighty of them were given back
    error = bench.value("resilience_gate_token_estimate_error_tokens_total", tier="best-effort")
    actual = bench.value("resilience_gate_token_estimate_checked_tokens_total", tier="best-effort")
    assert (error, actual) == (80, 20)
    output = {"tier": "best-effort", "kind": "output"}
    assert bench.value("resilience_gate_tokens_total", **output) == 3


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
    assert ask(bench, asked).status == 429     # the prompt of 12 s ago is gone, 50 tokens are not
    assert ask(bench, completion("x" * 4 * 45)).status == 200
    bench.clock.now += 9_000
    assert ask(bench, completion("x" * 4 * 40)).status == 200


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
    assert ask(bench, completion("x" * 40)).status == 429
    assert ask(bench, completion("x" * 10)).status == 200


def test_outstanding_tokens_are_reserved_until_the_end(bench: Any, claim: MakeClaim) -> None:
    bench.state.counter = Words()
    bench.hold(claim("throttle.max_outstanding_tokens", 50))

    async def scenario() -> list[int]:
        server = Server(bench)
        big = completion("a b c", max_tokens=30)
        first = asyncio.ensure_future(bench.ask(big, gate=server.gate))
        await settle()
        assert bench.state.admission.usage.tokens(("", "", "")) == 33
        second = await bench.ask(big, gate=server.gate)
        await server.end()
        return [(await first).status, second.status]

    assert asyncio.run(scenario()) == [200, 429]
    assert bench.state.admission.usage.tokens(("", "", "")) == 0


def test_a_limit_for_one_model_leaves_the_others(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim(CONCURRENCY, 0, model="big"))
    assert ask(bench, b'{"model": "big"}').status == 429
    assert ask(bench, b'{"model": "small"}').status == 200
    assert ask(bench, b"not json").status == 200


def test_a_tokenizer_that_fails_stops_nothing(bench: Any, claim: MakeClaim) -> None:
    class Broken(Words):
        def count(self, text: str) -> int:
            raise RuntimeError("no vocabulary")

    bench.state.counter = Broken()
    bench.hold(claim("throttle.max_context_tokens", 10))
    assert ask(bench, completion("x" * 40)).status == 200
    assert ask(bench, completion("x" * 44)).status == 429


# --- breakers, causes, compliance ---------------------------------------------------------------


def rule(**changes: Any) -> Json:
    return asdict(replace(BreakerRule(failures=1, open_ms=1_000, probes=1), **changes))


def test_a_breaker_opens_probes_and_closes(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim("breaker.rule", rule(), policy="failing", tier="core"))
    broken, well = answering(bench, b"out of memory", status=500), answering(bench, b"{}")

    def state(gate: Gate, tier: str = "core") -> int:
        return int(ask(bench, b"{}", gate=gate, x_slo_tier=tier).status)

    assert [state(broken) for _ in range(2)] == [500, 500]
    refused = ask(bench, b"{}", gate=well, x_slo_tier="core")
    assert refused.status == 503 and refused.headers["x-resilience-cause"] == "breaker_open"
    assert refused.headers["x-resilience-policy"] == "failing"
    assert refused.json()["error"]["type"] == "service_unavailable_error"
    assert state(well, "elastic") == 200  # its breaker is its own
    bench.clock.now += 1_000
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


def test_what_the_limiter_refused_never_counts(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim("breaker.rule", rule()), claim(CONCURRENCY, 0))
    for _ in range(10):
        assert ask(bench, b"{}").status == 429
    bench.hold(claim("breaker.rule", rule()))
    assert ask(bench, b"{}").status == 200


@pytest.mark.parametrize("status", [400, 404, 422, 429])
def test_the_clients_own_errors_never_count(bench: Any, claim: MakeClaim, status: int) -> None:
    bench.hold(claim("breaker.rule", rule()))
    for _ in range(10):
        assert ask(bench, b"{}", gate=answering(bench, b"no", status=status)).status == status


def test_a_stream_is_judged_at_its_end(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim("breaker.rule", rule(failures=0)))
    error = b'data: {"error": {"message": "EngineDeadError"}}\n\n'
    gate = answering(bench, b'data: {"choices":[]}\n\n', error, kind=b"text/event-stream")
    assert ask(bench, b"{}", gate=gate).status == 200
    assert ask(bench, b"{}").status == 503
    cause = {"tier": "best-effort", "cause": "engine_dead"}
    assert bench.value("resilience_gate_causes_total", **cause) == 1


def test_a_breaker_goes_with_its_claim(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim("breaker.rule", rule(failures=0)))
    ask(bench, b"{}", gate=answering(bench, b"", status=500))
    assert ask(bench, b"{}").status == 503
    bench.hold()
    assert ask(bench, b"{}").status == 200
    assert bench.state.breakers() == {}


def test_the_adaptive_limit_is_a_limit_like_any(bench: Any, claim: MakeClaim) -> None:
    value = {"queue_time_ms": 100, "time_per_token_ms": None, "kv_usage": None, "increase": 0.15,
             "decrease": 0.1, "minimum": 1, "maximum": 1}
    bench.hold(claim("limiter.rule", value, policy="ramp"))

    async def scenario() -> Any:
        server = Server(bench)
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
        ask(bench, b"{}", gate=bench.around(slow), x_slo_tier=tier)
        ask(bench, b"{}", gate=answering(bench, b"{}"), x_slo_tier=tier)
    ask(bench, b"{}", gate=answering(bench, b"", status=500), x_slo_tier="best-effort")
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
        (500, b"EngineDeadError: EngineCore encountered an issue", "engine_dead"),
        (500, b"Tokenizer failed to decode", "tokenizer"), (504, b"", "timeout"),
        (503, b"", "overloaded"), (500, b"something", "internal"),
    ],
)
def test_causes_are_read_from_what_servers_say(status: int, text: bytes, cause: str) -> None:
    assert failure_of(status, text) == cause
    assert cause in CAUSES
