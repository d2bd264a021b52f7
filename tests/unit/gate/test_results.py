"""Runs and kept answers: what leaves first, and who runs when others have gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from resilience.gate.config import GateConfig
from resilience.gate.results import MESSAGE_COST, CrowdedError, Results, Run
from resilience.model import BudgetSettings, EngineConfig

NewBench = Callable[[GateConfig], Any]
ID = "4f9d1c1e-5f0c-4e0e-9a53-0b3d2a8f7b11"
TIER = {"tier": "best-effort"}


def started(results: Results, name: str) -> Run:
    run = results.begin((name,), b"", 0)
    assert isinstance(run, Run)
    return run


def test_the_oldest_answer_makes_room_for_the_newest() -> None:
    results = Results(30_000, 2 * MESSAGE_COST)
    for name in ("a", "b", "c"):
        run = started(results, name)
        results.add(run, {"n": name})
        results.end(run, True, 0)
    assert results.begin(("b",), b"", 0) == ({"n": "b"},)
    assert results.begin(("c",), b"", 0) == ({"n": "c"},)
    assert isinstance(results.begin(("a",), b"", 0), Run)


def test_so_many_run_with_an_id_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resilience.gate.results.RUNNING_MAX", 2)
    results = Results(30_000, 1_000)
    first, _ = started(results, "a"), started(results, "b")
    with pytest.raises(CrowdedError):
        results.begin(("c",), b"", 0)
    results.end(first, False, 0)
    started(results, "c")


@pytest.fixture
def kept(new_bench: NewBench) -> Any:
    """A gate that keeps results, and tries nothing twice."""
    budget = BudgetSettings(deadline_ms=60_000, attempts=1)
    return new_bench(GateConfig.from_engine(EngineConfig(budget=budget)))


async def waiting(bench: Any, gate: Any, count: int) -> tuple[Any, list[asyncio.Task[Any]]]:
    """Let one request run, and so many duplicates wait for it; returns its end and them."""
    end = asyncio.Event()

    async def first(scope: Any, receive: Any, send: Any) -> None:
        await end.wait()
        raise RuntimeError("gone")

    runs = asyncio.ensure_future(bench.ask(gate=bench.around(first), x_request_id=ID))
    await asyncio.sleep(0)
    more = [asyncio.ensure_future(bench.ask(gate=gate, x_request_id=ID)) for _ in range(count)]
    while bench.state.results.waiting < count:
        await asyncio.sleep(0)
    return (end, runs), more


def test_who_is_cancelled_as_its_turn_comes_passes_it_on(kept: Any) -> None:
    async def scenario() -> None:
        (end, runs), (second, third) = await waiting(kept, kept.gate, 2)
        end.set()
        while kept.state.results.waiting == 2:
            await asyncio.sleep(0)
        second.cancel()
        assert (await third).status == 200
        found = await asyncio.gather(runs, second, return_exceptions=True)
        assert [type(one) for one in found] == [RuntimeError, asyncio.CancelledError]

    asyncio.run(scenario())
    assert len(kept.seen) == 1 and kept.state.results.waiting == 0


def test_a_duplicate_whose_client_leaves_is_told_nothing(kept: Any, scope_of: Any) -> None:
    sent: list[Any] = []

    async def scenario() -> None:
        (end, runs), _ = await waiting(kept, kept.gate, 0)
        messages = [{"type": "http.request", "body": b"{}"}, {"type": "http.disconnect"}]

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        await kept.gate(scope_of(x_request_id=ID), receive, send)
        end.set()
        await asyncio.gather(runs, return_exceptions=True)

    asyncio.run(scenario())
    assert not sent and kept.state.results.waiting == 0
    assert kept.value("resilience_gate_requests_total", outcome="disconnected", **TIER) == 1
    assert kept.value("resilience_gate_causes_total", cause="client_left", **TIER) == 1
