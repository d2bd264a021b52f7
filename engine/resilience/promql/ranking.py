"""topk, bottomk and count_values: aggregations that choose or count series step by step."""

from __future__ import annotations

import math

from resilience.arrays import np
from resilience.promql.aggregate import group_labels, groups_of
from resilience.promql.storage import Bools, Floats
from resilience.promql.vector import Vec, bounded, empty, evaluation_error, merged
from resilience.samples import Labels, labels_of


def _check_parameter(k: Floats) -> None:
    """Refuse a `k` that is no number of series."""
    if (k >= 2.0**63).any():
        raise evaluation_error(f"Scalar value {_go_e(float(k.max()))} overflows int64")
    if (k <= -(2.0**63)).any():
        raise evaluation_error(f"Scalar value {_go_e(float(k.min()))} underflows int64")


def _go_e(value: float) -> str:
    return f"{value:.6f}" if math.isfinite(value) else ("+Inf" if value > 0 else "-Inf")


def top(vec: Vec, k: Floats, names: frozenset[str], without: bool, largest: bool) -> Vec:
    """Return the k[K] largest or smallest of each group; one step comes ranked."""
    if np.isnan(k).any():
        raise evaluation_error("Parameter value is NaN")
    if not vec.labels or k.max() < 1:  # as Prometheus: then nobody looks further at `k`
        return empty(vec.steps)
    _check_parameter(k)
    order = sorted(range(len(vec.labels)), key=lambda i: vec.labels[i])
    vec = vec.take(order)
    limits = np.floor(np.clip(k, 0, len(vec.labels))).astype(np.int64)
    chosen = np.zeros(vec.values.shape, dtype=bool)
    mask = vec.mask()
    ranking: list[int] = []
    for rows in groups_of(vec, names, without).values():
        ranking += _choose(vec, np.array(rows), limits, mask, largest, chosen)
    if vec.steps == 1:
        ranked = vec.take(ranking)
        return Vec(ranked.labels, ranked.values, None, ranked.drop, True)
    return vec.kept(chosen)


def _choose(
    vec: Vec, rows: np.ndarray, limits: np.ndarray, mask: Bools, largest: bool, chosen: Bools
) -> list[int]:
    """Mark the winners of one group in `chosen`; return those of the first step, best first."""
    signed = vec.values[rows] if largest else -vec.values[rows]
    there = mask[rows]
    keys = np.where(there, np.where(np.isnan(signed), -np.inf, signed), -np.inf)
    tied = _boundary_ties(keys, limits, there, np.isnan(signed) & there)
    place = np.argsort(np.argsort(-keys, axis=0, kind="stable"), axis=0, kind="stable")
    chosen[rows] = (place < limits) & there
    winners: list[int] = []
    for step in (range(vec.steps) if vec.steps == 1 else np.flatnonzero(tied).tolist()):
        some = np.flatnonzero(there[:, step]).tolist()
        winners = _heap(signed[:, step].tolist(), some, int(limits[step]))
        chosen[rows, step] = False
        chosen[rows[winners], step] = True
    return [int(rows[i]) for i in winners]


def _boundary_ties(keys: Floats, limits: np.ndarray, there: Bools, nans: Bools) -> Bools:
    """Return the steps where the last winner equals the first loser, bool[K]."""
    ordered = -np.sort(-keys, axis=0)
    n = len(keys)
    inside = (limits > 0) & (limits < there.sum(axis=0))
    last = np.take_along_axis(ordered, np.clip(limits - 1, 0, n - 1)[None, :], axis=0)[0]
    after = np.take_along_axis(ordered, np.clip(limits, 0, n - 1)[None, :], axis=0)[0]
    return np.asarray(inside & ((last == after) | nans.any(axis=0)))


def _less(a: float, b: float) -> bool:
    return math.isnan(a) or a < b


def _heap(values: list[float], rows: list[int], k: int) -> list[int]:
    """Return the k largest of `rows`, best first. Which of equal ones stay is Go's heap's choice,
    so this is the same heap."""
    heap: list[int] = []
    if k < 1:
        return heap
    for row in rows:
        value = values[row]
        if len(heap) < k:
            heap.append(row)
            _up(heap, values, len(heap) - 1)
        elif values[heap[0]] < value or (math.isnan(values[heap[0]]) and not math.isnan(value)):
            heap[0] = row
            _down(heap, values)
    return sorted(
        heap, key=lambda r: (math.isnan(values[r]), -values[r] if values[r] == values[r] else 0.0)
    )


def _up(heap: list[int], values: list[float], j: int) -> None:
    while j > 0:
        parent = (j - 1) // 2
        if not _less(values[heap[j]], values[heap[parent]]):
            return
        heap[parent], heap[j] = heap[j], heap[parent]
        j = parent


def _down(heap: list[int], values: list[float]) -> None:
    i, n = 0, len(heap)
    while (left := 2 * i + 1) < n:
        least = left
        if left + 1 < n and _less(values[heap[left + 1]], values[heap[left]]):
            least = left + 1
        if not _less(values[heap[least]], values[heap[i]]):
            return
        heap[i], heap[least] = heap[least], heap[i]
        i = least


def count_values(vec: Vec, label: str, names: frozenset[str], without: bool) -> Vec:
    """Return how many series of each group have each value, the value as label `label`."""
    if not label:
        raise evaluation_error('invalid label name ""')
    mask = vec.mask()
    counts: dict[Labels, Floats] = {}
    # By their bits, as 0 and -0 are two values; all that are not a number are one.
    bits = np.where(np.isnan(vec.values), np.nan, vec.values).view(np.int64)
    kept = names if without else names | {label}
    for row, labels in enumerate(vec.labels):
        for value in np.unique(bits[row][mask[row]]):
            here = mask[row] & (bits[row] == value)
            # The label is set first: what `without` names goes, the new label too.
            told = labels_of({**dict(labels), label: value_text(float(value.view(np.float64)))})
            key = group_labels(told, kept, without)
            if key not in counts:
                bounded(len(counts) + 1, vec.steps)
            counts.setdefault(key, np.zeros(vec.steps))[here] += 1
    if not counts:
        return empty(vec.steps)
    values = np.array(list(counts.values()))
    return merged(Vec(list(counts), values).kept(values > 0))


def value_text(value: float) -> str:
    """Return Go's shortest text of a float without an exponent."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    from decimal import Decimal  # for `count_values` alone

    text = format(Decimal(repr(value)), "f")
    return text[:-2] if text.endswith(".0") else text
