"""What one tick's decisions cost: `python bench/decide/run.py`, or `make bench-decide`.

1,000 policies with 10 series each, of which 1 % change at every tick. Measured are `needs()` and
`decide()`, in CPU time: the answers of the queries are given. Then a week of simulated time, for
memory.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "engine")]

from resilience.model import (  # noqa: E402
    Action,
    Bundle,
    ClaimSpec,
    EngineConfig,
    Guard,
    Labels,
    Limits,
    Observations,
    Policy,
    QueryInput,
    Reason,
    Recovery,
    Resolve,
    SeriesTruth,
    Trigger,
    TriggerObservation,
    Truth,
    labels_of,
)
from resilience.policy.decide import decide, needs  # noqa: E402
from resilience.policy.state import EngineState  # noqa: E402

CAPACITIES = {"throttle.max_concurrency": 256.0}
REASONS = {Truth.TRUE: Reason.BREACH, Truth.FALSE: Reason.CLEAR}
TICK_MS = 1_000


@dataclass(frozen=True, slots=True)
class Size:
    """How many policies, series of each, and which share of the series is true or changes."""

    policies: int
    series: int
    firing: float
    changing: float
    mode: str = "enforce"
    guarded: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds a tick, and what came of the ticks."""

    ticks_ms: tuple[float, ...]
    decisions: int
    copied: int
    records_quiet: int

    def quantile(self, q: float) -> float:
        ordered = sorted(self.ticks_ms)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def policies_of(size: Size) -> tuple[Policy, ...]:
    claim = ClaimSpec("throttle.max_concurrency", 64, (("tier", "best-effort"),))
    return tuple(
        Policy(
            f"policy-{n:04}",
            Trigger("x > 1", "hold", for_ms=2_000, resolve=Resolve("x < 1", 2_000)),
            (Action("0", "throttle", (claim,)),),
            mode=size.mode,  # type: ignore[arg-type]
            interval_ms=TICK_MS, recovery=Recovery((0.5, 1.0), 2_000), limits=Limits(5_000),
            guard=Guard("errors > 1") if size.guarded else None,
        )
        for n in range(size.policies)
    )  # fmt: skip


class World:
    """Series that turn true and false again, `changing` of them a tick; `firing` are true."""

    def __init__(self, size: Size, policies: tuple[Policy, ...], seed: int = 1) -> None:
        self._size, self._policies = size, policies
        self._random = random.Random(seed)
        self.labels: list[Labels] = [
            labels_of({"engine": str(n), "instance": "127.0.0.1:8000", "model_name": "m"})
            for n in range(size.series)
        ]
        self._true = [
            [self._random.random() < size.firing for _ in self.labels] for _ in policies
        ]
        self._sample_ms = 0

    def ticks(self, count: int, start_ms: int = 1_800_000_000_000) -> Iterator[
        tuple[int, Observations]
    ]:
        for number in range(count):
            now_ms = start_ms + number * TICK_MS
            self._change()
            yield now_ms, self._observations(now_ms)

    def _change(self) -> None:
        every = self._size.policies * self._size.series
        for _ in range(round(every * self._size.changing)):
            row = self._true[self._random.randrange(self._size.policies)]
            at = self._random.randrange(self._size.series)
            row[at] = self._random.random() < self._size.firing

    def _observations(self, now_ms: int) -> Observations:
        """Fresh objects each tick, as the evaluator gives them."""
        triggers, resolves, checks = {}, {}, {}
        for policy, row in zip(self._policies, self._true, strict=True):
            inputs = (QueryInput(policy.trigger.expr, None, now_ms),)
            triggers[policy.name] = self._said(row, True, inputs)
            resolves[policy.name] = self._said(row, False, inputs)
            if policy.guard is not None:
                quiet = SeriesTruth((), Truth.FALSE, Reason.CLEAR, 0.0)
                checks[policy.name, policy.guard.expr] = TriggerObservation((quiet,))
        return Observations(triggers, resolves, capacities=CAPACITIES, checks=checks)

    def _said(
        self, row: list[bool], when: bool, inputs: tuple[QueryInput, ...]
    ) -> TriggerObservation:
        truths = (Truth.TRUE if true is when else Truth.FALSE for true in row)
        return TriggerObservation(tuple(
            SeriesTruth(tuple(labels), truth, REASONS[truth], 1.0)
            for labels, truth in zip(self.labels, truths, strict=True)
        ), inputs=inputs)


def measure(size: Size, ticks: int) -> Measured:
    """Run the world and time each tick; the first ten, in which all of it starts, do not count."""
    policies = policies_of(size)
    bundle = Bundle("sha256:bench", policies, EngineConfig(max_instances=100_000))
    state, took_ms, decisions, copied, quiet = EngineState(), [], 0, 0, 0
    for number, (now_ms, seen) in enumerate(World(size, policies).ticks(ticks + 10)):
        gc.collect()
        before, started = state, time.process_time()
        needs(policies, state, seen, now_ms)
        state, made = decide(policies, state, seen, now_ms, bundle.revision, bundle)
        if number < 10:
            continue
        took_ms.append((time.process_time() - started) * 1e3)
        decisions += len(made)
        changed = {(d.policy, d.instance) for d in made}
        for name, group in state.instances.items():
            old = before.of(name)
            copied += sum(
                body is not old.get(key) for key, body in group.items()
            ) if group is not old else 0
        quiet += sum(d.claims_before == d.claims_after and d.from_state == d.to_state
                     and not d.impulses for d in made)
        assert len(changed) == len(made), "one record for an instance and tick"
    return Measured(tuple(took_ms), decisions, copied, quiet)


def week(days: int, interval_s: int) -> list[tuple[int, float, float]]:
    """Return (day, MiB of the state and all that lives, kB of it as JSON) at the end of each day.

    20 policies x 10 series, of which 1 % change at every tick, the clock in steps of `interval_s`.
    """
    size = Size(20, 10, 0.05, 0.01)
    policies = policies_of(size)
    bundle = Bundle("sha256:bench", policies, EngineConfig(max_instances=100_000))
    state = EngineState()
    found = []
    tracemalloc.start()
    a_day = 86_400 // interval_s
    world = World(size, policies)
    start_ms = 1_800_000_000_000
    for number, (_, seen) in enumerate(world.ticks(days * a_day)):
        now_ms = start_ms + number * interval_s * 1_000
        state, _ = decide(policies, state, seen, now_ms, bundle.revision, bundle)
        if (number + 1) % a_day == 0:
            gc.collect()
            size_kb = len(repr(state.to_json())) / 1e3
            found.append(((number + 1) // a_day, tracemalloc.get_traced_memory()[0] / 2**20,
                          size_kb))
    tracemalloc.stop()
    return found


CASES = (
    ("nobody fires", Size(1_000, 10, 0.0, 0.01)),
    ("2 % fire", Size(1_000, 10, 0.02, 0.01)),
    ("2 % fire, with a guard", Size(1_000, 10, 0.02, 0.01, guarded=True)),
    ("half fire (in shadow)", Size(1_000, 10, 0.5, 0.01, mode="shadow")),
    ("half fire (more claims than a core takes)", Size(1_000, 10, 0.5, 0.01)),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ticks", type=int, default=300, help="ticks of each case")
    parser.add_argument("--days", type=int, default=7, help="simulated days, 0 for none")
    parser.add_argument("--profile", help="profile this case (a part of its name) instead")
    options = parser.parse_args()
    if options.profile:
        return profile(options.profile, options.ticks)
    print("| 1,000 policies x 10 series | fastest ms | p50 ms | p99 ms | slowest ms "
          "| decisions a tick | copies a tick |")
    print("|---|---|---|---|---|---|---|")
    for name, size in CASES:
        m = measure(size, options.ticks)
        print(f"| {name} | {m.quantile(0):.1f} | {m.quantile(0.5):.1f} | {m.quantile(0.99):.1f} "
              f"| {m.quantile(1):.1f} | {m.decisions / options.ticks:.0f} "
              f"| {m.copied / options.ticks:.0f} |")
    for day, mib, size_kb in week(options.days, 60) if options.days else ():
        print(f"day {day}: {mib:.2f} MiB alive, state {size_kb:.0f} kB")
    return 0


def profile(name: str, ticks: int) -> int:
    import cProfile
    import pstats

    size = next(s for n, s in CASES if name in n)
    profiler = cProfile.Profile()
    profiler.runcall(measure, size, ticks)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    return 0


if __name__ == "__main__":
    sys.exit(main())
