"""The ports of a simulated world: clock, journal disk, core, metric source and UDF worker.

Each fails in the ways of the real one. Every fault is drawn from the world's dice and counted, so
that a run can show that none of them was left out.
"""

from __future__ import annotations

import json
import random
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from resilience.cores.simulated.core import SimulatedCore
from resilience.errors import CoreError, CoreUnreachableError, JournalError
from resilience.knobs import LiveClaim
from resilience.model import (
    Actual,
    Capabilities,
    Desired,
    JournalEntry,
    Json,
    QueryResult,
    UdfCall,
    UdfOutcome,
)
from resilience.sources.embedded import EmbeddedSource

T = TypeVar("T")
T0_MS = 1_800_000_000_000
LATE_MS = 2_000
CHECKPOINT_FRAMES = 64
UNWRITTEN = frozenset({"decision", "canary_decision"})


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
        self.full = 0  # so many more writes find no room
        self.faults: Counter[str] = Counter()

    def hits(self, probability: float, fault: str) -> bool:
        """Whether `fault` happens now; counts it."""
        if self.random.random() >= probability * self.rate:
            return False
        self.faults[fault] += 1
        return True


@dataclass
class Disk:
    """What survives a crash: rows, and a log of frames of which the last one may be torn."""

    rows: dict[tuple[str, str], Json] = field(default_factory=dict)
    log: list[bytes] = field(default_factory=list)

    def write(self, frame: bytes) -> None:
        self.log.append(frame)
        if len(self.log) > CHECKPOINT_FRAMES:
            self.recover()

    def recover(self) -> None:
        """Take whole frames into the rows and drop a torn one, as a write-ahead log does."""
        frames, self.log = self.log, []
        for frame in frames:
            if not is_whole(frame):
                return
            for kind, key, body in json.loads(frame[8:]):
                self.rows.pop((kind, key), None)
                if body is not None:
                    self.rows[kind, key] = body

    def copy(self) -> Disk:
        return Disk(dict(self.rows), list(self.log))


def frame_of(batch: Sequence[JournalEntry]) -> bytes:
    """Return a batch with its checksum; decisions are for people, so they are left out."""
    body = json.dumps([(e.kind, e.key, e.body) for e in batch if e.kind not in UNWRITTEN])
    return b"%08x" % zlib.crc32(body.encode()) + body.encode()


def is_whole(frame: bytes) -> bool:
    return len(frame) > 8 and b"%08x" % zlib.crc32(frame[8:]) == frame[:8]


class DiskJournal:
    """model.Journal over a Disk that fills up, tears a frame, and dies around a write."""

    def __init__(self, disk: Disk, dice: Dice) -> None:
        self._disk, self._dice = disk, dice
        self.refused = False

    def append(self, batch: Sequence[JournalEntry]) -> None:
        if self._dice.hits(0.003, "disk that stays full"):
            self._dice.full = self._dice.random.choice((10, 40))
        self._dice.full -= self._dice.full > 0
        if self._dice.full or self._dice.hits(0.01, "full disk"):
            self.refused = True
            raise JournalError("cannot write the journal: the disk is full")
        if self._dice.hits(0.004, "crash before the write"):
            raise Crash("before the write")
        frame = frame_of(batch)
        if self._dice.hits(0.002, "torn write"):
            self._disk.write(frame[: self._dice.random.randrange(len(frame))])
            raise Crash("torn write")
        self._disk.write(frame)
        self.refused = self.refused and all(e.kind != "intent" for e in batch)
        if self._dice.hits(0.004, "crash after the write"):
            raise Crash("after the write")

    def load(self, kind: str) -> Mapping[str, Json]:
        self._disk.recover()
        return {key: body for (name, key), body in self._disk.rows.items() if name == kind}

    def compact(self, *, now_ms: int) -> None:
        del now_ms


class Wire:
    """What lies between all engines and the one core: requests that come twice, and who acted.

    `overtaken_ms` is since when a newer epoch than an engine's own rules the core, by engine.
    """

    def __init__(self, core: SimulatedCore, clock: Clock, dice: Dice) -> None:
        self.core, self.clock, self.dice = core, clock, dice
        self._late: list[tuple[int, Callable[[], object]]] = []
        self.epoch = 0
        self.epochs: dict[int, int] = {}
        self.overtaken_ms: dict[int, int] = {}
        self.wrongs: list[str] = []
        self._newest: Desired | None = None

    def took(self, desired: Desired, held: Sequence[LiveClaim]) -> None:
        """The core took a document; the same one once more must renew no lease."""
        if desired is self._newest and self.core._table.claims != tuple(held) != ():
            self.wrongs.append(f"a repeat of generation {desired.generation} renewed a lease")
        self._newest = desired

    def asked(self, engine: int, epoch: int) -> None:
        """An engine learnt the core's epoch, and may take the next one without acting yet. Two that
        take the same one are told apart when one of them finds out and takes another."""
        if engine not in self.overtaken_ms:
            self.epochs[engine] = max(epoch + 1, self.epochs.get(engine, 0))

    def accepted(self, engine: int, epoch: int) -> None:
        """An engine made the core do something; an older epoch than the newest must not."""
        if epoch < self.epoch:
            self.wrongs.append(f"engine {engine} acted with epoch {epoch} after {self.epoch}")
        elif engine in self.overtaken_ms:
            self.wrongs.append(f"engine {engine} came back after another one took over")
        self.epoch = max(self.epoch, epoch)
        self.epochs[engine] = max(epoch, self.epochs.get(engine, 0))
        self.overtaken_ms = {
            e: self.overtaken_ms.get(e, self.clock.mono_ms)
            for e, own in self.epochs.items() if own < self.epoch
        }

    def forgive(self, engine: int) -> None:
        """An operator wants this engine to act again."""
        self.overtaken_ms.pop(engine, None)
        self.epochs.pop(engine, None)

    def core_restarted(self) -> None:
        """Connections died with the core, and it knows no epoch any more."""
        self._late.clear()
        self.overtaken_ms.clear()
        self.epoch, self._newest = 0, None

    def repeat(self, work: Callable[[], object]) -> None:
        """Let a request come a second time, now or a little later."""
        if self.dice.hits(0.01, "repeated request"):
            _ignored(work)
        elif self.dice.hits(0.005, "late request"):
            self._late.append((self.clock.mono_ms + self.dice.random.randrange(LATE_MS), work))

    def deliver(self) -> None:
        """Deliver the late requests whose time has come."""
        due = [work for at, work in self._late if at <= self.clock.mono_ms]
        self._late = [one for one in self._late if one[0] > self.clock.mono_ms]
        for work in due:
            _ignored(work)


def _ignored(work: Callable[[], object]) -> None:
    try:
        work()
    except CoreError:
        return


class FaultyCore:
    """model.Core as one engine reaches it: slow, failing, lost and repeated, with crashes."""

    def __init__(self, wire: Wire, engine: int) -> None:
        self._wire, self._engine = wire, engine
        self._core, self._clock, self._dice = wire.core, wire.clock, wire.dice

    def capabilities(self, *, deadline_ms: int) -> Capabilities:
        found = self._call(lambda: self._core.capabilities(deadline_ms=deadline_ms), deadline_ms)
        self._wire.asked(self._engine, found.epoch)
        return found

    def put_desired(self, desired: Desired, *, deadline_ms: int) -> Actual:
        def work() -> Actual:
            held = self._core._table.claims
            actual = self._core.put_desired(desired, deadline_ms=deadline_ms)
            self._wire.accepted(self._engine, desired.epoch)
            self._wire.took(desired, held)
            return actual

        return self._call(work, deadline_ms)

    def actual(self, *, deadline_ms: int) -> Actual:
        return self._call(lambda: self._core.actual(deadline_ms=deadline_ms), deadline_ms)

    def impulse(self, key: str, impulse: str, args: Json, *, epoch: int, deadline_ms: int) -> Json:
        def work() -> Json:
            answer = self._core.impulse(
                key, impulse, args, epoch=epoch, deadline_ms=deadline_ms
            )
            self._wire.accepted(self._engine, epoch)
            return answer

        return self._call(work, deadline_ms)

    def _call(self, work: Callable[[], T], deadline_ms: int) -> T:
        if self._dice.hits(0.03, "failing core"):
            raise CoreError("the core failed")
        if self._dice.hits(0.003, "crash before the core"):
            raise Crash("before the core")
        late = self._dice.random.choice((300, 1_500, 4_000)) \
            if self._dice.hits(0.01, "slow core") else 0
        result = work()
        self._wire.repeat(work)
        self._clock.mono_ms += min(late, deadline_ms) + self._dice.random.choice((0, 1, 5, 30))
        if late > deadline_ms or self._dice.hits(0.03, "lost reply"):
            raise CoreUnreachableError("the reply was lost")
        if self._dice.hits(0.003, "crash after the core"):
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
        if self._dice.hits(0.01, "failing source"):
            return {e: QueryResult(e, error="time-out") for e in exprs}
        return self._inner.query(exprs, t_ms, seq=seq, deadline_ms=deadline_ms)


class Worker:
    """model.UdfRunner: fails in any way of the closed set, and dies for some calls. `failed` are
    the (policy, instance) of its last calls that gave nothing."""

    def __init__(self, dice: Dice) -> None:
        self._dice = dice
        self._dead = 0
        self.failed: set[tuple[str, str]] = set()

    def run(self, calls: Sequence[UdfCall], *, deadline_ms: int) -> Sequence[UdfOutcome]:
        del deadline_ms
        if self._dead:
            self._dead -= 1
        elif self._dice.hits(0.02, "dead UDF worker"):
            self._dead = self._dice.random.choice((1, 4))
        return [self._one(call) for call in calls]

    def close(self) -> None:
        pass

    def _one(self, call: UdfCall) -> UdfOutcome:
        if self._dead or self._dice.hits(0.08, "failing UDF"):
            bad = self._dice.random.choice(("TIMEOUT", "CRASH", "BAD_RESULT"))
            self.failed.add((call.policy, call.instance))
            return UdfOutcome(call.policy, call.instance, call.action, call.function, bad)
        value = call.context["value"] or 0
        result = {"max_running": 4 if value > 15 else 8}
        return UdfOutcome(call.policy, call.instance, call.action, call.function, "ok", result)
