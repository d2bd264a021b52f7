"""Aggregations over many series without holding them all: group after group of series is
computed, folded into running sums and forgotten."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from resilience.arrays import np
from resilience.promql import kernel
from resilience.promql.aggregate import group_labels
from resilience.promql.compensated import Running
from resilience.promql.storage import Bools, Floats
from resilience.promql.vector import Vec
from resilience.samples import Labels

# Series of one scrape group: labels, float64[S, K] with 0 where nothing is, and where something
# is, bool[K].
Part = tuple[Sequence[Labels], Floats, Bools]

# Fewer groups than a third of the series, or the plain way is as good.
_REDUCTION = 3
OPERATIONS = frozenset({"sum", "avg", "count", "group", "min", "max"})


class _Groups:
    """Running results of each group, float64[G, K]."""

    def __init__(self, op: str, count: int, steps: int) -> None:
        self.op = op
        shape = (count, steps)
        self.counts = np.zeros(shape)
        summing, ranking = op in ("sum", "avg"), op in ("min", "max")
        self.total = np.zeros(shape if summing else (0, steps))
        self.c = np.zeros(shape if summing else (0, steps))
        self.best = np.full(shape if ranking else (0, steps), np.nan)

    def fold(self, members: dict[int, list[int]], values: Floats, there: Bools) -> None:
        for group, rows in members.items():
            self.counts[group] += there * float(len(rows))
        if self.op in ("sum", "avg"):
            self._add(members, values)
        elif self.op in ("min", "max"):
            best = np.fmin if self.op == "min" else np.fmax
            for group, rows in members.items():
                found = best(self.best[group], best.reduce(values[rows], axis=0))
                self.best[group] = np.where(there, found, self.best[group])

    def _add(self, members: dict[int, list[int]], values: Floats) -> None:
        compiled = kernel.active()
        if compiled is not None:
            rows = np.array([r for some in members.values() for r in some], dtype=np.int64)
            first = np.cumsum([0, *(len(some) for some in members.values())], dtype=np.int64)
            group_rows = np.array(list(members), dtype=np.int64)
            compiled.group_sums(values, rows, first, group_rows, self.total, self.c)
            return
        for group, some in members.items():
            one = Running.resumed(self.total[group], self.c[group])
            for row in some:
                one.add(values[row])
            self.total[group], self.c[group] = one.total, one.c

    def result(self) -> Floats | None:
        """Return float64[G, K]; None if a mean overflowed, which must be done another way."""
        sums = Running.resumed(self.total, self.c)
        if self.op == "sum":
            return sums.result()
        if self.op == "avg":
            return None if sums.overflowed().any() else sums.mean(np.maximum(self.counts, 1.0))
        if self.op == "group":
            return np.ones_like(self.counts)
        return self.counts if self.op == "count" else self.best


def aggregate(
    op: str, series: Sequence[Labels], parts: Iterable[Part], names: frozenset[str],
    without: bool, steps: int,
) -> Vec | None:
    """Fold the parts of `series`. None if it would not pay, or cannot give the exact result."""
    index: dict[Labels, int] = {}
    for labels in series:
        index.setdefault(group_labels(labels, names, without), len(index))
    if len(index) * _REDUCTION > len(series):
        return None
    groups = _Groups(op, len(index), steps)
    for labels_here, values, there in parts:
        members: dict[int, list[int]] = {}
        for row, labels in enumerate(labels_here):
            members.setdefault(index[group_labels(labels, names, without)], []).append(row)
        groups.fold(members, values, there)
    result = groups.result()
    if result is None:
        return None
    present = groups.counts > 0
    vec = Vec(list(index), result)
    return vec if present.all() else vec.kept(present)
