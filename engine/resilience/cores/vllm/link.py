"""The way from the API server to the engine process, or processes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from resilience.cores.link import EngineSilentError
from resilience.cores.vllm.several import refusal, together
from resilience.model import Json

UTILITY = "resilience"
CHECK_SHARE = 0.5  # of a call's time: an engine that stands still must not keep it from the others


class UtilityLink:
    """The engine process behind vLLM's own client. With data parallelism all engines are asked.

    All of them take a document or none: each is asked first whether it would, since the memory
    that it needs may be there for one and not for another.
    """

    def __init__(self, engine_client: Any) -> None:
        self._core = engine_client.engine_core
        self._alone = False  # not known before the first answer

    async def call(self, payload: Json, timeout_s: float) -> Json:
        try:
            async with asyncio.timeout(timeout_s):
                answers = await self._agree(payload, timeout_s * CHECK_SHARE)
        except TimeoutError:
            raise EngineSilentError from None
        self._alone = len(answers) == 1
        return refusal(answers) or together(payload["op"], answers)

    async def _agree(self, payload: Json, check_s: float) -> Sequence[Json]:
        """Return every engine's answer; that to `check` where one of them refuses a document."""
        if self._alone or payload["op"] != "put" or not payload["document"]["claims"]:
            return await self._ask(payload)
        try:
            async with asyncio.timeout(check_s):
                found = await self._ask({**payload, "op": "check"})
        except TimeoutError:  # those that live take it now, and who wakes up by its own check
            return await self._ask(payload)
        if any(answer.get("refused") for answer in found):
            return found
        return await self._ask({**payload, "checked": True})

    async def _ask(self, payload: Json) -> Sequence[Json]:
        everyone = getattr(self._core, "call_utility_all_async", None)
        if everyone is not None:
            return list(await everyone(UTILITY, payload))
        engines, one = getattr(self._core, "core_engines", ()), "_call_utility_async"
        if len(engines) > 1 and hasattr(self._core, one):  # 0.31 returns the first answer of all
            ask = getattr(self._core, one)
            return await asyncio.gather(*(ask(UTILITY, payload, engine=e) for e in engines))
        return [await self._core.call_utility_async(UTILITY, payload)]
