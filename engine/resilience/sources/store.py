"""The bounded in-memory store: scrape groups as rings of columns, seen through frozen views.

Series that arrive in one batch form a group and share its times. A batch adds one column to its
group; a series that the batch lacks has no sample there. Rules for odd samples, Prometheus' own:
a sample that is not newer than the newest one of its series is dropped and counted, and so is a
whole batch that is older than its group; the first sample of a timestamp stands.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from resilience.model import Labels
from resilience.promql import regex
from resilience.promql.plan import Matcher
from resilience.promql.storage import (
    ABSENT,
    Block,
    Floats,
    Ints,
    Memo,
    Rows,
    is_absent,
    is_stale,
    last_gaps,
    patterns,
)

_COLUMNS_FIRST = 64
_KNOWN_BATCHES = 256
_SELECTIONS = 4_096
_NEVER = -(2**62)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """One scrape group: times int64[T], seqs int64[T], S label sets, values float64[S, T].

    A cell without a sample holds `promql.storage.ABSENT`.
    """

    times: Ints
    seqs: Ints
    labels: tuple[Labels, ...]
    values: Floats


def _dense(group: Group) -> Iterator[Group]:
    """Split a group that lacks samples into groups that lack none: they are the fast case."""
    gaps = last_gaps(group.values)
    if gaps.max(initial=-1) < 0:
        yield group
        return
    values = np.ascontiguousarray(group.values)
    missing, found = patterns(values, False)
    for rows in found.values():
        columns = ~missing[rows[0]]
        whole = columns.all()
        yield Group(
            group.times if whole else group.times[columns],
            group.seqs if whole else group.seqs[columns],
            tuple(group.labels[r] for r in rows),
            values if whole and len(rows) == len(values) else values[rows] if whole
            else np.ascontiguousarray(values[np.ix_(rows, columns)]),
        )


class _Index:
    """The series of one group, by name and by matchers. Replaced, never changed, when rows come
    or go, so that a view keeps the one it began with."""

    __slots__ = ("_names", "_selections", "labels")

    def __init__(self, labels: Sequence[Labels]) -> None:
        self.labels = tuple(labels)
        self._names: dict[str, list[int]] = {}
        self._selections: dict[tuple[Matcher, ...], tuple[Rows, tuple[Labels, ...]]] = {}
        for row, one in enumerate(self.labels):
            self._names.setdefault(dict(one).get("__name__", ""), []).append(row)

    def has(self, name: str) -> bool:
        return name in self._names

    def matching(self, matchers: tuple[Matcher, ...]) -> tuple[Rows, tuple[Labels, ...]]:
        """Return rows and label sets of the series that match all of `matchers`."""
        found = self._selections.get(matchers)
        if found is None:
            if len(self._selections) >= _SELECTIONS:
                self._selections.clear()
            rows = self._rows(matchers)
            labels = tuple(self.labels[r] for r in rows)
            found = self._selections[matchers] = (_compact(rows), labels)
        return found

    def _rows(self, matchers: tuple[Matcher, ...]) -> list[int]:
        exact = [m.value for m in matchers if m.name == "__name__" and m.op == "="]
        names = [exact[0]] if exact and exact[0] in self._names else [] if exact else self._names
        tests = [(m.name, regex.test(m)) for m in matchers]
        on_name = [test for name, test in tests if name == "__name__"]
        others = [(name, test) for name, test in tests if name != "__name__"]
        rows = [r for n in names if all(t(n) for t in on_name) for r in self._names[n]]
        return sorted(r for r in rows if _passes(self.labels[r], others))


def _passes(labels: Labels, tests: Sequence[tuple[str, Callable[[str], bool]]]) -> bool:
    if not tests:
        return True
    have = dict(labels)
    return all(test(have.get(name, "")) for name, test in tests)


class _Ring:
    """The columns of one group. What a view may see is appended to or replaced, never changed."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.index = _Index(())
        self.times = np.empty(_COLUMNS_FIRST, dtype=np.int64)
        self.seqs = np.empty(_COLUMNS_FIRST, dtype=np.int64)
        self.matrix = np.empty((0, _COLUMNS_FIRST))
        self.newest = np.empty(0, dtype=np.int64)
        self.gaps: Ints = np.empty(0, dtype=np.int64)
        self.start = self.stop = 0
        self.base = 0  # absolute number of column 0, so that clocks of views differ

    @classmethod
    def loaded(cls, number: int, group: Group) -> _Ring:
        """Take over the arrays of a whole group."""
        ring = cls(number)
        ring.times, ring.seqs = np.ascontiguousarray(group.times), np.ascontiguousarray(group.seqs)
        ring.matrix = np.ascontiguousarray(group.values, dtype=np.float64)
        ring.stop = len(group.times)
        ring.index = _Index(group.labels)
        newest = int(group.times[-1]) if ring.stop else _NEVER
        ring.newest = np.full(len(group.labels), newest, dtype=np.int64)
        ring.gaps = last_gaps(group.values)
        return ring

    @property
    def labels(self) -> tuple[Labels, ...]:
        return self.index.labels

    # --- writing ---

    def add_rows(self, labels: Sequence[Labels]) -> None:
        """Add series; they have no samples yet."""
        rows = len(self.labels) + len(labels)
        if rows > self.matrix.shape[0]:
            grown = np.full((rows + rows // 8, self.matrix.shape[1]), ABSENT)
            grown[: self.matrix.shape[0]] = self.matrix
            self.matrix = grown
        more = len(labels)
        self.newest = np.concatenate([self.newest, np.full(more, _NEVER, dtype=np.int64)])
        last = self.stop - 1 if self.stop > self.start else -1
        self.gaps = np.concatenate([self.gaps, np.full(more, last, dtype=np.int64)])
        self.index = _Index((*self.labels, *labels))

    def append(self, t_ms: int, seq: int, rows: Ints, values: Floats) -> int:
        """Add one column; return how many samples were dropped."""
        if self.stop > self.start and t_ms < self.times[self.stop - 1]:
            return len(rows)
        fresh = self.newest[rows] < t_ms
        dropped = int(len(rows) - fresh.sum())
        if dropped:
            rows, values = rows[fresh], values[fresh]
        if not len(rows):
            return dropped
        if self.stop == len(self.times):
            self._make_room()
        n, column = len(self.labels), self.stop
        cells = np.full(n, ABSENT)
        cells[rows] = values
        self.times[column], self.seqs[column] = t_ms, seq
        self.matrix[:n, column] = cells
        self.newest[rows] = t_ms
        self.gaps = np.where(is_stale(cells) | is_absent(cells), column, self.gaps)
        self.stop = column + 1
        return dropped

    def forget(self, horizon_ms: int) -> None:
        """Let go of columns older than `horizon_ms`; memory follows when room is needed."""
        live = self.times[self.start : self.stop]
        self.start += int(np.searchsorted(live, horizon_ms, "left"))

    def _make_room(self) -> None:
        """Move the live columns to the front of new arrays, larger if more than half is live."""
        live = self.stop - self.start
        size = max(_COLUMNS_FIRST, live + live // 2 + 16)
        cut = slice(self.start, self.stop)
        times, seqs = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
        times[:live], seqs[:live] = self.times[cut], self.seqs[cut]
        matrix = np.full((self.matrix.shape[0], size), ABSENT)
        matrix[:, :live] = self.matrix[:, cut]
        self.gaps = np.maximum(self.gaps - self.start, -1)
        self.times, self.seqs, self.matrix = times, seqs, matrix
        self.base += self.start
        self.start, self.stop = 0, live

    def drop_rows(self, horizon_ms: int) -> list[Labels]:
        """Drop series without a sample since `horizon_ms`; return them."""
        n = len(self.labels)
        keep = self.newest >= horizon_ms
        if keep.all():
            return []
        pairs = list(zip(self.labels, keep.tolist(), strict=True))
        self.index = _Index([x for x, k in pairs if k])
        self.gaps = self.gaps[keep]
        self.matrix = self.matrix[:n][keep]
        self.newest = self.newest[keep]
        return [x for x, k in pairs if not k]


def _compact(rows: list[int]) -> Rows:
    """Return a slice for neighbouring rows: no copy is made of them."""
    if rows and rows[-1] - rows[0] + 1 == len(rows):
        return slice(rows[0], rows[-1] + 1)
    return np.array(rows, dtype=np.int64)


class _Cut:
    """What a view sees of one ring."""

    __slots__ = ("clock", "gaps", "index", "matrix", "times")

    def __init__(self, ring: _Ring, seq: int) -> None:
        a = ring.start
        b = a + int(np.searchsorted(ring.seqs[a : ring.stop], seq, "right"))
        self.index = ring.index
        self.times, self.matrix = ring.times[a:b], ring.matrix[:, a:b]
        self.gaps = np.maximum(ring.gaps - a, -1)
        self.clock = (ring.number, ring.base + a, ring.base + b)

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
        self._rings: list[_Ring] = []
        self._where: dict[Labels, tuple[_Ring, int]] = {}
        self._batches: dict[int, tuple[Sequence[Labels], list[tuple[_Ring, Ints, Ints]]]] = {}
        self._lock = threading.Lock()
        self._view: StoreView | None = None

    @classmethod
    def from_groups(cls, groups: Sequence[Group], retention_ms: int | None = None) -> MemoryStore:
        """Take over whole groups without copies, for recordings; nothing is too old in them."""
        series = sum(len(g.labels) for g in groups)
        store = cls(retention_ms or 2**62, max(series, 1))
        for group in (part for whole in groups for part in _dense(whole)):
            ring = _Ring.loaded(store._made, group)
            store._made += 1
            store._rings.append(ring)
            store._where.update((x, (ring, row)) for row, x in enumerate(group.labels))
            store._seq = max(store._seq, int(group.seqs.max(initial=0)))
        return store

    @property
    def seq(self) -> int:
        """The number of the newest batch; 0 before the first."""
        return self._seq

    @property
    def series_count(self) -> int:
        return len(self._where)

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
            for ring, rows, index in self._placed(labels):
                self.dropped_samples += ring.append(t_ms, self._seq, rows, cells[index])
                ring.forget(t_ms - self.retention_ms)
            return self._seq

    def _placed(self, labels: Sequence[Labels]) -> list[tuple[_Ring, Ints, Ints]]:
        """Return for each ring the rows of this batch and their places in it."""
        known = self._batches.get(id(labels))
        if known is not None and known[0] is labels:
            return known[1]
        self._admit(labels)
        split: dict[int, tuple[_Ring, list[int], list[int]]] = {}
        for i, one in enumerate(labels):
            if one in self._where:
                ring, row = self._where[one]
                _, rows, places = split.setdefault(ring.number, (ring, [], []))
                rows.append(row)
                places.append(i)
        placed = [(ring, np.array(rows), np.array(places)) for ring, rows, places in split.values()]
        if len(self._batches) >= _KNOWN_BATCHES:
            self._batches.clear()
        if isinstance(labels, tuple):
            self._batches[id(labels)] = (labels, placed)
        return placed

    def _admit(self, labels: Sequence[Labels]) -> None:
        """Give unknown series a row in the group of the batch, as far as the bound allows."""
        new = list(dict.fromkeys(x for x in labels if x not in self._where))
        if not new:
            return
        if len(self._where) + len(new) > self.max_series:
            self._reclaim()
        room = self.max_series - len(self._where)
        self.dropped_series += max(0, len(new) - room)
        new = new[:room]
        if not new:
            return
        home = next((self._where[x][0] for x in labels if x in self._where), None)
        if home is None:
            home = _Ring(self._made)
            self._made += 1
            self._rings.append(home)
        first = len(home.labels)
        home.add_rows(new)
        self._where.update((x, (home, first + i)) for i, x in enumerate(new))

    def _reclaim(self) -> None:
        """Free the rows of series that have left the retention."""
        newest = max((int(r.times[r.stop - 1]) for r in self._rings if r.stop > r.start), default=0)
        for ring in self._rings:
            if ring.drop_rows(newest - self.retention_ms):
                self._batches.clear()
        self._rings = [r for r in self._rings if r.labels]
        self._where = {
            x: (ring, row) for ring in self._rings for row, x in enumerate(ring.labels)
        }

    def view(self, seq: int | None = None) -> StoreView:
        """Return a frozen view of all batches up to `seq` (None: all)."""
        with self._lock:
            wanted = self._seq if seq is None else seq
            if self._view is None or self._view.seq != wanted:
                cuts = [_Cut(ring, wanted) for ring in self._rings]
                self._view = StoreView(cuts, wanted)
            return self._view

    def groups(self) -> list[Group]:
        """Return everything stored, as it is, for writing a recording."""
        with self._lock:
            return [
                Group(r.times[r.start : r.stop], r.seqs[r.start : r.stop], tuple(r.labels),
                      r.matrix[: len(r.labels), r.start : r.stop])
                for r in self._rings if r.stop > r.start
            ]
