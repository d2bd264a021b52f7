"""The impulses that the API server carries out itself: pause, resume, drain, capture.

Pausing and draining end by themselves after `for_ms`: an engine that dies must not leave a server
that answers nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from resilience.cores.capture import Captures
from resilience.cores.health import Vitals
from resilience.gate.limits import CONCURRENCY
from resilience.gate.state import GateState
from resilience.knobs import LiveClaim
from resilience.model import Json

logger = logging.getLogger("vllm.resilience")

DRAIN = "core:drain"
SETTLE_S = 1.0
POLL_S = 0.05


class Generation(Protocol):
    """vLLM's own way to pause: `mode` is keep, wait or abort."""

    async def pause(self, mode: str) -> None: ...

    async def resume(self) -> None: ...


class Operations:
    """What one server is doing on request, each with its end. All on the server's event loop."""

    def __init__(
        self, state: GateState, generation: Generation, vitals: Vitals, captures: Captures,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._state = state
        self._generation = generation
        self._vitals = vitals
        self._captures = captures
        self._sleep = sleep
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self.handlers: dict[str, Callable[[Json], Awaitable[Json]]] = {
            "pause": self.pause, "resume": self.resume, "drain": self.drain,
            "capture_incident": self.capture,
        }

    async def pause(self, args: Json) -> Json:
        """Pause, and resume after `for_ms`. `wait` lets what runs finish, so it may still run
        when this returns; the pause of new work holds from the first moment."""
        mode = args["mode"]
        paused = self._begin("pausing", self._generation.pause(mode))
        await asyncio.wait({paused}, timeout=SETTLE_S)
        if paused.done():
            paused.result()
        self._begin("paused", self._resume_after(args["for_ms"] / 1000))
        settled = paused.done()
        return {"done": True, "mode": mode, "settled": settled, "for_ms": args["for_ms"]}

    async def _resume_after(self, seconds: float) -> None:
        await self._sleep(seconds)
        self._end("pausing")
        await self._generation.resume()

    async def resume(self, _args: Json = None) -> Json:
        """End a pause and a drain at once."""
        for name in ("pausing", "paused", "draining"):
            self._end(name)
        self._open()
        await self._generation.resume()
        return {"done": True}

    async def drain(self, args: Json) -> Json:
        """Refuse new requests for `for_ms` and let those under way finish; when
        `abort_after_ms` is not 0, what is left by then is aborted."""
        now = self._state.clock_ms()
        closed = LiveClaim(
            CONCURRENCY, (), 0, DRAIN, 0, now + args["for_ms"], reason="the server is draining"
        )
        self._state.table.hold(DRAIN, [closed])
        self._state.refresh()
        self._vitals.draining = True
        self._begin("draining", self._drain(args["for_ms"] / 1000, args["abort_after_ms"] / 1000))
        left = self._state.admission.usage.total
        return {"done": True, "in_flight": left, "for_ms": args["for_ms"]}

    async def _drain(self, seconds: float, abort_after_s: float) -> None:
        if 0 < abort_after_s < seconds:
            await self._sleep(abort_after_s)
            if self._state.admission.usage.total:
                await self._abort()
            seconds -= abort_after_s
        await self._sleep(seconds)
        self._open()

    async def _abort(self) -> None:
        """End what is still under way; an engine that cannot must not keep the gate shut."""
        try:
            try:
                await self._generation.pause("abort")
            finally:
                await self._generation.resume()
        except Exception:
            logger.exception("resilience: what was left of a drain could not be aborted")

    def _open(self) -> None:
        self._vitals.draining = False
        self._state.table.hold(DRAIN, [])
        self._state.refresh()

    async def capture(self, args: Json) -> Json:
        """Begin an incident bundle; it is written when its time is over."""
        return self._captures.begin(args["duration_ms"])

    def _begin(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Do `work` in the background in place of what was under way by that name."""
        self._end(name)
        self._tasks[name] = task = asyncio.ensure_future(work)
        return task

    def _end(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
