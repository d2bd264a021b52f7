"""Impulses: what each takes, those of the API server, and those of the engine process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from resilience.cores.capture import Captures, processes, tail_lines
from resilience.cores.health import Vitals
from resilience.cores.impulses import ARGUMENTS, BadArgumentsError, complete
from resilience.cores.operations import Operations
from resilience.cores.vllm.engine_impulses import abort_requests, missing
from resilience.errors import CoreRefusedError
from resilience.gate.config import GateConfig
from resilience.gate.metrics import GateMetrics
from resilience.gate.state import GateState
from resilience.gate.ticket import Ticket
from resilience.model import EngineConfig, Json

MakeRig = Callable[..., Any]


def test_what_is_left_out_has_its_default() -> None:
    assert complete("pause", None) == {"mode": "keep", "for_ms": 30_000}
    assert complete("drain", {"for_ms": 5_000}) == {"for_ms": 5_000, "abort_after_ms": 0}


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("pause", {"mode": "stop"}, "keep, wait, abort"),
        ("pause", {"for_ms": 1}, "1000 to 600000"),
        ("pause", {"for_ms": True}, "whole number"),
        ("resume", {"now": True}, "takes no arguments"),
        ("reset_prefix_cache", {"preempt": 1}, "true or false"),
        ("abort_requests", {"model": 7}, "a text"),
        ("abort_requests", {"limit": 0}, "1 to 10000"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_done(
    rig: Any, name: str, args: Json, said: str
) -> None:
    with pytest.raises(BadArgumentsError, match=said):
        complete(name, args)
    if name in ("reset_prefix_cache", "abort_requests"):
        with pytest.raises(CoreRefusedError, match=said):
            rig.core().impulse("k", name, args, epoch=1, deadline_ms=1_000)
        assert "impulse" not in rig.link.calls


class Sleeps:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, asyncio.Future[None]]] = []

    async def __call__(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append((seconds, future))
        await future

    async def pass_all(self) -> list[float]:
        """End every sleep that has begun, and let what follows it run."""
        await settle()
        now, self.waiting = self.waiting, []
        for _, future in now:
            if not future.done():
                future.set_result(None)
        await settle()
        return [seconds for seconds, _ in now]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Server:
    """vLLM's pause; `drains` makes `wait` take until it is set."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.drained: asyncio.Event | None = None
        self.broken = False

    async def pause(self, mode: str) -> None:
        if self.broken:
            raise RuntimeError("the engine is dead")
        self.done.append(mode)
        if self.drained is not None:
            await self.drained.wait()

    async def resume(self) -> None:
        self.done.append("resume")


class Bench:
    def __init__(self, tmp_path: Path) -> None:
        self.now = 10_000
        config = GateConfig.from_engine(EngineConfig())
        self.state = GateState(config, GateMetrics(CollectorRegistry()), lambda: self.now)
        self.server, self.sleeps, self.vitals = Server(), Sleeps(), Vitals(0)
        captures = Captures(tmp_path, Silent(), dict, str)
        self.operations = Operations(
            self.state, self.server, self.vitals, captures, self.sleeps
        )

    def enter(self) -> None:
        """Let one request in that stays."""
        assert self._offer(self.ticket()) is None

    def refuses(self) -> bool:
        """Say whether one more request would get a 503."""
        self.state.snapshot()
        ticket = self.ticket()
        refusal = self._offer(ticket)
        if refusal is None:
            self.state.admission.usage.leave(ticket)
        return refusal is not None and refusal.status == 503

    def ticket(self) -> Ticket:
        return Ticket(("core", "", ""), "/v1/completions", self.now)

    def _offer(self, ticket: Ticket) -> Any:
        return self.state.admission.offer(ticket, self.now)


class Silent:
    async def call(self, payload: Json, timeout_s: float) -> Json:
        await asyncio.sleep(timeout_s)
        return {}


def test_a_pause_ends_by_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        answer = await bench.operations.pause({"mode": "keep", "for_ms": 5_000})
        assert answer["settled"] is True and bench.server.done == ["keep"]
        assert await bench.sleeps.pass_all() == [5.0]
        assert bench.server.done == ["keep", "resume"]

    asyncio.run(scenario())


def test_a_pause_that_waits_does_not_hold_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resilience.cores.operations.SETTLE_S", 0.0)

    async def scenario() -> None:
        bench = Bench(tmp_path)
        bench.server.drained = asyncio.Event()
        answer = await bench.operations.pause({"mode": "wait", "for_ms": 5_000})
        assert answer["settled"] is False
        await bench.operations.resume()
        assert bench.server.done[-1] == "resume"
        assert await bench.sleeps.pass_all() in ([], [5.0])
        assert bench.server.done.count("resume") == 1  # the one that was to come is called off

    asyncio.run(scenario())


def test_a_second_pause_replaces_the_end_of_the_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        await bench.operations.pause({"mode": "keep", "for_ms": 5_000})
        await settle()
        await bench.operations.pause({"mode": "keep", "for_ms": 9_000})
        await bench.sleeps.pass_all()
        assert bench.server.done == ["keep", "keep", "resume"]

    asyncio.run(scenario())


def test_a_drain_closes_the_gate_and_opens_it_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        bench.enter()
        answer = await bench.operations.drain({"for_ms": 9_000, "abort_after_ms": 0})
        assert answer["in_flight"] == 1 and bench.refuses() and bench.vitals.draining
        await bench.sleeps.pass_all()
        assert not bench.refuses() and not bench.vitals.draining and bench.server.done == []

    asyncio.run(scenario())


def test_a_drain_aborts_what_is_left(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        bench.enter()
        await bench.operations.drain({"for_ms": 9_000, "abort_after_ms": 4_000})
        assert await bench.sleeps.pass_all() == [4.0]
        assert bench.server.done == ["abort", "resume"] and bench.refuses()
        assert await bench.sleeps.pass_all() == [5.0]
        assert not bench.refuses()

    asyncio.run(scenario())


def test_a_drain_that_cannot_abort_opens_in_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        bench.enter()
        bench.server.broken = True
        await bench.operations.drain({"for_ms": 9_000, "abort_after_ms": 4_000})
        assert await bench.sleeps.pass_all() == [4.0]
        assert bench.server.done == ["resume"]     # it may have been paused before it failed
        assert await bench.sleeps.pass_all() == [5.0]
        assert not bench.refuses() and not bench.vitals.draining

    asyncio.run(scenario())


def test_a_second_drain_replaces_the_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        await bench.operations.drain({"for_ms": 9_000, "abort_after_ms": 0})
        await settle()
        await bench.operations.drain({"for_ms": 9_000, "abort_after_ms": 0})
        await settle()
        assert bench.refuses() and bench.vitals.draining

    asyncio.run(scenario())


def test_a_drain_ends_with_its_time_even_if_nobody_ends_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        await bench.operations.drain({"for_ms": 9_000, "abort_after_ms": 0})
        bench.now += 9_000
        assert not bench.refuses()
        await bench.operations.resume()

    asyncio.run(scenario())


# --- incident bundles: P2 -----------------------------------------------------------------------


class Talking:
    async def call(self, payload: Json, timeout_s: float) -> Json:
        return {"running": 2, "asked": payload["op"]}


@pytest.mark.parametrize("link", [Talking(), Silent()], ids=["answers", "hangs"])
def test_a_bundle_holds_what_an_incident_needs(tmp_path: Path, link: Any) -> None:
    (tmp_path / "decisions.jsonl").write_text('{"id": "a"}\n{"id": "b"}\nbroken')
    (tmp_path / "core.log").write_text("the last words")

    async def quickly(_: float) -> None:
        await asyncio.sleep(0.001)

    async def scenario() -> Json:
        captures = Captures(
            tmp_path, link, lambda: {"status": "stuck"}, lambda: "up 1", quickly
        )
        begun = captures.begin(1_000)
        assert captures.begin(1_000)["done"] is False  # one at a time
        assert captures._running is not None
        await captures._running
        return begun

    begun = asyncio.run(scenario())
    bundle = json.loads(Path(begun["file"]).read_text())
    assert len(bundle["samples"]) == 5
    sample = bundle["samples"][-1]
    assert sample["processes"][0]["resident_bytes"] > 0
    assert sample["engine"] == ({"running": 2, "asked": "state"} if isinstance(link, Talking)
                                else "silent")
    assert [d["id"] for d in bundle["decisions"]] == ["a", "b"]
    assert (bundle["log"], bundle["metrics_before"]) == ("the last words", "up 1")
    assert bundle["health"] == {"status": "stuck"}
    assert Path(begun["file"]).stat().st_mode & 0o777 == 0o600


def test_only_the_newest_bundles_are_kept(tmp_path: Path) -> None:
    times = iter(range(1_000, 10_000))

    async def quickly(_: float) -> None:
        return None

    async def scenario() -> None:
        captures = Captures(
            tmp_path, Talking(), dict, str, quickly, lambda: next(times)
        )
        for _ in range(7):
            captures.begin(200)
            assert captures._running is not None
            await captures._running

    asyncio.run(scenario())
    assert len(list((tmp_path / "captures").iterdir())) == 5


def test_a_bundle_that_cannot_be_written_is_said_in_the_log_and_leaves_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("resilience.cores.capture.json.dump", full)
    times = iter(range(1_000, 10_000))

    async def scenario() -> None:
        captures = Captures(tmp_path, Talking(), dict, str, asyncio.sleep, lambda: next(times))
        for _ in range(3):
            captures.begin(200)
            assert captures._running is not None
            await captures._running

    asyncio.run(scenario())
    assert "`incident-1000.json` was not written" in caplog.text
    assert "No space left on device" in caplog.text
    assert len(list((tmp_path / "captures").iterdir())) == 1


def test_the_processes_are_this_one_and_its_children(tmp_path: Path) -> None:
    import os

    mine = processes(os.getpid())
    assert os.getpid() in {p["pid"] for p in mine} and len(mine) <= 10
    assert processes(2**30) == []
    assert tail_lines(tmp_path / "none", 3) == []


# --- in the engine process ----------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_requests_are_aborted_by_condition(make_rig: MakeRig) -> None:
    rig = make_rig(policy="priority")
    for i in range(4):
        rig.add(f"r{i}", 20, 50, salt=100 * i, priority=i, arrival=1000.0 + i)
    for i in range(4, 12):
        rig.add(f"r{i}", 300, 50, salt=400 * i, priority=3, arrival=1000.0 + i)
    for _ in range(3):
        rig.step()

    def abort(model: str | None = "", **args: Json) -> list[str]:
        rig.aborted.clear()
        whole = {**complete("abort_requests", args), "model": model}
        answer = abort_requests(rig.engine, whole)
        assert answer == {"done": True, "aborted": len(rig.aborted)}
        return sorted(rig.aborted)

    assert abort(older_than_ms=1_000, model="nobody") == []
    assert abort(priority_at_least=1, state="running", tokens_at_least=20, limit=2) == ["r1", "r2"]
    assert set(abort(state="waiting")) == set(rig.received) - {"r0", "r1", "r2", *rig.running()}
    left = [name for name in rig.running() if name != "r0"]
    assert abort(tokens_at_least=200, model=None) == sorted(n for n in left if n != "r3")
    rig.run()
    rig.check_tokens("r0", 20, 50)
    assert rig.free_blocks() == 199


def test_an_impulse_that_vllm_lost_is_reported() -> None:
    assert {m["impulse"] for m in missing(object())} == {"abort_requests", "reset_prefix_cache"}
    assert set(ARGUMENTS) >= {"pause", "resume", "drain", "abort_requests", "capture_incident"}
