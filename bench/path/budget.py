"""What a budget is worth (W10): `python bench/path/budget.py [--requests 600] [--rate 30]`.

The same requests three times, on a small model server that now and then fails or gets stuck, over a
network that loses some answers: clients with a time-out only, clients that try again, and clients
that try again with a request id, before a gate with a budget. All times are a quarter of the
source's: its deadline of 8 s is 2 s here. With a time-out only nothing but the transport's own,
14 s, ends a request: the source's 12.4 s lie above its deadline. Exit code 0 only if every figure
has the source's direction.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from core import Core, Plan, ask  # noqa: E402

from demo.report import quantile  # noqa: E402
from resilience.gate.config import GateConfig  # noqa: E402
from resilience.model import BudgetSettings, EngineConfig, QueueSettings, Tier  # noqa: E402
from tools.ports import free_port  # noqa: E402

SCALE = 4
DEADLINE_S, ATTEMPT_S, TRANSPORT_S = 8 / SCALE, 4 / SCALE, 14 / SCALE
ATTEMPTS, BACKOFF_S = 3, 0.1 / SCALE
LOST_SHARE = 0.03
MODEL = Plan(seats=16, median_s=1.2 / SCALE, sigma=0.4, stuck_share=0.025, stuck_s=12 / SCALE,
             failing_share=0.015)
BUDGET = BudgetSettings(
    deadline_ms=int(1000 * DEADLINE_S), attempts=ATTEMPTS, backoff_ms=int(1000 * BACKOFF_S),
    attempt_ms=int(750 * ATTEMPT_S), keep_ms=int(30_000 / SCALE))
LABELS = ("time-out only", "+ retry", "+ idempotency")
SOURCE = ("12.4 s, 3.7 %, -", "9.8 s, 1.2 %, 8.5 %", "7.2 s, 0.3 %, 0.02 %")


@dataclass(frozen=True)
class Row:
    """One variant: seconds to an answer as the source counts them, shares of requests."""

    p99_s: float
    failed: float
    duplicated: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--rate", type=float, default=30.0, help="requests a second, open loop")
    options = parser.parse_args()
    rows = [run(label, options.requests, options.rate) for label in LABELS]
    print("| variant | p99 | failed | duplicated inferences | in the source |")
    print("|---|---|---|---|---|")
    for label, row, source in zip(LABELS, rows, SOURCE, strict=True):
        print(f"| {label} | {row.p99_s:.1f} s | {row.failed:.1%} | {row.duplicated:.2%} "
              f"| {source} |")
    met = verdict(rows)
    for ok, text in met:
        print(f"{'ok    ' if ok else 'MISSED'}  {text}")
    return 0 if all(ok for ok, _ in met) else 1


def verdict(rows: Sequence[Row]) -> list[tuple[bool, str]]:
    alone, retry, once = rows
    return [
        (alone.p99_s > retry.p99_s > once.p99_s, "p99 falls with each step"),
        (alone.failed > retry.failed >= once.failed, "failures fall with each step"),
        (retry.duplicated > 0.01, "trying again without an id infers twice"),
        (once.duplicated <= retry.duplicated / 10, "with an id it does not: less than a tenth"),
    ]


def run(label: str, requests: int, rate: float) -> Row:
    """Serve all requests under one variant."""
    config = EngineConfig(tiers=(Tier("core", queue_timeout_ms=60_000),), queue=QueueSettings(256))
    config = replace(config, tier_source=replace(config.tier_source, default="core"))
    if label == LABELS[2]:
        config = replace(config, budget=BUDGET)
    plan = replace(MODEL, gate=GateConfig.from_engine(config).to_json())
    with Core(plan, free_port()) as core:
        seconds, failed = asyncio.run(all_of(core.url, label, requests, rate))
        duplicated = core.stats()["duplicated"]
    return Row(SCALE * quantile(seconds, 0.99), failed / requests, duplicated / requests)


async def all_of(url: str, label: str, requests: int, rate: float) -> tuple[list[float], int]:
    """Return the seconds that each good answer took, and how many requests had none."""
    dice, at_s = random.Random(3), 0.0
    start_s, clients = time.monotonic(), []
    for number in range(requests):
        at_s += dice.expovariate(rate)
        clients.append(_client(url, label, number, start_s + at_s))
    ended = await asyncio.gather(*clients)
    return [seconds for seconds, ok in ended if ok], sum(not ok for _, ok in ended)


async def _client(url: str, label: str, number: int, due_s: float) -> tuple[float, bool]:
    await asyncio.sleep(max(0.0, due_s - time.monotonic()))
    start_s, ok = time.monotonic(), False
    headers = {"x-number": str(number)}
    if label == LABELS[2]:
        headers["x-request-id"] = str(uuid.UUID(int=number + 1))
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(TRANSPORT_S if label == LABELS[0] else DEADLINE_S):
            ok = await (_once(url, headers, 1) if label == LABELS[0] else _again(url, headers))
    return time.monotonic() - start_s, ok


async def _again(url: str, headers: dict[str, str]) -> bool:
    """Try up to three times, with a time-out for each attempt and full jitter between them."""
    for attempt in range(1, ATTEMPTS + 1):
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(ATTEMPT_S):
                if await _once(url, headers, attempt):
                    return True
        await asyncio.sleep(random.random() * BACKOFF_S * 2**attempt)
    return False


async def _once(url: str, headers: dict[str, str], attempt: int) -> bool:
    """Send the request; a lost answer never comes, so its client finds out by its time-out."""
    status = await ask(url, headers)
    if random.Random(f"lost {headers['x-number']}.{attempt}").random() < LOST_SHARE:
        await asyncio.sleep(TRANSPORT_S)
        return False
    return status == 200


if __name__ == "__main__":
    sys.exit(main())
