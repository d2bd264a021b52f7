"""Which samples each step sees: bounds per group of series, shared by all that ask the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from resilience.model import Labels
from resilience.promql.storage import STALE_BITS, Block, Bools, Floats, Ints, Memo
from resilience.promql.vector import Vec, concat


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

    `shared` keeps what depends on times and bounds only; `derived` what depends on the samples.
    """

    labels: Sequence[Labels]
    values: Floats
    times: Ints
    lo: Ints
    hi: Ints
    reach: Reach
    shared: dict[str, Any]
    derived: dict[str, Any]

    @property
    def counts(self) -> Ints:
        if "counts" not in self.shared:
            self.shared["counts"] = self.hi - self.lo
        return self.shared["counts"]  # type: ignore[no-any-return]

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
        return np.take(self.values, columns, axis=1)

    def slice(self) -> Floats:
        """Return float64[S, n]: the samples of the only step."""
        return self.values[:, int(self.lo[0]) : int(self.hi[0])]


# A range function turns a window into float64[S, K] and where there is a result, bool[K].
RangeFunction: TypeAlias = Callable[[Window], tuple[Floats, Bools]]


def windows(blocks: Sequence[Block], reach: Reach, memo: Memo) -> Iterator[Window]:
    """Yield a dense window for each group of series that share their sample times."""
    single = len(reach.ends) == 1
    for block in blocks:
        near = block
        if single:
            end = int(reach.ends[0])
            near = block.between(end - reach.range_ms, end)
        for part in near.parts(True):
            if len(part.times):
                yield _window(part, reach, memo, single)


def _window(part: Block, reach: Reach, memo: Memo, single: bool) -> Window:
    if single:
        count = np.array([len(part.times)], dtype=np.int64)
        zero = np.zeros(1, dtype=np.int64)
        return Window(part.labels, part.values, part.times, zero, count, reach, {}, part.derived)
    lo, hi, shared = bounds(part, reach, memo)
    return Window(part.labels, part.values, part.times, lo, hi, reach, shared, part.derived)


def bounds(part: Block, reach: Reach, memo: Memo) -> tuple[Ints, Ints, dict[str, Any]]:
    """Return (lo, hi, shared) of left-open windows `(end - range, end]`."""
    key = ("window", part.clock, reach.range_ms, reach.key)
    found = memo.get(key)
    if found is None:
        hi = np.searchsorted(part.times, reach.ends, "right")
        lo = np.searchsorted(part.times, reach.ends - reach.range_ms, "right")
        found = memo.put(key, (lo, hi, {}))
    return found  # type: ignore[no-any-return]


def collect(
    blocks: Sequence[Block], reach: Reach, memo: Memo, function: RangeFunction
) -> Vec:
    """Apply a range function to every window and stack the results."""
    parts: list[Vec] = []
    for window in windows(blocks, reach, memo):
        values, there = function(window)
        if there.all():
            parts.append(Vec(window.labels, values))
        elif there.any():
            parts.append(Vec(window.labels, values, np.broadcast_to(there, values.shape)))
    return concat(parts, len(reach.ends))


def latest(blocks: Sequence[Block], reach: Reach, memo: Memo, times: bool = False) -> Vec:
    """Return each step's newest sample that is not older than the look-back; stale ends a series.

    `reach.range_ms` is the look-back. With `times` the values are the samples' times in seconds.
    """
    parts: list[Vec] = []
    single = len(reach.ends) == 1
    for block in blocks:
        near = block
        if single:
            end = int(reach.ends[0])
            near = block.between(end - reach.range_ms, end)
        for part in near.parts(False):
            if len(part.times):
                found = _latest(part, reach, memo, times, single)
                if found is not None:
                    parts.append(found)
    return concat(parts, len(reach.ends))


def _latest(part: Block, reach: Reach, memo: Memo, times: bool, single: bool) -> Vec | None:
    if single:
        columns = np.array([len(part.times) - 1], dtype=np.int64)
        there = np.ones(1, dtype=bool)
    else:
        lo, hi, shared = bounds(part, reach, memo)
        if "latest" not in shared:
            shared["latest"] = (np.maximum(hi - 1, 0), hi > lo)
        columns, there = shared["latest"]
    values = np.take(part.values, columns, axis=1)
    present = None if there.all() else np.broadcast_to(there, values.shape)
    if not part.clean:
        fresh = values.view(np.int64) != STALE_BITS
        if not fresh.all():
            present = fresh if present is None else present & fresh
    if times:
        values = np.broadcast_to(part.times[columns] / 1000.0, values.shape)
    vec = Vec(part.labels, values, present)
    return vec if present is None else vec.kept(present)
