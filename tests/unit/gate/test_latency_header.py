"""Every answer of the model says how long it took to its first byte; refusals do not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from resilience.gate.config import GateConfig
from resilience.gate.metrics import GateMetrics
from resilience.gate.middleware import Gate
from resilience.gate.state import GateState
from resilience.model import EngineConfig

LATENCY = b"x-model-latency"


def answer_of(chunks: list[bytes], kind: bytes) -> tuple[list[Any], GateState]:
    """Run one request whose first byte comes 250 ms after it was let in."""
    now = [1_000]
    config = GateConfig.from_engine(EngineConfig())
    state = GateState(config, GateMetrics(CollectorRegistry()), lambda: now[0])

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", kind)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        now[0] += 250
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/v1/completions", "headers": [],
        "client": ("127.0.0.1", 1),
    }
    asyncio.run(Gate(app, state)(scope, receive, send))
    return sent, state


@pytest.mark.parametrize(
    ("chunks", "kind"),
    [([b"{}"], b"application/json"), ([b"data: {}\n\n", b"data: {}\n\n"], b"text/event-stream"),
     ([], b"application/json")],
    ids=["whole", "stream", "empty"],
)
def test_the_header_tells_the_time_to_the_first_byte(chunks: list[bytes], kind: bytes) -> None:
    sent, state = answer_of(chunks, kind)
    assert [m["type"] for m in sent] == [
        "http.response.start", *["http.response.body"] * (len(chunks) + 1)
    ]
    assert dict(sent[0]["headers"])[LATENCY] == b"250" and state.latency_ms == 250
