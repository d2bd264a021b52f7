"""The endpoint plug-in: mounts the core's control application in vLLM's API server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from resilience.cores.capture import Captures
from resilience.cores.control import ROOT, ControlApp, access_from, state_folder
from resilience.cores.exposition import CoreCollector, metrics_text
from resilience.cores.health import Verdict, health_from
from resilience.cores.marker import MarkerFile
from resilience.cores.monitor import Monitor
from resilience.cores.operations import Operations
from resilience.cores.second_engines import SecondEngines
from resilience.cores.service import CoreService
from resilience.cores.vllm.equip import equip, kv_tokens, seats
from resilience.cores.vllm.link import UtilityLink
from resilience.gate.config import core_settings
from resilience.gate.state import shared
from resilience.model import Json


class ResilienceEndpoint:
    """vLLM's EndpointPlugin: routes first, then the state once the engine is up."""

    name = "resilience_http"
    required_tasks = None

    def __init__(self) -> None:
        self._service: CoreService | None = None
        self._monitor: Monitor | None = None
        self._watching: asyncio.Task[None] | None = None
        self._feeding: asyncio.Task[None] | None = None
        self._second: asyncio.Task[None] | None = None

    def attach_router(self, app: Any) -> None:
        """Mount the control application; raises ValueError without a usable token."""
        from starlette.routing import Mount

        control = ControlApp(
            lambda: self._service, access_from(core_settings()), self._verdict,
            lambda: shared().latency_ms,
        )
        app.router.routes.append(Mount(ROOT, app=control))

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Build the service; a server without an engine has nothing to drive."""
        if engine_client is None:
            return
        import vllm

        state_dir, link = state_folder(core_settings()), UtilityLink(engine_client)
        monitor = self._monitor = Monitor(
            link, shared().clock_ms, dead=lambda: bool(getattr(engine_client, "errored", False)),
            in_flight=lambda: shared().admission.usage.total,
            settings=health_from(core_settings()),
        )
        captures = Captures(state_dir, link, self._health_text, metrics_text)
        operations = Operations(
            shared(), VllmGeneration(engine_client), monitor.vitals, captures
        )
        config = engine_client.vllm_config
        self._service = CoreService(
            shared(), link, version=str(getattr(vllm, "__version__", "unknown")),
            models=lambda: served_models(state), adapters=lambda: adapters(state),
            max_running=seats(config),
            max_model_len=config.model_config.max_model_len,
            kv_tokens=kv_tokens(config.cache_config),
            marker=MarkerFile(state_dir), operations=operations.handlers,
        )
        export(monitor)
        self._watching = asyncio.ensure_future(monitor.run())
        self._feeding = equip(shared(), engine_client)
        second = SecondEngines(shared(), state_dir, monitor.vitals)
        self._second = asyncio.ensure_future(second.run())

    def _verdict(self) -> Verdict:
        return Verdict("blind", ("nothing watches",)) if self._monitor is None \
            else self._monitor.verdict()

    def _health_text(self) -> Json:
        verdict = self._verdict()
        return {"status": verdict.status, "reasons": list(verdict.reasons)}


class VllmGeneration:
    """vLLM's own pause; caches stay as they are."""

    def __init__(self, engine_client: Any) -> None:
        self._client = engine_client

    async def pause(self, mode: str) -> None:
        await self._client.pause_generation(mode=mode, clear_cache=False)

    async def resume(self) -> None:
        await self._client.resume_generation()


def export(monitor: Monitor) -> None:
    """Add the core's own series to the registry that the server exports."""
    from prometheus_client import REGISTRY

    REGISTRY.register(CoreCollector(monitor.vitals, monitor.verdict, lambda: monitor.free))


def served_models(state: Any) -> Sequence[str]:
    """Return the names that requests may ask for: the base model's and the adapters'."""
    serving = getattr(state, "openai_serving_models", None)
    if serving is None:
        return ()
    names = [path.name for path in serving.base_model_paths]
    return [*names, *adapters(state)]


def adapters(state: Any) -> Sequence[str]:
    """Return the names of the LoRA adapters that are loaded now."""
    serving = getattr(state, "openai_serving_models", None)
    return () if serving is None else [*serving.lora_requests]
