"""What every importer yields, and how series that were scraped together find each other again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resilience.model import Labels


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """The samples of one series: epoch ms and values, of equal length."""

    labels: Labels
    times_ms: NDArray[np.int64]
    values: NDArray[np.float64]

    @property
    def name(self) -> str:
        return next((v for k, v in self.labels if k == "__name__"), "")


def merge_series(parts: Sequence[Series]) -> Series:
    """Join parts of one series: in order of time, the first of two samples at one time."""
    if len(parts) == 1:
        times, values = parts[0].times_ms, parts[0].values
    else:
        times = np.concatenate([p.times_ms for p in parts])
        values = np.concatenate([p.values for p in parts])
    if not bool((times[1:] > times[:-1]).all()):
        times, first = np.unique(times, return_index=True)
        values = values[first]
    return Series(parts[0].labels, times, values)


def merge_all(series: Iterable[Series]) -> list[Series]:
    """Join parts with the same labels, in order of first appearance."""
    parts: dict[Labels, list[Series]] = {}
    for one in series:
        parts.setdefault(one.labels, []).append(one)
    return [merge_series(p) for p in parts.values()]
