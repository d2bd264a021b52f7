"""Aggregations over series: rows fall into groups, each group folds in the order of its rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

from resilience.arrays import np
from resilience.promql import compensated, kernel
from resilience.promql.compensated import Running
from resilience.promql.overtime import quantile_sorted
from resilience.promql.storage import Bools, Floats, Ints
from resilience.promql.vector import IDENTITY, Vec, empty
from resilience.samples import Labels

# (rows of the group by place, groups that have a row there) for each place in the groups.
Members: TypeAlias = list[list[int]]
# What one series alone comes out of unchanged.
_NEUTRAL = frozenset({"sum", "avg", "min", "max"})
Fold: TypeAlias = Callable[[Vec, Members], Floats]


@lru_cache(maxsize=65_536)
def group_labels(labels: Labels, names: frozenset[str], without: bool) -> Labels:
    """Return the labels that an aggregation leaves."""
    if without:
        return tuple(p for p in labels if p[0] not in names and p[0] not in IDENTITY)
    return tuple(p for p in labels if p[0] in names)


def numbered(
    label_sets: Sequence[Labels], names: frozenset[str], without: bool
) -> tuple[list[Labels], list[int]]:
    """Return the groups in order of their first row, and the number of each row's group."""
    compiled = kernel.active()
    if compiled is not None:
        numbers = np.empty(len(label_sets), np.int64)
        groups = compiled.grouped(
            label_sets, names | IDENTITY if without else names, not without, numbers
        )
        return list(groups), numbers.tolist()
    index: dict[Labels, int] = {}
    found = [index.setdefault(group_labels(x, names, without), len(index)) for x in label_sets]
    return list(index), found


def groups_of(vec: Vec, names: frozenset[str], without: bool) -> dict[Labels, list[int]]:
    """Return the rows of each group, groups in order of their first row."""
    groups, numbers = numbered(vec.labels, names, without)
    members: Members = [[] for _ in groups]
    for row, number in enumerate(numbers):
        members[number].append(row)
    return dict(zip(groups, members, strict=True))


def aggregate(op: str, vec: Vec, names: frozenset[str], without: bool) -> Vec:
    """Fold each group to one series: sum, avg, min, max, count, group, stddev, stdvar."""
    if not vec.labels:
        return empty(vec.steps)
    groups = groups_of(vec, names, without)
    if len(groups) == len(vec.labels) and op in _NEUTRAL:
        # A sum begins with 0, so that it is never -0.
        negative = op in ("sum", "avg") and bool(np.signbit(vec.values).any())
        values = vec.values + 0.0 if negative else vec.values
        return Vec(list(groups), values, vec.present, vec.drop)
    members = list(groups.values())
    present = _any_present(vec, members)
    single = vec.steps == 1 and op in _SINGLE
    with np.errstate(all="ignore"):
        values = _fold_single(op, vec, members) if single else _FOLDS[op](vec, members)
    drop = None
    if vec.drop is not None:
        drop = np.array([bool(vec.drop[rows].any()) for rows in members])
    return Vec(list(groups), values, present, drop)


def _any_present(vec: Vec, members: Members) -> Bools | None:
    if vec.present is None:
        return None
    present = np.array([vec.present[rows].any(axis=0) for rows in members])
    return None if present.all() else present


# --- one step: plain numbers are faster than arrays ---


def _fold_single(op: str, vec: Vec, members: Members) -> Floats:
    column = vec.values[:, 0].tolist()
    there = None if vec.present is None else vec.present[:, 0].tolist()
    function = _SINGLE[op]
    result: list[float] = []
    for rows in members:
        picked = [column[r] for r in rows if there is None or there[r]]
        result.append(function(picked) if picked else math.nan)
    return np.array(result)[:, None]


def _least(values: Sequence[float]) -> float:
    return min((v for v in values if v == v), default=math.nan)


def _greatest(values: Sequence[float]) -> float:
    return max((v for v in values if v == v), default=math.nan)


def _variance(values: Sequence[float]) -> float:
    """Welford's update, as Prometheus does it."""
    mean = values[0]
    squares = 0.0 if math.isfinite(mean) else math.nan
    for i, value in enumerate(values[1:], 2):
        delta = value - mean
        mean += delta / i
        squares += delta * (value - mean)
    return squares / len(values)


_SINGLE: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": compensated.total_of,
    "avg": compensated.mean_of,
    "min": _least,
    "max": _greatest,
    "count": lambda values: float(len(values)),
    "group": lambda _: 1.0,
    "stdvar": _variance,
    "stddev": lambda values: math.sqrt(_variance(values)),
}


# --- many steps ---


def _places(members: Members) -> list[tuple[Ints, Ints]]:
    """Return, for each place in a group, which groups have a row there and which row it is."""
    longest = max(len(rows) for rows in members)
    found: list[tuple[Ints, Ints]] = []
    for place in range(longest):
        some = [(g, rows[place]) for g, rows in enumerate(members) if len(rows) > place]
        found.append((np.array([g for g, _ in some]), np.array([r for _, r in some])))
    return found


def _counts(vec: Vec, members: Members) -> Floats:
    if vec.present is None:
        sizes = np.array([float(len(rows)) for rows in members])
        return np.repeat(sizes[:, None], vec.steps, axis=1)
    return np.array([vec.present[rows].sum(axis=0, dtype=np.float64) for rows in members])


def _running(vec: Vec, members: Members) -> Running:
    """Add the groups side by side while all have a row left, then the longer ones alone."""
    total = Running((len(members), vec.steps))
    values = vec.values if vec.present is None else np.where(vec.present, vec.values, 0.0)
    compiled = kernel.active()
    if compiled is not None and values.strides[-1] == values.itemsize:
        rows = np.array([r for some in members for r in some], dtype=np.int64)
        first = np.cumsum([0, *(len(some) for some in members)], dtype=np.int64)
        group = np.arange(len(members), dtype=np.int64)
        compiled.group_sums(values, rows, first, group, total.total, total.c)
        return total
    for g, places in _batches(members):
        part = Running((len(g), vec.steps))
        for row in places:
            part.add(values[row])
        total.total[g], total.c[g] = part.total, part.c
    return total


def _batches(members: Members) -> list[tuple[Ints, list[Ints]]]:
    """Return groups of equal size together: their numbers, and their rows place by place."""
    sizes: dict[int, list[int]] = {}
    for g, rows in enumerate(members):
        sizes.setdefault(len(rows), []).append(g)
    return [
        (np.array(some), [np.array([members[g][place] for g in some]) for place in range(size)])
        for size, some in sizes.items()
    ]


def _sum(vec: Vec, members: Members) -> Floats:
    return _running(vec, members).result()


def _avg(vec: Vec, members: Members) -> Floats:
    counts = np.maximum(_counts(vec, members), 1.0)
    sums = _running(vec, members)
    mean = sums.mean(counts)
    mask = vec.mask()
    for g, step in zip(*(i.tolist() for i in np.nonzero(sums.overflowed())), strict=True):
        rows = [r for r in members[g] if mask[r, step]]
        if rows:
            mean[g, step] = compensated.mean_of(vec.values[rows, step].tolist())
    return mean


def _extreme(best: np.ufunc) -> Fold:
    def fold(vec: Vec, members: Members) -> Floats:
        values = vec.values if vec.present is None else np.where(vec.present, vec.values, np.nan)
        return np.array([best.reduce(values[rows], axis=0) for rows in members])

    return fold


def _stdvar(vec: Vec, members: Members) -> Floats:
    shape = (len(members), vec.steps)
    mean, squares, count = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    mask = vec.mask()
    for g, rows in _places(members):
        value, there = vec.values[rows], mask[rows]
        new = there & (count[g] == 0)
        count[g] += there
        delta = value - mean[g]
        next_mean = np.where(new, value, mean[g] + delta / count[g])
        more = squares[g] + delta * (value - next_mean)
        start = np.where(np.isfinite(value), 0.0, np.nan)
        squares[g] = np.where(there, np.where(new, start, more), squares[g])
        mean[g] = np.where(there, next_mean, mean[g])
    return squares / count


_FOLDS: dict[str, Fold] = {
    "sum": _sum,
    "avg": _avg,
    "min": _extreme(np.fmin),
    "max": _extreme(np.fmax),
    "count": _counts,
    "group": lambda vec, members: np.ones((len(members), vec.steps)),
    "stdvar": _stdvar,
    "stddev": lambda vec, members: np.sqrt(_stdvar(vec, members)),
}


def quantile(vec: Vec, q: Floats, names: frozenset[str], without: bool) -> Vec:
    """Return the quantile q[K] of each group."""
    if not vec.labels:
        return empty(vec.steps)
    groups = groups_of(vec, names, without)
    members = list(groups.values())
    result = np.full((len(members), vec.steps), np.nan)
    for g, rows in enumerate(members):
        values = vec.values[rows].T[None]
        if vec.present is None:
            result[g] = quantile_sorted(q, values)[0]
            continue
        mask = vec.present[rows].T
        for step in np.flatnonzero(mask.any(axis=1)).tolist():
            some = values[:, step : step + 1, mask[step]]
            result[g, step] = quantile_sorted(q[step : step + 1], some)[0, 0]
    drop = None if vec.drop is None else np.array([bool(vec.drop[r].any()) for r in members])
    return Vec(list(groups), result, _any_present(vec, members), drop)
