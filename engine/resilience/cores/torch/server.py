"""The PyTorch core's server: `python -m resilience.cores.torch.server MODEL ARGS…`.

`resilience serve --core torch` starts it; the settings file in the environment names its token and
the gate's configuration.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
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
from resilience.cores.signals import SignalReader, feed
from resilience.cores.tokens import ServerTokenizer
from resilience.cores.torch.api import Api, error
from resilience.cores.torch.arguments import ServeArguments, parse_arguments
from resilience.cores.torch.generation import Generator, Sampling, load
from resilience.cores.torch.link import TorchGeneration, TorchLink
from resilience.cores.torch.series import Gauges, Series
from resilience.cores.trailers import cut_off
from resilience.errors import UsageError
from resilience.gate.config import core_settings
from resilience.gate.middleware import Gate
from resilience.gate.state import GateState, shared
from resilience.model import Json

logger = logging.getLogger("resilience.torch")
WARM_TOKENS = 8


class TorchServer:
    """One model behind the gate. `app` is the whole ASGI application."""

    def __init__(
        self, arguments: ServeArguments, state: GateState, registry: Any,
        loaded: tuple[Generator, Any],
    ) -> None:
        self.generator, tokenizer = loaded
        self._state = state
        self._registry = registry
        self._link = TorchLink(self.generator)
        self._names = arguments.names
        self._tasks: list[asyncio.Task[None]] = []
        self._service: CoreService | None = None
        self._monitor = Monitor(
            self._link, state.clock_ms, dead=lambda: not self.generator.alive,
            in_flight=lambda: state.admission.usage.total,
            settings=health_from(core_settings()),
        )
        self._equip(tokenizer)
        self.app = Gate(self._routes(Api(self.generator, tokenizer, self._names)), state)

    def _equip(self, tokenizer: Any) -> None:
        """Give the gate the tokenizer and the seats, and the registry what is true now."""
        self._state.counter = ServerTokenizer(tokenizer)
        self._state.by_priority = True
        self._state.start_with(self.generator.seats)
        self._registry.register(Gauges(self.generator, self._names[0]))
        self._registry.register(CoreCollector(
            self._monitor.vitals, self.verdict, lambda: self._monitor.free
        ))

    def _observe(self) -> None:
        """Count from here on: the warm-up is nobody's request."""
        series = Series(self._registry, self._names[0])
        self.generator.observer.on_token = series.on_token
        self.generator.observer.on_end = series.on_end

    def _routes(self, api: Api) -> Any:
        from starlette.applications import Starlette
        from starlette.responses import PlainTextResponse
        from starlette.routing import Mount, Route

        async def metrics(_request: Any) -> Any:
            return PlainTextResponse(metrics_text(self._registry))

        control = ControlApp(
            lambda: self._service, access_from(core_settings()), self.verdict,
            lambda: self._state.latency_ms,
        )
        return Starlette(
            routes=[*api.routes(), Route("/metrics", metrics), Mount(ROOT, app=control)],
            lifespan=lambda _app: self.running(), exception_handlers=_handlers(),
        )

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Start the thread, warm up, and watch for as long as the server runs."""
        self.generator.start()
        watching = asyncio.ensure_future(self.generator.watch())
        self._service = self._serve()
        await self._warm_up()
        self._observe()
        second = SecondEngines(
            self._state, state_folder(core_settings()), self._monitor.vitals)
        self._tasks = [
            watching, asyncio.ensure_future(self._monitor.run()),
            asyncio.ensure_future(feed(self._state, SignalReader(self._registry))),
            asyncio.ensure_future(second.run()),
        ]
        try:
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._monitor.stop()
            await asyncio.to_thread(self.generator.stop)

    def _serve(self) -> CoreService:
        import transformers

        folder = state_folder(core_settings())
        captures = Captures(
            folder, self._link, self._health, lambda: metrics_text(self._registry)
        )
        operations = Operations(
            self._state, TorchGeneration(self.generator), self._monitor.vitals, captures
        )
        knobs = self.generator.manager.continuous_batching_config
        return CoreService(
            self._state, self._link, kind="torch",
            version=f"transformers {transformers.__version__}",
            models=lambda: self._names, max_running=self.generator.seats,
            max_model_len=self.generator.context, kv_tokens=knobs.num_blocks * knobs.page_size,
            marker=MarkerFile(folder), operations=operations.handlers,
        )

    async def _warm_up(self) -> None:
        """Generate a few tokens, so that the first user does not pay for what torch does once."""
        begun = time.perf_counter()
        job = self.generator.submit([1, 2, 3, 4], Sampling(WARM_TOKENS, ignore_eos=True))
        while job.finish is None:
            await job.changed.wait()
            job.changed.clear()
        if job.finish == "error":
            raise RuntimeError(f"the model does not generate on this machine: {job.error}")
        logger.info("warmed up in %.1f s", time.perf_counter() - begun)

    def verdict(self) -> Verdict:
        """Judge the core; a thread that has ended is named with its error."""
        if not self.generator.alive:
            return Verdict("dead", (self.generator.why_dead,))
        return self._monitor.verdict()

    def _health(self) -> Json:
        verdict = self.verdict()
        return {"status": verdict.status, "reasons": list(verdict.reasons)}


def _handlers() -> dict[Any, Callable[..., Any]]:
    """Return what turns Starlette's own errors into error objects."""
    from starlette.exceptions import HTTPException

    async def refused(_request: Any, wrong: Any) -> Any:
        return error(wrong.status_code, str(wrong.detail))

    async def failed(_request: Any, wrong: Exception) -> Any:
        return error(500, f"the server failed: {type(wrong).__name__}: {wrong}")

    return {HTTPException: refused, Exception: failed}


def main() -> int:
    """Load the model and serve until a signal."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)    # a line for each look at an engine
    try:
        arguments = parse_arguments(sys.argv[1:])
    except UsageError as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return 2
    import uvicorn
    from prometheus_client import REGISTRY

    begun = time.perf_counter()
    loaded = load(arguments)
    logger.info("loaded %s in %.1f s", arguments.model, time.perf_counter() - begun)
    server = TorchServer(arguments, shared(), REGISTRY, loaded)
    cut_off()
    uvicorn.run(
        server.app, host=arguments.host, port=arguments.port, log_level="warning",
        timeout_graceful_shutdown=5,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
