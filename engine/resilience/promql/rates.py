"""rate, increase, delta, irate, idelta, changes, resets: the first and last samples of a window."""

from __future__ import annotations

from typing import TypeAlias

from resilience.arrays import np
from resilience.promql import kernel
from resilience.promql.storage import Bools, Floats, Ints
from resilience.promql.windows import RangeFunction, Window

Events: TypeAlias = tuple[Ints, Ints]

_MANY_RESETS = 20_000


def extrapolated(counter: bool, per_second: bool) -> RangeFunction:
    """Return Prometheus' extrapolation: to the window's edge if a sample is near, else by half
    an average interval, for counters never below zero."""

    def function(window: Window) -> tuple[Floats, Bools]:
        there, start, end, sampled, factor = _geometry(window)
        compiled = kernel.active()
        if compiled is not None and counter:
            rate = window.result()
            seconds = np.array([window.reach.range_ms / 1000.0 if per_second else 0.0])
            compiled.rates(window.values, window.lo, window.hi, start, end, sampled, factor,
                           seconds, rate)
            return rate, there
        first = window.gather(window.first)
        delta = window.gather(window.last) - first
        if not there.any():
            return delta, there
        with np.errstate(all="ignore"):
            if counter:
                _add_resets(window, delta)
                factor = _clipped(first, delta, start, end, sampled, factor)
            if per_second:
                factor = factor / (window.reach.range_ms / 1000.0)
            delta *= factor
        return delta, there

    return function


def _geometry(window: Window) -> tuple[Bools, Floats, Floats, Floats, Floats]:
    """Return where there are two samples, the seconds to add at start and end, the seconds
    sampled, and the factor of extrapolation; all of shape [K]."""
    if "extrapolation" not in window.shared:
        window.shared["extrapolation"] = (window.counts > 1, *_extrapolation(window))
    return window.shared["extrapolation"]  # type: ignore[no-any-return]


def _extrapolation(window: Window) -> tuple[Floats, Floats, Floats, Floats]:
    compiled = kernel.active()
    if compiled is not None:
        start, end, sampled, factor = np.empty((4, len(window.lo)))
        range_ms = np.array([window.reach.range_ms], dtype=np.int64)
        compiled.geometry(window.times, window.lo, window.hi, window.reach.ends, range_ms, start,
                          end, sampled, factor)
        return start, end, sampled, factor
    first, last = window.times[window.first], window.times[window.last]
    ends = window.reach.ends
    with np.errstate(all="ignore"):
        start = (first - (ends - window.reach.range_ms)) / 1000.0
        end = (ends - last) / 1000.0
        sampled = (last - first) / 1000.0
        average = sampled / (window.counts - 1.0)
        far = average * 1.1
        start = np.where(start >= far, average / 2, start)
        end = np.where(end >= far, average / 2, end)
        return start, end, sampled, (sampled + start + end) / sampled


def _clipped(
    first: Floats, delta: Floats, start: Floats, end: Floats, sampled: Floats, factor: Floats
) -> Floats:
    """Return the factor where a counter may not be extrapolated below zero: [K] or [S, K]."""
    # A cheap test with some room finds the few cells, the exact one then decides.
    near = (first * (sampled / start) <= delta * 1.000001) & (first >= 0) & (delta > 0)
    rows, steps = np.nonzero(near)
    if not len(rows):
        return factor
    to_zero = sampled[steps] * (first[rows, steps] / delta[rows, steps])
    begin = np.where(to_zero < start[steps], to_zero, start[steps])
    full = np.repeat(factor[None, :], len(first), axis=0)
    full[rows, steps] = (sampled[steps] + begin + end[steps]) / sampled[steps]
    return full


def falls(window: Window) -> Events:
    """Return (row, column) of every sample that is lower than the one before."""
    if "falls" not in window.derived:
        values = window.values
        window.derived["falls"] = np.nonzero(values[:, 1:] < values[:, :-1])
    rows, before = window.derived["falls"]
    return rows, before + 1


def changed(window: Window) -> Events:
    """Return (row, column) of every sample that differs from the one before; NaN equals NaN."""
    if "changed" not in window.derived:
        a, b = window.values[:, :-1], window.values[:, 1:]
        window.derived["changed"] = np.nonzero((a != b) & ~(np.isnan(a) & np.isnan(b)))
    rows, before = window.derived["changed"]
    return rows, before + 1


def _add_resets(window: Window, delta: Floats) -> None:
    """Add the value before each reset inside a window, oldest first."""
    rows, columns = falls(window)
    if not len(rows):
        return
    begin = np.searchsorted(window.hi, columns, "right")
    stop = np.searchsorted(window.lo, columns - 1, "right")
    inside = begin < stop
    if np.count_nonzero(inside) > _MANY_RESETS:
        _add_many_resets(window, delta)
        return
    values = window.values
    for row, column, a, b in zip(
        rows[inside].tolist(), columns[inside].tolist(), begin[inside].tolist(),
        stop[inside].tolist(), strict=True,
    ):
        delta[row, a:b] += values[row, column - 1]


def _add_many_resets(window: Window, delta: Floats) -> None:
    top = len(window.times) - 1
    for place in range(1, window.longest):
        columns = np.minimum(window.lo + place, top)
        before = window.gather(columns - 1)
        fell = (window.gather(columns) < before) & (place < window.counts)
        delta += np.where(fell, before, 0.0)


def instant(per_second: bool) -> RangeFunction:
    """Return irate (a fall is a reset) or idelta: the last two samples only."""

    def function(window: Window) -> tuple[Floats, Bools]:
        there = window.counts > 1
        last = window.last
        before = np.maximum(last - 1, 0)
        newest = window.gather(last)
        previous = window.gather(before)
        with np.errstate(all="ignore"):
            change = newest - previous
            if per_second:
                change = np.where(newest < previous, newest, change)
                change /= (window.times[last] - window.times[before]) / 1000.0
        return change, there

    return function


def counted(events: str) -> RangeFunction:
    """Return `changes` or `resets`: how many of the events lie inside each window."""

    def function(window: Window) -> tuple[Floats, Bools]:
        rows, columns = changed(window) if events == "changes" else falls(window)
        before = np.zeros(window.values.shape, dtype=np.int32)
        before[rows, columns] = 1
        np.cumsum(before, axis=1, out=before)
        found = np.take(before, window.last, axis=1) - np.take(before, window.first, axis=1)
        return found.astype(np.float64), window.counts > 0

    return function


RANGE_FUNCTIONS: dict[str, RangeFunction] = {
    "rate": extrapolated(True, True),
    "increase": extrapolated(True, False),
    "delta": extrapolated(False, False),
    "irate": instant(True),
    "idelta": instant(False),
    "changes": counted("changes"),
    "resets": counted("resets"),
}
