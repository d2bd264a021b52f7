"""One second engine of this server: its start, its health, its failures and its end.

It is a process of its own behind the loopback, not a second engine object in this process: see
docs/decisions/0010-a-second-engine-is-a-process.md.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from resilience.cores.cpu import fast_dtype, is_vllm_for_cpus
from resilience.cores.memory import Free, free_memory
from resilience.cores.process import ServerProcess, ending, last_words
from resilience.errors import UsageError
from resilience.model import EngineConfig, Json, Rung, SecondEngineSettings

logger = logging.getLogger("vllm.resilience")

State = Literal["stopped", "starting", "ready", "unwell", "failed"]
LAUNCH = {"vllm": "resilience.cores.vllm.launch", "torch": "resilience.cores.torch.launch"}
HEALTH_S = 2.0
UNWELL_MS = 30_000
RETRY_MS = 10_000
RETRY_MAX_MS = 300_000
STOP_S = 20.0
OVERHEAD_BYTES = 1_280 * 1024 * 1024    # the libraries of its processes, shared pages left out
MEBIBYTE = 1024 * 1024
# Of this server's environment: what would override the size of the pool that is said here, and the
# key that clients have shown before a rung is asked, which asks this one without.
NOT_ITS_OWN = ("VLLM_CPU_KVCACHE_SPACE", "VLLM_API_KEY")
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")


class SecondEngine:
    """The engine of one rung. `step` is called again and again and never raises; it decides by
    what is wanted now and by what the process does."""

    def __init__(
        self, rung: Rung, folder: Path, *,
        launch: Callable[[Rung, Path], ServerProcess] | None = None,
        healthy: Callable[[str], Awaitable[bool]] | None = None,
        memory: Callable[[], Free | None] = free_memory,
    ) -> None:
        self.rung = rung
        self._settings = rung.engine or SecondEngineSettings()
        self._folder = folder
        self._launch = launch or start_process
        self._healthy = healthy or is_healthy
        self._memory = memory
        self._process: ServerProcess | None = None
        self._users = 0
        self._unused = asyncio.Event()
        self._unused.set()
        self._wanted_ms: int | None = None
        self._since_ms = 0
        self._failures = 0
        self._retry_ms = 0
        self.state: State = "stopped"
        self.reason = ""

    @property
    def url(self) -> str | None:
        """Return where it answers; None while it does not."""
        if self._process is None or self.state != "ready":
            return None
        return None if self._process.exit_code is not None else self._process.url

    def to_json(self) -> Json:
        pid = None if self._process is None else self._process.pid
        return {"state": self.state, "reason": self.reason, "pid": pid}

    @contextmanager
    def using(self) -> Generator[None]:
        """Keep it running meanwhile."""
        self._users += 1
        self._unused.clear()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._unused.set()

    async def unused(self) -> None:
        """Return when it answers nobody."""
        await self._unused.wait()

    async def step(self, now_ms: int, claimed: bool) -> None:
        """Do the next thing; `claimed`: some claim in force leads to its rung."""
        if claimed or self._users:
            self._wanted_ms = now_ms
        if self._process is None:
            if self._is_wanted(now_ms):
                if now_ms >= self._retry_ms:
                    await self._start(now_ms)
            elif self.state == "failed" and self._settings.start == "on_demand":
                self._become("stopped", "")
        elif not self._is_wanted(now_ms):
            await self.stop()
        else:
            await self._look(now_ms, self._process)

    def _is_wanted(self, now_ms: int) -> bool:
        if self._settings.start == "ahead":
            return True
        return self._wanted_ms is not None and \
            now_ms - self._wanted_ms <= self._settings.stop_after_ms

    async def _start(self, now_ms: int) -> None:
        try:
            short = self._short_of_memory()
            if short:
                self._fail(now_ms, short)
                return
            self._become("starting", "")
            self._process = await asyncio.to_thread(self._launch, self.rung, self._folder)
        except (UsageError, OSError) as error:
            self._fail(now_ms, str(error))
            return
        self._since_ms = now_ms

    def _short_of_memory(self) -> str | None:
        """Say why it must not start: what it needs is compared with what is really free."""
        free, need = self._memory(), needed_bytes(self.rung)
        if free is None or need <= free.spare:
            return None
        return (f"it needs {need // MEBIBYTE} MiB and {free.spare // MEBIBYTE} MiB are free; say "
                "`memory_mebibytes` if it needs less")

    async def _look(self, now_ms: int, process: ServerProcess) -> None:
        code = process.exit_code
        if code is not None:
            why = ending(code)      # who was killed had no last words
            said = "" if why.startswith("signal") else f": {last_words(process.log)}"
            await self._give_up(now_ms, f"it ended with {why}{said}")
        elif await self._healthy(process.url):
            self._since_ms, self._failures = now_ms, 0
            self._become("ready", "")
        elif self.state == "starting":
            if now_ms - self._since_ms > self._settings.start_timeout_ms:
                within_s, said = self._settings.start_timeout_ms // 1000, last_words(process.log)
                await self._give_up(now_ms, f"it did not serve within {within_s} s: {said}")
        elif now_ms - self._since_ms > UNWELL_MS:
            await self._give_up(now_ms, f"it was not well for {UNWELL_MS // 1000} s")
        else:
            self._become("unwell", "its health page does not say that it is well")

    async def _give_up(self, now_ms: int, why: str) -> None:
        self._fail(now_ms, why)     # first: its end may take as long as the wait for the next one
        await self._end()

    def _fail(self, now_ms: int, why: str) -> None:
        """Say why, and try again later: each time later, up to a bound."""
        self._retry_ms = now_ms + min(RETRY_MS * 2 ** min(self._failures, 10), RETRY_MAX_MS)
        self._failures += 1
        self._become("failed", why)

    async def stop(self) -> None:
        """End its processes; it starts again when it is wanted again."""
        await self._end()
        self._failures, self._retry_ms = 0, 0
        self._become("stopped", "")

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(process.stop, STOP_S)

    def _become(self, state: State, reason: str) -> None:
        if (state, reason) != (self.state, self.reason):
            logger.warning("resilience: engine of rung %s: %s %s", self.rung.name, state, reason)
        self.state, self.reason = state, reason


def needed_bytes(rung: Rung) -> int:
    """Return the memory that must be free before the engine of a rung starts."""
    settings = rung.engine or SecondEngineSettings()
    if settings.memory_mebibytes is not None:
        return settings.memory_mebibytes * MEBIBYTE
    folder = Path(rung.model or "")
    files = folder.iterdir() if folder.is_dir() else ()
    weights = sum(f.stat().st_size for f in files if f.suffix in _WEIGHTS)
    pool = settings.kv_mebibytes * MEBIBYTE if settings.core == "vllm" else 0
    return 2 * weights + pool + OVERHEAD_BYTES


def start_process(rung: Rung, folder: Path) -> ServerProcess:
    """Start the engine's server on a free port of the loopback, owned by this process."""
    settings = rung.engine or SecondEngineSettings()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    env = {k: v for k, v in os.environ.items() if k not in NOT_ITS_OWN}
    launch: Any = import_module(LAUNCH[settings.core])
    started: ServerProcess = launch.start(
        arguments(rung, port), EngineConfig(), folder, env=env, owned=True
    )
    return started


def arguments(rung: Rung, port: int) -> list[str]:
    """Return MODEL ARGS… for the engine of a rung."""
    settings = rung.engine or SecondEngineSettings()
    argv = [
        rung.model or "", "--host", "127.0.0.1", "--port", str(port), "--served-model-name",
        rung.name, "--max-num-seqs", str(settings.seats), "--dtype",
        fast_dtype(settings.dtype) if settings.core == "torch" or is_vllm_for_cpus()
        else settings.dtype,
    ]
    if rung.context is not None:
        argv += ["--max-model-len", str(rung.context)]
    if settings.core == "vllm":
        return [*argv, "--enforce-eager", "--kv-cache-memory-bytes",
                str(settings.kv_mebibytes * MEBIBYTE)]
    return argv if rung.context is None else [
        *argv, "--kv-tokens", str(max(64, settings.seats * rung.context))]


async def is_healthy(url: str) -> bool:
    """Ask the engine's own health page, which judges by progress."""
    import httpx

    try:
        # Plain HTTP on the loopback: reading the certificates would stop the server's loop for
        # 50 ms each time.
        async with httpx.AsyncClient(trust_env=False, timeout=HEALTH_S, verify=False) as client:
            return (await client.get(f"{url}/resilience/health")).status_code == 200
    except httpx.HTTPError:
        return False
