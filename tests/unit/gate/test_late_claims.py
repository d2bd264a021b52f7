"""Claims that come while requests wait or run: they hold for those as for any that comes later."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from resilience.gate.admission import Admission
from resilience.gate.config import GateConfig
from resilience.gate.limits import CONCURRENCY, OUTSTANDING, PROMPT_RATE, QUOTA, Limit
from resilience.gate.snapshot import Snapshot
from resilience.gate.ticket import Ticket
from resilience.model import Json
from tests.unit.gate.failing_servers import FAST, Scripted, StuckTokenizer, ask, config_of

MakeClaim = Callable[..., Json]
NewBench = Callable[[GateConfig], Any]
WORDS = " ".join(["word"] * 40)  # 199 characters, 50 tokens by their length
ASKED = json.dumps({"model": "m", "prompt": WORDS, "max_tokens": 50}).encode()
CONTEXT, OUTPUT, ROUTE = "throttle.max_context_tokens", "throttle.max_output_tokens", "route.model"


async def two_wait(bench: Any, claim: MakeClaim) -> tuple[Any, list[asyncio.Task[Any]]]:
    """Let one request run and two wait for its place, before anybody counts tokens or models."""
    bench.hold(claim(CONCURRENCY, 1))
    server = bench.held_server()
    tasks = [await server.send(name, "core", body=ASKED) for name in ("first", "second", "third")]
    assert server.names() == ["first"] and bench.state.waiting("core") == 2
    return server, tasks


async def all_end(server: Any, tasks: list[asyncio.Task[Any]]) -> list[int]:
    while server.inside:
        await server.end()
    return [(await task).status for task in tasks]


def test_tokens_of_who_waits_are_counted(queueing: Any, claim: MakeClaim) -> None:
    async def scenario() -> list[int]:
        server, tasks = await two_wait(queueing, claim)
        queueing.hold(claim(OUTSTANDING, 150))  # one of 100 tokens at a time
        await server.settle()
        assert server.names() == ["first"]  # by its length alone it takes more than 50
        await server.end()
        assert server.names() == ["second"] and queueing.state.waiting("core") == 1
        return await all_end(server, tasks)

    assert asyncio.run(scenario()) == [200] * 3
    assert queueing.inside == 0


def test_who_waits_is_told_at_once_that_it_is_too_large(queueing: Any, claim: MakeClaim) -> None:
    async def scenario() -> list[int]:
        server, tasks = await two_wait(queueing, claim)
        queueing.hold(claim(CONCURRENCY, 1), claim(CONTEXT, 90, policy="kv"))
        await server.settle()
        assert [task.done() for task in tasks] == [False, True, True]
        return await all_end(server, tasks)

    assert asyncio.run(scenario()) == [200, 429, 429]


def test_the_answer_of_who_waits_is_cut(queueing: Any, claim: MakeClaim) -> None:
    async def scenario() -> list[int]:
        server, tasks = await two_wait(queueing, claim)
        queueing.hold(claim(CONCURRENCY, 1), claim(OUTPUT, 7, policy="short"))
        return await all_end(server, tasks)

    assert asyncio.run(scenario()) == [200] * 3
    assert [json.loads(body)["max_tokens"] for _, body in queueing.seen] == [50, 7, 7]


def test_who_waits_takes_the_route_that_has_come(queueing: Any, claim: MakeClaim) -> None:
    async def scenario() -> list[Any]:
        server, tasks = await two_wait(queueing, claim)
        queueing.hold(claim(CONCURRENCY, 1), claim(ROUTE, {"to": "small", "share": 0.5}))
        await all_end(server, tasks)
        return [(await task).headers.get("x-resilience-model") for task in tasks]

    assert asyncio.run(scenario()) == [None, None, "small"]
    assert [json.loads(body)["model"] for _, body in queueing.seen] == ["m", "m", "small"]


def test_a_limit_of_a_model_holds_who_waits_for_it(queueing: Any, claim: MakeClaim) -> None:
    async def scenario() -> list[int]:
        server, tasks = await two_wait(queueing, claim)
        queueing.hold(claim(CONCURRENCY, 1, model="m"))
        await server.settle()
        assert server.names() == ["first", "second"]  # the first came before anybody asked
        await server.end()
        assert server.names() == ["second"] and queueing.state.waiting("core") == 1
        return await all_end(server, tasks)

    assert asyncio.run(scenario()) == [200] * 3


def times_of(bench: Any) -> list[tuple[int, int]]:
    """Return since when and until when each waits, the first to come first."""
    return sorted((t.enqueued_ms, t.deadline_ms) for t in bench.state.admission.queue.all())


def test_who_is_looked_at_again_keeps_its_place_and_its_deadline(
    queueing: Any, claim: MakeClaim
) -> None:
    async def scenario() -> list[int]:
        server, tasks = await two_wait(queueing, claim)
        before = times_of(queueing)
        await asyncio.sleep(0.02)
        queueing.hold(claim(CONCURRENCY, 1), claim(OUTSTANDING, 10_000))
        late = await server.send("late", "core", body=ASKED)
        after = times_of(queueing)
        assert len(after) == 3 and [since for since, _ in after[:2]] == [s for s, _ in before]
        assert all(abs(a - b) <= 2 for (_, a), (_, b) in zip(after, before, strict=False))
        await server.end()
        assert server.names() == ["second"]
        return await all_end(server, [*tasks, late])

    assert asyncio.run(scenario()) == [200] * 4
    assert queueing.value("resilience_gate_queue_seconds_count", tier="core") == 3


def test_who_leaves_while_it_is_looked_at_again_takes_no_place(
    queueing: Any, claim: MakeClaim
) -> None:
    queueing.state.counter = StuckTokenizer()
    body = json.dumps({"prompt": "long " * 1_000}).encode()

    async def scenario() -> None:
        queueing.hold(claim(CONCURRENCY, 1))
        server = queueing.held_server()
        first = await server.send("first", "core", body=body)
        second = await server.send("second", "core", body=body)
        queueing.hold(claim(CONCURRENCY, 1), claim(OUTSTANDING, 10_000))
        await server.settle()
        assert queueing.state.waiting("core") == 0  # its tokens are being counted
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        await all_end(server, [first])

    asyncio.run(scenario())
    assert queueing.inside == 0
    assert queueing.value(
        "resilience_gate_requests_total", outcome="disconnected", tier="core") == 1


def test_an_attempt_after_a_claim_is_made_as_it_says(new_bench: NewBench, claim: MakeClaim) -> None:
    """A second attempt is cut as a first one would be."""
    bench = new_bench(config_of(FAST))

    class Claiming(Scripted):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await super().__call__(scope, receive, send)
            bench.hold(claim(OUTPUT, 7))

    app = Claiming(500, 200)
    assert ask(bench, app, ASKED).status == 200
    assert [json.loads(body)["max_tokens"] for body in app.bodies] == [50, 7]


# --- what runs already --------------------------------------------------------------------------

def running(size: int, now_ms: int = 0) -> tuple[Admission, Ticket]:
    admission = Admission()
    ticket = Ticket(("core", "a", ""), "/v1/completions", now_ms)
    ticket.size = size
    assert admission.offer(ticket, now_ms) is None
    return admission, ticket


def test_what_runs_counts_by_its_length() -> None:
    admission, ticket = running(400)
    admission.adopt(Snapshot(limits=(Limit(OUTSTANDING, ("core", "", ""), 200, "p", "r"),),
                             needs_tokens=True), 10)
    assert admission.usage.tally(("core", "", "")).tokens == ticket.reserved == 100 + 16
    other = Ticket(("core", "a", ""), "/v1/completions", 10)
    other.reserved = 90
    assert admission.offer(other, 10) is not None
    admission.leave(ticket, "success", 1, 20)
    assert admission.usage.tally(("core", "", "")).tokens == 0
    assert admission.offer(other, 20) is None


def test_what_has_no_body_is_never_counted() -> None:
    admission, ticket = running(0)
    admission.adopt(Snapshot(limits=(Limit(OUTSTANDING, ("", "", ""), 200, "p", "r"),),
                             needs_tokens=True), 10)
    assert ticket.reserved == 0


@pytest.mark.parametrize("kind", [PROMPT_RATE, QUOTA])
def test_nothing_is_given_back_that_was_not_taken(kind: str) -> None:
    """The meter came after the request: what its estimate was wrong by is not the meter's."""
    value: Any = 100 if kind == PROMPT_RATE else {"tokens": 125, "window_ms": 10_000}
    limit = Limit(kind, ("", "", ""), value, "p", "r")
    admission, ticket = running(400)
    admission.adopt(Snapshot(limits=(limit,), needs_tokens=True), 10)
    spends = Ticket(("core", "a", ""), "/v1/completions", 10)
    spends.prompt_tokens = spends.reserved = 100
    assert admission.offer(spends, 10) is None
    ticket.actual_prompt, ticket.actual_output = 10, 0  # where 100 were estimated
    admission.leave(ticket, "success", 1, 10)
    more = Ticket(("core", "a", ""), "/v1/completions", 10)
    more.prompt_tokens = more.reserved = 50
    assert admission.offer(more, 10) is not None


def test_what_ran_by_its_length_is_counted_before_another_attempt(
    new_bench: NewBench, claim: MakeClaim
) -> None:
    """Its 50 asked-for tokens were not looked at while it ran; they make it too large now."""
    bench = new_bench(config_of(FAST))

    class Claiming(Scripted):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            bench.hold(claim(CONTEXT, 90))
            await super().__call__(scope, receive, send)

    app = Claiming(500, 200)
    assert ask(bench, app, ASKED).status == 500
    assert app.script == [200]
