"""Values between operators: vectors and scalars over all steps of a grid at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from resilience.arrays import np
from resilience.errors import PromQLError
from resilience.promql.storage import Bools, Floats, Ints
from resilience.samples import Labels

CELLS_MAX = 100_000_000
SAME_LABELSET = "vector cannot contain metrics with the same labelset"

# What names a metric: the name, and the type and unit that some servers add to it.
IDENTITY = frozenset({"__name__", "__type__", "__unit__"})


@lru_cache(maxsize=65_536)
def drop_name(labels: Labels) -> Labels:
    """Return the labels without the metric's name."""
    return tuple(p for p in labels if p[0] not in IDENTITY)


def evaluation_error(message: str) -> PromQLError:
    return PromQLError(message, kind="evaluation")


def bounded(series: int, steps: int) -> None:
    """Refuse a result that would not fit in memory."""
    if series * steps > CELLS_MAX:
        raise evaluation_error(
            f"{series} series at {steps} steps are more than {CELLS_MAX} values, "
            "use narrower matchers or a longer step"
        )


class Grid:
    """The evaluation times, int64[K] milliseconds; `key` is what makes two grids equal.

    `end_ms` is the end that was asked for, which `@ end()` means; the last time may be before it.
    """

    __slots__ = ("end_ms", "key", "size", "times")

    def __init__(self, start_ms: int, end_ms: int, step_ms: int) -> None:
        self.times: Ints = np.arange(start_ms, end_ms + 1, max(step_ms, 1), dtype=np.int64)
        self.size = len(self.times)
        self.end_ms = end_ms
        self.key = (start_ms, int(self.times[-1]) if self.size else start_ms, step_ms)

    @property
    def first(self) -> Grid:
        return Grid(int(self.times[0]), int(self.times[0]), 0)


@dataclass(frozen=True, slots=True)
class Scalar:
    """float64[K]."""

    values: Floats


@dataclass(frozen=True, slots=True)
class Text:
    """A string."""

    value: str


@dataclass(frozen=True, slots=True, eq=False)
class Vec:
    """Series over the grid: `values` float64[S, K]; `present` bool[S, K], None if all are.

    `drop` marks rows whose name goes at the end (delayed name removal), None if no row's does.
    `ranked` says that the order of rows is part of the answer.
    """

    labels: Sequence[Labels]
    values: Floats
    present: Bools | None = None
    drop: Bools | None = None
    ranked: bool = False

    @property
    def steps(self) -> int:
        return int(self.values.shape[1])

    def mask(self) -> Bools:
        """Return `present` as an array."""
        return np.ones(self.values.shape, dtype=bool) if self.present is None else self.present

    def with_values(self, values: Floats) -> Vec:
        return Vec(self.labels, values, self.present, self.drop, self.ranked)

    def take(self, rows: Sequence[int] | Ints) -> Vec:
        """Return the given rows in the given order."""
        index = np.asarray(rows, dtype=np.int64)
        return Vec(
            [self.labels[i] for i in index.tolist()], self.values[index],
            None if self.present is None else self.present[index],
            None if self.drop is None else self.drop[index],
        )

    def kept(self, present: Bools) -> Vec:
        """Return the vector with `present` as its mask, without rows that are never there."""
        some: Bools = present[:, 0] if present.shape[1] == 1 else np.asarray(present.any(axis=1))
        if np.count_nonzero(some) == len(some):
            every = np.count_nonzero(present) == present.size
            return Vec(self.labels, self.values, None if every else present, self.drop,
                       self.ranked)
        rows = np.flatnonzero(some)
        left = present[rows]
        return Vec(
            [self.labels[i] for i in rows.tolist()], self.values[rows],
            None if np.count_nonzero(left) == left.size else left,
            None if self.drop is None else self.drop[rows],
            self.ranked,
        )

    def relabelled(self, change: Callable[[Labels], Labels]) -> Vec:
        return Vec([change(x) for x in self.labels], self.values, self.present, self.drop,
                   self.ranked)


Value: TypeAlias = Vec | Scalar | Text


def empty(steps: int) -> Vec:
    return Vec([], np.empty((0, steps)))


def unnamed(vec: Vec, delayed: bool) -> Vec:
    """Take the metric names off, now or (delayed) at the end of the query."""
    if delayed:
        marks = np.ones(len(vec.labels), dtype=bool)
        return Vec(vec.labels, vec.values, vec.present, marks, vec.ranked)
    return vec.relabelled(drop_name)


def merged(vec: Vec) -> Vec:
    """Join rows with equal labels that are never present together; else it is an error."""
    if len(set(vec.labels)) == len(vec.labels):
        return vec
    rows: dict[Labels, list[int]] = {}
    for i, labels in enumerate(vec.labels):
        rows.setdefault(labels, []).append(i)
    mask = vec.mask()
    values = np.empty((len(rows), vec.steps))
    present = np.zeros((len(rows), vec.steps), dtype=bool)
    drop = None if vec.drop is None else np.zeros(len(rows), dtype=bool)
    for out, members in enumerate(rows.values()):
        for i in members:
            if (present[out] & mask[i]).any():
                raise evaluation_error(SAME_LABELSET)
            present[out] |= mask[i]
            values[out] = np.where(mask[i], vec.values[i], values[out])
            if drop is not None and vec.drop is not None:
                drop[out] |= vec.drop[i]
    return Vec(list(rows), values, None if present.all() else present, drop)


def unique(vec: Vec) -> Vec:
    """Refuse two rows with equal labels, even if they are never present together."""
    if len(set(vec.labels)) != len(vec.labels):
        raise evaluation_error(SAME_LABELSET)
    return vec


def concat(parts: Sequence[Vec], steps: int) -> Vec:
    """Put vectors one below the other."""
    if not parts:
        return empty(steps)
    if len(parts) == 1:
        return parts[0]
    labels = [x for p in parts for x in p.labels]
    values = np.concatenate([p.values for p in parts])
    present = None
    if any(p.present is not None for p in parts):
        present = np.concatenate([p.mask() for p in parts])
    drop = None
    if any(p.drop is not None for p in parts):
        drop = np.concatenate([
            np.zeros(len(p.labels), dtype=bool) if p.drop is None else p.drop for p in parts
        ])
    return Vec(labels, values, present, drop)


def drop_marked(vec: Vec) -> Vec:
    """Take off the names that were marked to go, and join what has become equal."""
    if vec.drop is None:
        return vec
    labels = [drop_name(x) if gone else x for x, gone in zip(vec.labels, vec.drop, strict=True)]
    return merged(Vec(labels, vec.values, vec.present, None, vec.ranked))
