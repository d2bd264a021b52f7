"""What the evaluator reads: blocks of series that share their times, behind one small port.

A cell of a block is a sample, a stale marker (Prometheus' NaN `0x7ff0000000000002`) or no sample
at all (our NaN `0x7ff0000000000003`, which never leaves the storage).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

from resilience.arrays import np, npt
from resilience.promql.plan import Matcher
from resilience.samples import Labels

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Rows: TypeAlias = slice | Ints

STALE_BITS = 0x7FF0000000000002
ABSENT_BITS = 0x7FF0000000000003
STALE = np.array([STALE_BITS], dtype=np.int64).view(np.float64)[0]
ABSENT = np.array([ABSENT_BITS], dtype=np.int64).view(np.float64)[0]


def is_stale(values: Floats) -> Bools:
    """Return where `values` (any shape, contiguous last axis) hold the stale marker."""
    return np.asarray(values.view(np.int64) == STALE_BITS)


def is_absent(values: Floats) -> Bools:
    """Return where `values` hold no sample."""
    return np.asarray(values.view(np.int64) == ABSENT_BITS)


class Block:
    """Series that were sampled together.

    `times` int64[T], milliseconds, not decreasing; `labels` S label sets; `values` float64[S, T].
    `gaps` int64[S] is the column of each row's last stale marker or missing sample, -1 if none.
    `clock` is equal for blocks with equal times, so that window bounds can be shared.
    """

    __slots__ = ("_clean", "_gaps", "_parts", "_values", "clock", "derived", "labels", "matrix",
                 "rows", "times")

    def __init__(
        self, times: Ints, labels: Sequence[Labels], matrix: Floats, *, clock: Hashable,
        rows: Rows | None = None, gaps: Ints | None = None,
    ) -> None:
        self.times = times
        self.labels = labels
        self.matrix = matrix
        self.rows: Rows = slice(None) if rows is None else rows
        self.clock = clock
        self._gaps = gaps
        self._clean: bool | None = None
        self.derived: dict[str, Any] = {}
        self._values: Floats | None = None
        self._parts: dict[bool, list[Block]] = {}

    @property
    def values(self) -> Floats:
        """The samples, float64[S, T]; a copy is made once if the rows are scattered."""
        if self._values is None:
            self._values = self.matrix[self.rows]
        return self._values

    def gather(self, columns: Ints, out: Floats | None = None) -> Floats:
        """Return float64[S, K] of the given columns, without a copy of all columns first."""
        found = np.empty((len(self.labels), len(columns))) if out is None else out
        if self._values is not None or isinstance(self.rows, slice):
            return np.take(self.values, columns, axis=1, out=found, mode="clip")
        runs = np.flatnonzero(np.diff(self.rows) != 1) + 1
        if len(runs) * 4 > len(self.rows):
            return np.take(self.values, columns, axis=1, out=found, mode="clip")
        for run, a in zip(np.split(self.rows, runs), (0, *runs.tolist()), strict=True):
            part = self.matrix[int(run[0]) : int(run[-1]) + 1]
            np.take(part, columns, axis=1, out=found[a : a + len(run)], mode="clip")
        return found

    @property
    def gaps(self) -> Ints:
        if self._gaps is None:
            self._gaps = last_gaps(self.values)
        return self._gaps

    @property
    def clean(self) -> bool:
        """Whether every cell is a sample."""
        if self._clean is None:
            self._clean = not len(self.gaps) or int(self.gaps.max()) < 0
        return self._clean

    def between(self, low_ms: int, high_ms: int) -> Block:
        """Return the part with `low_ms` < time <= `high_ms`."""
        size = len(self.times)
        if not size:
            return self
        a = int(self.times.searchsorted(low_ms, "right"))
        newest = int(self.times[-1]) <= high_ms
        b = size if newest else int(self.times.searchsorted(high_ms, "right"))
        if a == 0 and b == size:
            return self
        clean = self._gaps is not None and self.clean
        gaps = None if clean or self._gaps is None else np.maximum(self._gaps - a, -1)
        cut = Block(
            self.times[a:b], self.labels, self.matrix[:, a:b], clock=(self.clock, a, b),
            rows=self.rows, gaps=gaps,
        )
        cut._clean = True if clean else None
        return cut

    def parts(self, drop_stale: bool) -> list[Block]:
        """Return blocks in which no sample is missing; with `drop_stale`, no marker either."""
        if self.clean:
            return [self]
        if drop_stale not in self._parts:
            self._parts[drop_stale] = list(_split(self, drop_stale))
        return self._parts[drop_stale]


def last_gaps(values: Floats) -> Ints:
    """Return for each row the column of its last stale marker or missing sample, else -1."""
    with np.errstate(all="ignore"):
        if not np.isnan(values.sum()):  # one cheap pass: a gap is a NaN
            return np.full(values.shape[0], -1, dtype=np.int64)
    bits = np.ascontiguousarray(values).view(np.int64)
    gap = (bits == STALE_BITS) | (bits == ABSENT_BITS)
    found = gap.any(axis=1)
    last = values.shape[1] - 1 - np.argmax(gap[:, ::-1], axis=1)
    return np.where(found, last, -1)


def patterns(values: Floats, drop_stale: bool) -> tuple[Bools, dict[bytes, list[int]]]:
    """Return where samples are missing, bool[S, T], and the rows of each pattern of that."""
    missing = is_absent(values)
    if drop_stale:
        missing |= is_stale(values)
    found: dict[bytes, list[int]] = {}
    for row, pattern in enumerate(np.packbits(missing, axis=1)):
        found.setdefault(pattern.tobytes(), []).append(row)
    return missing, found


def _split(block: Block, drop_stale: bool) -> Iterable[Block]:
    """Group the rows by where their samples are missing."""
    values = np.ascontiguousarray(block.values)
    missing, found = patterns(values, drop_stale)
    for pattern, rows in found.items():
        columns = ~missing[rows[0]]
        if columns.any():
            every = bool(columns.all())
            yield Block(
                block.times[columns],
                [block.labels[r] for r in rows],
                values[rows] if every else np.ascontiguousarray(values[rows][:, columns]),
                clock=block.clock if every else (block.clock, pattern),
                gaps=np.full(len(rows), -1, dtype=np.int64) if drop_stale else None,
            )


class Storage(Protocol):
    """A frozen view of series. It never changes, so answers may be kept in `memo`."""

    @property
    def memo(self) -> Memo: ...

    def select(self, matchers: Sequence[Matcher]) -> Sequence[Block]:
        """Return the blocks of all series that match; the same call gives the same blocks."""
        ...


class Memo:
    """A bounded scratch space; when it is full, the oldest entries go."""

    __slots__ = ("_entries", "limit")

    def __init__(self, limit: int = 8_192) -> None:
        self.limit = limit
        self._entries: dict[Hashable, Any] = {}

    def get(self, key: Hashable) -> Any:
        return self._entries.get(key)

    def put(self, key: Hashable, value: Any) -> Any:
        if len(self._entries) >= self.limit:
            for old in list(self._entries)[: self.limit // 4]:
                self._entries.pop(old, None)
        self._entries[key] = value
        return value
