"""The second engines of a server: one for each rung of kind `engine`, as the ladder says now."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from resilience.cores.health import Vitals
from resilience.cores.memory import Free, free_memory
from resilience.cores.second_engine import SecondEngine, needed_bytes
from resilience.gate.rungs import meant
from resilience.gate.state import GateState
from resilience.model import Json, Rung

logger = logging.getLogger("vllm.resilience")

POLL_S = 1.0
PATIENCE_S = 30.0
FOLDER = "engines"


class SecondEngines:
    """What the gate asks where a rung's engine answers. Only the server's event loop touches it."""

    def __init__(
        self, state: GateState, folder: Path, vitals: Vitals,
        make: Callable[..., SecondEngine] = SecondEngine,
        memory: Callable[[], Free | None] = free_memory,
    ) -> None:
        self._state = state
        self._folder = folder / FOLDER
        self._vitals = vitals
        self._make = make
        self._memory = memory
        self._engines: dict[str, SecondEngine] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        state.ladder.engines = self

    def url(self, rung: str) -> str | None:
        engine = self._engines.get(rung)
        return None if engine is None else engine.url

    def is_starting(self, rung: str) -> bool:
        engine = self._engines.get(rung)
        return engine is not None and engine.state == "starting"

    def using(self, rung: str) -> AbstractContextManager[None]:
        engine = self._engines.get(rung)
        return nullcontext() if engine is None else engine.using()

    def states(self) -> Mapping[str, Json]:
        return {name: engine.to_json() for name, engine in self._engines.items()}

    async def run(self) -> None:
        """Follow the ladder for as long as the server lives; then end every engine."""
        try:
            while True:
                self.follow()
                await asyncio.sleep(POLL_S)
        finally:
            for name in list(self._engines):
                self._retire(name, patience_s=0.0)
            await asyncio.gather(*self._ending, return_exceptions=True)

    def follow(self) -> None:
        """Have exactly the engines that the ladder names, and tell the health page of them."""
        rungs = {r.name: r for r in self._state.ladder.rungs if r.kind == "engine"}
        for name, engine in list(self._engines.items()):
            if name not in rungs or _differs(engine.rung, rungs[name]):
                self._retire(name)
        for name, rung in rungs.items():
            if name not in self._engines:
                engine = self._engines[name] = self._make(
                    rung, self._folder / name, memory=self.free)
                self._tasks[name] = asyncio.ensure_future(self._keep(engine))
        self._vitals.second = {
            name: (engine.state, engine.reason) for name, engine in self._engines.items()
        }

    def free(self) -> Free | None:
        """Return what is free, less what engines that still start are about to take."""
        free = self._memory()
        if free is None:
            return None
        taken = sum(needed_bytes(engine.rung) for engine in self._engines.values()
                    if engine.state == "starting")
        return replace(free, available=max(0, free.available - taken))

    def _retire(self, name: str, patience_s: float = PATIENCE_S) -> None:
        """End an engine beside everything else, so that nothing waits for it; requests that it
        answers get a while to end."""
        task, engine = self._tasks.pop(name), self._engines.pop(name)
        task.cancel()
        ending = asyncio.ensure_future(_end(task, engine, patience_s))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _keep(self, engine: SecondEngine) -> None:
        while True:
            try:
                await engine.step(self._state.clock_ms(), self._is_claimed(engine.rung))
            except Exception:
                logger.exception("resilience: engine of rung %s; trying again", engine.rung.name)
            await asyncio.sleep(POLL_S)

    def _is_claimed(self, rung: Rung) -> bool:
        routes = self._state.snapshot().routes.values()
        return any(rung in meant(route.to, self._state.ladder.rungs) for route in routes)


def _differs(old: Rung, new: Rung) -> bool:
    """Say whether another process is needed; what it was measured to cost is not."""
    return (old.model, old.context, old.engine) != (new.model, new.context, new.engine)


async def _end(task: asyncio.Task[None], engine: SecondEngine, patience_s: float) -> None:
    try:
        with suppress(asyncio.CancelledError):
            await task
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await engine.unused()
    finally:
        await engine.stop()
