"""The *_over_time family. Many steps at once go sample by sample of the window, one step goes
along the samples; both add as Prometheus does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from resilience.arrays import np
from resilience.promql import compensated, kernel
from resilience.promql.compensated import Running
from resilience.promql.storage import Bools, Floats, Ints
from resilience.promql.windows import RangeFunction, Window

_FEW = 8


def samples(window: Window) -> Iterator[tuple[Floats, Bools | None]]:
    """Yield the window's samples oldest first: float64[S, K] and where there is one, bool[K]."""
    top = len(window.times) - 1
    counts = window.counts
    fewest = int(counts.min(initial=0))
    for place in range(window.longest):
        there = None if place < fewest else place < counts
        yield window.gather(np.minimum(window.lo + place, top)), there


def running(window: Window) -> Running:
    total = Running((len(window.labels), len(window.lo)))
    for value, there in samples(window):
        total.add(value, there)
    return total


def _compiled_sums(window: Window) -> tuple[Floats, Floats] | None:
    """Return sums and means by the compiled kernel, if it is there."""
    compiled = kernel.active()
    if compiled is None:
        return None
    shape = (len(window.labels), len(window.lo))
    sums, means = np.empty(shape), np.empty(shape)
    compiled.window_sums(window.values, window.lo, window.hi, sums, means)
    return sums, means


def sum_over_time(window: Window) -> tuple[Floats, Bools]:
    found = _compiled_sums(window)
    if found is not None:
        return found[0], window.counts > 0
    with np.errstate(all="ignore"):
        if len(window.lo) == 1 and window.longest:
            total, c = compensated.columns_total(window.slice())
            return np.where(np.isfinite(total), total + c, total)[:, None], window.counts > 0
        return running(window).result(), window.counts > 0


def avg_over_time(window: Window) -> tuple[Floats, Bools]:
    found = _compiled_sums(window)
    if found is not None:
        return found[1], window.counts > 0
    counts = np.maximum(window.counts, 1).astype(np.float64)
    with np.errstate(all="ignore"):
        if len(window.lo) == 1 and window.longest:
            total, c = compensated.columns_total(window.slice())
            plain = (total / counts[0])[:, None]
            c = np.where(np.isfinite(total), c, 0.0)
            mean = plain + (c / counts[0])[:, None]
            over = np.isinf(total)[:, None]
        else:
            sums = running(window)
            mean, over = sums.mean(counts), sums.overflowed()
    _redo(window, mean, over, compensated.mean_of)
    return mean, window.counts > 0


def _redo(
    window: Window, result: Floats, cells: Bools, function: Callable[[list[float]], float]
) -> None:
    """Compute single cells again from their samples."""
    for row, step in zip(*(i.tolist() for i in np.nonzero(cells)), strict=True):
        a, b = int(window.lo[step]), int(window.hi[step])
        if b > a:
            result[row, step] = function(window.values[row, a:b].tolist())


def _extreme(best: np.ufunc) -> RangeFunction:
    """Return max or min: NaN only if there is nothing else; two overlapping blocks are enough."""

    def function(window: Window) -> tuple[Floats, Bools]:
        there = window.counts > 0
        if len(window.lo) == 1 and window.longest:
            return best.reduce(window.slice(), axis=1, keepdims=True), there
        if window.longest <= _FEW:
            return _extreme_of_few(window, best), there
        return _extreme_of_many(window, best), there

    return function


def _extreme_of_few(window: Window, best: np.ufunc) -> Floats:
    result = window.gather(window.first)
    for value, inside in samples(window):
        found = best(result, value)
        result = found if inside is None else np.where(inside, found, result)
    return result


def _extreme_of_many(window: Window, best: np.ufunc) -> Floats:
    """Blocks of each power of two, then two of them cover any window."""
    counts = np.maximum(window.counts, 1)
    power = np.frexp(counts.astype(np.float64))[1] - 1
    result = np.empty((len(window.labels), len(window.lo)))
    level, blocks = 0, window.values
    for wanted in sorted(set(power.tolist())):
        while level < wanted:
            half = 1 << level
            blocks = best(blocks[:, :-half], blocks[:, half:])
            level += 1
        steps = np.flatnonzero(power == wanted)
        top = blocks.shape[1] - 1
        a = np.minimum(window.lo[steps], top)
        b = np.clip(window.hi[steps] - (1 << wanted), 0, top)
        result[:, steps] = best(np.take(blocks, a, axis=1), np.take(blocks, b, axis=1))
    return result


def stdvar_over_time(window: Window) -> tuple[Floats, Bools]:
    shape = (len(window.labels), len(window.lo))
    compiled = kernel.active()
    if compiled is not None:
        variance = np.empty(shape)
        compiled.window_variance(window.values, window.lo, window.hi, variance)
        return variance, window.counts > 0
    mean, aux = Running(shape), Running(shape)
    with np.errstate(all="ignore"):
        for place, (value, there) in enumerate(samples(window)):
            delta = value - (mean.total + mean.c)
            mean.add(delta / (place + 1.0), there)
            aux.add(delta * (value - (mean.total + mean.c)), there)
        variance = (aux.total + aux.c) / window.counts
        _redo(window, variance, ~np.isfinite(variance), compensated.variance_of)
        return variance, window.counts > 0


def stddev_over_time(window: Window) -> tuple[Floats, Bools]:
    variance, there = stdvar_over_time(window)
    with np.errstate(all="ignore"):
        return np.sqrt(variance), there


def last_over_time(window: Window) -> tuple[Floats, Bools]:
    return window.gather(window.last), window.counts > 0


def first_over_time(window: Window) -> tuple[Floats, Bools]:
    return window.gather(window.first), window.counts > 0


def count_over_time(window: Window) -> tuple[Floats, Bools]:
    shape = (len(window.labels), len(window.lo))
    return np.broadcast_to(window.counts.astype(np.float64), shape), window.counts > 0


def present_over_time(window: Window) -> tuple[Floats, Bools]:
    return np.ones((len(window.labels), len(window.lo))), window.counts > 0


def quantile_over_time(q: Floats) -> RangeFunction:
    """Return the function for the quantile q[K]."""

    def function(window: Window) -> tuple[Floats, Bools]:
        result = np.full((len(window.labels), len(window.lo)), np.nan)
        counts = window.counts
        compiled = kernel.active()
        if compiled is not None:
            ranks = np.ascontiguousarray(q)
            compiled.window_quantile(window.values, window.lo, window.hi, ranks, result)
            return result, counts > 0
        for count in np.unique(counts[counts > 0]).tolist():
            steps = np.flatnonzero(counts == count)
            for some in np.array_split(steps, max(1, result.shape[0] * len(steps) * count >> 21)):
                columns = window.lo[some][:, None] + np.arange(count)
                found = np.take(window.values, columns, axis=1)
                result[:, some] = quantile_sorted(q[some], found)
        return result, counts > 0

    return function


def quantile_sorted(q: Floats, values: Floats) -> Floats:
    """Return the quantiles q[K] of float64[S, K, n] along the last axis; NaN sorts first."""
    n = values.shape[-1]
    nans = np.count_nonzero(np.isnan(values), axis=-1)
    ordered = np.sort(values, axis=-1)
    with np.errstate(all="ignore"):
        rank = q * (n - 1.0)
        floor = np.floor(np.nan_to_num(np.clip(rank, 0, n - 1.0)))
        weight = rank - np.floor(rank)
        low = floor.astype(np.int64)
        high = np.minimum(n - 1, low + 1)
        result = _pick(ordered, low, nans) * (1 - weight) + _pick(ordered, high, nans) * weight
    result = np.where(q < 0, -np.inf, np.where(q > 1, np.inf, result))
    return np.where(np.isnan(q), np.nan, result)


def _pick(ordered: Floats, index: Ints, nans: Ints) -> Floats:
    """Take from values with NaN last as if NaN came first."""
    place = index - nans
    wanted = np.broadcast_to(np.where(place < 0, ordered.shape[-1] - 1, place), ordered.shape[:-1])
    return np.take_along_axis(ordered, wanted[..., None], axis=-1)[..., 0]


def mad_over_time(window: Window) -> tuple[Floats, Bools]:
    result = np.full((len(window.labels), len(window.lo)), np.nan)
    half = np.array([0.5])
    for step in np.flatnonzero(window.counts > 0).tolist():
        values = window.values[:, None, int(window.lo[step]) : int(window.hi[step])]
        middle = quantile_sorted(half, values)
        result[:, step] = quantile_sorted(half, np.abs(values - middle[..., None]))[:, 0]
    return result, window.counts > 0


def _time_of(better: np.ufunc | None) -> RangeFunction:
    """Return the time of the last extreme sample (None: of the last sample) in seconds."""

    def function(window: Window) -> tuple[Floats, Bools]:
        columns = np.broadcast_to(window.last, (len(window.labels), len(window.lo)))
        if better is not None:
            columns = np.broadcast_to(window.first, columns.shape).copy()
            best = window.gather(window.first)
            for place, (value, there) in enumerate(samples(window)):
                wins = (better(value, best) | np.isnan(best)) & (True if there is None else there)
                best = np.where(wins, value, best)
                columns = np.where(wins, window.lo + place, columns)
        return window.times[columns] / 1000.0, window.counts > 0

    return function


RANGE_FUNCTIONS: dict[str, RangeFunction] = {
    "sum_over_time": sum_over_time,
    "avg_over_time": avg_over_time,
    "max_over_time": _extreme(np.fmax),
    "min_over_time": _extreme(np.fmin),
    "stdvar_over_time": stdvar_over_time,
    "stddev_over_time": stddev_over_time,
    "last_over_time": last_over_time,
    "first_over_time": first_over_time,
    "count_over_time": count_over_time,
    "present_over_time": present_over_time,
    "mad_over_time": mad_over_time,
    "ts_of_last_over_time": _time_of(None),
    "ts_of_max_over_time": _time_of(np.greater_equal),
    "ts_of_min_over_time": _time_of(np.less_equal),
}
