"""Real vLLM servers for the benchmarks, and a closed loop of clients."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "engine"), str(ROOT)]

from resilience.addresses import IDLE_MAX_S  # noqa: E402
from resilience.cores.cpu import fast_dtype  # noqa: E402
from resilience.cores.process import ServerProcess  # noqa: E402
from resilience.cores.vllm.arguments import parse_arguments  # noqa: E402
from resilience.cores.vllm.launch import MODULE, start  # noqa: E402
from resilience.model import EngineConfig  # noqa: E402
from tools.prepare_model import prepare  # noqa: E402

READY_S = 300.0
ENVIRONMENT = {
    **os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false",
}
TICKS = os.sysconf("SC_CLK_TCK")


def end_with_sigterm() -> None:
    """Let SIGTERM end this program as Ctrl-C does, so that no server stays behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def arguments(port: int, seats: int) -> list[str]:
    return [
        str(prepare()), "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "m",
        "--max-model-len", "1024", "--max-num-seqs", str(seats), "--dtype", fast_dtype("auto"),
        "--enforce-eager",
    ]


def protected(
    port: int, seats: int, folder: Path, config: EngineConfig = EngineConfig()  # noqa: B008 frozen
) -> ServerProcess:
    """Start a server with our plug-ins and return it when it serves."""
    server = start(arguments(port, seats), config, folder, env=ENVIRONMENT)
    server.wait_ready(READY_S)
    return server


def bare(port: int, seats: int, folder: Path) -> subprocess.Popen[bytes]:
    """Start vLLM as it is, with the same arguments, and return it when it serves."""
    given = parse_arguments(arguments(port, seats))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "bare.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, "--model", given.model, *given.rest],
            stdout=log, stderr=log, start_new_session=True,
            env={**ENVIRONMENT, "VLLM_PLUGINS": ""},
        )
    ends_s = time.monotonic() + READY_S
    while time.monotonic() < ends_s and process.poll() is None:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health", timeout=2.0).status_code == 200:
                return process
        except httpx.HTTPError:
            time.sleep(0.2)
    raise SystemExit(f"bare vLLM did not start; see {folder / 'bare.log'}")


def generated(url: str) -> float:
    """Return how many tokens the server has generated, by its own count."""
    lines = httpx.get(f"{url}/metrics", timeout=30.0).text.splitlines()
    name = "vllm:generation_tokens_total"
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def cpu_s(group: int) -> float:
    """Return the CPU seconds, user and system, of all living processes of a group."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group:
            total += int(fields[11]) + int(fields[12])
    return total / TICKS


@dataclass
class Seen:
    """What one class of clients saw: seconds to the first byte and to the end."""

    first_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Clients:
    """`count` clients that ask again as soon as they have their answer."""

    count: int
    tokens: int
    stream: bool
    prompt: str


async def closed_loop(url: str, groups: Sequence[Clients], seconds: float) -> list[Seen]:
    """Let the clients run for `seconds`; only answers that end within it count."""
    seen = [Seen() for _ in groups]
    ends_s = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=None, keepalive_expiry=IDLE_MAX_S)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as http:
        tasks = [
            asyncio.ensure_future(_client(http, group, seen[index], ends_s, number))
            for index, group in enumerate(groups) for number in range(group.count)
        ]
        await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return seen


async def _client(
    http: httpx.AsyncClient, group: Clients, seen: Seen, ends_s: float, number: int
) -> None:
    turn = 0
    while True:
        turn += 1
        body = {
            "model": "m", "prompt": f"{number}.{turn} {group.prompt}", "max_tokens": group.tokens,
            "ignore_eos": True, "stream": group.stream, "temperature": 0,
        }
        began_s, first_s = time.monotonic(), 0.0
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            answer.raise_for_status()
            async for _ in answer.aiter_raw():
                first_s = first_s or time.monotonic()
        now_s = time.monotonic()
        if now_s <= ends_s:
            seen.first_s.append(first_s - began_s)
            seen.end_s.append(now_s - began_s)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value at `share` of the sorted values; nan when there is none."""
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
