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

    The same additions as `Running`, in the same order: all partial sums at once, then the error of
    each addition, then the sum of the errors.
    """
    terms = np.zeros((values.shape[1] + 1, values.shape[0]))
    terms[1:] = values.T
    sums = np.add.accumulate(terms, axis=0)
    before, after = sums[:-1], sums[1:]
    part = after - before
    errors = (before - (after - part)) + (terms[1:] - part)
    return after[-1], np.add.accumulate(errors, axis=0)[-1] + 0.0
