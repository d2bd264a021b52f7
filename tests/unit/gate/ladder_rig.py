"""What the tests of the ladder share: rungs, a scripted application, ways to ask."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from resilience.model import Json, Rung

ROUTE, THROTTLE = "route.model", "throttle.max_concurrency"
CHAT = "/v1/chat/completions"
SMALL = Rung("small", "model", model="s", context=200)
TINY = Rung("tiny", "model", model="t", tools=True)
CACHED = Rung("stored", "cached", max_age_ms=10_000)
SORRY = Rung("sorry", "template", text="please come back later")


def ask(bench: Any, fields: Json = None, gate: Any = None, **scope: Any) -> Any:
    body = {"model": "big", "prompt": "hello"} if fields is None else fields
    return asyncio.run(bench.ask(json.dumps(body).encode(), gate=gate, **scope))


def fallbacks(bench: Any, reason: str, method: str = "/v1/completions") -> float:
    labels = {"service": "vllm", "method": method, "reason": reason}
    found: float = bench.value("service_fallback_total", **labels)
    return found


def scripted(bench: Any, *failing: str, **answers: Any) -> Any:
    """Return a gate around an application that fails for some models: 5xx, raise, hang, break."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        how = answers.get(body["model"], "ok")
        if how == "raise":
            raise RuntimeError("no engine")
        if how == "hang":
            await asyncio.Event().wait()
        status = how if isinstance(how, int) else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        if how == "late":
            raise RuntimeError("after the start, before the first byte")
        text = body["model"].encode()
        await send({"type": "http.response.body", "body": text, "more_body": how == "break"})
        if how == "break":
            raise RuntimeError("in the middle")

    return bench.around(app)
