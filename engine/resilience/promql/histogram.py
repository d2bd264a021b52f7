"""histogram_quantile and histogram_fraction on classic buckets, many histograms at once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from resilience.arrays import np
from resilience.promql import kernel
from resilience.promql.storage import Bools, Floats, Ints
from resilience.promql.vector import Vec, concat, empty
from resilience.samples import Labels

_TOLERANCE = 1e-12
_MIN_NORMAL = 2.2250738585072014e-308
_TINY = _TOLERANCE * _MIN_NORMAL
_NO_ROWS = np.empty((0, 0), dtype=np.int64)
_FLOAT = re.compile(
    r"[+-]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?|(inf|infinity))|nan", re.IGNORECASE | re.ASCII
)
_HEX = r"[+-]?0x(?:[\da-f]+(?:\.[\da-f]*)?|\.[\da-f]+)p[+-]?\d+"

# (bounds[B] rising, counts[H, B, K]) -> float64[H, K]
Kernel: TypeAlias = Callable[[Floats, Floats], Floats]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Histograms with the same bounds: their labels, and their rows [H, B] in the vector."""

    labels: list[Labels]
    bounds: Floats
    rows: Ints


@lru_cache(maxsize=65_536)
def _split(labels: Labels) -> tuple[Labels, float | None]:
    """Return the labels without `le`, and its value; None if it is missing or no number."""
    for i, (name, value) in enumerate(labels):
        if name == "le":
            rest = labels[:i] + labels[i + 1 :]
            return rest, _bound(value)
    return labels, None


def _bound(text: str) -> float | None:
    """Return the number that `text` is to Go, None if it is none or out of range."""
    if "_" in text or "x" in text.lower():
        return _rare_bound(text.lower())
    match = _FLOAT.fullmatch(text)
    value = float(text) if match else math.inf
    return None if match is None or (math.isinf(value) and not match[1]) else value


def _rare_bound(text: str) -> float | None:
    """Read a number with `_` between digits, which the `0x` in front counts as, or in hex."""
    digit, prefix = (r"\da-f", "x") if "x" in text else (r"\d", "")
    if re.search(f"(?<![{digit}{prefix}])_|_(?![{digit}])", text, re.ASCII):
        return None
    plain = text.replace("_", "")
    if "x" not in plain:
        return _bound(plain)
    try:
        return float.fromhex(plain) if re.fullmatch(_HEX, plain, re.ASCII) else None
    except OverflowError:
        return None


def _layouts(vec: Vec) -> list[_Layout]:
    histograms: dict[Labels, list[tuple[float, int]]] = {}
    for row, labels in enumerate(vec.labels):
        rest, bound = _split(labels)
        if bound is not None:
            histograms.setdefault(rest, []).append((bound, row))
    found: dict[tuple[float, ...], _Layout] = {}
    for labels, buckets in histograms.items():
        buckets.sort(key=lambda b: b[0])
        bounds = tuple(b for b, _ in buckets)
        layout = found.setdefault(bounds, _Layout([], np.array(bounds), _NO_ROWS))
        layout.labels.append(labels)
        rows = np.array([[r for _, r in buckets]])
        merged_rows = rows if not layout.rows.size else np.concatenate([layout.rows, rows])
        found[bounds] = _Layout(layout.labels, layout.bounds, merged_rows)
    return list(found.values())


def quantile(vec: Vec, q: Floats) -> Vec:
    """Return the quantile q[K] of each histogram; the labels lose `le`, not yet the name."""
    compiled = kernel.active()
    if compiled is None or vec.steps == 1 or vec.values.strides[-1] != vec.values.itemsize:
        return _each(vec, lambda bounds, counts: _quantiles(q, bounds, counts))
    return _each_compiled(vec, np.ascontiguousarray(q), compiled)


def _each_compiled(vec: Vec, q: Floats, compiled: kernel.Kernel) -> Vec:
    """Let the kernel read the buckets where they lie; what is odd goes the other way."""
    parts: list[Vec] = []
    for layout in _layouts(vec):
        bounds = layout.bounds
        there = None if vec.present is None else vec.present[layout.rows]
        some = None if there is None else np.asarray(there.any(axis=1))
        odd = there is not None and not np.array_equal(there.any(axis=1), there.all(axis=1))
        if odd or len(bounds) < 2 or bounds[-1] != np.inf or (np.diff(bounds) == 0).any():
            rest = vec.take(layout.rows.reshape(-1))
            parts.append(_each(rest, lambda bounds, counts: _quantiles(q, bounds, counts)))
            continue
        result = np.empty((len(layout.labels), vec.steps))
        compiled.bucket_quantile(vec.values, layout.rows.reshape(-1), bounds, q, result)
        part = Vec(layout.labels, result)
        parts.append(part if some is None else part.kept(some))
    return concat(parts, vec.steps) if parts else empty(vec.steps)


def fraction(vec: Vec, lower: Floats, upper: Floats) -> Vec:
    """Return the share of observations between lower[K] and upper[K]."""
    return _each(vec, lambda bounds, counts: _fractions(lower, upper, bounds, counts))


def _each(vec: Vec, kernel: Kernel) -> Vec:
    parts: list[Vec] = []
    with np.errstate(all="ignore"):
        for layout in _layouts(vec):
            values = vec.values[layout.rows]
            if vec.present is None:
                parts.append(Vec(layout.labels, kernel(layout.bounds, values)))
                continue
            parts.append(_partly(layout, values, vec.present[layout.rows], kernel))
    return concat(parts, vec.steps) if parts else empty(vec.steps)


def _partly(layout: _Layout, values: Floats, there: Bools, kernel: Kernel) -> Vec:
    """Some histograms are not there at some steps. If only some of their buckets are missing, go
    through the patterns of what is there."""
    some = np.asarray(there.any(axis=1))
    result = kernel(layout.bounds, values)
    for h in np.flatnonzero((some != there.all(axis=1)).any(axis=1)).tolist():
        patterns, which = np.unique(there[h].T, axis=0, return_inverse=True)
        for p, pattern in enumerate(patterns):
            if pattern.any():
                steps = np.flatnonzero(which.reshape(-1) == p)
                result[h, steps] = _at(kernel, layout.bounds[pattern], values[h][pattern], steps)
    return Vec(layout.labels, result).kept(some)


def _at(kernel: Kernel, bounds: Floats, counts: Floats, steps: Ints) -> Floats:
    """Run the kernel over all steps and take some: its parameters are one per step."""
    return np.asarray(kernel(bounds, counts[None])[0][steps])


def _prepared(bounds: Floats, counts: Floats) -> tuple[Floats, Floats] | None:
    """Join equal bounds; None unless the last bound is +Inf."""
    if not len(bounds) or bounds[-1] != np.inf:
        return None
    if len(set(bounds.tolist())) == len(bounds):
        return bounds, counts
    different, first = np.unique(bounds, return_index=True)
    return different, np.add.reduceat(counts, first, axis=1)


def _monotonic(counts: Floats) -> Floats:
    """Raise each bucket that is below the one before or differs from it insignificantly."""
    low, high = counts[:, :-1], counts[:, 1:]
    step = high - low
    large = (step > 2 * _TOLERANCE * (np.abs(low) + np.abs(high))) & (step >= _TINY)
    fine = (step == 0) | large
    bad = np.argwhere(~fine.all(axis=1))
    if not len(bad):
        return counts
    h, k = bad[:, 0], bad[:, 1]
    columns = counts[h, :, k]
    previous = columns[:, 0].copy()
    for i in range(1, columns.shape[1]):
        current = columns[:, i]
        keep = _almost_equal(previous, current) | (current < previous)
        columns[:, i] = np.where(keep, previous, current)
        previous = columns[:, i].copy()
    fixed = counts.copy()
    fixed[h, :, k] = columns
    return fixed


def _almost_equal(a: Floats, b: Floats) -> Bools:
    size = np.abs(a) + np.abs(b)
    difference = np.abs(a - b)
    tiny = (a == 0) | (b == 0) | (size < _MIN_NORMAL)
    near = np.where(
        tiny, difference < _TINY,
        difference / np.minimum(size, np.finfo(np.float64).max) < _TOLERANCE,
    )
    return np.asarray((a == b) | near | (np.isnan(a) & np.isnan(b)))


def _quantiles(q: Floats, bounds: Floats, counts: Floats) -> Floats:
    prepared = _prepared(bounds, counts)
    shape = (counts.shape[0], counts.shape[2])
    result = np.full(shape, np.nan)
    if prepared is not None and len(prepared[0]) > 1:
        result = _interpolated(q, prepared[0], _monotonic(prepared[1]))
    result = np.where(q < 0, -np.inf, np.where(q > 1, np.inf, result))
    return np.where(np.isnan(q), np.nan, result)


def _interpolated(q: Floats, bounds: Floats, counts: Floats) -> Floats:
    """Find each rank's bucket and go along it in a straight line."""
    top = len(bounds) - 1
    total = counts[:, -1]
    rank = q * total
    bucket = np.minimum(np.sum(~(counts[:, :-1] >= rank[:, None]), axis=1), top)
    bucket = _first_reaching(counts, rank, bucket, top)
    h, k = np.indices(bucket.shape)
    before = np.maximum(bucket - 1, 0)
    inner = bucket > 0
    below = np.where(inner, counts[h, before, k], 0.0)
    start = np.where(inner, bounds[before], 0.0)
    end = bounds[np.minimum(bucket, top - 1)]
    count = counts[h, bucket, k]
    share = (rank - below) / np.where(inner, count - below, count)
    result = start + (end - start) * share
    result = np.where(bucket == top, bounds[top - 1], result)
    result = np.where((bucket == 0) & (bounds[0] <= 0), bounds[0], result)
    return np.where(total == 0, np.nan, result)


def _first_reaching(counts: Floats, rank: Floats, bucket: Ints, top: int) -> Ints:
    """Search as Go's sort.Search does where NaN breaks the order; else `bucket` is right."""
    odd = np.argwhere(np.isnan(counts).any(axis=1) | np.isnan(rank))
    for h, k in odd.tolist():
        low, high = 0, top
        while low < high:
            middle = (low + high) // 2
            if counts[h, middle, k] >= rank[h, k]:
                high = middle
            else:
                low = middle + 1
        bucket[h, k] = low
    return bucket


def _fractions(lower: Floats, upper: Floats, bounds: Floats, counts: Floats) -> Floats:
    prepared = _prepared(bounds, counts)
    shape = (counts.shape[0], counts.shape[2])
    if prepared is None:
        return np.full(shape, np.nan)
    bounds, counts = prepared
    total = counts[:, -1]
    low, high = _rank(lower, bounds, counts), _rank(upper, bounds, counts)
    result = (high - low) / total
    result = np.where(lower >= upper, 0.0, result)
    return np.where((total == 0) | np.isnan(lower) | np.isnan(upper), np.nan, result)


def _rank(value: Floats, bounds: Floats, counts: Floats) -> Floats:
    """Return how many observations lie below value[K], float64[H, K]."""
    total = counts[:, -1]
    rank = np.zeros_like(total)
    result = np.zeros_like(total)
    found = np.zeros(total.shape, dtype=bool)
    for i, bound in enumerate(bounds.tolist()):
        start = bounds[i - 1] if i else (0.0 if bound > 0 else -np.inf)
        at_edge = ~found & (start >= value)
        result = np.where(at_edge, rank, result)
        found |= at_edge
        inside = ~found & (start < value) & (bound > value)
        if start == -np.inf:
            between = counts[:, i]
        elif bound == np.inf:
            between = rank
        else:
            between = rank + (counts[:, i] - rank) * (value - start) / (bound - start)
        result = np.where(inside, between, result)
        found |= inside
        rank = counts[:, i]
    return np.where(~found | (result > total), total, result)
