"""Batch, hybrid and stream mode side by side: `python bench/core/modes.py [--seconds 20]`.

One server of 8 seats, 12 clients that want whole answers of 16 tokens and 2 that read 8 tokens as
they come, all in a closed loop. The mode is a claim. Latency is that of the streaming clients: they
are who the modes are for; tokens are counted by the server. Three rounds, medians.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from servers import (  # noqa: E402
    Clients,
    closed_loop,
    end_with_sigterm,
    generated,
    protected,
    quantile,
)

from resilience.cores.client import HttpCore  # noqa: E402
from resilience.model import Claim, Desired  # noqa: E402

SEATS, PORT = 8, 18_461
WHOLE = Clients(12, 16, stream=False, prompt="Write a long text about the sea. " * 4)
STREAM = Clients(2, 8, stream=True, prompt="What is the capital of France?")
MODES = ("batch", "hybrid", "stream")
# requests a second and ms, as the source gives them for its own servers
SOURCE = {"batch": (1842, 312), "hybrid": (1427, 103), "stream": (628, 87)}
WARM_S = 5.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="per mode and round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    end_with_sigterm()
    rows: dict[str, list[tuple[float, float, float]]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory() as folder:
        server = protected(PORT, SEATS, Path(folder))
        try:
            with HttpCore(server.url, server.token) as core:
                for number in range(options.rounds):
                    for mode in MODES:
                        hold(core, mode, number * len(MODES) + MODES.index(mode) + 1)
                        rows[mode].append(run(server.url, options.seconds))
        finally:
            server.stop(20.0)
    return report(rows)


def hold(core: HttpCore, mode: str, generation: int) -> None:
    claim = Claim("bench", "0" * 16, "0", "cache.mode", (), mode, 600_000, False, 50, "r", "bench")
    core.put_desired(Desired(1, generation, (claim,)), deadline_ms=30_000)


def run(url: str, seconds: float) -> tuple[float, float, float]:
    """Return (tokens a second of all clients, p50 and p99 of the streaming ones in s)."""
    asyncio.run(closed_loop(url, [WHOLE, STREAM], WARM_S))
    before = generated(url)
    stream = asyncio.run(closed_loop(url, [WHOLE, STREAM], seconds))[1]
    return (
        (generated(url) - before) / seconds, quantile(stream.end_s, 0.5),
        quantile(stream.end_s, 0.99),
    )


def report(rows: dict[str, list[tuple[float, float, float]]]) -> int:
    """Print the table; 1 unless throughput and latency are ordered as the source has them."""
    medians = {
        mode: [statistics.median(column) for column in zip(*found, strict=True)]
        for mode, found in rows.items()
    }
    print("| mode | tokens/s | stream p50 | stream p99 | source: req/s | source: latency |")
    print("|---|---|---|---|---|---|")
    for mode, (rate, p50, p99) in medians.items():
        requests, latency = SOURCE[mode]
        print(f"| {mode} | {rate:.0f} | {p50:.2f} s | {p99:.2f} s | {requests} | {latency} ms |")
    rates = [medians[mode][0] for mode in MODES]
    times = [medians[mode][1] for mode in MODES]
    same = rates == sorted(rates, reverse=True) and times == sorted(times, reverse=True)
    print(f"\ndirection of the source's figures: {'the same' if same else 'NOT the same'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
