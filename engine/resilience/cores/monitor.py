"""Watching the engine process from the API server: a pulse each second, an allocation now and then.

At most one question is under way, so an engine that hangs does not find a heap of them afterwards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from resilience.cores.health import Verdict, Vitals
from resilience.cores.link import EngineLink
from resilience.cores.memory import Free, free_memory
from resilience.model import HealthSettings, Json

logger = logging.getLogger("vllm.resilience")

PULSE_S = 1.0
OWN_MS = 60_000
CALL_S = 10.0
CONSERVATIVE, MEMORY = "core:conservative", "core:memory"


class Monitor:
    """The vitals of one engine process and what the core does on its own about them."""

    def __init__(
        self, link: EngineLink, clock_ms: Callable[[], int], *,
        dead: Callable[[], bool] = lambda: False, in_flight: Callable[[], int] = lambda: 0,
        memory: Callable[[], Free | None] = free_memory,
        settings: HealthSettings | None = None,
    ) -> None:
        self._link = link
        self._clock_ms = clock_ms
        self._dead = dead
        self._in_flight = in_flight
        self._memory = memory
        self._asked: asyncio.Task[Json] | None = None
        self._allocated_ms: int | None = None
        self._conservative = False
        self._held: dict[str, Json] = {}
        self.vitals = Vitals(clock_ms(), settings or HealthSettings())
        self.free: Free | None = None

    def verdict(self) -> Verdict:
        return self.vitals.verdict(
            self._clock_ms(), dead=self._dead(), in_flight=self._in_flight()
        )

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Watch for as long as the server lives; an error is logged and the next round tries."""
        while not self._dead():
            try:
                await self.round()
            except Exception:
                logger.exception("resilience: watching the engine failed; trying again")
            await sleep(PULSE_S)

    async def round(self) -> None:
        """Look once at the engine and at the memory, and act on what is wrong."""
        answer = await self._ask()
        if answer is None:
            return
        now = self._clock_ms()
        self.vitals.on_pulse(answer, now)
        await self._look_at_memory(answer)
        if self._allocated_ms is None or now - self._allocated_ms >= self.vitals.settings.every_ms:
            self._allocated_ms = now
            await self._look_at_allocation(answer)

    async def _ask(self) -> Json | None:
        """Return the pulse; None while the engine has not answered the question under way."""
        if self._asked is None:
            self._asked = asyncio.ensure_future(self._link.call({"op": "pulse"}, 3_600.0))
        await asyncio.wait({self._asked}, timeout=PULSE_S)
        if not self._asked.done():
            return None
        asked, self._asked = self._asked, None
        return asked.result()

    async def _look_at_allocation(self, pulse: Json) -> None:
        taken = await self._link.call({"op": "allocate"}, CALL_S)
        slow = self.vitals.on_allocation(taken)
        if slow:
            await self._link.call({"op": "reclaim"}, CALL_S)
            values = {"cache.prefix_enabled": False, "cache.admit_running": _half(pulse)}
            await self._hold(CONSERVATIVE, values, "allocating one block was slow too often")
        elif self._conservative and not self.vitals.slow_in_a_row:
            await self._hold(CONSERVATIVE, {}, "")
        self._conservative = slow or (self._conservative and bool(self.vitals.slow_in_a_row))

    async def _look_at_memory(self, pulse: Json) -> None:
        """Admit half as many before the kernel has to end a process."""
        free = self.free = self._memory()
        if free is None:
            return
        self.vitals.oom_kills = free.oom_kills
        was = self.vitals.short_of_memory
        self.vitals.short_of_memory = (
            f"{free.available} of {free.total} bytes are free" if not free.spare else None
        )
        if self.vitals.short_of_memory and not was:
            await self._link.call({"op": "reclaim"}, CALL_S)
        if self.vitals.short_of_memory:
            values = {"cache.admit_running": _half(pulse)}
            await self._hold(MEMORY, values, self.vitals.short_of_memory)
        elif was:
            await self._hold(MEMORY, {}, "")

    async def _hold(self, policy: str, values: Json, reason: str) -> None:
        if self._held.get(policy) != values:  # a repeat renews the lease, each second at worst
            logger.warning(
                "resilience: %s holds %s: %s", policy, values or "nothing", reason or "well")
        self._held[policy] = values
        await self._link.call(
            {"op": "hold_own", "policy": policy, "values": values, "reason": reason,
             "ttl_ms": max(OWN_MS, 2 * self.vitals.settings.every_ms)}, CALL_S,
        )

    def stop(self) -> None:
        if self._asked is not None:
            with suppress(RuntimeError):
                self._asked.cancel()


def _half(pulse: Json) -> int:
    """Return half of the seats of one engine process: each of several is told the same."""
    seats = min(int(engine["seats"]) for engine in pulse.get("engines", (pulse,)))
    return max(1, seats // 2)
