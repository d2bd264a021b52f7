"""What both sides of the benchmark watch and drive: metrics, the core's control plane, a webhook.

`python bench/reaction/target.py PORT TOKEN_FILE`. It writes one JSON line for each thing that
happens, with its own clock: `breach`, `visible` (a scraper was told of the breach, `by` whom),
`asked` and `enforced` (a desired document with claims came, and its read-back went out), `webhook`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry

from resilience.cores.control import Access, ControlApp
from resilience.cores.service import CoreService
from resilience.gate.config import GateConfig
from resilience.gate.metrics import GateMetrics
from resilience.gate.state import GateState
from resilience.model import EngineConfig, Json

METRIC = "vllm:num_requests_waiting"


class NoEngine:
    """The engine process of a core that only has a gate."""

    async def call(self, payload: Json, timeout_s: float) -> Json:
        return {"knobs": {}, "dropped": []}


class Target:
    def __init__(self, token: str) -> None:
        config = GateConfig.from_engine(EngineConfig())
        state = GateState(config, GateMetrics(CollectorRegistry()))
        self.service = CoreService(
            state, NoEngine(), version="bench", models=lambda: ["base"], max_running=8)
        self.control = ControlApp(lambda: self.service, Access(token))
        self.value = 0
        self.seen: set[str] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await self._lifespan(receive, send)
        path = scope["path"]
        if path.startswith("/resilience"):
            return await self._core(scope, receive, send)
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        answer = self._plain(path, dict(scope["headers"]), body)
        await send({"type": "http.response.start", "status": 200,
                    "headers": [(b"content-type", b"text/plain; version=0.0.4")]})
        await send({"type": "http.response.body", "body": answer})

    async def _lifespan(self, receive: Any, send: Any) -> None:
        while True:
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return

    def _plain(self, path: str, headers: dict[bytes, bytes], body: bytes) -> bytes:
        if path == "/set":
            self.value = int(body)
            self.seen.clear()
            tell("breach" if self.value else "relief")
        elif path == "/webhook":
            tell("webhook", status=json.loads(body)["status"])
        elif path == "/metrics":
            agent = headers.get(b"user-agent", b"").decode()
            by = "prometheus" if agent.startswith("Prometheus") else "engine"
            if self.value and by not in self.seen:
                self.seen.add(by)
                tell("visible", by=by)
            return f'{METRIC}{{model_name="m"}} {self.value}\n'.encode()
        return b""

    async def _core(self, scope: Any, receive: Any, send: Any) -> None:
        is_put = scope["method"] == "PUT" and scope["path"].endswith("/desired")
        began = time.time()

        async def told(message: Any) -> None:
            await send(message)
            if is_put and message["type"] == "http.response.body":
                claims = bool(json.loads(message["body"]).get("effective"))
                tell("asked" if claims else "asked_none", at=began)
                tell("enforced" if claims else "undone")

        await self.control(scope, receive, told)


def tell(event: str, at: float | None = None, **more: Any) -> None:
    print(json.dumps({"event": event, "at": at or time.time(), **more}), flush=True)


def main(port: str, token_file: str) -> None:
    target = Target(Path(token_file).read_text().strip())
    config = uvicorn.Config(target, host="127.0.0.1", port=int(port), log_level="error")
    asyncio.run(uvicorn.Server(config).serve())


if __name__ == "__main__":
    main(*sys.argv[1:])
