"""A world in which the whole engine runs on one thread, under faults drawn from one seed.

The real Engine, Bus, decision core and evaluator run over simulated ports: clock, core, metric
source, journal disk and UDF worker. Time moves only here. Every fault is drawn from `seed`, so a
failure is replayed by `python tests/simulation/run.py --seed SEED --ticks N`.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from resilience.app.bus import Bus
from resilience.app.engine import Engine, TickReport
from resilience.cores.simulated.core import SimulatedCore
from resilience.errors import CoreError, CoreUnreachableError, JournalError
from resilience.model import (
    Action,
    Actual,
    Bundle,
    Capabilities,
    ClaimSpec,
    Desired,
    EngineConfig,
    ImpulseSpec,
    JournalEntry,
    Json,
    Labels,
    Limits,
    OperatorEvent,
    Policy,
    QueryResult,
    RateLimit,
    Recovery,
    Resolve,
    Safety,
    Trigger,
    UdfCall,
    UdfOutcome,
    UdfSpec,
    canonical_json,
    labels_of,
)
from resilience.sources.embedded import EmbeddedSource
from resilience.sources.store import MemoryStore

T = TypeVar("T")
T0_MS = 1_800_000_000_000
INTERVAL_MS = 1_000
LEASE_MS = 6_000
ENGINES = 5
# The UDF of policy `cache` asks for less than these belts leave: 6 of the core's 32.
CONFIG = EngineConfig(safety=Safety(capacity_removed=0.8))
STALE = np.array([0x7FF0000000000002], dtype=np.uint64).view(np.float64)[0]


class Crash(BaseException):
    """The engine's process dies here; not an Exception, so that nobody swallows it."""


class Clock:
    """Wall and monotonic time; only the wall jumps."""

    def __init__(self) -> None:
        self.mono_ms = 50_000
        self.offset_ms = T0_MS - self.mono_ms

    def now_ms(self) -> int:
        return self.mono_ms + self.offset_ms

    def monotonic_ms(self) -> int:
        return self.mono_ms


class Dice:
    """All chance of one world; `rate` scales every fault, 0 for a calm world."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rate = 1.0

    def hits(self, probability: float) -> bool:
        return self.random.random() < probability * self.rate


@dataclass
class Disk:
    """What survives a crash: whole batches only, as SQLite promises."""

    rows: dict[tuple[str, str], str] = field(default_factory=dict)


class DiskJournal:
    """model.Journal over a Disk that fills up and dies before or after a write."""

    def __init__(self, disk: Disk, dice: Dice) -> None:
        self._disk, self._dice = disk, dice

    def append(self, batch: Sequence[JournalEntry]) -> None:
        if self._dice.hits(0.01):
            raise JournalError("cannot write the journal: the disk is full")
        if self._dice.hits(0.004):
            raise Crash("before the write")
        for entry in batch:
            if entry.body is None:
                self._disk.rows.pop((entry.kind, entry.key), None)
            elif entry.kind != "decision":
                self._disk.rows[entry.kind, entry.key] = json.dumps(entry.body)
        if self._dice.hits(0.004):
            raise Crash("after the write")

    def load(self, kind: str) -> Mapping[str, Json]:
        return {k: json.loads(b) for (n, k), b in self._disk.rows.items() if n == kind}

    def compact(self, *, now_ms: int) -> None:
        del now_ms


class FaultyCore:
    """model.Core over the simulated core: slow, failing, lost replies, and crashes around them."""

    def __init__(self, core: SimulatedCore, clock: Clock, dice: Dice) -> None:
        self._core, self._clock, self._dice = core, clock, dice

    def capabilities(self, *, deadline_ms: int) -> Capabilities:
        return self._call(lambda: self._core.capabilities(deadline_ms=deadline_ms))

    def put_desired(self, desired: Desired, *, deadline_ms: int) -> Actual:
        return self._call(lambda: self._core.put_desired(desired, deadline_ms=deadline_ms))

    def actual(self, *, deadline_ms: int) -> Actual:
        return self._call(lambda: self._core.actual(deadline_ms=deadline_ms))

    def impulse(self, key: str, impulse: str, args: Json, *, epoch: int, deadline_ms: int) -> Json:
        return self._call(
            lambda: self._core.impulse(key, impulse, args, epoch=epoch, deadline_ms=deadline_ms)
        )

    def _call(self, work: Callable[[], T]) -> T:
        if self._dice.hits(0.03):
            raise CoreError("the core failed")
        if self._dice.hits(0.003):
            raise Crash("before the core")
        result = work()
        self._clock.mono_ms += self._dice.random.choice((0, 1, 5, 30))
        if self._dice.hits(0.03):
            raise CoreUnreachableError("the reply was lost")
        if self._dice.hits(0.003):
            raise Crash("after the core")
        return result


class FaultySource:
    """model.Source over the real evaluator, which sometimes cannot be asked."""

    def __init__(self, inner: EmbeddedSource, dice: Dice) -> None:
        self._inner, self._dice = inner, dice

    @property
    def scrape_interval_ms(self) -> int:
        return self._inner.scrape_interval_ms

    def seq(self) -> int:
        return self._inner.seq()

    def metric_names(self, *, deadline_ms: int) -> frozenset[str]:
        return self._inner.metric_names(deadline_ms=deadline_ms)

    def query(
        self, exprs: Sequence[str], t_ms: int, *, seq: int, deadline_ms: int
    ) -> Mapping[str, QueryResult]:
        if self._dice.hits(0.01):
            return {e: QueryResult(e, error="time-out") for e in exprs}
        return self._inner.query(exprs, t_ms, seq=seq, deadline_ms=deadline_ms)


class Worker:
    """model.UdfRunner: mostly answers, sometimes any of the closed set of failures."""

    def __init__(self, dice: Dice) -> None:
        self._dice = dice

    def run(self, calls: Sequence[UdfCall], *, deadline_ms: int) -> Sequence[UdfOutcome]:
        del deadline_ms
        return [self._one(call) for call in calls]

    def _one(self, call: UdfCall) -> UdfOutcome:
        if self._dice.hits(0.1):
            bad = self._dice.random.choice(("TIMEOUT", "CRASH", "BAD_RESULT"))
            return UdfOutcome(call.policy, call.instance, call.action, call.function, bad)
        value = call.context["value"] or 0
        result = {"max_running": 4 if value > 15 else 8}
        return UdfOutcome(call.policy, call.instance, call.action, call.function, "ok", result)


def propose(result: Json, action: Action) -> tuple[Action, ...]:
    spec = ClaimSpec("cache.max_running", result["max_running"])
    return (Action(f"{action.key}.0", "cache_degrade", (spec,), lease_ms=LEASE_MS),)


def series(name: str, engine: int) -> Labels:
    return labels_of({"__name__": name, "engine": str(engine), "job": "vllm"})


def throttle(limit: int) -> Action:
    return Action(
        "0", "throttle",
        (ClaimSpec("throttle.max_concurrency", limit, (("tier", "best-effort"),)),),
        lease_ms=LEASE_MS,
    )  # fmt: skip


def policies() -> tuple[Policy, ...]:
    """Three policies over ten series: holding, ramping with a UDF, and firing on silence."""
    reset = Action(
        "1", "reset_prefix_cache", impulses=(ImpulseSpec("reset_prefix_cache"),),
        lease_ms=LEASE_MS,
    )  # fmt: skip
    call = Action("0", "udf_call", udf=UdfSpec("adapt", 500, on_error="hold"), lease_ms=LEASE_MS)
    return (
        Policy(
            "queue", Trigger("load > 10", "hold", for_ms=4_000, resolve=Resolve("load < 5", 2_000),
                             max_age_ms=3_500),
            (throttle(8), reset), interval_ms=INTERVAL_MS, priority=60,
        ),
        Policy(
            "cache", Trigger("usage > 10", "resolve", keep_firing_for_ms=3_000, max_age_ms=3_500),
            (call,), interval_ms=INTERVAL_MS, recovery=Recovery((0.5, 1.0), 2_000),
        ),
        Policy(
            "blind", Trigger("sum(load) > 60", "fire", for_ms=3_000, max_age_ms=3_500),
            (throttle(4),), interval_ms=INTERVAL_MS,
            limits=Limits(5_000, (RateLimit(5, 60_000),)),
        ),
    )  # fmt: skip


class World:
    """One engine, its core and its metrics, one tick a second."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = Dice(seed)
        self.clock = Clock()
        self.disk = Disk()
        self.core = SimulatedCore(self.clock.monotonic_ms)
        self.store = MemoryStore(retention_ms=60_000)
        self.bundle = Bundle("sha256:one", policies(), CONFIG)
        self.load = [2.0] * ENGINES
        self.silent = 0
        self.t_ms = T0_MS
        self.restarts = 0
        self.crashed = ""
        self.still = False
        self.core_lost_ms = -1_000_000
        self._seen: deque[tuple[int, dict[str, float]]] = deque(maxlen=60)
        self.start()

    # --- the engine's life ---

    def start(self) -> None:
        """Start an engine on what the disk holds, as after a crash; attaching may fail for now."""
        journal = DiskJournal(self.disk, self.dice)
        core = FaultyCore(self.core, self.clock, self.dice)
        self.bus = Bus(core, journal, self.clock, jitter=self.dice.random.random)
        self.engine = Engine(
            self.bundle,
            source=FaultySource(EmbeddedSource(self.store, scrape_interval_ms=1_000), self.dice),
            journal=journal,
            propose=propose,
            bus=self.bus,
            udfs=Worker(self.dice),
        )
        self.engine.restore()

    def attach(self) -> None:
        """Learn the core's capabilities if that has not worked yet."""
        if self.engine.capabilities is None:
            try:
                self.engine.observe_capabilities(self.bus.attach(deadline_ms=1_000))
            except (CoreError, JournalError):
                return

    # --- what the invariants ask ---

    def calm(self) -> None:
        """End every fault and every load."""
        self.dice.rate = 0.0
        self.silent = 0
        self.load = [0.0] * ENGINES
        self.still = True

    def core_claims(self) -> set[str]:
        """Return the contents of the claims that are alive in the core."""
        live = self.core._table.live(self.clock.mono_ms)
        return {canonical_json([c.policy, c.knob, dict(c.scope), c.value]) for c in live}

    def seen(self, labels: Labels, holds: Callable[[float], bool], within_ms: int) -> bool:
        """Whether a scrape of the last `within_ms` measured a value of that series that `holds`.

        Without an engine label any series counts."""
        engine = dict(labels).get("engine")
        for t_ms, values in self._seen:
            if t_ms < self.t_ms - within_ms:
                continue
            if any(holds(v) for e, v in values.items() if engine in (None, e)):
                return True
        return False

    # --- one second ---

    def step(self) -> TickReport | None:
        """Let one second pass: weather, scrape, tick; return None when the engine crashed."""
        self.t_ms += INTERVAL_MS
        self.clock.mono_ms += INTERVAL_MS
        self._weather()
        self._scrape()
        try:
            self.attach()
            self._operate()
            return self.engine.tick(self.t_ms, INTERVAL_MS)
        except Crash as crash:
            self.restarts += 1
            self.crashed = str(crash)
            self._down()
            return None

    def _down(self) -> None:
        """The engine stays away for a while, then starts again; a start may crash as well."""
        away = self.dice.random.choice((0, 0, 1, 3, 10))
        for _ in range(away):
            self.t_ms += INTERVAL_MS
            self.clock.mono_ms += INTERVAL_MS
            self._weather()
            self._scrape()
        self.start()

    def _operate(self) -> None:
        if self.dice.hits(0.003):
            name = self.dice.random.choice((None, "queue", "cache"))
            self.engine.operator(OperatorEvent("pause", name, self.t_ms + 5_000))
        elif self.dice.hits(0.003):
            self.engine.operator(OperatorEvent("resume", None))
        if self.dice.hits(0.003):
            self._reload()

    def _reload(self) -> None:
        every = policies()
        kept = tuple(p for p in every if not self.dice.hits(0.2))
        name = f"sha256:{self.dice.random.getrandbits(32):08x}"
        bundle = Bundle(name, kept, CONFIG)
        try:
            self.engine.swap(bundle, self.t_ms)
        except JournalError:
            return
        finally:
            self.bundle = self.engine.bundle

    def _weather(self) -> None:
        for engine in range(0 if self.still else ENGINES):
            if self.dice.random.random() < 0.05:
                self.load[engine] = float(self.dice.random.choice((0, 2, 4, 7, 12, 20)))
        if self.silent:
            self.silent -= 1
        elif self.dice.hits(0.01):
            self.silent = self.dice.random.choice((1, 3, 8))
        if self.dice.hits(0.002):
            self.core.restart()
            self.core_lost_ms = self.clock.mono_ms
        if self.dice.hits(0.005):
            self.clock.offset_ms += self.dice.random.choice((-30_000, 1_000, 60_000))

    def _scrape(self) -> None:
        """Store a scrape: whole, stale, late, repeated, backward in time, with NaN, or nothing."""
        if self.silent:
            return
        t_ms = self.t_ms - self.dice.random.choice((0, 0, 0, 200))
        if self.dice.hits(0.01):
            t_ms -= self.dice.random.choice((1_000, 5_000))
        values = list(self.load) * 2
        if self.dice.hits(0.01):
            values[self.dice.random.randrange(len(values))] = float("nan")
        if self.dice.hits(0.005):
            values = [float(STALE)] * len(values)
        names = [series("load", e) for e in range(ENGINES)]
        names += [series("usage", e) for e in range(ENGINES)]
        self.store.append(t_ms, names, np.array(values))
        self._seen.append((t_ms, {str(i % ENGINES): v for i, v in enumerate(values)}))
