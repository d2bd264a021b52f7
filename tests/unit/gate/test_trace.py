"""Traces: taken over or begun, passed on, and the exemplar of every histogram (P18)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from resilience.gate.config import GateConfig
from resilience.gate.trace import passed_on, span_of
from resilience.model import EngineConfig, QueueSettings
from tests.unit.gate.ladder_rig import SORRY, ask

MakeClaim = Callable[..., Any]
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
EVENT = b'data: {"choices":[{"text":"t"}]}\n\n'


def headers_of(*values: str) -> list[tuple[bytes, bytes]]:
    return [(b"traceparent", value.encode()) for value in values]


def test_a_callers_trace_goes_on_with_a_span_of_our_own() -> None:
    span = span_of(headers_of(PARENT))
    assert span.trace_id == TRACE and span.span_id != "b7ad6b7169203331"
    found = passed_on([*headers_of(PARENT), (b"tracestate", b"a=b"), (b"host", b"h")], span)
    assert found == [
        (b"tracestate", b"a=b"), (b"host", b"h"),
        (b"traceparent", f"00-{TRACE}-{span.span_id}-01".encode()),
    ]


@pytest.mark.parametrize("values", [
    (), ("nonsense",), (PARENT, PARENT), (PARENT.replace("00-", "ff-", 1),), (PARENT + "-more",),
    (f"00-{'0' * 32}-b7ad6b7169203331-01",), (f"00-{TRACE}-{'0' * 16}-01",),
    (PARENT.upper(),),
])
def test_what_is_no_trace_begins_a_new_one(values: tuple[str, ...]) -> None:
    headers = [*headers_of(*values), (b"tracestate", b"a=b")]
    span = span_of(headers)
    assert span.trace_id != TRACE and len(span.trace_id) == 32 and int(span.trace_id, 16)
    assert passed_on(headers, span) == [span.header]


def test_a_newer_version_may_say_more() -> None:
    assert span_of(headers_of(PARENT.replace("00-", "01-", 1) + "-more")).trace_id == TRACE


def exemplars(bench: Any) -> dict[str, set[str]]:
    """Return the trace ids of each of the gate's histograms, as OpenMetrics shows them."""
    found: dict[str, set[str]] = {}
    text = generate_latest(bench.registry).decode()
    for family in text_string_to_metric_families(text):
        if family.type == "histogram" and family.name.startswith("resilience_gate_"):
            found[family.name] = {
                s.exemplar.labels["trace_id"] for s in family.samples if s.exemplar is not None}
    return found


def test_every_histogram_of_the_gate_names_the_trace(new_bench: Any, claim: MakeClaim) -> None:
    """A stream that waited in the queue touches all of them."""
    bench = new_bench(GateConfig.from_engine(EngineConfig(queue=QueueSettings(4))))
    passed: list[Any] = []

    async def streaming(scope: Any, receive: Any, send: Any) -> None:
        passed.append(dict(scope["headers"])[b"traceparent"])
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(3):
            bench.clock.now += 50
            await send({"type": "http.response.body", "body": EVENT, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def holding(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        bench.hold(claim("throttle.max_concurrency", 1))
        first = asyncio.ensure_future(bench.ask(gate=bench.around(holding)))
        waiting = asyncio.ensure_future(
            bench.ask(gate=bench.around(streaming), traceparent=PARENT))
        while not bench.state.waiting("best-effort"):
            await asyncio.sleep(0)
        first.cancel()
        assert (await waiting).status == 200

    asyncio.run(scenario())
    found = exemplars(bench)
    assert len(found) == 4
    assert found == dict.fromkeys(found, {TRACE})
    assert passed[0].startswith(f"00-{TRACE}-".encode())


def test_what_the_gate_answers_itself_has_its_trace_too(laddered: Any) -> None:
    bench = laddered(SORRY)
    assert ask(bench, traceparent=PARENT).status == 200
    assert exemplars(bench)["resilience_gate_request_seconds"] == {TRACE}
