"""Simulate the engine over many seeds: `python tests/simulation/run.py --seeds 100 --ticks 100`.

Exit code 1 at the first violation, which prints the seed and the command that replays it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "engine")]

from tests.simulation.invariants import Violation, Watch  # noqa: E402
from tests.simulation.world import World  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds")
    parser.add_argument("--ticks", type=int, default=100, help="seconds of storm for each seed")
    options = parser.parse_args()
    started, ticks, decisions, restarts = time.monotonic(), 0, 0, 0
    for seed in range(options.seed, options.seed + options.seeds):
        watch = Watch(World(seed))
        try:
            watch.run(options.ticks)
        except Violation as violation:
            print(violation, file=sys.stderr)
            return 1
        ticks, decisions = ticks + watch.ticks, decisions + watch.decisions
        restarts += watch.world.restarts
    took = time.monotonic() - started
    print(
        f"{ticks} ticks over {options.seeds} seeds, {decisions} decisions, {restarts} crashes,"
        f" no violation, {took:.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
