"""The vLLM core without vLLM: client, control application, service and levers in one process.

Only the scheduler underneath is a stand-in, with the attributes that the levers set.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from resilience.cores.client import HttpCore
from resilience.cores.control import Access, ControlApp
from resilience.cores.health import Verdict
from resilience.cores.link import EngineSilentError
from resilience.cores.service import CoreService
from resilience.cores.vllm.levers import Levers
from resilience.cores.vllm.plugin import engine_utility
from resilience.gate.config import GateConfig
from resilience.gate.metrics import GateMetrics
from resilience.gate.state import GateState
from resilience.model import Claim, EngineConfig, Json, labels_of

TOKEN = "t" * 32


class ManualClock:
    def __init__(self) -> None:
        self.now = 10_000

    def __call__(self) -> int:
        return self.now


POOL = 129  # one is vLLM's null block


class PlainPool:
    """Blocks without contents."""

    def __init__(self) -> None:
        self.num_gpu_blocks = POOL
        self.blocks: list[Any] = []
        self.free = POOL - 1

    def get_num_free_blocks(self) -> int:
        return self.free

    def get_new_blocks(self, num_blocks: int) -> list[Any]:
        self.free -= num_blocks
        return [object() for _ in range(num_blocks)]

    def free_blocks(self, ordered_blocks: list[Any]) -> None:
        self.free += len(ordered_blocks)

    def evict_blocks(self, ids: set[int]) -> None: ...


class PlainManager:
    """What the levers need of vLLM's KV cache."""

    def __init__(self) -> None:
        self.enable_caching = True
        self.empty_kv_cache_blocks = ()
        self.watermark_blocks = 0
        self.block_pool = PlainPool()

    def allocate_slots(self, request: Any, has_scheduled_reqs: bool = True) -> Any: ...

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        return ([],)


class PlainScheduler:
    """What the levers need of a scheduler, with nothing running."""

    def __init__(self) -> None:
        self.max_num_active_reqs = 8
        self.max_num_scheduled_tokens = 2048
        self.max_model_len = 4096
        self.block_size = 128
        self.running: list[Any] = []
        self.waiting: list[Any] = []
        self.requests: dict[str, Any] = {}
        self.resets = 0
        self.scheduler_config = SimpleNamespace(enable_chunked_prefill=True)
        group = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=128))
        self.kv_cache_config = SimpleNamespace(kv_cache_groups=[group], kv_cache_tensors=[])
        self.kv_cache_manager = PlainManager()

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting)

    def _preempt_request(
        self, request: Any, timestamp: float, drop_stale_output: bool = False
    ) -> None: ...

    def _get_local_prefix_cache_hit(self, request: Any) -> Any: ...

    def _handle_blocked_waiting_request(self, request: Any) -> bool:
        return True

    def schedule(self) -> None: ...

    def add_request(self, request: Any) -> None: ...

    def finish_requests(self, names: Any, status: Any) -> list[Any]:
        return []

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        self.resets += 1
        return True


class InProcessLink:
    """The engine process, in this one; `silent` makes it hang."""

    def __init__(self, scheduler: Any) -> None:
        self.engine = SimpleNamespace(
            scheduler=scheduler, _send_abort_outputs=lambda aborted: None
        )
        self.silent = False
        self.calls: list[str] = []
        self.timeouts_s: list[float] = []

    async def call(self, payload: Json, timeout_s: float) -> Json:
        self.calls.append(payload["op"])
        self.timeouts_s.append(timeout_s)
        if self.silent:
            raise EngineSilentError
        return engine_utility(self.engine, payload)


class AsgiTransport(httpx.BaseTransport):
    """Runs an ASGI application for a synchronous client, on one event loop."""

    def __init__(self, app: Any, peer: str = "127.0.0.1") -> None:
        self._app = app
        self._peer = peer
        self.loop = asyncio.new_event_loop()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self.loop.run_until_complete(self._run(request))

    async def _run(self, request: httpx.Request) -> httpx.Response:
        scope = {
            "type": "http", "method": request.method, "path": request.url.path,
            "headers": [(k.lower(), v) for k, v in request.headers.raw],
            "client": (self._peer, 1),
        }
        pieces = [{"type": "http.request", "body": request.read(), "more_body": False}]
        sent: list[Any] = []

        async def receive() -> Any:
            return pieces.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        body = b"".join(m.get("body", b"") for m in sent[1:])
        return httpx.Response(sent[0]["status"], headers=sent[0]["headers"], content=body)

    def close(self) -> None:
        self.loop.close()


class Rig:
    """Everything of one core, and ways to talk to it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.scheduler = PlainScheduler()
        self.levers = Levers(self.scheduler, subclassed=True, clock_ms=self.clock)
        self.scheduler.resilience_levers = self.levers  # type: ignore[attr-defined]
        self.link = InProcessLink(self.scheduler)
        config = GateConfig.from_engine(EngineConfig())
        self.state = GateState(config, GateMetrics(CollectorRegistry()), self.clock)
        self.models = ["base", "small"]
        self.service: CoreService | None = CoreService(
            self.state, self.link, version="test", models=lambda: self.models, max_running=8,
            adapters=lambda: ["small"],
        )
        self.verdict = Verdict("well")
        self.app = ControlApp(lambda: self.service, Access(TOKEN), lambda: self.verdict)
        self.transports: list[AsgiTransport] = []

    def core(self, token: str = TOKEN, peer: str = "127.0.0.1") -> HttpCore:
        self.transports.append(AsgiTransport(self.app, peer))
        return HttpCore("http://core", token, transport=self.transports[-1])

    def http(self, peer: str = "127.0.0.1") -> httpx.Client:
        self.transports.append(AsgiTransport(self.app, peer))
        return httpx.Client(
            base_url="http://core/resilience", transport=self.transports[-1],
            headers={"authorization": f"Bearer {TOKEN}"},
        )

    def close(self) -> None:
        for transport in self.transports:
            transport.close()


def make_claim(
    knob: str, value: Json, *, ttl_ms: int = 30_000, keep: bool = False, policy: str = "p",
    priority: int = 50, **scope: str,
) -> Claim:
    return Claim(
        policy, "0" * 16, "0", knob, labels_of(scope), value, ttl_ms, keep, priority, "r", "why"
    )
