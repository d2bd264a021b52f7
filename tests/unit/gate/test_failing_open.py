"""A gate that is broken itself lets requests through, and leaves no trace of them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from resilience.gate.body import with_length
from resilience.gate.config import GateConfig
from resilience.model import Json

MakeClaim = Callable[..., Json]
THROTTLE, ROUTE = "throttle.max_concurrency", "route.model"


@pytest.mark.parametrize(
    ("method", "stage"),
    [("snapshot", "admit"), ("takes_route", "route"), ("new_ticket", "admit")],
)
def test_a_gate_that_fails_lets_the_request_through(
    bench: Any, claim: MakeClaim, monkeypatch: pytest.MonkeyPatch, method: str, stage: str
) -> None:
    bench.hold(claim(ROUTE, {"to": "small", "share": 1.0}))

    def broken(*_: Any) -> Any:
        raise RuntimeError("the gate is broken")

    monkeypatch.setattr(bench.state, method, broken)
    answer = bench.send(b'{"model": "big"}')
    assert (answer.status, answer.body) == (200, b'{"model": "big"}')
    assert bench.value("resilience_gate_failed_open_total", stage=stage) == 1
    assert bench.inside == 0


@pytest.mark.parametrize("method", ["snapshot", "takes_route", "written"])
def test_a_gate_that_fails_still_believes_nobody(
    bench: Any, claim: MakeClaim, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    bench.hold(claim(ROUTE, {"to": "small", "share": 1.0}))
    calls: list[Any] = []

    def broken(*given: Any) -> Any:
        calls.append(given)
        if method != "written" or len(calls) == 1:
            raise RuntimeError("the gate is broken")
        return with_length(*given)

    if method == "written":
        monkeypatch.setattr("resilience.gate.arrival.with_length", broken)
    else:
        monkeypatch.setattr(bench.state, method, broken)
    body = b'{"model": "big", "priority": -5}'
    answer = bench.send(body, x_slo_tier="core", x_vllm_priority="-9", peer="192.0.2.1")
    assert answer.status == 200
    (scope, seen) = bench.seen[-1]
    assert not {b"x-slo-tier", b"x-vllm-priority"} & {name for name, _ in scope["headers"]}
    assert (b"priority" in seen) is (method == "snapshot")  # nothing has looked at the body yet
    asked = json.loads(seen)["model"]
    assert answer.headers.get("x-resilience-model", "big") == asked
    assert (asked == "small") is (method == "written")


def test_no_depth_of_a_body_hides_what_it_says_of_itself(bench: Any) -> None:
    """Writing takes a few more frames than reading: some depths can be read but not written."""
    bench.state.by_priority = True
    for depth in range(sys.getrecursionlimit() - 200, sys.getrecursionlimit() + 10):
        nest = b"[" * depth + b"]" * depth
        bench.send(b'{"priority": -99, "x": ' + nest + b"}")
        seen = bench.seen[-1][1]
        assert b"-99" not in seen or seen.endswith(b',"priority":20}'), depth


@pytest.mark.parametrize("where", ["admission", "state"])
def test_an_admission_that_fails_leaves_no_trace(
    bench: Any, config: GateConfig, claim: MakeClaim, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Who was never counted is not counted down, and who went on waits in no queue."""
    bench.state.configure(replace(config, queue_max=4))
    bench.hold(claim(THROTTLE, 1))

    def broken(*_: Any) -> Any:
        raise RuntimeError("the gate is broken")

    async def scenario() -> list[int]:
        server = bench.held_server()
        first = await server.send("first", "core")
        with monkeypatch.context() as patch:
            if where == "state":
                patch.setattr(bench.state, "arm", broken)
            else:
                patch.setattr(bench.state.admission, "offer", broken)
            second = await server.send("second", "core")
            assert len(server.inside) == 2 and bench.inside == 1
            await server.end()
            await server.end()
        return [(await first).status, (await second).status]

    assert asyncio.run(scenario()) == [200, 200]
    assert bench.inside == 0 and len(bench.state.admission.queue) == 0


@pytest.mark.parametrize("leaves", [False, True])
def test_who_is_woken_by_nobody_goes_through_when_its_patience_is_over(
    bench: Any, config: GateConfig, claim: MakeClaim, scope_of: Any,
    monkeypatch: pytest.MonkeyPatch, leaves: bool,
) -> None:
    monkeypatch.setattr("resilience.gate.middleware.GRACE_S", 0.02)
    tiers = {name: replace(tier, queue_timeout_ms=30) for name, tier in config.tiers.items()}
    bench.on_the_real_clock().state.configure(replace(config, tiers=tiers, queue_max=4))
    bench.hold(claim(THROTTLE, 1, ttl_ms=100_000))
    messages = [{"type": "http.request", "body": b"{}"}]

    def broken(*_: Any) -> Any:
        raise RuntimeError("the gate is broken")

    async def receive() -> Any:
        if messages:
            return messages.pop()
        return {"type": "http.disconnect"} if leaves else await asyncio.Event().wait()

    async def send(_: Any) -> None:
        return None

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        server = bench.held_server()
        first = await server.send("first", "core")
        with monkeypatch.context() as patch:
            patch.setattr(bench.state.admission, "poll", broken)
            second = asyncio.ensure_future(server.gate(scope_of(), receive, send))
            async with asyncio.timeout(10):
                while not second.done() and len(server.inside) < 2:
                    await asyncio.sleep(0.001)
        assert second.done() is leaves and len(bench.state.admission.queue) == 0
        while server.inside:
            await server.end()
        await asyncio.gather(first, second)

    asyncio.run(scenario())
    assert bench.inside == 0
    assert bench.value("resilience_gate_failed_open_total", stage="admit") >= 1
    assert bench.value("resilience_gate_requests_total", tier="best-effort", outcome=(
        "disconnected" if leaves else "ok")) == 1


@pytest.mark.parametrize("method", ["ended", "refused", "first_chunk", "rerouted", "skipped"])
def test_broken_counters_stop_nothing(
    bench: Any, claim: MakeClaim, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("the registry is broken")

    monkeypatch.setattr(bench.state.metrics, method, broken)
    monkeypatch.setattr(bench.state.metrics, "failed_open", broken)
    bench.hold(claim(ROUTE, {"to": "small", "share": 1.0}))
    assert bench.send(b"no json").body == b"no json"
    assert bench.send(b'{"model": "big"}').json()["model"] in ("big", "small")
    answer = bench.send(gate=bench.answering(b"data: a\n\n", kind=b"text/event-stream"))
    assert answer.body == b"data: a\n\n"
    assert bench.inside == 0
