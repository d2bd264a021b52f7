"""What every importer yields, and how series that were scraped together find each other again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resilience.promql.storage import ABSENT
from resilience.samples import Labels
from resilience.sources.recording_format import Group, name_of

DEFAULT_INTERVAL_MS = 15_000


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """The samples of one series: epoch ms and values, of equal length.

    `conflicts` counts samples that were left out because an earlier one has their time and another
    value.
    """

    labels: Labels
    times_ms: NDArray[np.int64]
    values: NDArray[np.float64]
    conflicts: int = 0

    @property
    def name(self) -> str:
        return name_of(self.labels)


def merge_series(parts: Sequence[Series]) -> Series:
    """Join parts of one series: in order of time, the first of two samples at one time."""
    if len(parts) == 1:
        times, values = parts[0].times_ms, parts[0].values
    else:
        times = np.concatenate([p.times_ms for p in parts])
        values = np.concatenate([p.values for p in parts])
    conflicts = sum(p.conflicts for p in parts)
    if not bool((times[1:] > times[:-1]).all()):
        times, first, which = np.unique(times, return_index=True, return_inverse=True)
        kept = values[first]
        conflicts += int(np.count_nonzero(~_same(values, kept[which])))
        values = kept
    return Series(parts[0].labels, times, values, conflicts)


def _same(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


def merge_all(series: Iterable[Series]) -> list[Series]:
    """Join parts with the same labels, in order of first appearance."""
    parts: dict[Labels, list[Series]] = {}
    for one in series:
        parts.setdefault(one.labels, []).append(one)
    return [merge_series(p) for p in parts.values()]


def infer_interval(clocks: Iterable[NDArray[np.int64]]) -> int:
    """Return the scrape interval behind these times: the usual distance, in round numbers.

    Jitter of a few milliseconds is rounded away; without two samples it is 15 s.
    """
    steps = [np.diff(times) for times in clocks if len(times) > 1]
    if not steps:
        return DEFAULT_INTERVAL_MS
    usual = int(np.median(np.concatenate(steps)))
    unit = 1_000 if usual >= 2_000 else 100 if usual >= 500 else 1
    return max(1, round(usual / unit) * unit)


def group_series(series: Sequence[Series]) -> list[Group]:
    """Put series that were scraped together into groups; numbers of batches are 0.

    Series of one target (`job`, `instance`) share a group if most of them have a sample at most
    of its times; else only series with equal times do.
    """
    targets: dict[tuple[str, ...], list[Series]] = {}
    for one in series:
        labels = dict(one.labels)
        target = tuple(labels.get(name, "") for name in ("job", "instance"))
        targets.setdefault(target, []).append(one)
    groups: list[Group] = []
    for members in targets.values():
        clocks: dict[bytes, list[Series]] = {}
        for one in members:
            clocks.setdefault(one.times_ms.tobytes(), []).append(one)
        if len(clocks) > 1 and _dense(members, clocks):
            groups.append(_group(members))
        else:
            groups.extend(_group(same) for same in clocks.values())
    for number, group in enumerate(groups):
        group.number = number
    return groups


def _dense(members: Sequence[Series], clocks: Mapping[bytes, Sequence[Series]]) -> bool:
    whole = np.unique(np.concatenate([same[0].times_ms for same in clocks.values()]))
    return sum(len(m.times_ms) for m in members) * 2 >= len(whole) * len(members)


def _group(members: Sequence[Series]) -> Group:
    times = members[0].times_ms
    if any(m.times_ms is not times and not np.array_equal(m.times_ms, times) for m in members):
        times = np.unique(np.concatenate([m.times_ms for m in members]))
    values = np.full((len(members), len(times)), ABSENT)
    for row, one in enumerate(members):
        values[row, np.searchsorted(times, one.times_ms)] = one.values
    return Group([m.labels for m in members], times, np.zeros(len(times), np.int64), values)
