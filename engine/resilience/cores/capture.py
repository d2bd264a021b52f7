"""An incident bundle: what the server was like while it went wrong, in one bounded JSON file.

200 ms samples of every process and of the scheduler, all metrics before and after, the newest
decisions and the end of the log. The bundle is written whole when its time is over.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from resilience.cores.link import EngineLink
from resilience.cores.memory import free_memory
from resilience.model import Json

logger = logging.getLogger("vllm.resilience")

SAMPLE_MS = 200
PROCESSES_MAX = 10
BUNDLES_MAX = 5
DECISIONS_MAX = 200
TAIL_BYTES = 256 * 1024
METRICS_BYTES = 1024 * 1024
FOLDER = "captures"
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Captures:
    """Writes bundles into `state_dir`/captures and keeps the newest; one at a time."""

    def __init__(
        self, state_dir: Path, link: EngineLink, health: Callable[[], Json],
        metrics: Callable[[], str], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._folder = state_dir / FOLDER
        self._state_dir = state_dir
        self._link = link
        self._health = health
        self._metrics = metrics
        self._sleep = sleep
        self._now_ms = now_ms
        self._running: asyncio.Task[None] | None = None
        self._name = ""

    def begin(self, duration_ms: int) -> Json:
        """Start a bundle and return where it will be; one that is under way is not disturbed."""
        if self._running is not None and not self._running.done():
            return {"done": False, "error": f"the bundle `{self._name}` is under way"}
        self._name = f"incident-{self._now_ms()}.json"
        path = self._folder / self._name
        self._running = asyncio.ensure_future(self._guarded(path, duration_ms))
        return {"done": True, "file": str(path), "duration_ms": duration_ms}

    async def _guarded(self, path: Path, duration_ms: int) -> None:
        """Nobody waits for a bundle, so what stops it is said in the log."""
        try:
            await self._capture(path, duration_ms)
        except Exception:
            logger.exception("resilience: the bundle `%s` was not written", path.name)

    async def _capture(self, path: Path, duration_ms: int) -> None:
        bundle: dict[str, Any] = {
            "version": 1, "from_ms": self._now_ms(), "health": self._health(),
            "metrics_before": self._metrics()[:METRICS_BYTES],
            "decisions": tail_lines(self._state_dir / "decisions.jsonl", DECISIONS_MAX),
            "samples": await self._sample(duration_ms),
        }
        bundle |= {
            "to_ms": self._now_ms(), "health_after": self._health(),
            "metrics_after": self._metrics()[:METRICS_BYTES],
            "log": tail(self._state_dir / "core.log"),
        }
        await asyncio.to_thread(self._write, path, bundle)

    async def _sample(self, duration_ms: int) -> list[Json]:
        """Take a sample each 200 ms. An engine that is silent is asked once, and said to be so."""
        samples: list[Json] = []
        asked: asyncio.Task[Json] | None = None
        begun_ms = self._now_ms()
        for index in range(duration_ms // SAMPLE_MS):
            if asked is None or asked.done():
                asked = asyncio.ensure_future(self._link.call({"op": "state"}, 3_600.0))
            wait_ms = begun_ms + (index + 1) * SAMPLE_MS - self._now_ms()
            await asyncio.gather(
                asyncio.wait({asked}, timeout=SAMPLE_MS / 1000),
                self._sleep(max(0, wait_ms) / 1000),
            )
            samples.append({
                "t_ms": self._now_ms(), "processes": processes(os.getpid()),
                "memory": _free(), "engine": _result(asked),
            })
        if asked is not None:
            asked.cancel()
        return samples

    def _write(self, path: Path, bundle: Json) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self._folder / "unfinished.new"  # one name: what a full disk cut short is replaced
        with os.fdopen(os.open(fresh, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
            json.dump(bundle, file)
        fresh.replace(path)
        for old in sorted(self._folder.glob("incident-*.json"))[:-BUNDLES_MAX]:
            old.unlink(missing_ok=True)


def _result(asked: asyncio.Task[Json]) -> Json:
    if not asked.done():
        return "silent"
    error = asked.exception()
    return asked.result() if error is None else f"failed: {error}"


def _free() -> Json:
    free = free_memory()
    return None if free is None else {
        "available": free.available, "total": free.total, "oom_kills": free.oom_kills,
    }


def processes(root: int) -> list[Json]:
    """Return pid, name and resident bytes of `root` and its children, the largest ten."""
    parents: dict[int, int] = {}
    found: dict[int, Json] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            pid, stat = int(folder.name), (folder / "stat").read_text()
            name, _, rest = stat.partition("(")[2].rpartition(")")
            fields = rest.split()
            parents[pid] = int(fields[1])
            found[pid] = {"pid": pid, "name": name, "resident_bytes": int(fields[21]) * _PAGE}
    ours = [found[pid] for pid in found if _descends(pid, root, parents)]
    return sorted(ours, key=lambda p: -p["resident_bytes"])[:PROCESSES_MAX]


def _descends(pid: int, root: int, parents: dict[int, int]) -> bool:
    for _ in range(64):
        if pid == root:
            return True
        pid = parents.get(pid, 0)
        if not pid:
            return False
    return False


def tail(path: Path, size: int = TAIL_BYTES) -> str:
    """Return the end of a file, "" when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def tail_lines(path: Path, count: int) -> list[Json]:
    """Return the last JSON lines of a file; what is cut or broken is left out."""
    return list(_parsed(tail(path).splitlines()[-count:]))


def _parsed(lines: Iterable[str]) -> Iterable[Json]:
    for line in lines:
        with suppress(ValueError):
            yield json.loads(line)
