"""Puts the rows of a recording together: first everything but samples, then samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from resilience.promql import kernel
from resilience.samples import Json, Labels
from resilience.sources.recording_format import Group

TIME_MAX_MS = 2**52
Names: TypeAlias = frozenset[str] | Callable[[str], bool] | None
Ints: TypeAlias = NDArray[np.int64]
Text = TypeVar("Text", str, str | None)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one part, column by column, without values.

    The labels of row i are `keys` and `texts` from `offsets[i]` to `offsets[i + 1]`; equal ones are
    one object. `t`, `seq` and `body` are empty where only series are.
    """

    kinds: Sequence[str | None]
    names: Sequence[str | None]
    groups: Sequence[int | None]
    keys: Sequence[str]
    texts: Sequence[str | None]
    offsets: Sequence[int]
    t: Sequence[Ints] = ()
    seq: Sequence[Ints] = ()
    body: Sequence[str | None] = ()


def shared(texts: Sequence[Text], known: dict[Text, Text]) -> list[Text]:
    """Return `texts` with one object for equal ones, also for those of `known`, which it fills:
    labels repeat much, and `label_sets` tells equal pairs by their objects."""
    return list(map(known.setdefault, texts, texts))


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where the values of the rows of one part go, each int64[R]: how many there must be, and
    where they begin (-1: not wanted, nothing is known of their number). `gaps` is for the reader
    to fill: see `Group`; -2 where it is not known."""

    lengths: Ints
    starts: Ints
    gaps: Ints


class Collector:
    """Puts the rows of all parts together.

    All values are allocated once and filled in place, so that besides them only one part is in
    memory.
    """

    def __init__(self, names: Names) -> None:
        self._wanted = names.__contains__ if isinstance(names, frozenset) else names
        self._clocks: dict[int, tuple[Ints, Ints]] = {}
        self._labels: dict[int, list[Labels]] = {}
        self._rows: dict[int, list[tuple[int, int, int]]] = {}
        self._sizes: dict[int, int] = {}
        self._places: dict[int, Places] = {}
        self._values: dict[int, NDArray[np.float64]] = {}
        self._events: list[tuple[int, Json]] = []

    def add(self, part: int, rows: Rows) -> None:
        """Take the rows of one part, without their values."""
        self._sizes[part] = len(rows.kinds)
        takes = {"event": self._add_event, "group": self._add_group}
        series: list[int] = []
        for row, kind in enumerate(rows.kinds):
            if kind == "series":
                series.append(row)
            elif kind in takes:
                takes[kind](rows, row)
            else:
                raise ValueError(f"a row of kind {kind}")
        if series:
            self._add_series(part, series, rows)

    def _add_event(self, rows: Rows, row: int) -> None:
        body, seq = rows.body[row], rows.seq[row]
        event = json.loads(body)  # type: ignore[arg-type]
        if not isinstance(event, dict) or not isinstance(event.get("type"), str):
            raise ValueError("an event without a type")
        self._events.append((int(seq[0]) if len(seq) else len(self._events), event))

    def _add_group(self, rows: Rows, row: int) -> None:
        number, times, seqs = rows.groups[row], rows.t[row], rows.seq[row]
        if len(seqs) != len(times):
            seqs = np.zeros(len(times), np.int64)
        if number in self._clocks or number is None:
            raise ValueError(f"two groups {number}")
        far = (times < -TIME_MAX_MS) | (times > TIME_MAX_MS)
        if far.any() or (seqs[1:] < seqs[:-1]).any():
            raise ValueError(f"times or sequence numbers of group {number} are out of range")
        self._clocks[number] = (times, seqs)

    def _add_series(self, part: int, series: Sequence[int], rows: Rows) -> None:
        names, numbers = rows.names, rows.groups
        asked = {
            name: self._wanted is None or self._wanted(name)  # type: ignore[arg-type]
            for name in dict.fromkeys(names)
        }
        places = self._rows.setdefault(part, [])
        wanted = [row for row in series if asked[names[row]]]
        for row, labels in zip(wanted, label_sets(rows, wanted), strict=True):
            number = numbers[row]
            known = self._labels.setdefault(number, [])  # type: ignore[arg-type]
            places.append((row, number, len(known)))  # type: ignore[arg-type]
            known.append(labels)

    def allocate(self) -> NDArray[np.float64]:
        """Make room for all values: one array, large enough for huge pages, which cost a tenth of
        small ones."""
        if alone := self._labels.keys() - self._clocks.keys():
            raise ValueError(f"series of group {next(iter(alone))}, which has no row")
        series = [one for labels in self._labels.values() for one in labels]
        if len(set(series)) < len(series):
            raise ValueError("the same series twice")
        shapes = {n: (len(x), len(self._clocks[n][0])) for n, x in self._labels.items()}
        room = np.empty(sum(rows * columns for rows, columns in shapes.values()))
        start = 0
        begins: dict[int, int] = {}
        for number, (rows, columns) in shapes.items():
            end = start + rows * columns
            self._values[number], begins[number] = room[start:end].reshape(rows, columns), start
            start = end
        for part, placed in self._rows.items():
            if placed:
                self._places[part] = self._placed(part, placed, begins)
        return room

    def _placed(
        self, part: int, placed: Sequence[tuple[int, int, int]], begins: dict[int, int]
    ) -> Places:
        size = self._sizes[part]
        starts, lengths = np.full(size, -1, np.int64), np.full(size, -1, np.int64)
        for row, number, index in placed:
            lengths[row] = columns = len(self._clocks[number][0])
            starts[row] = begins[number] + index * columns
        return Places(lengths, starts, np.full(size, -2, np.int64))

    def places(self) -> Iterator[tuple[int, Places]]:
        """Yield the parts that hold wanted values, and where these go."""
        yield from sorted(self._places.items())

    def groups(self) -> tuple[Group, ...]:
        """Return all groups in order of number, with the series that were asked for."""
        gaps = {n: np.empty(len(labels), np.int64) for n, labels in self._labels.items()}
        for part, places in self._places.items():
            for row, number, index in self._rows[part]:
                gaps[number][index] = places.gaps[row]
        return tuple(
            Group(
                self._labels.get(number, []), times, seqs,
                self._values.get(number, np.empty((0, len(times)))), number,
                _known(gaps.get(number)),
            )
            for number, (times, seqs) in sorted(self._clocks.items())
        )

    def events(self) -> tuple[tuple[int, Json], ...]:
        return tuple(sorted(self._events, key=lambda e: e[0]))


def _known(gaps: Ints | None) -> Ints | None:
    return None if gaps is None or (gaps == -2).any() else gaps


def label_sets(rows: Rows, wanted: Sequence[int]) -> list[Labels]:
    """Return the labels of some rows; raises ValueError if a label is there twice, or if they lie
    outside their columns.

    Most equal pairs are one object, to save memory: all of them without the kernel, with it those
    of the same two objects that were asked for lately.
    """
    if compiled := kernel.active():
        return compiled.label_sets(rows.keys, rows.texts, rows.offsets, rows.names, wanted)
    known: dict[tuple[str, str], tuple[str, str]] = {}
    return [_label_set(rows, row, known) for row in wanted]


def _label_set(rows: Rows, row: int, known: dict[tuple[str, str], tuple[str, str]]) -> Labels:
    start, end = rows.offsets[row], rows.offsets[row + 1]
    if not 0 <= start <= end <= min(len(rows.keys), len(rows.texts)):
        raise ValueError("labels reach outside their columns")
    cut = slice(start, end)
    pairs = [("__name__", rows.names[row]), *zip(rows.keys[cut], rows.texts[cut], strict=True)]
    found = sorted(known.setdefault((k, v), (k, v)) for k, v in pairs if v)
    if len(dict(found)) < len(found):
        raise ValueError("a label twice")
    return tuple(found)
