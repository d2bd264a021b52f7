"""Aggregations over many series without holding them all: group after group of series is
computed, folded into running sums and forgotten."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from resilience.arrays import np
from resilience.promql import kernel
from resilience.promql.aggregate import numbered
from resilience.promql.compensated import Running
from resilience.promql.storage import Bools, Floats, Ints
from resilience.promql.vector import IDENTITY, Vec
from resilience.samples import Labels

# Series of one scrape group: labels, float64[S, K] with 0 where nothing is, and where something
# is, bool[K].
Part: TypeAlias = tuple[Sequence[Labels], Floats, Bools]


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """The value of a node, group by group. `labels` are those of all its series as they are
    stored; `named` says whether the metric name is a part of the value."""

    labels: Sequence[Labels]
    parts: Iterator[Part]
    named: bool


# Fewer groups than a third of the series, or the plain way is as good.
_REDUCTION = 3
OPERATIONS = frozenset({"sum", "avg", "count", "group", "min", "max"})


class _Groups:
    """Running results of each group, float64[G, K]."""

    def __init__(self, op: str, count: int, steps: int) -> None:
        self.op = op
        shape = (count, steps)
        self.counts, self.sizes = np.zeros(shape), np.zeros(count, dtype=np.int64)
        summing, ranking = op in ("sum", "avg"), op in ("min", "max")
        self.total = np.zeros(shape if summing else (0, steps))
        self.c = np.zeros(shape if summing else (0, steps))
        self.best = np.full(shape if ranking else (0, steps), np.nan)

    def fold(self, numbers: Sequence[int], values: Floats, there: Bools) -> None:
        """Take rows; `numbers` says to which group each belongs."""
        groups = np.array(numbers, dtype=np.int64)
        self._count(np.bincount(groups, minlength=len(self.sizes)), there)
        compiled = kernel.active() if self.op in ("sum", "avg") else None
        if compiled is not None:
            rows = np.arange(len(groups) + 1, dtype=np.int64)
            compiled.group_sums(values, rows[:-1], rows, groups, self.total, self.c)
            return
        members: dict[int, list[int]] = {}
        for row, group in enumerate(numbers):
            members.setdefault(group, []).append(row)
        if self.op in ("sum", "avg"):
            self._add(members, values)
        elif self.op in ("min", "max"):
            best = np.fmin if self.op == "min" else np.fmax
            for group, some in members.items():
                found = best(self.best[group], best.reduce(values[some], axis=0))
                self.best[group] = np.where(there, found, self.best[group])

    def _count(self, sizes: Ints, there: Bools) -> None:
        """Most parts are there at most steps: only where they are not, a step is touched."""
        self.sizes += sizes
        gone = np.flatnonzero(~there)
        if len(gone):
            here = np.flatnonzero(sizes)
            self.counts[here[:, None], gone] -= sizes[here][:, None]

    def _add(self, members: dict[int, list[int]], values: Floats) -> None:
        for group, some in members.items():
            one = Running.resumed(self.total[group], self.c[group])
            for row in some:
                one.add(values[row])
            self.total[group], self.c[group] = one.total, one.c

    def result(self) -> Floats | None:
        """Return float64[G, K]; None if a mean overflowed, which must be done another way."""
        self.counts += self.sizes[:, None]
        sums = Running.resumed(self.total, self.c)
        if self.op == "sum":
            return sums.result()
        if self.op == "avg":
            return None if sums.overflowed().any() else sums.mean(np.maximum(self.counts, 1.0))
        if self.op == "group":
            return np.ones_like(self.counts)
        return self.counts if self.op == "count" else self.best


def aggregate(
    op: str, stream: Stream, names: frozenset[str], without: bool, steps: int
) -> Vec | None:
    """Fold the parts of a stream. None if it would not pay, or cannot give the exact result."""
    if not stream.named:
        names -= IDENTITY
    kept, places = numbered(stream.labels, names, without)
    if len(kept) * _REDUCTION > len(stream.labels):
        return None
    # By identity: the stream's parts hold the very label sets that it lists.
    numbers = dict(zip(map(id, stream.labels), places, strict=True))
    groups = _Groups(op, len(kept), steps)
    for labels_here, values, there in stream.parts:
        groups.fold([numbers[id(labels)] for labels in labels_here], values, there)
    result = groups.result()
    if result is None:
        return None
    present = groups.counts > 0
    vec = Vec(kept, result)
    return vec if present.all() else vec.kept(present)
