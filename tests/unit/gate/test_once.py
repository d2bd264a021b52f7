"""Requests with an id: one inference, one result, for whoever may have it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from resilience.gate.config import GateConfig
from resilience.model import BudgetSettings, EngineConfig, Tenant, TierSource

NewBench = Callable[[GateConfig], Any]
ID = "4f9d1c1e-5f0c-4e0e-9a53-0b3d2a8f7b11"
TIER = {"tier": "best-effort"}


def config_of(**more: Any) -> GateConfig:
    budget = replace(BudgetSettings(deadline_ms=2_000, backoff_ms=1), **more)
    tenants = (Tenant("acme"), Tenant("globex"))
    return GateConfig.from_engine(
        EngineConfig(budget=budget, tenants=tenants, tier_source=TierSource()))


class Counting:
    """Answers with how often it was called; waits for `open` if there is one."""

    def __init__(self, *statuses: int, stream: bool = False) -> None:
        self.calls = 0
        self.statuses = list(statuses)
        self.stream = stream
        self.gone = 0
        self.entered = asyncio.Event()
        self.open: asyncio.Event | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        self.calls += 1
        mine = self.calls
        self.entered.set()
        if self.open is not None:
            await self._until_open(receive)
        status = self.statuses.pop(0) if self.statuses else 200
        kind = b"text/event-stream" if self.stream else b"application/json"
        await send({"type": "http.response.start", "status": status,
                    "headers": [(b"content-type", kind)]})
        for number in range(3 if self.stream else 0):
            body = b'data: {"choices":[{"text":"%d"}]}\n\n' % number
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b'{"call": %d}' % mine})

    def let_go(self) -> None:
        """Let what waits for `open` answer."""
        assert self.open is not None
        self.open.set()

    async def _until_open(self, receive: Any) -> None:
        assert self.open is not None
        left = asyncio.ensure_future(receive())
        opened = asyncio.ensure_future(self.open.wait())
        await asyncio.wait({left, opened}, return_when=asyncio.FIRST_COMPLETED)
        self.gone += left.done()
        left.cancel()
        opened.cancel()


def ask(bench: Any, app: Any, body: bytes = b"{}", **headers: Any) -> Any:
    headers.setdefault("x_request_id", ID)
    return asyncio.run(bench.ask(body, gate=bench.around(app), **headers))


def test_a_duplicate_gets_the_kept_answer(new_bench: NewBench) -> None:
    bench, app = new_bench(config_of()), Counting()
    first, second = ask(bench, app), ask(bench, app)
    assert (first.status, first.json()) == (second.status, second.json()) == (200, {"call": 1})
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    assert second.headers["x-resilience-reason"] == "duplicate request id"
    assert app.calls == 1
    assert bench.value("resilience_gate_duplicates_total", result="kept", **TIER) == 1
    assert bench.value("resilience_gate_amplification", **TIER) == 0.5


def test_it_is_kept_for_thirty_seconds(new_bench: NewBench) -> None:
    bench, app = new_bench(config_of()), Counting()
    ask(bench, app)
    bench.clock.now += 29_999
    assert ask(bench, app).json() == {"call": 1}
    bench.clock.now += 1
    assert ask(bench, app).json() == {"call": 2}


def test_a_stream_comes_again_as_the_same_events(new_bench: NewBench) -> None:
    bench, app = new_bench(config_of()), Counting(stream=True)
    first, second = ask(bench, app), ask(bench, app)
    assert first.chunks == second.chunks and len(first.chunks) == 4
    assert app.calls == 1


@pytest.mark.parametrize("change", [
    {"x_tenant": "globex"}, {"authorization": "Bearer another"}, {"x_api_key": "another"},
    {"x_request_id": ID[:-1] + "2"},
])
def test_nobody_gets_what_another_was_answered(
    new_bench: NewBench, change: dict[str, Any]
) -> None:
    bench, app = new_bench(config_of()), Counting()
    mine: dict[str, Any] = {"x_tenant": "acme", "authorization": "Bearer mine"}
    assert ask(bench, app, **mine).json() == {"call": 1}
    assert ask(bench, app, **{**mine, **change}).json() == {"call": 2}


def test_tenants_that_nobody_configured_are_told_apart(new_bench: NewBench) -> None:
    bench, app = new_bench(config_of()), Counting()
    assert ask(bench, app, x_tenant="one").json() == {"call": 1}
    assert ask(bench, app, x_tenant="two").json() == {"call": 2}
    assert ask(bench, app, x_tenant="one").json() == {"call": 1}


def test_an_id_belongs_to_one_request(new_bench: NewBench) -> None:
    bench, app = new_bench(config_of()), Counting()
    ask(bench, app, b'{"a": 1}')
    other = ask(bench, app, b'{"a": 2}')
    assert other.status == 422 and other.json()["error"]["code"] == "request_id_in_use"
    assert "retry-after" not in other.headers
    assert ask(bench, app, b'{"a": 1}', path="/v1/chat/completions").status == 422
    assert app.calls == 1


@pytest.mark.parametrize("status", [400, 429, 500])
def test_only_a_good_answer_is_kept(new_bench: NewBench, status: int) -> None:
    bench, app = new_bench(config_of(attempts=1)), Counting(status, 200)
    assert ask(bench, app).status == status
    assert ask(bench, app).json() == {"call": 2}


@pytest.mark.parametrize("given", ["", "short", "x" * 201])
def test_what_is_no_id_makes_no_duplicate(new_bench: NewBench, given: str) -> None:
    bench, app = new_bench(config_of()), Counting()
    ask(bench, app, x_request_id=given)
    assert ask(bench, app, x_request_id=given).json() == {"call": 2}


def test_nothing_is_kept_where_that_is_switched_off(new_bench: NewBench) -> None:
    bench, app = new_bench(config_of(keep_ms=0)), Counting()
    ask(bench, app)
    assert ask(bench, app).json() == {"call": 2}


async def duplicated(
    bench: Any, app: Counting, count: int
) -> tuple[asyncio.Task[Any], list[asyncio.Task[Any]]]:
    """Ask once, and so many times again while it runs; returns when all of these wait."""
    app.open = asyncio.Event()
    gate = bench.around(app)
    first = asyncio.ensure_future(bench.ask(gate=gate, x_request_id=ID))
    await app.entered.wait()
    more = [asyncio.ensure_future(bench.ask(gate=gate, x_request_id=ID)) for _ in range(count)]
    while bench.state.results.waiting < count:
        await asyncio.sleep(0)
    return first, more


def test_duplicates_wait_for_the_one_that_runs(new_bench: NewBench) -> None:
    bench = new_bench(config_of())

    async def scenario() -> None:
        app = Counting()
        first, more = await duplicated(bench, app, 5)
        assert bench.inside == 1, "a duplicate holds no place"
        app.let_go()
        answers = [await first, *(await asyncio.gather(*more))]
        assert [a.json() for a in answers] == [{"call": 1}] * 6
        assert app.calls == 1

    asyncio.run(scenario())
    assert bench.value("resilience_gate_duplicates_total", result="waited", **TIER) == 5


def test_a_duplicate_that_its_server_ends_has_ended_too(new_bench: NewBench) -> None:
    bench = new_bench(config_of())

    async def scenario() -> None:
        app = Counting()
        first, (second,) = await duplicated(bench, app, 1)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        app.let_go()
        assert (await first).status == 200

    asyncio.run(scenario())
    assert bench.value("resilience_gate_requests_total", outcome="disconnected", **TIER) == 1
    assert bench.value("resilience_gate_causes_total", cause="client_left", **TIER) == 1
    assert bench.value("resilience_gate_duplicates_total", result="in_vain", **TIER) == 1


def test_a_flood_of_duplicates_leaves_room_for_those_of_the_first_tier(
    new_bench: NewBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resilience.gate.once.WAITING_OTHERS", 2)
    monkeypatch.setattr("resilience.gate.once.WAITING_MAX", 3)
    bench = new_bench(config_of())

    async def scenario() -> None:
        app = Counting()
        app.open = asyncio.Event()
        gate = bench.around(app)

        def asked(tier: str, count: int) -> list[asyncio.Task[Any]]:
            return [asyncio.ensure_future(bench.ask(
                gate=gate, x_request_id=ID, x_slo_tier=tier, authorization=tier))
                for _ in range(count)]

        flood, mine = asked("best-effort", 3), asked("core", 1)
        while bench.state.results.waiting < 2:
            await asyncio.sleep(0)
        (refused,) = await asyncio.gather(*asked("best-effort", 1))
        assert (refused.status, refused.headers["x-resilience-cause"]) == (429, "queue_full")
        mine += asked("core", 1)
        while bench.state.results.waiting < 3:
            await asyncio.sleep(0)
        (refused,) = await asyncio.gather(*asked("core", 1))
        assert refused.status == 429
        app.let_go()
        assert {a.status for a in await asyncio.gather(*flood, *mine)} == {200}
        assert app.calls == 2

    asyncio.run(scenario())
    for tier in ("core", "best-effort"):
        assert bench.value("resilience_gate_duplicates_total", tier=tier, result="crowded") == 1
        assert bench.value("resilience_gate_requests_total", tier=tier, outcome="refused") == 1
    assert bench.state.results.waiting == 0


def test_when_the_first_fails_one_duplicate_runs_in_its_place(new_bench: NewBench) -> None:
    bench = new_bench(config_of(attempts=1))

    async def scenario() -> None:
        app = Counting(500, 200)
        first, more = await duplicated(bench, app, 3)
        app.let_go()
        assert (await first).status == 500
        assert [a.json() for a in await asyncio.gather(*more)] == [{"call": 2}] * 3
        assert app.calls == 2

    asyncio.run(scenario())


def test_a_client_that_leaves_finds_its_answer_when_it_comes_back(
    new_bench: NewBench, scope_of: Any
) -> None:
    """That is what the id is for: the inference goes on, and nobody starts a second one."""
    bench = new_bench(config_of())

    async def scenario() -> None:
        app, sent = Counting(), []
        app.open = asyncio.Event()
        gate = bench.around(app)
        messages = [{"type": "http.request", "body": b"{}"}, {"type": "http.disconnect"}]

        async def receive() -> Any:
            return messages.pop(0) if messages else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        gone = asyncio.ensure_future(gate(scope_of(x_request_id=ID), receive, send))
        await app.entered.wait()
        again = asyncio.ensure_future(bench.ask(gate=gate, x_request_id=ID))
        while not bench.state.results.waiting:
            await asyncio.sleep(0)
        app.let_go()
        await gone
        assert (await again).json() == {"call": 1}
        assert app.calls == 1 and app.gone == 0

    asyncio.run(scenario())


def test_a_duplicate_waits_no_longer_than_its_own_deadline(new_bench: NewBench) -> None:
    bench = new_bench(config_of(deadline_ms=100, attempts=1))

    async def scenario() -> Any:
        run = bench.state.results.begin(
            key(), digest(b"{}"), bench.clock())
        answer = await bench.ask(gate=bench.gate, x_request_id=ID)
        bench.state.results.end(run, False, bench.clock())
        return answer

    def key() -> Any:
        from resilience.gate.once import key_of

        return key_of(b"x-request-id", [(b"x-request-id", ID.encode())], "other", b"x-tenant")

    def digest(body: bytes) -> bytes:
        import hashlib

        return hashlib.sha256(b"/v1/completions\0" + body).digest()

    answer = asyncio.run(scenario())
    assert answer.status == 504 and json.loads(answer.body)["error"]["code"] == "deadline_exceeded"
    assert len(bench.state.results) == 0 and bench.state.results.waiting == 0
    assert bench.value("resilience_gate_duplicates_total", result="in_vain", **TIER) == 1
    assert bench.value("resilience_gate_causes_total", cause="timeout", **TIER) == 1


def test_a_kept_answer_goes_although_nobody_asks_again(new_bench: NewBench) -> None:
    bench = new_bench(config_of())
    ask(bench, Counting())
    bench.clock.now += 30_000
    bench.state.tidy()
    assert len(bench.state.results) == bench.state.results.size == 0


def test_a_duplicate_takes_no_tokens(new_bench: NewBench, claim: Callable[..., Any]) -> None:
    bench, app = new_bench(config_of()), Counting()
    bench.hold(claim("throttle.max_outstanding_tokens", 10_000))
    for _ in range(3):
        assert ask(bench, app, b'{"prompt": "eight letters"}').status == 200
    assert app.calls == 1
    assert bench.value("resilience_gate_tokens_total", kind="prompt", **TIER) == 4
