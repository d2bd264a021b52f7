"""Tokens per second of the PyTorch core with 1 and 8 clients, and how long it takes to serve."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "engine"), str(ROOT)]

from resilience.cores.torch.launch import start  # noqa: E402
from resilience.model import EngineConfig  # noqa: E402
from tools.ports import free_port  # noqa: E402
from tools.prepare_model import prepare  # noqa: E402

READY_S = 300.0
TOKENS = 64
ROUNDS = 3


async def ask(api: httpx.AsyncClient, number: int) -> int:
    body = {
        "prompt": f"The number {number} is a good number because", "max_tokens": TOKENS,
        "temperature": 0, "ignore_eos": True,
    }
    answer = await api.post("/v1/completions", json=body)
    return int(answer.raise_for_status().json()["usage"]["completion_tokens"])


async def measure(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=READY_S, trust_env=False) as api:
        await ask(api, 0)
        for clients in (1, 8):
            begun, done = time.perf_counter(), 0
            for _ in range(ROUNDS):
                done += sum(await asyncio.gather(*(ask(api, n) for n in range(clients))))
            rate = done / (time.perf_counter() - begun)
            print(f"{clients} clients: {rate:.0f} tokens/s", flush=True)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))     # no server stays behind
    port = str(free_port())
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        server = start(
            [str(prepare()), "--port", port, *sys.argv[1:]], EngineConfig(), Path(folder),
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        try:
            server.wait_ready(READY_S)
            took_s, load = time.perf_counter() - begun, os.getloadavg()[0]
            print(f"serves after {took_s:.1f} s; load average {load:.1f}", flush=True)
            asyncio.run(measure(server.url))
        finally:
            server.stop(20.0)


if __name__ == "__main__":
    main()
