"""WebSockets: a session is one request that has a place for as long as it is open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from resilience.gate.breaker import BreakerRule
from resilience.gate.config import GateConfig

MakeClaim = Callable[..., Any]
CONCURRENCY = "throttle.max_concurrency"
PATH = "/v1/realtime"
SAID = [(b"x-slo-tier", b"core"), (b"x-vllm-priority", b"-9"), (b"host", b"h")]


class Realtime:
    """An application whose sessions stay open until they are told to end."""

    def __init__(self) -> None:
        self.headers: list[Any] = []
        self.end = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.headers.append(scope["headers"])
        assert await receive() == {"type": "websocket.connect"}
        await send({"type": "websocket.accept"})
        await self.end.wait()


def scope_of(path: str = PATH, peer: str = "127.0.0.1", **more: Any) -> Any:
    return {"type": "websocket", "path": path, "headers": [*SAID], "client": (peer, 1), **more}


async def begin(
    gate: Any, left: asyncio.Event | None = None, **scope: Any
) -> tuple[asyncio.Task[None], list[Any]]:
    """Ask for a session; returns its task and what was sent to the client, once that is there."""
    sent: list[Any] = []
    left = left or asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message)

    said = [{"type": "websocket.connect"}]

    async def receive() -> Any:
        if said:
            return said.pop()
        await left.wait()
        return {"type": "websocket.disconnect", "code": 1006}

    task = asyncio.ensure_future(gate(scope_of(**scope), receive, send))
    for _ in range(20):
        await asyncio.sleep(0)
    return task, sent


def test_a_session_has_a_place_until_it_ends(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim(CONCURRENCY, 1))

    async def scenario() -> None:
        app = Realtime()
        first, _ = await begin(bench.around(app))
        assert bench.inside == 1
        assert (await bench.ask()).status == 429
        _, (refused,) = await begin(bench.around(app))
        assert refused == {"type": "websocket.close", "code": 1013, "reason": "concurrency"}
        app.end.set()
        await first

    asyncio.run(scenario())
    assert bench.inside == 0 and bench.send().status == 200
    assert bench.value("resilience_gate_requests_total", tier="core", outcome="ok") == 1
    assert bench.value("resilience_gate_requests_total", tier="core", outcome="refused") == 1
    assert bench.value("resilience_gate_request_seconds_count", tier="core") == 0


def test_a_server_that_can_answers_with_status_and_cause(bench: Any, claim: MakeClaim) -> None:
    bench.hold(claim(CONCURRENCY, 0))

    async def scenario() -> list[Any]:
        task, sent = await begin(
            bench.around(Realtime()), extensions={"websocket.http.response": {}})
        await task
        return sent

    start, body = asyncio.run(scenario())
    assert start["type"] == "websocket.http.response.start" and start["status"] == 429
    assert dict(start["headers"])[b"x-resilience-cause"] == b"concurrency"
    assert body["type"] == "websocket.http.response.body" and b"rate_limit_exceeded" in body["body"]


@pytest.mark.parametrize(("peer", "passed"), [("127.0.0.1", [SAID[0], SAID[2]]),
                                              ("192.0.2.1", [SAID[2]])])
def test_a_session_says_no_tier_of_its_own(bench: Any, peer: str, passed: Any) -> None:
    async def scenario() -> Any:
        app = Realtime()
        app.end.set()
        await (await begin(bench.around(app), peer=peer))[0]
        return app.headers

    assert asyncio.run(scenario()) == [passed]


def test_a_session_waits_for_its_place(
    bench: Any, config: GateConfig, claim: MakeClaim
) -> None:
    bench.state.configure(replace(config, queue_max=4))
    bench.hold(claim(CONCURRENCY, 1))

    async def scenario() -> None:
        app = Realtime()
        first, _ = await begin(bench.around(app))
        second, sent = await begin(bench.around(app))
        assert not sent and len(bench.state.admission.queue) == 1
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        app.end.set()
        await second
        assert [message["type"] for message in sent] == ["websocket.accept"]

    asyncio.run(scenario())
    assert bench.inside == 0
    assert bench.value("resilience_gate_requests_total", tier="core", outcome="disconnected") == 1


def test_who_leaves_the_queue_takes_no_place(
    bench: Any, config: GateConfig, claim: MakeClaim
) -> None:
    bench.state.configure(replace(config, queue_max=4))
    bench.hold(claim(CONCURRENCY, 1))

    async def scenario() -> None:
        app, left = Realtime(), asyncio.Event()
        first, _ = await begin(bench.around(app))
        task, sent = await begin(bench.around(app), left)
        assert len(bench.state.admission.queue) == 1
        left.set()
        await task
        assert not sent and len(bench.state.admission.queue) == 0
        app.end.set()
        await first

    asyncio.run(scenario())
    assert bench.inside == 0
    assert bench.value("resilience_gate_requests_total", tier="core", outcome="disconnected") == 1


def test_a_limit_ends_with_its_lease(bench: Any, claim: MakeClaim) -> None:
    """Also when nobody but sessions come."""
    bench.hold(claim(CONCURRENCY, 0, ttl_ms=1_000))

    async def scenario() -> list[str]:
        app, kinds = Realtime(), []
        app.end.set()
        for _ in range(2):
            task, sent = await begin(bench.around(app))
            await task
            kinds.append(sent[0]["type"])
            bench.clock.now += 1_000
        return kinds

    assert asyncio.run(scenario()) == ["websocket.close", "websocket.accept"]


def test_a_session_is_no_probe_and_no_promise(bench: Any, claim: MakeClaim) -> None:
    rule = asdict(BreakerRule(failures=0, open_ms=1_000, probes=1, probe_timeout_ms=1_000))
    bench.hold(claim("breaker.rule", rule))

    async def scenario() -> None:
        app = Realtime()
        assert (await bench.ask(gate=bench.answering(b"", status=500))).status == 500
        _, (refused,) = await begin(bench.around(app))
        assert refused["reason"] == "breaker_open"
        bench.clock.now += 1_000
        task, _ = await begin(bench.around(app))
        assert (await bench.ask()).status == 200
        bench.clock.now += 60_000
        assert (await bench.ask()).status == 200
        app.end.set()
        await task

    asyncio.run(scenario())
    assert bench.value("resilience_gate_slo_requests_total", tier="core") == 0
    assert bench.value("resilience_gate_slo_requests_total", tier="best-effort") == 3


def test_a_session_that_fails_has_a_cause(bench: Any) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("out of memory")

    async def scenario() -> None:
        await (await begin(bench.around(broken)))[0]

    with pytest.raises(RuntimeError):
        asyncio.run(scenario())
    assert bench.inside == 0
    assert bench.value("resilience_gate_requests_total", tier="core", outcome="error") == 1
    assert bench.value("resilience_gate_causes_total", tier="core", cause="out_of_memory") == 1


@pytest.mark.parametrize("path", ["/live", "/ws/v1/realtime"])
def test_other_sessions_pass(bench: Any, claim: MakeClaim, path: str) -> None:
    bench.hold(claim(CONCURRENCY, 0))

    async def scenario() -> list[Any]:
        app = Realtime()
        app.end.set()
        task, _ = await begin(bench.around(app), path=path)
        await task
        return app.headers

    assert asyncio.run(scenario()) == [SAID]


@pytest.mark.parametrize("where", ["new_ticket", "offer"])
def test_a_gate_that_fails_lets_a_session_through(
    bench: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("the gate is broken")

    owner = bench.state if where == "new_ticket" else bench.state.admission
    monkeypatch.setattr(owner, where, fails)

    async def scenario() -> int:
        app = Realtime()
        app.end.set()
        task, sent = await begin(bench.around(app))
        await task
        return len(sent)

    assert asyncio.run(scenario()) == 1
    assert bench.value("resilience_gate_failed_open_total", stage="admit") == 1
