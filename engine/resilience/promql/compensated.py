"""Neumaier sums as Prometheus adds, over whole arrays.

The error of one addition is taken without branches (Knuth's two-sum); where nothing overflows it
equals Neumaier's, so results agree to the last bit. What overflows is done again one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from resilience.arrays import np
from resilience.promql.storage import Bools, Floats

Pair: TypeAlias = tuple[float, float]


def add(inc: float, total: float, c: float) -> Pair:
    """Return (sum, compensation) after one addition, exactly as Prometheus does it."""
    t = total + inc
    if math.isinf(t):
        return t, 0.0
    if abs(total) >= abs(inc):
        return t, c + ((total - t) + inc)
    return t, c + ((inc - t) + total)


def total_of(values: Iterable[float]) -> float:
    """Return the compensated sum, in order."""
    total = c = 0.0
    for value in values:
        total, c = add(value, total, c)
    return total + c


def mean_of(values: Sequence[float]) -> float:
    """Return the mean; a sum that overflows goes over to the incremental mean."""
    total = c = mean = 0.0
    incremental = False
    for i, value in enumerate(values):
        count = i + 1.0
        if not incremental:
            new, new_c = add(value, total, c)
            if count == 1 or not math.isinf(new):
                total, c = new, new_c
                continue
            incremental = True
            mean = total / (count - 1)
            c /= count - 1
        q = (count - 1) / count
        mean, c = add(value / count, q * mean, q * c)
    if incremental:
        return mean + c
    return total / len(values) + c / len(values)


def variance_of(values: Sequence[float]) -> float:
    """Return the population variance as the *_over_time functions compute it."""
    mean = mean_c = squares = squares_c = 0.0
    for i, value in enumerate(values):
        delta = value - (mean + mean_c)
        mean, mean_c = add(delta / (i + 1.0), mean, mean_c)
        squares, squares_c = add(delta * (value - (mean + mean_c)), squares, squares_c)
    return (squares + squares_c) / len(values)


class Running:
    """Compensated sums of many cells at once; `add` takes the next term of each cell."""

    __slots__ = ("_e", "_t", "_u", "c", "total")

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.total = np.zeros(shape)
        self.c = np.zeros(shape)
        self._t, self._u, self._e = np.empty(shape), np.empty(shape), np.empty(shape)

    @classmethod
    def resumed(cls, total: Floats, c: Floats) -> Running:
        """Go on from sums and compensations, which are not copied."""
        running = cls((0,))
        running.total, running.c = total, c.copy()
        running._t, running._u, running._e = (np.empty(total.shape) for _ in range(3))
        return running

    def add(self, inc: Floats, where: Bools | None = None) -> None:
        """Add `inc` (same shape or broadcast), only in the cells of `where` if given."""
        total, t, u, e = self.total, self._t, self._u, self._e
        if where is not None:
            inc = np.where(where, inc, 0.0)
        np.add(total, inc, out=t)
        np.subtract(t, total, out=u)
        np.subtract(t, u, out=e)
        np.subtract(total, e, out=e)
        np.subtract(inc, u, out=u)
        np.add(e, u, out=e)
        np.add(self.c, e, out=self.c)
        self.total, self._t = t, total

    def result(self) -> Floats:
        """Return the sums. An infinity or NaN in the plain sum stands as it is."""
        return np.where(np.isfinite(self.total), self.total + self.c, self.total)

    def mean(self, counts: Floats) -> Floats:
        """Return the means; cells where `overflowed` says so are for the caller to redo."""
        plain = self.total / counts
        return np.where(np.isfinite(self.total), plain + self.c / counts, plain)

    def overflowed(self) -> Bools:
        return np.isinf(self.total)


def columns_total(values: Floats) -> tuple[Floats, Floats]:
    """Return (sum, compensation) float64[S] of float64[S, n], n >= 1, along the columns.

    The sum is plain and in order, the compensation what it lacks: found by pairwise two-sums in
    log2(n) passes instead of one pass for each column.
    """
    high, low = pairwise(values)
    ordered = np.ascontiguousarray(values.T)
    total = np.add.reduce(ordered, axis=0) if len(ordered) > 1 else ordered[0].copy()
    return total, (high - total) + low


def pairwise(values: Floats) -> tuple[Floats, Floats]:
    """Return the sum of each row as an unevaluated pair (high, low)."""
    high = values
    low = np.zeros((values.shape[0], 1))
    while high.shape[1] > 1:
        even = high.shape[1] // 2 * 2
        a, b = high[:, 0:even:2], high[:, 1:even:2]
        total, error = two_sum(a, b)
        if low.shape[1] == 1:
            low = error if not low.any() else low + error
        else:
            low = low[:, 0:even:2] + low[:, 1:even:2] + error
        if even != high.shape[1]:
            total = np.concatenate([total, high[:, -1:]], axis=1)
            low = np.concatenate([low, np.zeros((low.shape[0], 1))], axis=1)
        high = total
    return high[:, 0], low[:, 0]


def two_sum(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)
