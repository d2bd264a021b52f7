"""deriv, predict_linear and double exponential smoothing."""

from __future__ import annotations

from collections.abc import Iterator

from resilience.arrays import np
from resilience.promql import kernel
from resilience.promql.compensated import Running
from resilience.promql.overtime import samples
from resilience.promql.storage import Bools, Floats, Ints
from resilience.promql.vector import evaluation_error
from resilience.promql.windows import RangeFunction, Window

_CELLS = 1 << 13  # what stays in the cache of one core, four times


def deriv(window: Window) -> tuple[Floats, Bools]:
    origin = window.times[window.first]
    slope, _ = fitted(window, origin)
    return slope, window.counts > 1


def predict_linear(seconds: Floats) -> RangeFunction:
    """Return the function for a prediction `seconds`[K] ahead of each step."""

    def function(window: Window) -> tuple[Floats, Bools]:
        slope, intercept = fitted(window, window.reach.steps)
        with np.errstate(all="ignore"):
            return slope * seconds + intercept, window.counts > 1

    return function


def fitted(window: Window, origin: Ints) -> tuple[Floats, Floats]:
    """Return slope and intercept at `origin`[K] (ms) of the least-squares line, float64[S, K]."""
    shape = (len(window.labels), len(window.lo))
    slope, intercept = np.zeros(shape), np.zeros(shape)
    compiled = kernel.active()
    if compiled is not None:
        compiled.window_fit(
            window.values, window.times, window.lo, window.hi, np.ascontiguousarray(origin),
            slope, intercept,
        )
        return slope, intercept
    steps = np.flatnonzero(window.counts > 1)
    width = max(1, _CELLS // max(1, shape[0]))
    for i in range(0, len(steps), width):
        some = steps[i : i + width]
        slope[:, some], intercept[:, some] = _fit(window, some, origin[some])
    return slope, intercept


def _fit(window: Window, steps: Ints, origin: Ints) -> tuple[Floats, Floats]:
    """Four sums at once, of x, x * x, y and x * y: fewer and larger array operations."""
    shape = (len(window.labels), len(steps))
    sums = Running((4, *shape))
    terms = np.empty((4, *shape))
    lo, counts = window.lo[steps], window.counts[steps]
    first = np.take(window.values, lo, axis=1)
    constant = np.ones(shape, dtype=bool)
    with np.errstate(all="ignore"):
        for columns, there in _columns(lo, counts, len(window.times) - 1):
            y = np.take(window.values, columns, axis=1, out=terms[2], mode="clip")
            terms[0] = (window.times[columns] - origin) / 1000.0
            np.multiply(terms[0], terms[0], out=terms[1])
            np.multiply(terms[0], y, out=terms[3])
            constant &= (y == first) if there is None else (y == first) | ~there
            sums.add(terms, there)
        n = counts.astype(np.float64)
        sx, sx2, sy, sxy = sums.result()
        slope = (sxy - sx * sy / n) / (sx2 - sx * sx / n)
        intercept = sy / n - slope * sx / n
    level = np.where(np.isinf(first), np.nan, first)
    flat = np.where(np.isinf(first), np.nan, 0.0)
    return np.where(constant, flat, slope), np.where(constant, level, intercept)


def _columns(lo: Ints, counts: Ints, top: int) -> Iterator[tuple[Ints, Bools | None]]:
    fewest = int(counts.min())
    for place in range(int(counts.max())):
        there = None if place < fewest else place < counts
        yield np.minimum(lo + place, top), there


def double_exponential_smoothing(level: Floats, trend: Floats) -> RangeFunction:
    """Return the function for the smoothing factors level[K] and trend[K], both within (0, 1).

    As in Prometheus, NaN is let through, and nobody looks at them where there is no sample.
    """

    def function(window: Window) -> tuple[Floats, Bools]:
        used = np.asarray(window.counts > 0)
        for name, short, factor in (("smoothing", "sf", level), ("trend", "tf", trend)):
            bad = used & ((factor <= 0) | (factor >= 1))
            if bad.any():
                raise evaluation_error(
                    f"invalid {name} factor. Expected: 0 < {short} < 1, got: {factor[bad][0]:f}"
                )
        return _smoothed(window, level, trend), window.counts > 1

    return function


def _smoothed(window: Window, level: Floats, trend: Floats) -> Floats:
    """Run the filter sample by sample; the trend starts with the first difference."""
    before = now = window.gather(window.first)
    slope = window.gather(np.minimum(window.first + 1, len(window.times) - 1)) - now
    with np.errstate(all="ignore"):
        for place, (value, there) in enumerate(samples(window)):
            if place == 0:
                continue
            inside = np.True_ if there is None else there
            if place > 1:
                slope = np.where(inside, trend * (now - before) + (1 - trend) * slope, slope)
            new = level * value + (1 - level) * (now + slope)
            before, now = np.where(inside, now, before), np.where(inside, new, now)
    return now


RANGE_FUNCTIONS: dict[str, RangeFunction] = {"deriv": deriv}
