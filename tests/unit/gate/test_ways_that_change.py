"""Claims that change or go while requests wait: their way and their cut are those of now."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from resilience.gate.limits import CONCURRENCY, OUTPUT, OUTSTANDING, REQUEST_RATE
from resilience.gate.snapshot import ROUTE, Route
from resilience.model import Json
from tests.unit.gate.failing_servers import FAST, Scripted, ask, config_of
from tests.unit.gate.test_late_claims import ASKED, all_end
from tests.unit.gate.test_sessions import Realtime, begin

MakeClaim = Callable[..., Json]


async def held(bench: Any, claim: MakeClaim, first: list[Json], then: list[Json]) -> Any:
    """Let one run and two wait under `first` claims, then hold `then`; returns who is inside at
    once, and their answers."""
    one = claim(CONCURRENCY, 1)
    bench.hold(one, *first)
    server = bench.held_server()
    tasks = [await server.send(name, "core", body=ASKED) for name in ("1", "2", "3")]
    bench.hold(one, *then)
    await server.settle()
    names = server.names()
    assert await all_end(server, tasks) == [200] * 3
    return names, [task.result() for task in tasks]


@pytest.mark.parametrize(("before", "now", "asked"), [(40, 7, 7), (7, 40, 40), (7, None, 50)])
def test_the_cut_of_who_waits_is_the_one_in_force_when_it_is_let_in(
    queueing: Any, claim: MakeClaim, before: int, now: int | None, asked: int
) -> None:
    then = [] if now is None else [claim(OUTPUT, now, reason="now")]
    _, answers = asyncio.run(held(queueing, claim, [claim(OUTPUT, before)], then))
    assert [json.loads(body)["max_tokens"] for _, body in queueing.seen] == [before, asked, asked]
    told = answers[2].headers.get("x-resilience-reason")
    assert told == (None if now is None else "now")


@pytest.mark.parametrize(("now", "model"), [(None, "m"), ("other", "other")])
def test_who_waits_leaves_a_route_that_has_gone(
    queueing: Any, claim: MakeClaim, now: str | None, model: str
) -> None:
    then = [] if now is None else [claim(ROUTE, {"to": now, "share": 1.0})]
    _, answers = asyncio.run(
        held(queueing, claim, [claim(ROUTE, {"to": "small", "share": 1.0})], then))
    assert [json.loads(body)["model"] for _, body in queueing.seen] == ["small", model, model]
    assert answers[2].headers.get("x-resilience-model") == now


def test_who_is_routed_away_is_no_request_of_its_old_model(
    queueing: Any, claim: MakeClaim
) -> None:
    """What holds the model that it asked for holds it no longer."""
    of_model = claim(CONCURRENCY, 0, model="m")

    async def scenario() -> list[int]:
        queueing.hold(claim(CONCURRENCY, 1), claim(CONCURRENCY, 2, model="m"))
        server = queueing.held_server()
        tasks = [await server.send(name, "core", body=ASKED) for name in ("1", "2")]
        queueing.hold(claim(CONCURRENCY, 1), of_model, claim(ROUTE, {"to": "b", "share": 1.0}))
        await server.settle()
        return await all_end(server, tasks)

    assert asyncio.run(scenario()) == [200, 200]


def test_nobody_is_asked_twice_whether_it_takes_a_route(queueing: Any, claim: MakeClaim) -> None:
    """Each of six is looked at three times; half of them go."""

    async def scenario() -> None:
        server = queueing.held_server()
        share = {"to": "small", "share": 0.5}
        queueing.hold(claim(CONCURRENCY, 1), claim(ROUTE, share))
        tasks = [await server.send(str(i), "core", body=ASKED) for i in range(6)]
        for reason in ("another", "a third"):
            queueing.hold(claim(CONCURRENCY, 1), claim(ROUTE, share, reason=reason))
            await server.settle()
        await all_end(server, tasks)

    asyncio.run(scenario())
    models = [json.loads(body)["model"] for _, body in queueing.seen]
    assert models.count("small") == 3


def test_a_share_that_grows_takes_as_many_of_who_waits(queueing: Any, claim: MakeClaim) -> None:
    async def scenario() -> None:
        server = queueing.held_server()
        queueing.hold(claim(CONCURRENCY, 1), claim(ROUTE, {"to": "small", "share": 0.5}))
        tasks = [await server.send(str(i), "core", body=ASKED) for i in range(5)]
        queueing.hold(claim(CONCURRENCY, 1), claim(ROUTE, {"to": "small", "share": 0.75}))
        await server.settle()
        await all_end(server, tasks)

    asyncio.run(scenario())
    waited = [json.loads(body)["model"] for _, body in queueing.seen[1:]]
    assert waited.count("small") == 3


def test_a_claim_that_comes_while_tokens_are_counted_is_seen(
    queueing: Any, claim: MakeClaim
) -> None:
    """A limit of its model came meanwhile: the request is one of that model."""
    counting, go = asyncio.Event(), asyncio.Event()

    class Slow:
        factor = 1.0

        async def count_long(self, text: str) -> int:
            counting.set()
            await go.wait()
            return 1

    queueing.state.counter = Slow()
    body = json.dumps({"model": "m", "prompt": "long " * 1_000}).encode()

    async def scenario() -> list[int]:
        queueing.hold(claim(CONCURRENCY, 1))
        server = queueing.held_server()
        tasks = [await server.send(name, "core", body=body) for name in ("1", "2")]
        queueing.hold(claim(OUTSTANDING, 10_000))
        await counting.wait()
        queueing.hold(claim(OUTSTANDING, 10_000), claim(CONCURRENCY, 5, model="m"))
        go.set()
        await server.settle()
        assert server.names() == ["1", "2"]
        assert queueing.state.admission.usage.count(("", "", "m")) == 1
        return await all_end(server, tasks)

    assert asyncio.run(scenario()) == [200, 200]


def test_a_claim_that_comes_as_a_request_is_let_in_cuts_it(
    queueing: Any, claim: MakeClaim
) -> None:
    async def scenario() -> list[int]:
        queueing.hold(claim(CONCURRENCY, 1))
        server = queueing.held_server()
        tasks = [await server.send(name, "core", body=ASKED) for name in ("1", "2")]
        queueing.hold(claim(CONCURRENCY, 2))  # the second is let in, and has not heard of it
        queueing.hold(claim(CONCURRENCY, 2), claim(OUTPUT, 7))
        await server.settle()
        return await all_end(server, tasks)

    assert asyncio.run(scenario()) == [200, 200]
    assert [json.loads(body)["max_tokens"] for _, body in queueing.seen] == [50, 7]


def test_the_wait_of_who_is_let_in_when_it_is_looked_at_again_is_counted(
    queueing: Any, claim: MakeClaim
) -> None:
    async def scenario() -> None:
        queueing.hold(claim(CONCURRENCY, 1))
        server = queueing.held_server()
        tasks = [await server.send(name, "core", body=ASKED) for name in ("1", "2")]
        queueing.hold(claim(OUTSTANDING, 10_000))
        await server.settle()
        assert server.names() == ["1", "2"]
        await all_end(server, tasks)

    asyncio.run(scenario())
    assert queueing.value("resilience_gate_queue_seconds_count", tier="core") == 1


def test_the_end_of_a_session_wakes_who_then_waits_for_time_alone(
    queueing: Any, claim: MakeClaim
) -> None:
    """Its place is free: now the rate alone holds the next, for a tenth of a second."""
    queueing.hold(claim(CONCURRENCY, 1), claim(REQUEST_RATE, 10))

    async def scenario() -> None:
        for _ in range(9):
            await queueing.ask(body=ASKED)
        app = Realtime()
        session, _ = await begin(queueing.around(app))
        task = asyncio.ensure_future(queueing.ask(body=ASKED, x_slo_tier="core"))
        await asyncio.sleep(0)
        queueing.state.admission._meters._buckets[  # all of a second's burst has gone
            REQUEST_RATE, ("", "", "")].take(2.0, queueing.clock())
        app.end.set()
        await session
        async with asyncio.timeout(10):
            assert (await task).status == 200

    asyncio.run(scenario())


def test_a_second_attempt_is_made_anew_only_for_another_way(
    new_bench: Callable[[Any], Any], claim: MakeClaim
) -> None:
    bench = new_bench(config_of(FAST))
    bench.hold(claim(OUTPUT, 7), claim(ROUTE, {"to": "small", "share": 1.0}))
    app = Scripted(500, 200)
    assert ask(bench, app, ASKED).status == 200
    assert [json.loads(body)["max_tokens"] for body in app.bodies] == [7, 7]
    counted = {x.name: x.value for family in bench.registry.collect() for x in family.samples
               if x.name in ("resilience_gate_rerouted_total",
                             "resilience_gate_output_clamped_total")}
    assert set(counted.values()) == {1.0}


def test_a_second_attempt_on_the_same_way_is_no_second_reroute(
    new_bench: Callable[[Any], Any], claim: MakeClaim
) -> None:
    """It is made anew, because its output is cut by now."""
    bench = new_bench(config_of(FAST))
    small = claim(ROUTE, {"to": "small", "share": 1.0}, policy="burn")
    bench.hold(small)

    class Claiming(Scripted):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await super().__call__(scope, receive, send)
            bench.hold(small, claim(OUTPUT, 7))

    app = Claiming(500, 200)
    answer = ask(bench, app, ASKED)
    assert [json.loads(body)["max_tokens"] for body in app.bodies] == [50, 7]
    assert answer.headers["x-resilience-policy"] == "burn"
    routed = {"tier": "best-effort", "model": "small", "policy": "burn"}
    assert bench.value("resilience_gate_rerouted_total", **routed) == 1


@pytest.mark.parametrize(("share", "old", "left"), [
    (0.75, 0.5, 0.5), (1.0, 0.25, 1.0), (0.5, 0.5, None), (0.25, 0.5, None), (0.5, None, 0.5),
])
def test_a_route_that_grows_asks_those_that_were_not_taken_for_the_rest(
    share: float, old: float | None, left: float | None
) -> None:
    route = Route("small", share, "p", "r")
    before = None if old is None else replace(route, share=old)
    more = route.beyond(before)
    assert (more and more.share) == (left if left is None else pytest.approx(left))
    elsewhere = route.beyond(Route("other", 1.0, "p", "r"))
    assert elsewhere is not None and elsewhere.share == share


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7, 1.0])
def test_a_share_is_met_to_the_request(bench: Any, share: float) -> None:
    """Ten tenths are one, though their sum as numbers of a machine is a little less."""
    route = Route("small", share, "p", "r")
    taken = [bench.state.takes_route("core", route) for _ in range(100)]
    assert [sum(taken[:n]) for n in (10, 50, 100)] == [round(n * share) for n in (10, 50, 100)]


def test_a_second_attempt_without_its_route_says_nothing_of_it(
    new_bench: Callable[[Any], Any], claim: MakeClaim
) -> None:
    bench = new_bench(config_of(FAST))
    bench.hold(claim(ROUTE, {"to": "small", "share": 1.0}))

    class Ending(Scripted):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await super().__call__(scope, receive, send)
            bench.hold()

    app = Ending(500, 200)
    answer = ask(bench, app, ASKED)
    assert [json.loads(body)["model"] for body in app.bodies] == ["small", "m"]
    assert answer.status == 200 and "x-resilience-model" not in answer.headers
