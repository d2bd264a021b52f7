"""What it costs and gives that vLLM's processes nap while they wait: `python bench/core/naps.py`.

Servers with and without (`RESILIENCE_NAPS`) in turn, each alone: tokens a second of one client and
of several, and how long a scrape takes meanwhile. `--tiny` takes a random model whose steps are so
short that waiting is most of what the processes do.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parent))

from servers import ENVIRONMENT, READY_S, arguments, end_with_sigterm  # noqa: E402

from resilience.cores.vllm.launch import start  # noqa: E402
from resilience.cores.vllm.naps import VARIABLE  # noqa: E402
from resilience.model import EngineConfig  # noqa: E402
from tests.live.tiny_llama import make_model  # noqa: E402

PORT, SEATS = 18_481, 8
PAUSE_S = 0.2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=150, help="of each answer")
    parser.add_argument("--users", type=int, default=8)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    end_with_sigterm()
    print("| naps | tokens/s, 1 client | tokens/s, "
          f"{options.users} clients | scrape, median | longest |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model(folder / "model") if options.tiny else None
        for number in range(options.rounds):
            for naps in ("off", "on"):
                row(naps, model, folder / f"{naps}{number}", options)
    return 0


def row(naps: str, model: Path | None, state: Path, options: argparse.Namespace) -> None:
    """Start a server, load it, and print one line."""
    given = arguments(PORT, SEATS)
    if model is not None:
        given[0] = str(model)
    server = start(given, EngineConfig(), state, env=ENVIRONMENT | {VARIABLE: naps})
    try:
        server.wait_ready(READY_S)
        answer(server.url, 20)
        alone, _ = rate(server.url, 1, options.tokens)
        crowded, scrapes = rate(server.url, options.users, options.tokens)
    finally:
        server.stop(20.0)
    print(f"| {naps} | {alone:.0f} | {crowded:.0f} | {statistics.median(scrapes):.2f} s | "
          f"{max(scrapes):.2f} s |", flush=True)


def rate(url: str, users: int, tokens: int) -> tuple[float, list[float]]:
    """Return (tokens a second of all users together, seconds of each scrape meanwhile)."""
    scrapes: list[float] = []
    with ThreadPoolExecutor(users) as pool:
        began_s = time.monotonic()
        answers = [pool.submit(answer, url, tokens) for _ in range(users)]
        while not all(a.done() for a in answers):
            asked_s = time.monotonic()
            httpx.get(f"{url}/metrics", timeout=READY_S).raise_for_status()
            scrapes.append(time.monotonic() - asked_s)
            time.sleep(PAUSE_S)
        for found in answers:
            found.result()
        return users * tokens / (time.monotonic() - began_s), scrapes


def answer(url: str, tokens: int) -> None:
    body = {"model": "m", "prompt": "x", "max_tokens": tokens, "ignore_eos": True}
    httpx.post(f"{url}/v1/completions", json=body, timeout=READY_S).raise_for_status()


if __name__ == "__main__":
    sys.exit(main())
