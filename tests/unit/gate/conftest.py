"""A gate around a scripted application, driven message by message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from resilience.gate.config import GateConfig
from resilience.gate.metrics import GateMetrics
from resilience.gate.middleware import Gate
from resilience.gate.state import GateState, monotonic_ms
from resilience.model import EngineConfig, Json, Rung
from tests.unit.gate.ladder_rig import ROUTE

Message = MutableMapping[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]


class ManualClock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        return self.now


@dataclass
class Answer:
    """What one request got back."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    chunks: list[bytes] = field(default_factory=list)
    ended: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def json(self) -> Any:
        return json.loads(self.body)


class Bench:
    """A gate with its state, its registry and a clock."""

    def __init__(self, config: GateConfig) -> None:
        self.registry = CollectorRegistry()
        self.clock: Any = ManualClock()
        self.state = GateState(config, GateMetrics(self.registry), self.clock)
        self.seen: list[tuple[Message, bytes]] = []
        self.gate = Gate(self.echo, self.state)
        self._generation = 0

    async def echo(self, scope: Message, receive: Any, send: Any) -> None:
        """Remember the request and answer with its body."""
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if message["type"] != "http.request" or not message.get("more_body"):
                break
        self.seen.append((scope, body))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    @property
    def inside(self) -> int:
        """The requests that the gate believes to be in flight."""
        return self.state.admission.usage.total

    def on_the_real_clock(self) -> Bench:
        """Take the event loop's kind of time, on which its timers are."""
        self.clock = self.state.clock_ms = monotonic_ms
        return self

    def around(self, app: App) -> Gate:
        return Gate(app, self.state)

    def hold(self, *claims: Json) -> None:
        """Make the gate hold exactly these claims."""
        self._generation += 1
        body = {
            "version": 1, "epoch": 1, "generation": self._generation, "claims": list(claims),
        }
        self.state.table.put(body, self.clock())
        self.state.refresh()

    def value(self, name: str, /, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    def answer(self) -> Answer:
        """Return what can be given to `ask`, to be looked at even if that raises."""
        return Answer()

    async def ask(
        self, body: bytes = b"{}", gate: Gate | None = None, answer: Answer | None = None,
        **scope: Any,
    ) -> Answer:
        """Send one request with its body in one piece."""
        answer = answer or Answer()
        messages: list[Message] = [
            {"type": "http.request", "body": body, "more_body": False}
        ]
        await (gate or self.gate)(
            make_scope(**scope), replay(messages), collect(answer)
        )
        return answer

    def held_server(self) -> HeldServer:
        return HeldServer(self)

    def send(self, body: bytes = b"{}", **more: Any) -> Answer:
        """`ask` in an event loop of its own."""
        return asyncio.run(self.ask(body, **more))

    def answering(
        self, *chunks: bytes, kind: bytes = b"application/json", status: int = 200
    ) -> Gate:
        """Return a gate around an application that answers with `chunks`."""

        async def app(scope: Message, receive: Any, send: Any) -> None:
            headers = [(b"content-type", kind)]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        return self.around(app)


class HeldServer:
    """An application whose requests end when they are told to."""

    def __init__(self, bench: Bench) -> None:
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
        await self.settle()
        return task

    async def end(self) -> None:
        self.inside[0][1].set()
        await self.settle()

    def names(self) -> list[str]:
        return [name for name, _ in self.inside]

    async def order(self) -> list[str]:
        """End all, one after the other; returns their names as they came in."""
        order: list[str] = []
        while self.inside:
            order += self.names()
            await self.end()
        return order

    async def settle(self) -> None:
        """Let every callback that is ready run."""
        for _ in range(20):
            await asyncio.sleep(0)


def make_scope(
    path: str = "/v1/completions", method: str = "POST", peer: str | None = "127.0.0.1",
    **headers: str,
) -> Message:
    pairs = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    client = None if peer is None else (peer, 1234)
    return {"type": "http", "method": method, "path": path, "headers": pairs, "client": client}


def replay(messages: list[Message]) -> Callable[[], Awaitable[Message]]:
    waiting = list(messages)

    async def receive() -> Message:
        if not waiting:
            await asyncio.Event().wait()  # the client stays, until the request is over
        return waiting.pop(0)

    return receive


def collect(answer: Answer) -> Callable[[Message], Awaitable[None]]:
    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            answer.chunks.append(message.get("body", b""))
            answer.ended = not message.get("more_body", False)

    return send


def make_claim(
    knob: str, value: Json, *, ttl_ms: int = 30_000, keep: bool = False, policy: str = "p",
    priority: int = 50, reason: str = "why", **scope: str,
) -> Json:
    return {
        "knob": knob, "scope": scope, "value": value, "ttl_ms": ttl_ms, "keep": keep,
        "policy": policy, "reason": reason, "priority": priority,
    }


@pytest.fixture
def config() -> GateConfig:
    return GateConfig.from_engine(EngineConfig())


@pytest.fixture
def bench(config: GateConfig) -> Bench:
    return Bench(config)


@pytest.fixture
def new_bench() -> Callable[[GateConfig], Bench]:
    return Bench


@pytest.fixture
def queueing(config: GateConfig) -> Bench:
    """A gate with a queue of eight, on the real clock."""
    tiers = {name: replace(tier, queue_timeout_ms=20_000) for name, tier in config.tiers.items()}
    return Bench(replace(config, tiers=tiers, queue_max=8)).on_the_real_clock()


@pytest.fixture
def claim() -> Callable[..., Json]:
    return make_claim


@pytest.fixture
def scope_of() -> Callable[..., Message]:
    return make_scope


@pytest.fixture
def drive() -> Callable[..., Answer]:
    """Run a gate with a given `receive` and return the answer."""

    def run(gate: Gate, scope: Message, receive: Any) -> Answer:
        answer = Answer()
        asyncio.run(_call(gate, scope, receive, answer))
        return answer

    return run


async def _call(gate: Gate, scope: Message, receive: Any, answer: Answer) -> None:
    await gate(scope, receive, collect(answer))


@pytest.fixture
def laddered(
    config: GateConfig, new_bench: Callable[[GateConfig], Bench], claim: Callable[..., Json]
) -> Callable[..., Any]:
    """Return a function that makes a bench with these rungs and a route down them."""

    def make(*rungs: Rung, to: str = "ladder", **scope: str) -> Any:
        bench = new_bench(replace(config, ladder=rungs))
        bench.hold(claim(ROUTE, {"to": to, "share": 1.0}, policy="burn", reason="slo_burn",
                         **scope))
        return bench

    return make
