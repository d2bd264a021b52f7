"""A whole gate, while claims come and go and requests wait, run, leave, fail and come again.

On an event loop whose time is simulated: nothing waits for real, and a wait without an end shows.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import selectors
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pytest

from resilience.gate.attempt import GRACE_S
from resilience.gate.config import GateConfig, GateTenant
from resilience.gate.limiter import LimiterRule, Signals
from resilience.gate.limits import (
    CONCURRENCY,
    CONTEXT,
    LIMITER,
    OUTPUT,
    OUTSTANDING,
    PROMPT_RATE,
    QUOTA,
    REQUEST_RATE,
)
from resilience.gate.snapshot import BREAKER, ROUTE
from resilience.gate.ticket import Lane
from resilience.model import BudgetSettings, EngineConfig, Json
from tests.unit.gate.conftest import Bench, make_claim, make_scope
from tests.unit.gate.failing_servers import ALWAYS, DONE, EVENT, SSE

TIERS, MODELS = ("core", "elastic", "best-effort"), ("m", "n", "small")
TENANTS = {"a": GateTenant(share=3), "b": GateTenant(max_concurrency=2, max_outstanding_tokens=400)}
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":5}}\n\n'
VALUES: dict[str, tuple[Json, ...]] = {
    CONCURRENCY: (0, 1, 2, 5), REQUEST_RATE: (1, 10), PROMPT_RATE: (50, 300),
    OUTSTANDING: (0, 100, 400), CONTEXT: (40, 200), OUTPUT: (5, 20),
    QUOTA: tuple({"tokens": n, "window_ms": ms} for n, ms in ((100, 2_000), (1_000, 40_000))),
    ROUTE: tuple({"to": to, "share": share} for to in ("n", "small") for share in (0.3, 1.0)),
    LIMITER: (asdict(LimiterRule(queue_time_ms=100, headroom=0.1)),),
    BREAKER: ({**ALWAYS, "error_rate": 0.5, "consecutive": 2, "min_requests": 2},),
}
OPEN = (None, None, None, 0.1, 1.0)  # after how many seconds a client leaves


class Simulated(selectors.DefaultSelector):
    """Waits for nothing: time goes on at once to when something is due."""

    now = 1_000.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everybody waits, and nothing is due"
        self.now += max(0.0, timeout)
        return super().select(0)


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@dataclass
class World:
    """A gate, a server that does as chance says, and what was seen of both."""

    chance: random.Random
    now: Callable[[], float]
    bench: Bench
    inside: dict[object, tuple[Lane, float]] = field(
        default_factory=dict[object, tuple[Lane, float]])
    born: dict[tuple[str, Lane], float] = field(default_factory=dict[tuple[str, Lane], float])
    starts: list[int] = field(default_factory=list[int])
    wrong: list[str] = field(default_factory=list[str])
    asked: Counter[str] = field(default_factory=Counter[str])
    inferences: int = 0
    tries: Counter[bytes] = field(default_factory=Counter[bytes])
    served: dict[bytes, float] = field(default_factory=dict[bytes, float])
    running: list[bytes] = field(default_factory=list[bytes])

    def watch(self, refresh: Callable[[], None]) -> None:
        """Note since when each limit has been in force."""
        refresh()
        limits = {(x.kind, x.scope) for x in self.bench.state.snapshot().limits}
        self.born = {key: self.born.get(key, self.now()) for key in limits}

    def check(self, lane: Lane, asked: Json) -> None:
        for limit in self.bench.state.snapshot().limits:
            if not limit.covers(lane):
                continue
            if limit.kind == CONCURRENCY:
                since = self.born[limit.kind, limit.scope]
                mine = [x for x, t in self.inside.values() if t > since and limit.covers(x)]
                if len(mine) > limit.number:
                    self.wrong.append(f"{mine}: {limit.text()}")
            if limit.kind == OUTPUT and asked.get("max_tokens", 16) > limit.number:
                self.wrong.append(f"{asked} is not cut to {limit.number}")

    def is_kept(self, name: bytes) -> bool:
        return self.now() - self.served.get(name, -30.0) < 29.99

    @contextmanager
    def once(self, name: bytes) -> Generator[None]:
        """An inference under an id: the only one, and none while its answer is kept."""
        if name and self.bench.state.results is not None:
            if name in self.running:
                self.wrong.append(f"{name!r} runs twice")
            if self.is_kept(name):
                self.wrong.append(f"{name!r} runs again")
        self.running.append(name)
        try:
            yield
        finally:
            self.running.remove(name)

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        with self.once(dict(scope["headers"]).get(b"x-request-id", b"")):
            await self.infer(scope, receive, send)

    async def infer(self, scope: Any, receive: Any, send: Any) -> None:
        chance = self.chance
        self.inferences += 1
        message = await receive()
        if message["type"] != "http.request":
            return
        asked = json.loads(message["body"])
        said = dict(scope["headers"])
        self.tries[said[b"number"]] += 1
        lane = (said[b"of"].decode(), said[b"whose"].decode(), asked["model"])
        me = object()
        self.inside[me] = lane, self.now()
        left = asyncio.ensure_future(receive())
        try:
            self.check(lane, asked)
            how, step_s = chance.random(), chance.choice((0, 0.01, 0.2, 1))
            await asyncio.wait({left}, timeout=step_s)
            if left.done():
                return
            if how < 0.1:
                raise RuntimeError("a crash")
            streams, status = asked["stream"], chance.choice((500, 503, 400)) if how < 0.2 else 200
            await send({"type": "http.response.start", "status": status,
                        "headers": SSE if streams else []})
            if not streams:
                usage = {"prompt_tokens": chance.randint(1, 300), "completion_tokens": 9}
                body = json.dumps({"usage": usage}).encode()
                await send({"type": "http.response.body", "body": body})
                return
            for part in (EVENT, EVENT, EVENT, USAGE % chance.randint(1, 300)):
                await send({"type": "http.response.body", "body": part, "more_body": True})
                await asyncio.wait({left}, timeout=step_s)
                if left.done():
                    return
            await send({"type": "http.response.body", "body": DONE})
        finally:
            del self.inside[me]
            left.cancel()

    def question(self, number: int) -> tuple[Json, dict[str, str]]:
        """Return what a client asks for, and its headers; some with an id that others have, too."""
        chance = self.chance
        said: Json = {"model": chance.choice(MODELS[:2]), "stream": chance.random() < 0.5,
                      "prompt": "word " * chance.choice((1, 40, 300, 900))}
        if chance.random() < 0.7:
            said["max_tokens"] = chance.choice((3, 16, 200))
        tier, whose = chance.choice(TIERS), chance.choice((*TENANTS, "other"))
        headers = {"of": tier, "x_slo_tier": tier, "whose": whose, "x_tenant": whose,
                   "number": str(number)}
        if chance.random() < 0.2:
            name = headers["x_request_id"] = f"{chance.randint(0, 5):020}"
            headers |= {"whose": "a", "x_tenant": "a"}
            if chance.random() < 0.9:
                said = {"model": "m", "stream": int(name) < 3, "prompt": name}
        return said, headers

    async def ask(self, gate: Any) -> None:
        """Be a client."""
        number, came, gone = len(self.starts), self.now(), asyncio.Event()
        self.starts.append(0)
        said, headers = self.question(number)
        self.asked[headers["whose"]] += 1
        given = [{"type": "http.request", "body": json.dumps(said).encode(), "more_body": False}]
        leaves_s = self.chance.choice(OPEN)
        if leaves_s is not None:
            asyncio.get_running_loop().call_later(leaves_s, gone.set)

        async def receive() -> Any:
            if given:
                return given.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        status = 0

        async def send(message: Any) -> None:
            nonlocal status
            if "status" in message:
                self.starts[number], status = self.starts[number] + 1, message["status"]
                self.in_time(self.now() - came)
            elif status == 200 and not message.get("more_body"):
                self.keep(headers.get("x_request_id", "").encode())

        try:
            await gate(make_scope(**headers), receive, send)
        except RuntimeError as error:
            assert str(error) == "a crash"

    def keep(self, name: bytes) -> None:
        """Note that a whole answer was given, for the first time."""
        if name and not self.is_kept(name):
            self.served[name] = self.now()

    def in_time(self, took_s: float) -> None:
        """An answer begins before its deadline, or says just after it that there is none."""
        budget = self.bench.state.config.budget
        if budget is not None and took_s > budget.deadline_ms / 1_000 + GRACE_S + 0.01:
            self.wrong.append(f"the answer came after {took_s} s")

    def claim(self) -> Json:
        chance, knob = self.chance, self.chance.choice(list(VALUES))
        scope: dict[str, Any] = {}
        if knob != LIMITER and chance.random() < 0.5:
            scope["tier"] = chance.choice(TIERS)
        if knob not in (LIMITER, ROUTE) and chance.random() < 0.3:
            scope["model"] = chance.choice(MODELS)
        if knob not in (LIMITER, ROUTE) and chance.random() < 0.2:
            scope["tenant"] = chance.choice((*TENANTS, "other"))
        ttl_ms = chance.choice((307, 1_511, 30_011))
        return make_claim(knob, chance.choice(VALUES[knob]), ttl_ms=ttl_ms, **scope)


def config_by(chance: random.Random) -> GateConfig:
    budget = BudgetSettings(
        deadline_ms=chance.choice((800, 3_000, 8_000)), attempts=chance.choice((1, 2, 3)),
        backoff_ms=50, attempt_ms=chance.choice((None, 500)))
    config = GateConfig.from_engine(EngineConfig(budget=chance.choice((None, budget))))
    tiers = {
        name: replace(tier, queue_timeout_ms=chance.choice((300, 2_000, 10_000)),
                      max_concurrency=chance.choice((None, None, 3)))
        for name, tier in config.tiers.items()}
    return replace(config, tiers=tiers, tenants=TENANTS, queue_max=chance.choice((0, 2, 6, 50)),
                   ageing_ms=chance.choice((None, 200, 5_000)))


@pytest.mark.parametrize("seed", range(40))
def test_a_gate_keeps_its_promises_while_claims_come_and_go(seed: int) -> None:
    chance, selector = random.Random(seed), Simulated()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        world = World(chance, loop.time, Bench(config_by(chance)))
        runner.run(scenario(world))


async def scenario(world: World) -> None:
    chance, bench, tasks = world.chance, world.bench, list[asyncio.Task[None]]()
    state = bench.state
    bench.clock = state.clock_ms = lambda: round(world.now() * 1_000)
    state.by_priority = chance.random() < 0.5
    refresh = state.refresh
    state.refresh = lambda: world.watch(refresh)  # type: ignore[method-assign]
    state.start_with(chance.choice((2, 4, 8)))
    gate = bench.around(world.serve)
    for _ in range(chance.randint(20, 100)):
        what = chance.random()
        if what < 0.12:
            bench.hold(*(world.claim() for _ in range(chance.randint(0, 4))))
        elif what < 0.17 and tasks:
            chance.choice(tasks).cancel()
        elif what < 0.2:
            state.adapt(Signals(queue_time_ms=chance.choice((10, 500))))
        else:
            tasks += [asyncio.ensure_future(world.ask(gate)) for _ in range(chance.randint(1, 4))]
        await asyncio.sleep(chance.choice((0, 0, 0.001, 0.05, 0.3, 1.2)))
        assert_counts(world)
    bench.hold()
    async with asyncio.timeout(200):
        await asyncio.gather(*(task for task in tasks if not task.cancelled()),
                             return_exceptions=True)
    raised = [task.exception() for task in tasks if not task.cancelled()]
    assert not any(raised), raised
    assert not world.wrong
    assert max(world.starts) == 1, "one answer for each"
    budget = state.config.budget
    assert max(world.tries.values(), default=0) <= (1 if budget is None else budget.attempts)
    assert not state.admission.queue.places and not world.inside and bench.inside == 0
    assert_counts(world)
    assert_accounts(world)
    for stage in ("admit", "route", "body", "observe", "release"):
        assert not bench.value("resilience_gate_failed_open_total", stage=stage)


def assert_counts(world: World) -> None:
    """Each tally counts exactly who is inside, once."""
    usage = world.bench.state.admission.usage
    for scope, tally in usage._tallies.items():
        mine = [x for x in usage._inside
                if all(a in ("", b) for a, b in zip(scope, x.lane, strict=True))]
        counted = sum(x.reserved for x in mine)
        if scope in usage._watched or scope[1:] == ("", ""):
            assert (tally.requests, tally.tokens) == (len(mine), counted), scope


def assert_accounts(world: World) -> None:
    """Each request ended once, for its tier and its tenant; who was not served has one cause."""
    found: dict[str, defaultdict[str, float]] = {}
    for family in world.bench.registry.collect():
        for sample in family.samples:
            of = found.setdefault(sample.name, defaultdict(float))
            for label in ("outcome", "tenant"):
                of[sample.labels.get(label, "")] += sample.value
            of["all"] += sample.value
    gate = "resilience_gate_"
    ended = found[f"{gate}requests_total"]
    everybody = sum(world.asked.values())
    assert ended["all"] == everybody
    tenants = found[f"{gate}tenant_requests_total"]
    assert {t: tenants[t] for t in world.asked} == world.asked
    assert found[f"{gate}causes_total"]["all"] == everybody - ended["ok"]
    assert found.get(f"{gate}refused_total", defaultdict(float))["all"] == ended["refused"]
    assert found[f"{gate}attempts_total"]["all"] == world.inferences
    assert found[f"{gate}slo_requests_total"]["all"] == everybody - sum(
        ended[outcome] for outcome in ("client_error", "disconnected"))
    assert found[f"{gate}slo_good_total"]["all"] <= ended["ok"]
