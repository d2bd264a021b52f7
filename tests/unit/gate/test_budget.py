"""One budget a request: deadline, attempts, and what a client sees when they are used up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from resilience.gate.attempt import HELD_MAX
from resilience.gate.body import BODY_MAX
from resilience.gate.budget import Budget
from resilience.gate.config import GateConfig
from resilience.model import BudgetSettings, QueueSettings, Tier
from tests.unit.gate.failing_servers import (
    ALWAYS,
    FAST,
    SHORT,
    TIER,
    Hanging,
    Scripted,
    StuckTokenizer,
    ask,
    config_of,
)

NewBench = Callable[[GateConfig], Any]
MakeClaim = Callable[..., Any]


@pytest.mark.parametrize("first", [500, 502, 503, 504, RuntimeError("boom")])
def test_a_failure_before_the_first_byte_is_tried_again(
    new_bench: NewBench, first: int | Exception
) -> None:
    bench, app = new_bench(config_of(FAST)), Scripted(first, 200)
    answer = ask(bench, app, b'{"a": 1}')
    assert (answer.status, answer.body) == (200, b"answer 200")
    assert app.bodies == [b'{"a": 1}'] * 2
    assert app.scopes[0] is not app.scopes[1]
    assert bench.inside == 0
    assert bench.value("resilience_gate_requests_total", outcome="ok", **TIER) == 1
    assert bench.value("resilience_gate_attempts_total", **TIER) == 2
    assert bench.value("resilience_gate_amplification", **TIER) == 2


@pytest.mark.parametrize("status", [200, 400, 404, 422, 429, 501])
def test_what_another_attempt_cannot_mend_is_not_tried_again(
    new_bench: NewBench, status: int
) -> None:
    bench, app = new_bench(config_of(FAST)), Scripted(status, 200)
    assert ask(bench, app).status == status
    assert len(app.bodies) == 1


def test_attempts_end_and_the_last_failure_is_the_answer(new_bench: NewBench) -> None:
    bench, app = new_bench(config_of(FAST)), Scripted(500, 500, 503, 200)
    answer = ask(bench, app)
    assert (answer.status, answer.body) == (503, b"answer 503")
    assert app.script == [200]
    assert bench.value("resilience_gate_causes_total", cause="overloaded", **TIER) == 1


def test_the_back_off_doubles() -> None:
    budget = Budget(BudgetSettings(attempts=3, backoff_ms=100), 0, 60_000)
    pauses = []
    for _ in range(3):
        budget.begin(0)
        pauses.append(budget.pause_ms(0, lambda: 0.5))
    assert pauses == [50, 100, None]


def test_a_body_that_could_not_be_kept_is_not_sent_again(new_bench: NewBench) -> None:
    bench, app = new_bench(config_of(FAST)), Scripted(500, 200)
    bench.state.large_bodies.left = 0
    body = b"x" * (BODY_MAX + 1)
    answer = ask(bench, app, body)
    assert (answer.status, app.bodies) == (500, [body])


def test_a_failed_answer_that_is_too_long_to_be_held_is_the_answer(new_bench: NewBench) -> None:
    bench, calls = new_bench(config_of(FAST)), []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        calls.append(scope)
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * (HELD_MAX + 1)})

    answer = ask(bench, app)
    assert (answer.status, len(answer.body), len(calls)) == (500, HELD_MAX + 1, 1)


def test_a_dead_engine_is_not_asked_again(new_bench: NewBench) -> None:
    bench = new_bench(config_of(FAST))
    app = Scripted(RuntimeError("EngineDeadError: gone"), 200)
    with pytest.raises(RuntimeError, match="EngineDead"):
        ask(bench, app)
    assert app.script == [200]


def test_without_a_budget_nothing_is_tried_again(new_bench: NewBench) -> None:
    bench, app = new_bench(config_of(None)), Scripted(500, 200)
    assert ask(bench, app).status == 500


def test_each_attempt_is_judged_by_the_breaker(new_bench: NewBench, claim: MakeClaim) -> None:
    bench, app = new_bench(config_of(FAST)), Scripted(500, 500, 200)
    bench.hold(claim("breaker.rule", {**ALWAYS, "consecutive": 2}))
    answer = ask(bench, app)
    assert answer.status == 500 and app.script == [200]
    assert bench.state.breakers() == {"all": "open"}


@pytest.mark.parametrize(("waited_ms", "silent_ms", "state"), [
    (0, 0, "open"), (15, 0, "open"), (25, 0, "closed"), (25, 15, "closed"),
    (25, 25, "open"),  # a server that answers nobody, while all wait long, has failed them
])
def test_time_that_went_in_the_queue_is_not_the_servers_failure(
    new_bench: NewBench, claim: MakeClaim, monkeypatch: pytest.MonkeyPatch,
    waited_ms: int, silent_ms: int, state: str,
) -> None:
    bench = new_bench(config_of(SHORT))
    bench.hold(claim("breaker.rule", {**ALWAYS, "consecutive": 1}))
    assert bench.send().status == 200
    bench.clock.now += 1_000  # with nothing in flight, which is no silence
    hanging = Hanging()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        bench.clock.now += silent_ms
        await hanging(scope, receive, send)

    monkeypatch.setattr(
        bench.state, "new_budget", lambda ticket: Budget(SHORT, ticket.arrived_ms - waited_ms, 40))
    answer = ask(bench, app)
    assert answer.status == 504 and answer.headers["x-resilience-cause"] == "timeout"
    assert bench.state.breakers() == {"all": state}
    outcome = "expired" if state == "closed" else "server_error"
    assert bench.value("resilience_gate_requests_total", outcome=outcome, **TIER) == 1
    assert bench.value("resilience_gate_causes_total", cause="timeout", **TIER) == 1
    assert bench.value("resilience_gate_compliance", **TIER) == 0.5  # its client was not served


def test_a_server_that_failed_before_the_time_was_over_has_failed(
    new_bench: NewBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = new_bench(config_of(replace(SHORT, attempts=2)))
    failing, hanging = Scripted(500), Hanging()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await (failing if failing.script else hanging)(scope, receive, send)

    monkeypatch.setattr(
        bench.state, "new_budget",
        lambda ticket: Budget(replace(SHORT, attempts=2), ticket.arrived_ms - 25, 40))
    assert ask(bench, app).status == 504 and not failing.script
    assert bench.value("resilience_gate_requests_total", outcome="server_error", **TIER) == 1


def test_a_retry_takes_a_route_that_has_come_meanwhile(
    new_bench: NewBench, claim: MakeClaim
) -> None:
    bench = new_bench(config_of(FAST))

    class Failing(Scripted):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if not self.bodies:
                bench.hold(claim("route.model", {"to": "small", "share": 1.0}))
            await super().__call__(scope, receive, send)

    app = Failing(500, 200)
    answer = ask(bench, app, b'{"model": "large"}')
    assert answer.status == 200 and answer.headers["x-resilience-model"] == "small"
    assert [json.loads(body)["model"] for body in app.bodies] == ["large", "small"]


@pytest.mark.parametrize("stubborn", [False, True])
def test_the_deadline_ends_a_request_and_says_so(new_bench: NewBench, stubborn: bool) -> None:
    bench, app = new_bench(config_of(SHORT)), Hanging(stubborn=stubborn)
    answer = ask(bench, app)
    assert app.ended == ("cancelled" if stubborn else "http.disconnect")
    assert answer.status == 504 and answer.headers["x-resilience-cause"] == "timeout"
    assert answer.json()["error"]["code"] == "deadline_exceeded"
    assert "0.04 s" in answer.json()["error"]["message"]
    assert bench.value("resilience_gate_causes_total", cause="timeout", **TIER) == 1
    assert bench.inside == 0


def test_an_attempts_own_time_leaves_time_for_another(new_bench: NewBench) -> None:
    bench = new_bench(config_of(replace(FAST, attempt_ms=30)))
    hanging, good = Hanging(), Scripted(200)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await (good if hanging.ended else hanging)(scope, receive, send)

    assert ask(bench, app).status == 200
    assert hanging.ended == "http.disconnect"


def test_a_tier_has_its_own_deadline(new_bench: NewBench) -> None:
    tiers = (Tier("core", deadline_ms=60), Tier("best-effort"))
    bench = new_bench(config_of(BudgetSettings(attempts=1), tiers=tiers))
    answer = ask(bench, Hanging(), x_slo_tier="core")
    assert "0.06 s" in answer.json()["error"]["message"]


def test_waiting_in_the_queue_is_part_of_the_budget(
    new_bench: NewBench, claim: MakeClaim
) -> None:
    config = config_of(SHORT, queue=QueueSettings(4))
    bench = new_bench(config)
    bench.hold(claim("throttle.max_concurrency", 1))
    admission = bench.state.admission
    admission.offer(bench.state.new_ticket(("core", "", ""), "/"), bench.clock())  # the one seat
    deadline_ms = bench.clock() + 40

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}

    async def slow_body() -> Any:
        if bench.clock() > deadline_ms - 40:
            await asyncio.Event().wait()  # the client stays
        bench.clock.now += 25
        return {"type": "http.request", "body": b"{}"}

    async def scenario() -> Any:
        task = asyncio.ensure_future(bench.gate(scope, slow_body, None))
        while not len(admission.queue):
            await asyncio.sleep(0)
        waits_until_ms = admission.next_ms()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return waits_until_ms

    assert asyncio.run(scenario()) == deadline_ms


def test_a_status_without_a_body_is_left_to_the_server(new_bench: NewBench) -> None:
    """Held because it might be mended, it has not gone out: the server can still say 500."""
    bench = new_bench(config_of(BudgetSettings(attempts=1)))
    answers: list[Any] = []

    async def breaking(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 503, "headers": []})
        raise RuntimeError("boom")

    async def scenario() -> None:
        answers.append(bench.answer())
        await bench.ask(gate=bench.around(breaking), answer=answers[0])

    with pytest.raises(RuntimeError, match="boom"):
        asyncio.run(scenario())
    assert (answers[0].status, answers[0].chunks) == (bench.answer().status, [])


def test_who_is_cancelled_between_two_attempts_is_counted(new_bench: NewBench) -> None:
    bench = new_bench(config_of(BudgetSettings(deadline_ms=60_000, backoff_ms=30_000)))
    app = Scripted(503, 200)

    async def scenario() -> None:
        asked = asyncio.ensure_future(bench.ask(gate=bench.around(app)))
        while len(app.script) == 2 or bench.inside:
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)

    asyncio.run(scenario())
    disconnected = {"outcome": "disconnected", **TIER}
    assert bench.value("resilience_gate_requests_total", **disconnected) == 1
    assert bench.value("resilience_gate_attempts_total", **TIER) == 1


def test_a_body_that_trickles_ends_at_the_deadline(new_bench: NewBench, drive: Any,
                                                   scope_of: Any) -> None:
    bench = new_bench(config_of(SHORT))
    sent: list[int] = []

    async def receive() -> Any:
        if not sent:
            sent.append(1)
            return {"type": "http.request", "body": b"{", "more_body": True}
        await asyncio.Event().wait()

    answer = drive(bench.gate, scope_of(), receive)
    assert answer.status == 408 and bench.seen == []
    assert answer.headers["x-resilience-cause"] == "slow_body"
    assert bench.value("resilience_gate_causes_total", tier="best-effort", cause="slow_body") == 1
    ended = {"tier": "best-effort", "outcome": "client_error"}
    assert bench.value("resilience_gate_requests_total", **ended) == 1


def test_a_client_that_leaves_during_back_off_ends_it(
    new_bench: NewBench, drive: Any, scope_of: Any
) -> None:
    bench = new_bench(config_of(replace(FAST, deadline_ms=60_000, backoff_ms=50_000)))
    app = Scripted(500, 200)
    messages = [{"type": "http.request", "body": b"{}"}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        return messages.pop(0) if messages else await asyncio.Event().wait()

    answer = drive(bench.around(app), scope_of(), receive)
    assert app.script == [200] and answer.status == 500


def test_another_attempt_is_no_wait_in_the_queue(new_bench: NewBench) -> None:
    bench, failing = new_bench(config_of(FAST)), Scripted(500, 200)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        bench.clock.now += 500
        await failing(scope, receive, send)

    assert ask(bench, app).status == 200
    assert bench.value("resilience_gate_wait_inflation", **TIER) == 1


def test_a_tokenizer_that_hangs_leaves_time_for_the_answer(
    new_bench: NewBench, claim: MakeClaim
) -> None:
    bench = new_bench(config_of(replace(FAST, deadline_ms=600))).on_the_real_clock()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.01)
        await Scripted(200)(scope, receive, send)

    bench.state.counter = StuckTokenizer()
    bench.hold(claim("throttle.max_outstanding_tokens", 10_000))
    body = json.dumps({"prompt": "long " * 1_000}).encode()
    assert ask(bench, app, body).status == 200
