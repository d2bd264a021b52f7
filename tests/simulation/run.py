"""Simulate the engine over many seeds: `python tests/simulation/run.py --seeds 100 --ticks 100`.

Exit code 1 at the first violation, which prints the seed and the command that replays it; how many
processes share the seeds changes neither. Exit code 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "engine")]

from tests.simulation.invariants import CALM_TICKS, Violation, Watch  # noqa: E402
from tests.simulation.world import World  # noqa: E402

CHUNK = 10
AHEAD = 4  # chunks that are given out for each process: they do not take equally long
YOUNG_MAX = 50_000  # new objects before a collection
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


def cores() -> int:
    """Return how many processors this process may use."""
    return min(JOBS_MAX, len(os.sched_getaffinity(0)))


def prepare() -> None:
    """Make a process of the pool ready; Ctrl-C ends it without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    collect_seldom()


def collect_seldom() -> None:
    """Look for garbage seldom, and not among what the imports have made: it was much of the
    time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX)


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
    parser.add_argument("--jobs", type=bounded(JOBS_MAX), default=cores(),
                        help="how many processes; all cores unless said")
    options = parser.parse_args()
    started = time.monotonic()
    try:
        total = _all(options, started)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
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
        collect_seldom()
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
    """Add up in the order of the seeds, so that the violation shown is what one process finds."""
    total = Tally()
    left = iter(chunks)
    with ProcessPoolExecutor(options.jobs, initializer=prepare) as pool:
        running = deque(_submitted(pool, left, options, AHEAD * options.jobs))
        try:
            while running and not total.violation:
                total.add(running[0].result())
                running.popleft()
                running.extend(_submitted(pool, left, options, 1))
                _progress(total, started)
        finally:
            if running:  # a violation, or Ctrl-C: what still runs is of no use
                pool.shutdown(wait=False, cancel_futures=True)
                for process in multiprocessing.active_children():
                    process.terminate()
    return total


def _submitted(
    pool: ProcessPoolExecutor, left: Iterator[tuple[int, int]], options: argparse.Namespace,
    most: int,
) -> list[Future[Tally]]:
    return [pool.submit(simulate, *chunk, options.ticks) for chunk in islice(left, most)]


def _progress(total: Tally, started: float) -> None:
    speed = total.ticks / max(1e-9, time.monotonic() - started)
    print(f"\r{total.seeds} seeds, {total.ticks} ticks, {speed:.0f} ticks/s ", end="",
          file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
