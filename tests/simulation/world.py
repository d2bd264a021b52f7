"""A world in which the whole engine runs on one thread, under faults drawn from one seed.

The real Engine, Bus, Canary, decision core and evaluator run over simulated ports (ports.py). Time
moves only here. Every fault is drawn from `seed`, so a failure is replayed by
`python tests/simulation/run.py --seed SEED --seeds 1 --ticks N`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache

import numpy as np

from resilience.app.bundles import Checked, Sources
from resilience.app.bus import Bus
from resilience.app.canary import Canary, Started, forget, remembered
from resilience.app.engine import Engine, TickReport
from resilience.app.recorder import Recorder
from resilience.cores.simulated.core import SimulatedCore
from resilience.errors import CoreError, JournalError
from resilience.model import Bundle, Json, Labels, OperatorEvent, canonical_json, labels_of
from resilience.sources.embedded import EmbeddedSource
from resilience.sources.store import MemoryStore
from tests.simulation.documents import CANDIDATE, INTERVAL_MS, KINDS, bundle, propose, series
from tests.simulation.ports import (
    T0_MS,
    Clock,
    Crash,
    Dice,
    Disk,
    DiskJournal,
    FaultyCore,
    FaultySource,
    Wire,
    Worker,
)

ENGINES = 5
RIVALRY_TICKS = 25
STALE = np.array([0x7FF0000000000002], dtype=np.uint64).view(np.float64)[0]
# A tuple, as the scraper has it: the store knows it again.
NAMES = tuple(series(name, e) for name in ("load", "usage") for e in range(ENGINES))


@lru_cache(maxsize=4_096, typed=True)
def content(policy: str, knob: str, scope: Labels, value: Json) -> str:
    """Return what a claim says as one text; no knob of these worlds takes lists or maps."""
    return canonical_json([policy, knob, dict(scope), value])


class _NoFiles:
    def append_line(self, name: str, line: str) -> None:
        del name, line


class World:
    """One core, its metrics, and the engine that drives it, one tick a second.

    `elder` is an engine that another one has replaced while it still runs, `dead` what the last
    crash has ended.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.kind = seed % len(KINDS)
        self.dice = Dice(seed)
        self.clock = Clock()
        self.disk = Disk()
        self.core = SimulatedCore(self.clock.monotonic_ms)
        self.wire = Wire(self.core, self.clock, self.dice)
        self.store = MemoryStore(retention_ms=60_000)
        self.recorder = Recorder(self.store)
        self.bundle = bundle(self.kind, "sha256:one")
        self.load = [2.0] * ENGINES
        self.silent = 0
        self.t_ms = T0_MS
        self.restarts = self.engines = self.reloads = 0
        self.crashed = ""
        self.still = False
        self.core_lost_ms = self.contested_ms = -1_000_000
        self.elder: tuple[Engine, Bus, int] | None = None
        self.elder_left = 0
        self.canary: Canary | None = None
        self.dead: tuple[Engine, Canary | None] | None = None
        self.candidate: Bundle | None = None
        self.incarnation = 0
        self.pauses: dict[str, int] = {}
        self.reloaded_ms = 0
        self._ahead_ms = 0
        self._seen: deque[tuple[int, Mapping[str, tuple[float, float]]]] = deque(maxlen=60)
        self.start()

    # --- the engine's life ---

    def start(self) -> None:
        """Start an engine on what the disk holds, as after a crash; attaching may fail for now."""
        self.engines += 1
        self.pauses = {}
        self.journal = DiskJournal(self.disk, self.dice)
        self.source = FaultySource(EmbeddedSource(self.store, 1_000), self.dice)
        core = FaultyCore(self.wire, self.engines)
        self.bus = Bus(core, self.journal, self.clock, jitter=self.dice.random.random)
        self.worker = Worker(self.dice)
        self.engine = Engine(
            self.bundle, source=self.source, journal=self.journal, propose=propose, bus=self.bus,
            udfs=self.worker,
        )
        self.engine.restore()
        self.canary = None
        started = remembered(self.journal)
        if started is not None:
            self.canary = self._open_canary(started)
            self.canary.start(None)

    def attach(self) -> None:
        """Learn the core's capabilities if that has not worked yet."""
        if self.engine.capabilities is None:
            with suppress(CoreError, JournalError):
                self.engine.observe_capabilities(self.bus.attach(deadline_ms=1_000))

    def _open_canary(self, started: Started) -> Canary:
        assert self.candidate is not None
        return Canary(
            Checked(self.candidate, ()), Sources(()), started, source=self.source,
            journal=self.journal, files=_NoFiles(), udfs=Worker(self.dice),
            failed=lambda name, error: None, threads=False,
        )

    # --- what the invariants ask ---

    def calm(self) -> None:
        """End every fault, every load and everything that people did."""
        self.dice.rate = 0.0
        self.dice.full = 0
        self.silent = 0
        self.load = [0.0] * ENGINES
        self.still = True
        self.elder = None
        self.core.resume(deadline_ms=1_000)
        self.engine.operator(OperatorEvent("resume", None))
        self.pauses = {}

    def core_claims(self) -> set[str]:
        """Return the contents of the claims that are alive in the core."""
        live = self.core._table.live(self.clock.mono_ms)
        return {content(c.policy, c.knob, labels_of(c.scope), c.value) for c in live}

    def core_values(self) -> dict[tuple[str, str], Json]:
        """Return what the core says is in force, by knob and scope."""
        return {
            (knob, scope): effective.value
            for knob, scopes in self.core.actual(deadline_ms=1_000).effective.items()
            for scope, effective in scopes.items()
        }

    def seen(self, labels: Labels, holds: Callable[[float], bool], within_ms: int) -> bool:
        """Whether a scrape of the `within_ms` before the tick measured a value that `holds`.

        Without an engine label any series counts."""
        engine = dict(labels).get("engine")
        for at_ms, values in self._seen:
            if at_ms < self._ahead_ms - within_ms:
                continue
            if any(holds(v) for e, pair in values.items() if engine in (None, e) for v in pair):
                return True
        return False

    # --- one second ---

    def step(self) -> TickReport | None:
        """Let one second pass: weather, scrape, tick; return None when the engine crashed."""
        missed = self._pass()
        self._rival()
        self._elder_ticks()
        try:
            self.attach()
            self._operate()
            report = self.engine.tick(self.t_ms, INTERVAL_MS, missed=missed)
            self._canary_ticks(report, missed)
            return report
        except Crash as crash:
            self.restarts += 1
            self.crashed = str(crash)
            self.dead = (self.engine, self.canary)
            self._down()
            return None

    def _pass(self) -> int:
        """Let time pass until the next tick; return how many ticks a slow core has eaten."""
        gone = self.clock.mono_ms - self._ahead_ms if self._ahead_ms else 0
        missed = gone // INTERVAL_MS
        self.clock.mono_ms += INTERVAL_MS - gone % INTERVAL_MS
        self.t_ms += INTERVAL_MS * (1 + missed)
        self._ahead_ms = self.clock.mono_ms
        self._weather()
        self.recorder.mind_the_clock(self.t_ms, INTERVAL_MS)
        self._scrape()
        return missed

    def _down(self) -> None:
        """The engine stays away for a while, then starts again."""
        for _ in range(self.dice.random.choice((0, 0, 1, 3, 10))):
            self._pass()
            self._elder_ticks()
        self.start()

    def _operate(self) -> None:
        if self.dice.hits(0.003, "pause"):
            name = self.dice.random.choice((None, "queue", "cache"))
            self.engine.operator(OperatorEvent("pause", name, self.t_ms + 5_000))
            self.pauses[name or "*"] = self.t_ms + 5_000
        elif self.dice.hits(0.003, "resume"):
            self.engine.operator(OperatorEvent("resume", None))
            self.pauses = {}
        if self.dice.hits(0.005, "reload"):
            self._reload()
        if self.bus.fenced and self.elder is None:
            self.wire.forgive(self.engines)
            with suppress(CoreError, JournalError):
                self.bus.take_over(deadline_ms=1_000)
        self._operate_canary()

    def _reload(self) -> None:
        gone = frozenset(p for p in ("queue", "cache", "blind") if self.dice.random.random() < 0.2)
        name = f"sha256:{self.dice.random.getrandbits(32):08x}"
        limit = self.dice.random.choice((6, 8))
        with suppress(JournalError):
            self.reloads += 1
            self.reloaded_ms = self.t_ms
            self.engine.swap(bundle(self.kind, name, limit=limit, without=gone), self.t_ms)
        self.bundle = self.engine.bundle

    # --- the candidate beside it ---

    def _operate_canary(self) -> None:
        if self.canary is None and self.dice.hits(0.005, "candidate"):
            self.candidate = bundle(self.kind, "sha256:candidate", limit=CANDIDATE)
            canary = self._open_canary(Started("sha256:candidate", self.t_ms))
            with suppress(JournalError):
                canary.begin(self.engine.bundle, self.engine.state, self.t_ms)
                canary.start(self.engine.capabilities)
                self.canary = canary
        elif self.canary is not None and self.dice.hits(0.02, "discard"):
            with suppress(JournalError):
                forget(self.journal)
                self.canary = None

    def _canary_ticks(self, report: TickReport, missed: int) -> None:
        if self.canary is not None:
            self.canary.tick(self.t_ms, INTERVAL_MS, report.seq, missed)
            self.canary.work()

    # --- the engine that was replaced ---

    def _rival(self) -> None:
        """Another engine starts on a copy of the state while this one goes on."""
        if self.elder is None and self.dice.hits(0.002, "second engine"):
            self.elder = (self.engine, self.bus, self.engines)
            self.elder_left = RIVALRY_TICKS
            self.disk = self.disk.copy()
            self.start()

    def _elder_ticks(self) -> None:
        if self.elder is None:
            return
        engine, bus, _ = self.elder
        self.elder_left -= 1
        if not bus.fenced:
            self.contested_ms = self.clock.mono_ms
        try:
            engine.tick(self.t_ms, INTERVAL_MS)
        except Crash:
            self.elder = None
        if not self.elder_left:
            self.elder = None

    # --- weather ---

    def _weather(self) -> None:
        for engine in range(0 if self.still else ENGINES):
            if self.dice.random.random() < 0.05:
                self.load[engine] = float(self.dice.random.choice((0, 2, 4, 7, 12, 20)))
        if self.silent:
            self.silent -= 1
        elif self.dice.hits(0.01, "silence"):
            self.silent = self.dice.random.choice((1, 3, 8))
        if self.dice.hits(0.002, "core restart"):
            self.core.restart()
            self.incarnation += 1
            self.wire.core_restarted()
            self.core_lost_ms = self.clock.mono_ms
        if self.dice.hits(0.003, "clock jump"):
            jump_ms = self.dice.random.choice((-600_000, -10_000, 1_000, 30_000))
            self.clock.offset_ms += jump_ms
            self.t_ms += jump_ms
        self._break_glass()
        self.wire.deliver()

    def _break_glass(self) -> None:
        """An operator releases the core and, later, resumes it."""
        if self.dice.hits(0.002, "release"):
            self.core.release("drill", t_ms=self.t_ms, deadline_ms=1_000)
        elif self.dice.hits(0.1, "resume of the core"):
            self.core.resume(deadline_ms=1_000)

    def _scrape(self) -> None:
        """Store a scrape: whole, stale, late, repeated, backward in time, with NaN, or nothing."""
        if self.silent:
            return
        t_ms = self.t_ms - self.dice.random.choice((0, 0, 0, 200))
        if self.dice.hits(0.01, "backward sample"):
            t_ms -= self.dice.random.choice((1_000, 5_000))
        values = list(self.load) * 2
        if self.dice.hits(0.01, "NaN"):
            values[self.dice.random.randrange(len(values))] = float("nan")
        if self.dice.hits(0.01, "missing series"):
            values[self.dice.random.randrange(len(values))] = float(STALE)
        if self.dice.hits(0.005, "stale markers"):
            values = [float(STALE)] * len(values)
        self.recorder.append(t_ms, NAMES, np.array(values))
        self.recorder.scraped(self.t_ms)
        self._seen.append((self.clock.mono_ms, _by_engine(values)))


def _by_engine(values: list[float]) -> Mapping[str, tuple[float, float]]:
    """Return load and usage by engine."""
    return {str(e): (values[e], values[e + ENGINES]) for e in range(ENGINES)}
