"""What the gate's gauges show of the requests that were, and of a time without any."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from resilience.gate.causes import REMEMBERED, Shares
from resilience.gate.config import GateConfig
from resilience.model import Json

MakeClaim = Callable[..., Json]
NewBench = Callable[[GateConfig], Any]
CONCURRENCY = "throttle.max_concurrency"
EVENT = b'data: {"choices":[{"text":"t"}]}\n\n'


def test_wait_inflation_is_time_with_the_wait_over_time_without(
    config: GateConfig, new_bench: NewBench, claim: MakeClaim
) -> None:
    """The first runs for 400 ms; the second waits for 300 of them and runs for 100."""
    bench = new_bench(replace(config, queue_max=4))
    bench.hold(claim(CONCURRENCY, 1))
    assert bench.value("resilience_gate_wait_inflation", tier="core") == 1

    async def scenario() -> None:
        server = bench.held_server()
        tasks = [await server.send("first", "core")]
        bench.clock.now += 100
        tasks.append(await server.send("second", "core"))
        for ms in (300, 100):
            bench.clock.now += ms
            await server.end()
        assert [(await task).status for task in tasks] == [200, 200]

    asyncio.run(scenario())
    assert bench.value("resilience_gate_wait_inflation", tier="core") == 800 / 500


def test_the_growth_of_latency_is_gone_when_nobody_asks_any_more(
    bench: Any, claim: MakeClaim
) -> None:
    """Each stream adds ten tokens to the window, and the next one's first token takes 5 ms more."""
    bench.hold(claim("throttle.max_outstanding_tokens", 10_000))
    name = "resilience_gate_latency_slope_ms_per_token"

    async def ask(number: int) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200,
                        "headers": [(b"content-type", b"text/event-stream")]})
            bench.clock.now += 5 * number
            await send({"type": "http.response.body", "body": EVENT * 10, "more_body": True})
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

        body = json.dumps({"model": "m", "prompt": "hello"}).encode()
        assert (await bench.ask(body, gate=bench.around(app))).status == 200

    for number in range(10):
        assert bench.value(name) == (0 if number < 8 else pytest.approx(0.5))
        asyncio.run(ask(number))
    assert bench.value("resilience_gate_token_latency_warnings_total") == 3
    bench.clock.now += 10_000
    assert bench.value(name) == 0


def test_shares_are_those_of_the_last_failures_without_the_clients_own() -> None:
    shares = Shares()
    assert shares.of("rate") == 0
    for _ in range(REMEMBERED):
        shares.add("rate")
    for _ in range(REMEMBERED // 4):
        shares.add("tokens")
        shares.add("client_left")
    assert (shares.of("rate"), shares.of("tokens"), shares.of("client_left")) == (0.75, 0.25, 0)


def test_a_server_is_silent_since_something_has_been_in_flight(bench: Any) -> None:
    """Not since the newest request: others have waited for their answers for longer."""

    async def scenario() -> None:
        server = bench.held_server()
        bench.clock.now += 60_000
        tasks = [await server.send("first", "core")]
        bench.clock.now += 5_000
        tasks.append(await server.send("second", "core"))
        assert bench.state.silent_ms() == 5_000
        for _ in tasks:
            await server.end()
        await asyncio.gather(*tasks)

    asyncio.run(scenario())


@pytest.mark.parametrize(("status", "silent_ms"), [(200, 0), (404, 0), (500, 5_000)])
def test_an_answer_ends_the_silence_and_a_failure_does_not(
    bench: Any, status: int, silent_ms: int
) -> None:
    async def scenario() -> None:
        server = bench.held_server()
        first = await server.send("first", "core")
        bench.clock.now += 5_000
        await bench.ask(gate=bench.answering(b"{}", status=status))
        assert bench.state.silent_ms() == silent_ms
        assert bench.state.latency_ms == (0 if status == 200 else None)
        await server.end()
        await first

    asyncio.run(scenario())


def test_an_objective_counts_the_wait(
    config: GateConfig, new_bench: NewBench, claim: MakeClaim
) -> None:
    """The core tier's first token is to come in 100 ms: the second waits for 300, and gets its own
    at once."""
    bench = new_bench(replace(config, queue_max=4))
    bench.hold(claim(CONCURRENCY, 1))
    go = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200,
                    "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": EVENT, "more_body": True})
        await go.wait()
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def scenario() -> None:
        gate = bench.around(app)
        tasks = [asyncio.ensure_future(bench.ask(gate=gate, x_slo_tier="core")) for _ in range(2)]
        while not bench.state.waiting("core"):
            await asyncio.sleep(0)
        bench.clock.now += 300
        go.set()
        await asyncio.gather(*tasks)

    asyncio.run(scenario())
    assert bench.value("resilience_gate_slo_requests_total", tier="core") == 2
    assert bench.value("resilience_gate_slo_good_total", tier="core") == 1


def test_who_is_refused_counts_against_its_tiers_objectives(bench: Any, claim: MakeClaim) -> None:
    assert bench.send(x_slo_tier="core").status == 200
    bench.hold(claim(CONCURRENCY, 0))
    assert bench.send(x_slo_tier="core").status == 429
    assert bench.value("resilience_gate_slo_requests_total", tier="core") == 2
    assert bench.value("resilience_gate_slo_good_total", tier="core") == 1
    assert bench.value("resilience_gate_compliance", tier="core") == 0.5
