"""What the tests of the budget and of broken streams share: settings, and servers that fail."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from resilience.gate.config import GateConfig
from resilience.model import BudgetSettings, EngineConfig

FAST = BudgetSettings(deadline_ms=2_000, backoff_ms=1)
SHORT = BudgetSettings(deadline_ms=40, backoff_ms=1, attempts=1)
SSE = [(b"content-type", b"text/event-stream")]
EVENT = b'data: {"choices":[{"text":"t"}]}\n\n'
DONE = b"data: [DONE]\n\n"
TIER = {"tier": "best-effort"}
ALWAYS = {
    "error_rate": None, "failures": None, "p99_ms": None, "window_tokens": None,
    "window_ms": 10_000, "samples": 10, "evaluations": 1, "min_requests": 1, "min_rate": 0.0,
    "open_ms": 300, "probes": 1, "probe_timeout_ms": 1_000,
}


def config_of(budget: BudgetSettings | None, **more: Any) -> GateConfig:
    return GateConfig.from_engine(replace(EngineConfig(budget=budget), **more))


class Scripted:
    """An application that answers each call by the next status; an exception is raised."""

    def __init__(self, *script: int | Exception) -> None:
        self.script = list(script)
        self.bodies: list[bytes] = []
        self.scopes: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        self.bodies.append((await receive()).get("body", b""))
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        await send({"type": "http.response.start", "status": step, "headers": []})
        await send({"type": "http.response.body", "body": b"answer %d" % step})


def ask(bench: Any, app: Any, body: bytes = b"{}", **more: Any) -> Any:
    return asyncio.run(bench.ask(body, gate=bench.around(app), **more))


class StuckTokenizer:
    """Counts a long text for ever."""

    factor = 1.0

    def count(self, text: str) -> int:
        raise AssertionError("a long text")

    async def count_long(self, text: str) -> int:
        await asyncio.Event().wait()
        return 1


class Hanging:
    """Sends what it is given, then waits until its client is said to have left."""

    def __init__(self, *messages: Any, stubborn: bool = False) -> None:
        self.messages = messages
        self.stubborn = stubborn
        self.ended = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        for message in self.messages:
            await send(message)
        try:
            if self.stubborn:
                await asyncio.Event().wait()
            self.ended = (await receive())["type"]
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise


def stream_of(*chunks: bytes) -> list[Any]:
    start: Any = {"type": "http.response.start", "status": 200, "headers": SSE}
    return [start, *(
        {"type": "http.response.body", "body": chunk, "more_body": True} for chunk in chunks)]
