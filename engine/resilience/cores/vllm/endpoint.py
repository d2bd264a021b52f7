"""The endpoint plug-in: mounts the core's control application in vLLM's API server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from resilience.cores.vllm.control import LOOPBACK, ROOT, Access, ControlApp
from resilience.cores.vllm.marker import MarkerFile
from resilience.cores.vllm.plugin import UTILITY
from resilience.cores.vllm.service import CoreService, EngineSilentError
from resilience.gate.config import CONFIG_VARIABLE, core_settings
from resilience.gate.state import shared
from resilience.model import Json

TOKEN_MIN = 16


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


class ResilienceEndpoint:
    """vLLM's EndpointPlugin: routes first, then the state once the engine is up."""

    name = "resilience_http"
    required_tasks = None

    def __init__(self) -> None:
        self._service: CoreService | None = None
        self._engine_client: Any = None

    def attach_router(self, app: Any) -> None:
        """Mount the control application; raises ValueError without a usable token."""
        from starlette.routing import Mount

        control = ControlApp(lambda: self._service, access_from(core_settings()), self._is_alive)
        app.router.routes.append(Mount(ROOT, app=control))

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Build the service; a server without an engine has nothing to drive."""
        if engine_client is None:
            return
        import vllm

        self._engine_client = engine_client
        self._service = CoreService(
            shared(), UtilityLink(engine_client),
            version=str(getattr(vllm, "__version__", "unknown")),
            models=lambda: served_models(state),
            max_running=engine_client.vllm_config.scheduler_config.max_num_seqs,
            marker=marker_of(core_settings()),
        )

    def _is_alive(self) -> bool:
        return not bool(getattr(self._engine_client, "errored", False))


def marker_of(settings: Mapping[str, Json]) -> MarkerFile | None:
    """Return where a release is remembered: beside the token."""
    path = settings.get("token_file")
    return MarkerFile(Path(path).parent) if isinstance(path, str) else None


def access_from(settings: Mapping[str, Json]) -> Access:
    """Return who may drive this core, from the launcher's settings."""
    path = settings.get("token_file")
    if not isinstance(path, str):
        raise ValueError(f"${CONFIG_VARIABLE} names no token file; start with `resilience serve`")
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read the token file `{path}`: {error}") from None
    if len(token) < TOKEN_MIN:
        raise ValueError(f"the token in `{path}` is shorter than {TOKEN_MIN} characters")
    return Access(token, tuple(settings.get("control_peers") or LOOPBACK))


def served_models(state: Any) -> Sequence[str]:
    """Return the names that requests may ask for: the base model's and the adapters'."""
    serving = getattr(state, "openai_serving_models", None)
    if serving is None:
        return ()
    names = [path.name for path in serving.base_model_paths]
    return [*names, *serving.lora_requests]
