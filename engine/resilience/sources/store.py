"""The bounded in-memory store: scrape groups as rings of columns, seen through frozen views.

Series that arrive in one batch form a group and share its times. A batch adds one column to its
group; a series that the batch lacks has no sample there. Rules for odd samples, Prometheus' own:
a sample that is not newer than the newest one of its series is dropped and counted, and so is a
whole batch that is older than its group; the first sample of a timestamp stands. After the clock
was set back, what came before is evidence no more (`begin_anew`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from resilience.promql.plan import Matcher
from resilience.promql.storage import Block, Floats, Ints, Memo
from resilience.samples import Labels
from resilience.sources.ring import Group, Ring, dense

__all__ = ["Group", "MemoryStore", "StoreView"]

_KNOWN_BATCHES = 256
_ENDED_BATCHES = 64  # so long a view may still ask for what the set clock has ended


class _Cut:
    """What a view sees of one ring."""

    __slots__ = ("clock", "gaps", "index", "matrix", "times")

    def __init__(self, ring: Ring, seq: int, until_ms: int | None = None) -> None:
        a = ring.start
        b = a + int(np.searchsorted(ring.seqs[a : ring.stop], seq, "right"))
        if until_ms is not None:
            b = a + int(np.searchsorted(ring.times[a:b], until_ms, "right"))
        self.index = ring.index
        self.times, self.matrix = ring.times[a:b], ring.matrix[:, a:b]
        self.gaps = np.maximum(ring.gaps - a, -1)
        self.clock = (ring.clock, ring.base + a, ring.base + b)

    def block(self, matchers: tuple[Matcher, ...]) -> Block | None:
        rows, labels = self.index.matching(matchers)
        if not labels or not len(self.times):
            return None
        return Block(
            self.times, labels, self.matrix, clock=self.clock, rows=rows, gaps=self.gaps[rows]
        )


class StoreView:
    """A frozen view of the store up to one sequence number; implements promql's Storage."""

    def __init__(self, cuts: Sequence[_Cut], seq: int) -> None:
        self.seq = seq
        self.memo = Memo()
        self._cuts = cuts
        self._found: dict[tuple[Matcher, ...], list[Block]] = {}

    def select(self, matchers: Sequence[Matcher]) -> Sequence[Block]:
        """Return the matching series, one block for each group that has some."""
        key = tuple(matchers)
        found = self._found.get(key)
        if found is None:
            exact = next((m.value for m in key if m.name == "__name__" and m.op == "="), None)
            cuts = [c for c in self._cuts if exact is None or c.index.has(exact)]
            blocks = [cut.block(key) for cut in cuts]
            found = self._found[key] = [b for b in blocks if b is not None]
        return found


class MemoryStore:
    """Samples of the last `retention_ms`, at most `max_series` series. Safe for one writer and
    many readers.

    `dropped_samples` counts late and repeated samples, `dropped_series` those beyond the bound.
    """

    def __init__(self, retention_ms: int = 3_600_000, max_series: int = 20_000) -> None:
        if retention_ms <= 0 or max_series <= 0:
            raise ValueError("retention and number of series are more than 0")
        self.retention_ms = retention_ms
        self.max_series = max_series
        self.dropped_samples = 0
        self.dropped_series = 0
        self._seq = 0
        self._made = 0
        self._rings: list[Ring] = []
        self._ended: list[Ring] = []
        self._seam = 0
        self._placed_at: dict[Labels, tuple[Ring, int]] | None = {}
        self._batches: dict[int, tuple[Sequence[Labels], list[tuple[Ring, Ints, Ints]]]] = {}
        self._lock = threading.Lock()
        self._view: StoreView | None = None

    @classmethod
    def from_groups(cls, groups: Sequence[Group], retention_ms: int | None = None) -> MemoryStore:
        """Take over whole groups without copies, for recordings; nothing is too old in them.

        Groups that hold the same times array share the work that depends on times only.
        """
        clocks: dict[int, tuple[Ints, int]] = {}  # the arrays are kept, so that ids stay theirs
        series = sum(len(g.labels) for g in groups)
        store = cls(retention_ms or 2**62, max(series, 1))
        for group, gaps in (part for whole in groups for part in dense(whole)):
            _, clock = clocks.setdefault(id(group.times), (group.times, store._made))
            ring = Ring.loaded(store._made, group, gaps, clock)
            store._made += 1
            store._rings.append(ring)
            store._seq = max(store._seq, int(group.seqs.max(initial=0)))
        store._placed_at = None
        return store

    @property
    def _where(self) -> dict[Labels, tuple[Ring, int]]:
        """Ring and row of each series, built once somebody asks. To be read under the lock only: a
        map that is built beside an append lacks what that append adds."""
        where = self._placed_at
        if where is None:
            where = {x: (ring, row) for ring in self._rings for row, x in enumerate(ring.labels)}
            self._placed_at = where
        return where

    @property
    def seq(self) -> int:
        """The number of the newest batch; 0 before the first."""
        return self._seq

    @property
    def series_count(self) -> int:
        """How many series are held; any thread may ask."""
        return sum(len(ring.labels) for ring in self._rings)

    def append(self, t_ms: int, labels: Sequence[Labels], values: Floats) -> int:
        """Store one scrape: values float64[S] for S label sets, all at `t_ms`. Return its seq.

        Pass the same `labels` object again while the series are the same: it is recognised.
        """
        cells = np.asarray(values, dtype=np.float64)
        if cells.shape != (len(labels),):
            raise ValueError(f"{len(labels)} label sets need as many values, not {cells.shape}")
        with self._lock:
            self._seq += 1
            self._view = None
            if self._ended and self._seq > self._seam + _ENDED_BATCHES:
                self._ended = []
            for ring, rows, index in self._placed(labels):
                self.dropped_samples += ring.append(t_ms, self._seq, rows, cells[index])
                ring.forget(t_ms - self.retention_ms)
            return self._seq

    def begin_anew(self) -> int:
        """Let what is stored count no more; return the number of the empty batch that says so.

        For a clock that was set back: its times come a second time, and a rate across the seam
        would mix two clocks. Views up to an earlier batch still see all of it, for a while.
        """
        with self._lock:
            self._seq += 1
            for ring in self._rings:
                ring.until_seq = self._seq
            self._ended, self._seam = self._rings, self._seq
            self._rings, self._placed_at, self._view = [], {}, None
            self._batches.clear()
            return self._seq

    def _placed(self, labels: Sequence[Labels]) -> list[tuple[Ring, Ints, Ints]]:
        """Return for each ring the rows of this batch and their places in it."""
        known = self._batches.get(id(labels))
        if known is not None and known[0] is labels:
            return known[1]
        self._admit(labels)
        where = self._where
        split: dict[int, tuple[Ring, list[int], list[int]]] = {}
        first = {one: i for i, one in reversed(list(enumerate(labels)))}
        for one, i in sorted(first.items(), key=lambda item: item[1]):
            if one in where:
                ring, row = where[one]
                _, rows, places = split.setdefault(ring.number, (ring, [], []))
                rows.append(row)
                places.append(i)
        placed = [(ring, np.array(rows), np.array(places)) for ring, rows, places in split.values()]
        if len(self._batches) >= _KNOWN_BATCHES:
            self._batches.clear()
        if isinstance(labels, tuple) and sum(len(rows) for _, rows, _ in placed) == len(first):
            # One that did not fit as a whole asks for its places again.
            self._batches[id(labels)] = (labels, placed)
        return placed

    def _admit(self, labels: Sequence[Labels]) -> None:
        """Give unknown series a row in the group of the batch, as far as the bound allows."""
        where = self._where
        new = list(dict.fromkeys(x for x in labels if x not in where))
        if not new:
            return
        if len(where) + len(new) > self.max_series:
            self._reclaim()
            where = self._where
        room = self.max_series - len(where)
        self.dropped_series += max(0, len(new) - room)
        new = new[:room]
        if not new:
            return
        home = next((where[x][0] for x in labels if x in where), None)
        if home is None:
            home = Ring(self._made)
            self._made += 1
            self._rings.append(home)
        first = len(home.labels)
        home.add_rows(new)
        where.update((x, (home, first + i)) for i, x in enumerate(new))

    def _reclaim(self) -> None:
        """Free the rows of series that have left the retention."""
        newest = max((int(r.times[r.stop - 1]) for r in self._rings if r.stop > r.start), default=0)
        for ring in self._rings:
            if ring.drop_rows(newest - self.retention_ms):
                self._batches.clear()
        self._rings = [r for r in self._rings if r.labels]
        self._placed_at = None

    def view(self, seq: int | None = None) -> StoreView:
        """Return a frozen view of all batches up to `seq` (None: all)."""
        with self._lock:
            wanted = self._seq if seq is None else seq
            if self._view is None or self._view.seq != wanted:
                rings = [r for r in (*self._ended, *self._rings) if r.counts_at(wanted)]
                cuts = [_Cut(ring, wanted) for ring in rings]
                self._view = StoreView(cuts, wanted)
            return self._view

    def view_until(self, seq: int, until_ms: int) -> StoreView:
        """Return a frozen view of all batches up to `seq` without samples of after `until_ms`."""
        with self._lock:
            rings = [r for r in (*self._ended, *self._rings) if r.counts_at(seq)]
            return StoreView([_Cut(ring, seq, until_ms) for ring in rings], seq)

    def groups(self) -> list[Group]:
        """Return everything stored, as it is, for writing a recording."""
        with self._lock:
            return [
                Group(r.times[r.start : r.stop], r.seqs[r.start : r.stop], tuple(r.labels),
                      r.matrix[: len(r.labels), r.start : r.stop])
                for r in self._rings if r.stop > r.start
            ]
