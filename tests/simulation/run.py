"""Simulate the engine over many seeds: `python tests/simulation/run.py --seeds 100 --ticks 100`.

Exit code 1 at the first violation, which prints the seed and the command that replays it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "engine")]

from tests.simulation.invariants import CALM_TICKS, Violation, Watch  # noqa: E402
from tests.simulation.world import World  # noqa: E402

CHUNK = 10
JOBS_MAX = 64
SEEDS_MAX, TICKS_MAX = 1_000_000, 1_000_000


@dataclass
class Tally:
    """What some seeds did; `violation` is the first broken promise, in words."""

    seeds: int = 0
    ticks: int = 0
    decisions: int = 0
    crashes: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    violation: str | None = None

    def add(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.ticks += other.ticks
        self.decisions += other.decisions
        self.crashes += other.crashes
        self.faults.update(other.faults)
        self.violation = self.violation or other.violation


def simulate(first: int, seeds: int, ticks: int) -> Tally:
    """Run `seeds` worlds from seed `first` on; stop at the first violation."""
    tally = Tally()
    for seed in range(first, first + seeds):
        watch = Watch(World(seed))
        try:
            watch.run(ticks)
        except Violation as violation:
            tally.violation = str(violation)
        except Exception as error:
            error.add_note(f"seed {seed}, tick {watch.ticks}")
            raise
        tally.add(Tally(1, watch.ticks, watch.decisions, watch.world.restarts,
                        watch.world.dice.faults))
        tally.faults["lease expiry"] += watch.expired
        if tally.violation:
            break
    return tally


def bounded(most: int) -> type[int]:
    def parse(text: str) -> int:
        if not 0 < (number := int(text)) <= most:
            raise argparse.ArgumentTypeError(f"`{text}` is not from 1 to {most}")
        return number

    return parse  # type: ignore[return-value]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=bounded(SEEDS_MAX), default=100, help="how many seeds")
    parser.add_argument("--ticks", type=bounded(TICKS_MAX), default=100,
                        help=f"seconds of storm for each seed; {CALM_TICKS} of calm follow")
    parser.add_argument("--jobs", type=bounded(JOBS_MAX), default=1, help="how many processes")
    options = parser.parse_args()
    started = time.monotonic()
    total = _all(options, started)
    took = time.monotonic() - started
    if total.violation:
        print(f"\n{total.violation}", file=sys.stderr)
        return 1
    faults = ", ".join(f"{n} {name}" for name, n in sorted(total.faults.items()))
    print(f"\nfaults: {faults}")
    print(f"{total.ticks} ticks over {total.seeds} seeds, {total.decisions} decisions,"
          f" {total.crashes} crashes, no violation, {took:.1f} s, {total.ticks / took:.0f} ticks/s")
    return 0


def _all(options: argparse.Namespace, started: float) -> Tally:
    total = Tally()
    end = options.seed + options.seeds
    chunks = [(s, min(CHUNK, end - s)) for s in range(options.seed, end, CHUNK)]
    if options.jobs == 1 or len(chunks) == 1:
        for first, seeds in chunks:
            total.add(simulate(first, seeds, options.ticks))
            _progress(total, started)
            if total.violation:
                break
        return total
    return _in_processes(options, chunks, started)


def _in_processes(
    options: argparse.Namespace, chunks: list[tuple[int, int]], started: float
) -> Tally:
    total = Tally()
    with ProcessPoolExecutor(options.jobs) as pool:
        running: set[Future[Tally]] = set()
        while (chunks or running) and not total.violation:
            while chunks and len(running) < 2 * options.jobs:
                running.add(pool.submit(simulate, *chunks.pop(0), options.ticks))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                total.add(future.result())
            _progress(total, started)
        pool.shutdown(cancel_futures=True)
    return total


def _progress(total: Tally, started: float) -> None:
    speed = total.ticks / max(1e-9, time.monotonic() - started)
    print(f"\r{total.seeds} seeds, {total.ticks} ticks, {speed:.0f} ticks/s ", end="",
          file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
