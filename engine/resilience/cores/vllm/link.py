"""The way from the API server to the engine process."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from resilience.model import Json

UTILITY = "resilience"


class EngineSilentError(Exception):
    """The engine process gave no answer in time."""


class EngineLink(Protocol):
    """The way to the engine process; every call has a time-out."""

    async def call(self, payload: Json, timeout_s: float) -> Json:
        """Return the answer; raises EngineSilentError, or what the utility raised."""
        ...


class UtilityLink:
    """The engine process behind vLLM's own client. With data parallelism all engines are asked."""

    def __init__(self, engine_client: Any) -> None:
        self._core = engine_client.engine_core

    async def call(self, payload: Json, timeout_s: float) -> Json:
        try:
            async with asyncio.timeout(timeout_s):
                answers: list[Json] = await self._ask(payload)
        except TimeoutError:
            raise EngineSilentError from None
        refused = [a for a in answers if a.get("refused")]
        return refused[0] if refused else answers[0]

    async def _ask(self, payload: Json) -> list[Json]:
        everyone = getattr(self._core, "call_utility_all_async", None)
        if everyone is not None:
            return list(await everyone(UTILITY, payload))
        return [await self._core.call_utility_async(UTILITY, payload)]
