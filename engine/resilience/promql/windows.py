"""Which samples each step sees: bounds per group of series, shared by all that ask the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from resilience.arrays import np
from resilience.promql import kernel
from resilience.promql.budget import SERIES_COST
from resilience.promql.storage import ABSENT_BITS, STALE_BITS, Block, Bools, Floats, Ints, Memo
from resilience.promql.vector import Vec, bounded
from resilience.samples import Labels


@dataclass(frozen=True, slots=True)
class Reach:
    """How a selector looks back from each step: window ends int64[K], window length, step times.

    `ends` is already shifted by offset and `@`. `key` identifies `ends` for the caches.
    """

    ends: Ints
    range_ms: int
    steps: Ints
    key: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Dense series with the bounds of each step's window: columns `lo` <= j < `hi`, int64[K].

    `shared` keeps what depends on times and bounds only; the block's `derived` what depends on the
    samples. `room` float64[S, K] is where the result will lie; a function may put it there itself.
    """

    block: Block
    lo: Ints
    hi: Ints
    reach: Reach
    shared: dict[str, Any]
    room: Floats | None = None

    def result(self) -> Floats:
        """Return float64[S, K] to be filled with the result."""
        if self.room is not None:
            return self.room
        return np.empty((len(self.labels), len(self.lo)))

    def into(self, room: Floats) -> Window:
        """Return the same window with room for its result."""
        return Window(self.block, self.lo, self.hi, self.reach, self.shared, room)

    @property
    def labels(self) -> Sequence[Labels]:
        return self.block.labels

    @property
    def values(self) -> Floats:
        return self.block.values

    @property
    def times(self) -> Ints:
        return self.block.times

    @property
    def derived(self) -> dict[str, Any]:
        return self.block.derived

    @property
    def counts(self) -> Ints:
        if "counts" not in self.shared:
            self.shared["counts"] = self.hi - self.lo
        return self.shared["counts"]  # type: ignore[no-any-return]

    @property
    def samples(self) -> int:
        """How many samples the windows of one series hold together."""
        if "samples" not in self.shared:
            self.shared["samples"] = int(self.counts.sum())
        return self.shared["samples"]  # type: ignore[no-any-return]

    @property
    def longest(self) -> int:
        if "longest" not in self.shared:
            self.shared["longest"] = int(self.counts.max(initial=0))
        return self.shared["longest"]  # type: ignore[no-any-return]

    @property
    def first(self) -> Ints:
        """Columns of the oldest samples, clipped where a window is empty."""
        return np.minimum(self.lo, len(self.times) - 1)

    @property
    def last(self) -> Ints:
        return np.maximum(self.hi - 1, 0)

    def gather(self, columns: Ints) -> Floats:
        """Return float64[S, K] of the samples at `columns`, one for each step."""
        return self.block.gather(columns)

    def slice(self) -> Floats:
        """Return float64[S, n]: the samples of the only step."""
        return self.values[:, int(self.lo[0]) : int(self.hi[0])]


_FIRST = np.zeros(1, dtype=np.int64)

# Told what work will cost before it is done; raises if it is too much.
Charge: TypeAlias = Callable[[int], None]
# A range function turns a window into float64[S, K] and where there is a result, bool[K].
RangeFunction: TypeAlias = Callable[[Window], tuple[Floats, Bools]]


def windows(
    blocks: Sequence[Block], reach: Reach, memo: Memo, charge: Charge
) -> Iterator[Window]:
    """Yield a dense window for each group of series that share their sample times.

    `charge` is told how many samples each holds, which does not depend on how they are stored.
    """
    single = len(reach.ends) == 1
    for block in _near(blocks, reach):
        for part in block.parts(True):
            if len(part.times):
                window = _window(part, reach, memo, single)
                if window.samples:
                    charge(len(part.labels) * (SERIES_COST + window.samples))
                yield window


def _window(part: Block, reach: Reach, memo: Memo, single: bool) -> Window:
    if single:
        known = len(part.times)
        count = np.array([known])
        shared = {"counts": count, "samples": known, "longest": known}
        return Window(part, _FIRST, count, reach, shared)
    lo, hi, shared = bounds(part, reach, memo)
    return Window(part, lo, hi, reach, shared)


def bounds(part: Block, reach: Reach, memo: Memo) -> tuple[Ints, Ints, dict[str, Any]]:
    """Return (lo, hi, shared) of left-open windows `(end - range, end]`."""
    key = ("window", part.clock, reach.range_ms, reach.key)
    found = memo.get(key)
    if found is None:
        found = memo.put(key, (*_bounds(part.times, reach), {}))
    return found  # type: ignore[no-any-return]


def _bounds(times: Ints, reach: Reach) -> tuple[Ints, Ints]:
    compiled = kernel.active()
    if compiled is None:
        lo = np.searchsorted(times, reach.ends - reach.range_ms, "right")
        return lo, np.searchsorted(times, reach.ends, "right")
    lo, hi = np.empty((2, len(reach.ends)), dtype=np.int64)
    compiled.bounds(times, reach.ends, np.array([reach.range_ms], dtype=np.int64), lo, hi)
    return lo, hi


def collect(
    blocks: Sequence[Block], reach: Reach, memo: Memo, function: RangeFunction, charge: Charge
) -> Vec:
    """Apply a range function to every window and stack the results."""
    steps = len(reach.ends)
    bounded(sum(len(b.labels) for b in blocks), steps)
    all_windows = list(windows(blocks, reach, memo, charge))
    found = np.empty((sum(len(w.labels) for w in all_windows), steps))
    labels: list[Labels] = []
    missing: list[tuple[slice, Bools]] = []
    for window in all_windows:
        rows = slice(len(labels), len(labels) + len(window.labels))
        room = found[rows]
        values, there = function(window.into(room))
        steps_there = np.count_nonzero(there)
        if not steps_there:
            continue
        labels += window.labels
        if values is not room:
            room[:] = values
        if steps_there < steps:
            missing.append((rows, there))
    return Vec(labels, found[: len(labels)], _present(missing, (len(labels), steps)))


def _present(missing: Sequence[tuple[slice, Bools]], shape: tuple[int, int]) -> Bools | None:
    if not missing:
        return None
    present = np.ones(shape, dtype=bool)
    for rows, there in missing:
        present[rows] = there
    return present


def range_parts(
    blocks: Sequence[Block], reach: Reach, memo: Memo, function: RangeFunction, charge: Charge
) -> Iterator[tuple[Sequence[Labels], Floats, Bools]]:
    """Yield the results of a range function group by group, 0 where there is none."""
    for window in windows(blocks, reach, memo, charge):
        values, there = function(window)
        if np.count_nonzero(there):
            yield window.labels, _cleared(values, there), there


def latest_parts(
    blocks: Sequence[Block], reach: Reach, memo: Memo
) -> Iterator[tuple[Sequence[Labels], Floats, Bools]]:
    """Yield the newest samples group by group, 0 where there is none; only of clean blocks."""
    for block in blocks:
        for part in block.parts(False):
            values = np.empty((len(part.labels), len(reach.ends)))
            there = _latest(part, reach, memo, False, values)
            if there is None:
                yield part.labels, values, np.ones(len(reach.ends), dtype=bool)
            elif np.count_nonzero(there):
                yield part.labels, _cleared(values, there), there


def _cleared(values: Floats, there: Bools) -> Floats:
    """Return fresh values with 0 where there is none."""
    if np.count_nonzero(there) == len(there):
        return np.ascontiguousarray(values)
    if not values.flags.writeable or not values.flags.c_contiguous:
        return np.where(there, values, 0.0)
    values[:, ~there] = 0.0
    return values


def latest(blocks: Sequence[Block], reach: Reach, memo: Memo, times: bool = False) -> Vec:
    """Return each step's newest sample that is not older than the look-back; stale ends a series.

    `reach.range_ms` is the look-back. With `times` the values are the samples' times in seconds.
    """
    steps = len(reach.ends)
    bounded(sum(len(b.labels) for b in blocks), steps)
    if steps == 1 and len(blocks) == 1:
        found = _newest(blocks[0], reach, times)
        if found is not None:
            return found
    parts = [
        part for block in _near(blocks, reach) for part in block.parts(False) if len(part.times)
    ]
    labels = [labels for part in parts for labels in part.labels]
    values = np.empty((len(labels), steps))
    missing: list[tuple[slice, Bools]] = []
    row = 0
    for part in parts:
        rows = slice(row, row + len(part.labels))
        row = rows.stop
        there = _latest(part, reach, memo, times, values[rows])
        if there is not None:
            missing.append((rows, there))
    present = _present(missing, (len(labels), steps))
    vec = Vec(labels, values)
    return vec if present is None else vec.kept(present)


def _newest(block: Block, reach: Reach, times: bool) -> Vec | None:
    """Return `latest` of one group at one time; None if some series has no sample in its newest
    column, so that older ones count."""
    end = int(reach.ends[0])
    near = block.between(end - reach.range_ms, end)
    if not len(near.times):
        return Vec([], np.empty((0, 1)))
    column = near.matrix[near.rows, -1:].copy()
    bits = column.view(np.int64)
    if (bits == ABSENT_BITS).any():
        return None
    ended = bits == STALE_BITS
    if times:
        column.fill(int(near.times[-1]) / 1000.0)
    vec = Vec(near.labels, column)
    return vec.kept(~ended) if ended.any() else vec


def _near(blocks: Sequence[Block], reach: Reach) -> Sequence[Block]:
    """For a single step, only its window is looked at."""
    if len(reach.ends) != 1:
        return blocks
    end = int(reach.ends[0])
    return [block.between(end - reach.range_ms, end) for block in blocks]


def _latest(
    part: Block, reach: Reach, memo: Memo, times: bool, out: Floats
) -> Bools | None:
    """Fill `out` with the newest samples; return where there is one, None if everywhere."""
    if len(reach.ends) == 1:
        columns = np.array([len(part.times) - 1], dtype=np.int64)
        there = np.ones(1, dtype=bool)
    else:
        lo, hi, shared = bounds(part, reach, memo)
        if "latest" not in shared:
            shared["latest"] = (np.maximum(hi - 1, 0), hi > lo)
        columns, there = shared["latest"]
    part.gather(columns, out)
    present = None if np.count_nonzero(there) == len(there) else there
    if not part.clean:
        fresh = out.view(np.int64) != STALE_BITS
        if not fresh.all():
            present = fresh if present is None else present & fresh
    if times:
        out[:] = part.times[columns] / 1000.0
    return present
