"""The gate's queue on the request path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from resilience.gate.body import BODY_MAX
from resilience.gate.config import GateConfig, GateTenant, GateTier
from resilience.model import Json

MakeClaim = Callable[..., Json]
NewBench = Callable[[GateConfig], Any]
CONCURRENCY = "throttle.max_concurrency"


@pytest.fixture
def queueing(config: GateConfig, new_bench: NewBench) -> Any:
    """A gate with a queue, on the real clock: its timers are the event loop's."""
    tiers = {name: replace(tier, queue_timeout_ms=20_000) for name, tier in config.tiers.items()}
    tiers["elastic"] = replace(tiers["elastic"], queue_timeout_ms=30)
    return new_bench(replace(config, tiers=tiers, queue_max=4)).on_the_real_clock()


def test_who_waits_goes_by_importance(queueing: Any, claim: MakeClaim) -> None:
    queueing.hold(claim(CONCURRENCY, 1))

    async def scenario() -> list[str]:
        server = queueing.held_server()
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
        server = queueing.held_server()
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


def test_who_waits_while_the_server_begins_to_drain_is_told_to_go_elsewhere(
    queueing: Any, claim: MakeClaim
) -> None:
    queueing.hold(claim(CONCURRENCY, 1))

    async def scenario() -> Any:
        server = queueing.held_server()
        first = await server.send("first", "elastic")
        waiting = await server.send("waiting", "elastic")
        queueing.hold(claim(CONCURRENCY, 0, policy="core:drain"))
        answer = await waiting
        await server.end()
        await first
        return answer

    answer = asyncio.run(scenario())
    assert answer.status == 503 and answer.headers["x-resilience-cause"] == "concurrency"
    assert answer.headers["x-resilience-policy"] == "core:drain"
    assert int(answer.headers["retry-after"]) >= 1


def test_a_client_that_leaves_frees_its_place(queueing: Any, claim: MakeClaim) -> None:
    queueing.hold(claim(CONCURRENCY, 1))

    async def scenario() -> None:
        server = queueing.held_server()
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
        await server.settle()
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


@pytest.mark.parametrize("whole", [True, False])
def test_who_is_cancelled_while_it_waits_holds_nothing(
    queueing: Any, claim: MakeClaim, scope_of: Any, whole: bool
) -> None:
    """Servers and outer middleware cancel requests, too; `whole`: the body had been read."""
    queueing.hold(claim(CONCURRENCY, 1))
    queueing.state.large_bodies.left = 0

    async def scenario() -> None:
        server = queueing.held_server()
        first = await server.send("first", "core")
        waiting = await _waiting(server, scope_of, b"x" * (10 if whole else BODY_MAX + 1))
        assert len(queueing.state.admission.queue) == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert len(queueing.state.admission.queue) == 0
        await server.end()
        assert (await first).status == 200
        assert (await queueing.ask()).status == 200

    asyncio.run(scenario())
    outcome = {"tier": "best-effort", "outcome": "disconnected"}
    assert queueing.value("resilience_gate_requests_total", **outcome) == 1
    assert queueing.inside == 0


def test_who_is_cancelled_as_it_is_let_in_gives_its_seat_back(
    queueing: Any, claim: MakeClaim, scope_of: Any
) -> None:
    queueing.hold(claim(CONCURRENCY, 1))

    async def scenario() -> None:
        server = queueing.held_server()
        first = await server.send("first", "core")
        waiting = await _waiting(server, scope_of, b"{}")
        queueing.hold()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert queueing.inside == 1
        await server.end()
        await first

    asyncio.run(scenario())
    assert queueing.inside == 0


async def _waiting(server: Any, scope_of: Any, body: bytes) -> asyncio.Task[None]:
    """Send a request whose task can be cancelled."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        raise AssertionError("nothing is sent to who was cancelled")

    task: asyncio.Task[None] = asyncio.ensure_future(server.gate(scope_of(), receive, send))
    await server.settle()
    return task


def test_a_claim_that_goes_lets_everybody_in(queueing: Any, claim: MakeClaim) -> None:
    queueing.hold(claim(CONCURRENCY, 1))

    async def scenario() -> None:
        server = queueing.held_server()
        tasks = [await server.send(str(n), "core") for n in range(3)]
        assert server.names() == ["0"]
        queueing.hold()
        await server.settle()
        assert server.names() == ["0", "1", "2"]
        for _ in range(3):
            await server.end()
        await asyncio.gather(*tasks)

    asyncio.run(scenario())


def test_a_lease_that_ends_lets_everybody_in(queueing: Any, claim: MakeClaim) -> None:
    async def scenario() -> None:
        queueing.hold(claim(CONCURRENCY, 1, ttl_ms=40))
        server = queueing.held_server()
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
    bench.on_the_real_clock().hold(claim(CONCURRENCY, 1))

    async def scenario() -> list[str]:
        server = bench.held_server()
        tasks = [await server.send("n", "t", x_tenant="noisy") for _ in range(10)]
        tasks.append(await server.send("q", "t", x_tenant="quiet"))
        order: list[str] = await server.order()
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(scenario()).index("q") <= 2
    labels = {"tenant": "noisy", "outcome": "ok"}
    assert bench.value("resilience_gate_tenant_requests_total", **labels) == 10


def test_a_tenants_share_is_its_weight_in_the_queue(
    config: GateConfig, new_bench: NewBench, claim: MakeClaim
) -> None:
    tenants = {"large": GateTenant(share=3.0), "small": GateTenant()}
    tiers = {"t": GateTier(queue_timeout_ms=20_000)}
    bench = new_bench(replace(config, tiers=tiers, default="t", tenants=tenants, queue_max=50))
    bench.on_the_real_clock().hold(claim(CONCURRENCY, 1))

    async def scenario() -> list[str]:
        server = bench.held_server()
        tasks = [await server.send(name, "t", x_tenant=name)
                 for name in ["large", *["large", "small"] * 6]]
        order: list[str] = await server.order()
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(scenario())[1:9].count("large") == 6
