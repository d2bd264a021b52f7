"""The way from the API server to the engine process."""

from __future__ import annotations

import asyncio
from typing import Any

from resilience.cores.link import EngineSilentError
from resilience.cores.vllm.several import together
from resilience.model import Json

UTILITY = "resilience"


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
        return refused[0] if refused else together(payload["op"], answers)

    async def _ask(self, payload: Json) -> list[Json]:
        everyone = getattr(self._core, "call_utility_all_async", None)
        if everyone is not None:
            return list(await everyone(UTILITY, payload))
        return [await self._core.call_utility_async(UTILITY, payload)]
