"""Does a noisy tenant move another's p99 (P11)? `python bench/path/tenants.py [--runs 3]`.

Two tenants share a small model server on equal terms; `quiet` keeps to half of its share, open
loop. Interleaved, `noisy` is silent or sends ten times its share; the same without the gate. Goal:
with the gate, quiet's p99 beside the noise is less than 1.2 times its own alone, by the medians of
the runs. Exit code 0 only if it is.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from core import Core, Plan, ask  # noqa: E402

from demo.report import quantile  # noqa: E402
from resilience.gate.config import GateConfig  # noqa: E402
from resilience.model import EngineConfig, QueueSettings, Tenant, Tier  # noqa: E402
from tools.ports import free_port  # noqa: E402

SEATS, SERVICE_S = 8, 0.5
SHARE_PER_S = SEATS / SERVICE_S / 2
QUIET_PER_S, NOISY_PER_S = SHARE_PER_S / 2, 10 * SHARE_PER_S
GOAL = 1.2
PATIENCE_S = 20.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    ratios = {label: measure(label, options.runs, options.seconds) for label in ("bare", "gated")}
    met = ratios["gated"] < GOAL
    print(f"{'ok    ' if met else 'MISSED'}  a tenant at ten times its share moves another's p99 "
          f"by {ratios['gated'] - 1:+.0%} (goal: less than {GOAL - 1:.0%}; "
          f"without the gate {ratios['bare'] - 1:+.0%})")
    return 0 if met else 1


def measure(label: str, runs: int, seconds: float) -> float:
    """Return quiet's p99 beside the noise over its p99 alone, medians of the runs."""
    found: dict[str, list[float]] = {"alone": [], "beside noise": []}
    plan = Plan(SEATS, SERVICE_S, sigma=0.2, gate=settings() if label == "gated" else None)
    with Core(plan, free_port()) as core:
        asyncio.run(load(core.url, 0.0, 2.0, -1))  # the first connections cost extra
        for number in range(runs):
            for name, noisy in (("alone", 0.0), ("beside noise", NOISY_PER_S)):
                found[name].append(asyncio.run(load(core.url, noisy, seconds, number)))
                print(f"{label:<6} run {number + 1}, quiet {name:<13} p99 "
                      f"{1000 * found[name][-1]:6.0f} ms", flush=True)
    return statistics.median(found["beside noise"]) / statistics.median(found["alone"])


def settings() -> object:
    """Equal shares; no tenant may have more than its half of the seats, and a seat to spare."""
    config = EngineConfig(
        tiers=(Tier("core", max_concurrency=SEATS, queue_timeout_ms=1_000),),
        queue=QueueSettings(64),
        tenants=(Tenant("quiet", share=1.0), Tenant("noisy", max_concurrency=SEATS // 2)))
    config = replace(config, tier_source=replace(config.tier_source, default="core"))
    return GateConfig.from_engine(config).to_json()


async def load(url: str, noisy_per_s: float, seconds: float, seed: int) -> float:
    """Return quiet's p99 in seconds; who was refused waited for ever."""
    noise = asyncio.ensure_future(_tenant(url, "noisy", noisy_per_s, seconds, seed))
    quiet = await _tenant(url, "quiet", QUIET_PER_S, seconds, seed)
    await noise
    return quantile(quiet, 0.99)


async def _tenant(
    url: str, name: str, rate_per_s: float, seconds: float, seed: int
) -> list[float]:
    dice, at_s = random.Random(f"{name} {seed}"), 0.0
    start_s, asked = time.monotonic(), []
    while rate_per_s and at_s < seconds:
        asked.append(_ask(url, name, len(asked), start_s + at_s))
        at_s += dice.expovariate(rate_per_s)
    return list(await asyncio.gather(*asked))


async def _ask(url: str, name: str, number: int, due_s: float) -> float:
    await asyncio.sleep(max(0.0, due_s - time.monotonic()))
    start_s, status = time.monotonic(), 0
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(PATIENCE_S):
            status = await ask(url, {"x-tenant": name, "x-number": f"{name}{number}"})
    return time.monotonic() - start_s if status == 200 else float("inf")


if __name__ == "__main__":
    sys.exit(main())
