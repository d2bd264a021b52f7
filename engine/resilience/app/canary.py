"""A candidate bundle beside the active one: it decides on the same ticks, and nothing comes of it.

The candidate is an Engine without a bus, so it has no way to the core. It sees exactly the samples
that the active tick saw (`seq`), its decisions go into rows and files of their own, and nothing of
it goes into a recording. It runs on a thread of its own: a slow candidate loses ticks, which are
counted, and never delays the active policies.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from resilience.app.bundles import Checked, Sources, intervals, propose
from resilience.app.engine import Engine, TickReport
from resilience.app.recorded import RecordedSource
from resilience.app.state_rows import readable
from resilience.app.udfs import ClosableRunner
from resilience.errors import JournalError
from resilience.model import (
    Bundle,
    Capabilities,
    Files,
    Journal,
    JournalEntry,
    Json,
    OperatorEvent,
    Source,
)
from resilience.policy.decide import revise
from resilience.policy.state import EngineState

KIND = "canary"
QUEUE_MAX = 16
CLOSE_S = 10.0
PREFIX = "canary_"


class CanaryJournal:
    """The part of a journal that belongs to the candidate: kinds with a prefix of their own."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def append(self, batch: Sequence[JournalEntry]) -> None:
        self._journal.append([JournalEntry(PREFIX + e.kind, e.key, e.body) for e in batch])

    def load(self, kind: str) -> Mapping[str, Json]:
        return self._journal.load(PREFIX + kind)

    def compact(self, *, now_ms: int) -> None:
        self._journal.compact(now_ms=now_ms)

    def clear(self) -> None:
        """Forget all that an earlier candidate left."""
        kinds = ("state", "counters", "decision")
        rows = [JournalEntry(PREFIX + k, key, None) for k in kinds for key in self.load(k)]
        if rows:
            self._journal.append(rows)


@dataclass(frozen=True, slots=True)
class _CanaryFiles:
    files: Files

    def append_line(self, name: str, line: str) -> None:
        self.files.append_line(f"canary-{name}", line)


@dataclass(frozen=True, slots=True)
class Started:
    """What the journal remembers of the candidate."""

    revision: str
    since_ms: int

    def entry(self) -> JournalEntry:
        return JournalEntry(
            KIND, "candidate", {"revision": self.revision, "since_ms": self.since_ms}
        )


def remembered(journal: Journal) -> Started | None:
    """Return the candidate that ran when the engine stopped, or None."""
    with readable(KIND):
        row = journal.load(KIND).get("candidate")
        return None if row is None else Started(row["revision"], row["since_ms"])


def forget(journal: Journal) -> None:
    """Remove the candidate from the journal; raises JournalError."""
    journal.append([JournalEntry(KIND, "candidate", None)])
    CanaryJournal(journal).clear()


@dataclass(frozen=True, slots=True)
class _Tick:
    t_ms: int
    interval_ms: int
    seq: int
    missed: int


class Canary:
    """One candidate. Call `start` once, then `tick` after each active tick, and `close`."""

    def __init__(
        self, checked: Checked, sources: Sources, started: Started, *, source: Source,
        journal: Journal, files: Files, udfs: ClosableRunner | None,
        failed: Callable[[str, Exception], None], well: Callable[[str], None] = lambda name: None,
        threads: bool = True,
    ) -> None:
        self.checked, self.sources, self.started = checked, sources, started
        self.ticks = 0
        self.dropped = 0
        self.upto_ms: int | None = None
        self._rows = CanaryJournal(journal)
        self._journal = journal
        self._source = RecordedSource(source)
        self._udfs = udfs
        self._failed, self._well = failed, well
        self._queue: queue.Queue[_Tick | OperatorEvent | None] = queue.Queue(QUEUE_MAX)
        self._intervals = frozenset(intervals(checked.bundle))
        self._thread = threading.Thread(target=self._run, name="canary", daemon=True)
        self._threads = threads
        self._given_up = False  # too far behind to be told the end through the queue
        self.engine = Engine(
            checked.bundle, source=self._source, journal=self._rows, propose=propose, udfs=udfs,
            files=_CanaryFiles(files),
        )

    @property
    def bundle(self) -> Bundle:
        return self.checked.bundle

    @property
    def intervals(self) -> frozenset[int]:
        return self._intervals

    def begin(self, active: Bundle, state: EngineState, now_ms: int) -> None:
        """Start from the active state, as an apply would; raises JournalError."""
        self._rows.clear()
        carried, _ = revise(
            active.policies, self.bundle.policies, state, now_ms, self.bundle.revision
        )
        self.engine.begin_with(carried)
        self._journal.append([self.started.entry()])

    def start(self, capabilities: Capabilities | None) -> None:
        """Take up the journalled state and, with threads, begin to work."""
        self.engine.restore()
        if capabilities is not None:
            self.engine.observe_capabilities(capabilities)
        if self._threads:
            self._thread.start()

    def tick(self, t_ms: int, interval_ms: int, seq: int, missed: int) -> None:
        """Hand a tick over; dropped and counted when the candidate is that far behind."""
        if interval_ms in self._intervals:
            self._offer(_Tick(t_ms, interval_ms, seq, missed))

    def operator(self, event: OperatorEvent) -> None:
        """Hand a pause or resume over, so that both pause alike."""
        self._offer(event)

    def _offer(self, item: _Tick | OperatorEvent) -> None:
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self.dropped += 1

    @property
    def behind(self) -> int:
        return self._queue.qsize()

    def _run(self) -> None:
        while not self._given_up and (item := self._queue.get()) is not None:
            self._do(item)

    def work(self) -> None:
        """Do what was handed over, on the caller's thread."""
        with suppress(queue.Empty):
            while (item := self._queue.get_nowait()) is not None:
                self._do(item)

    def _do(self, item: _Tick | OperatorEvent) -> None:
        try:
            if isinstance(item, OperatorEvent):
                self.engine.operator(item)
                return
            self._source.at_seq = item.seq
            report: TickReport = self.engine.tick(item.t_ms, item.interval_ms, missed=item.missed)
            if report.error is not None:
                raise JournalError(report.error)
            self.ticks += 1
            self.upto_ms = max(item.t_ms, self.upto_ms or 0)
            self._well("canary")
        except Exception as error:  # a candidate that fails is its own affair
            self.dropped += 1
            self._failed("canary", error)

    def close(self) -> None:
        """Stop working; the journal still remembers the candidate."""
        if self._thread.is_alive():
            try:
                self._queue.put(None, timeout=CLOSE_S)
            except queue.Full:
                self._given_up = True
            self._thread.join(CLOSE_S)
        if self._udfs is not None:
            self._udfs.close()
