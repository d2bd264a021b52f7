"""One scrape group in memory: an index of its series and a ring of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from resilience.promql import regex
from resilience.promql.plan import Matcher
from resilience.promql.storage import (
    ABSENT,
    Floats,
    Ints,
    Rows,
    is_absent,
    is_stale,
    last_gaps,
    patterns,
)
from resilience.samples import Labels
from resilience.sources.recording_format import name_of

_COLUMNS_FIRST = 64
_SELECTIONS = 4_096
_NEVER = -(2**62)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """One scrape group: times int64[T], seqs int64[T], S label sets, values float64[S, T].

    A cell without a sample holds `promql.storage.ABSENT`. `gaps` int64[S], if it is known: the
    column of each row's last stale marker or missing sample, -1 for none. `until_seq`: the batch
    from which on nobody sees the group any more, because the clock was set back before it.
    """

    times: Ints
    seqs: Ints
    labels: tuple[Labels, ...]
    values: Floats
    gaps: Ints | None = None
    until_seq: int | None = None


def dense(group: Group) -> Iterator[tuple[Group, Ints]]:
    """Split a group that lacks samples into groups that lack none: they are the fast case.

    Each comes with its rows' last stale markers.
    """
    gaps = last_gaps(group.values) if group.gaps is None else group.gaps
    if gaps.max(initial=-1) < 0:
        yield group, gaps
        return
    values = np.ascontiguousarray(group.values)
    missing, found = patterns(values, False)
    for rows in found.values():
        columns = ~missing[rows[0]]
        whole = columns.all()
        part = Group(
            group.times if whole else group.times[columns],
            group.seqs if whole else group.seqs[columns],
            tuple(group.labels[r] for r in rows),
            values if whole and len(rows) == len(values) else values[rows] if whole
            else np.ascontiguousarray(values[rows][:, columns]),
            until_seq=group.until_seq,
        )
        yield part, last_gaps(part.values)


class Index:
    """The series of one group, by name and by matchers. Replaced, never changed, when rows come
    or go, so that a view keeps the one it began with."""

    __slots__ = ("_names", "_selections", "labels")

    def __init__(self, labels: Sequence[Labels]) -> None:
        self.labels = tuple(labels)
        self._names: dict[str, list[int]] = {}
        self._selections: dict[tuple[Matcher, ...], tuple[Rows, tuple[Labels, ...]]] = {}
        for row, one in enumerate(self.labels):
            self._names.setdefault(name_of(one), []).append(row)

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


class Ring:
    """The columns of one group. What a view may see is appended to or replaced, never changed."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.clock = ("ring", number)
        self.index = Index(())
        self.times = np.empty(_COLUMNS_FIRST, dtype=np.int64)
        self.seqs = np.empty(_COLUMNS_FIRST, dtype=np.int64)
        self.matrix = np.empty((0, _COLUMNS_FIRST))
        self.newest = np.empty(0, dtype=np.int64)
        self.gaps: Ints = np.empty(0, dtype=np.int64)
        self.start = self.stop = 0
        self.base = 0  # absolute number of column 0, so that clocks of views differ
        self.until_seq: int | None = None

    @classmethod
    def loaded(cls, number: int, group: Group, gaps: Ints, clock: int) -> Ring:
        """Take over the arrays of a whole group; `clock` is equal for groups with equal times."""
        ring = cls(number)
        ring.clock = ("loaded", clock)
        ring.times, ring.seqs = np.ascontiguousarray(group.times), np.ascontiguousarray(group.seqs)
        ring.matrix = np.ascontiguousarray(group.values, dtype=np.float64)
        ring.stop = len(group.times)
        ring.index = Index(group.labels)
        newest = int(group.times[-1]) if ring.stop else _NEVER
        ring.newest = np.full(len(group.labels), newest, dtype=np.int64)
        ring.gaps = gaps
        ring.until_seq = group.until_seq
        return ring

    def counts_at(self, seq: int) -> bool:
        """Whether a view up to batch `seq` may see the ring at all."""
        return self.until_seq is None or seq < self.until_seq

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
        self.index = Index((*self.labels, *labels))

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
        self.clock = ("ring", self.number)
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
        self.index = Index([x for x, k in pairs if k])
        self.gaps = self.gaps[keep]
        self.matrix = self.matrix[:n][keep]
        self.newest = self.newest[keep]
        return [x for x, k in pairs if not k]


def _compact(rows: list[int]) -> Rows:
    """Return a slice for neighbouring rows: no copy is made of them."""
    if rows and rows[-1] - rows[0] + 1 == len(rows):
        return slice(rows[0], rows[-1] + 1)
    return np.array(rows, dtype=np.int64)
