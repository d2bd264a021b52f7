"""Reads recording files: all of one, or just the metrics that are asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from resilience.errors import RecordingError
from resilience.model import Json, Labels, labels_of
from resilience.promql.storage import ABSENT
from resilience.sources.recording_format import META_KEY, SCHEMA, Contents, Group, RecordingMeta

TIME_MAX_MS = 2**52
VALUES = ("v",)
HEAD = tuple(name for name in SCHEMA.names if name not in VALUES)
SERIES = ("kind", "name", "labels", "group")
Names: TypeAlias = frozenset[str] | Callable[[str], bool] | None


@dataclass(frozen=True, slots=True)
class _Place:
    """Row `row` of a row group is series `index` of group `number`."""

    row: int
    number: int
    index: int


def read_meta(path: Path) -> RecordingMeta:
    """Return the metadata of one file without reading its samples; raises RecordingError."""
    return _meta(_open(path), path)


def read_file(path: Path, names: Names = None) -> Contents:
    """Read one file; with `names` only the series of these metrics. Raises RecordingError."""
    file = _open(path)
    meta = _meta(file, path)
    collector = _Collector(names)
    try:
        for part in range(file.num_row_groups):
            if _may_hold(file, part, names):
                collector.add(part, _row_group(file, part, _heads(file, part)))
        for part in collector.allocate():
            collector.fill(part, _row_group(file, part, VALUES)["v"])
        return Contents(meta, collector.groups(), collector.events())
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError, IndexError) as error:
        raise RecordingError(f"`{path}` is damaged: {_first_line(error)}") from None


def read_series(path: Path) -> list[tuple[Labels, int]]:
    """Return the labels and group of each series of one file, without samples."""
    try:
        table = _open(path).read(columns=["kind", "name", "labels", "group"])
    except (OSError, pa.ArrowException) as error:
        raise RecordingError(f"`{path}` is damaged: {_first_line(error)}") from None
    return [
        (labels_of([("__name__", row["name"]), *(row["labels"] or [])]), row["group"])
        for row in table.to_pylist()
        if row["kind"] == "series"
    ]


def _row_group(file: pq.ParquetFile, part: int, columns: Sequence[str]) -> pa.Table:
    """Read some columns in this thread: others would only make the same work cost more."""
    return file.read_row_group(part, columns=list(columns), use_threads=False)


def _open(path: Path) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path)
    except FileNotFoundError:
        raise RecordingError(f"no recording `{path}`") from None
    except (OSError, ValueError, pa.ArrowException):
        raise RecordingError(f"`{path}` is not a recording: no Parquet file") from None
    if reason := _other_schema(file.schema_arrow):
        raise RecordingError(f"`{path}` is a Parquet file but not a recording: {reason}")
    return file


def _other_schema(found: pa.Schema) -> str | None:
    for field in SCHEMA:
        if field.name not in found.names:
            return f"no column `{field.name}`"
        if (have := found.field(field.name).type) != field.type:
            return f"column `{field.name}` holds {have}, not {field.type}"
    return None if found.names == SCHEMA.names else "its columns have another order"


def _meta(file: pq.ParquetFile, path: Path) -> RecordingMeta:
    text = (file.schema_arrow.metadata or {}).get(META_KEY)
    if text is None:
        raise RecordingError(f"`{path}` is a Parquet file but not a recording")
    try:
        return RecordingMeta.from_json(json.loads(text))
    except ValueError:
        raise RecordingError(f"`{path}` has unreadable metadata") from None


def _may_hold(file: pq.ParquetFile, part: int, names: Names) -> bool:
    """Return whether a row group may hold what is asked for, from its statistics."""
    bounds = _bounds(file, part, "name")
    if not isinstance(names, frozenset) or bounds is None or not _only_series(file, part):
        return True
    low, high = bounds
    return any(low <= name <= high for name in names)


def _heads(file: pq.ParquetFile, part: int) -> Sequence[str]:
    """Return the columns to read before the values: fewer where all rows are series."""
    return SERIES if _only_series(file, part) else HEAD


def _only_series(file: pq.ParquetFile, part: int) -> bool:
    return _bounds(file, part, "kind") == ("series", "series")


def _bounds(file: pq.ParquetFile, part: int, column: str) -> tuple[str, str] | None:
    chunk = file.metadata.row_group(part).column(SCHEMA.get_field_index(column))
    if chunk.physical_type != "BYTE_ARRAY":  # a damaged footer: Arrow would end the process
        return None
    found = chunk.statistics
    return (found.min, found.max) if found is not None and found.has_min_max else None


class _Collector:
    """Puts the rows of all row groups together: first everything but samples, then samples.

    Each group's values are allocated once and filled in place, so that besides them only one row
    group is in memory.
    """

    def __init__(self, names: Names) -> None:
        self._wanted = names.__contains__ if isinstance(names, frozenset) else names
        self._clocks: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        self._labels: dict[int, list[Labels]] = {}
        self._places: dict[int, list[_Place]] = {}
        self._values: dict[int, NDArray[np.float64]] = {}
        self._events: list[tuple[int, Json]] = []

    def add(self, part: int, table: pa.Table) -> None:
        """Take the rows of one row group, without their values."""
        kinds = table["kind"].to_pylist()
        for kind in dict.fromkeys(kinds):
            rows = [i for i, k in enumerate(kinds) if k == kind]
            if kind == "series":
                self._add_series(part, rows, table)
                continue
            some = table if len(rows) == len(kinds) else table.take(rows)
            {"event": self._add_events, "group": self._add_groups}[kind](some)

    def _add_events(self, table: pa.Table) -> None:
        for body, seq in zip(table["body"].to_pylist(), table["seq"].to_pylist(), strict=True):
            event = json.loads(body)
            if not isinstance(event, dict) or not isinstance(event.get("type"), str):
                raise ValueError("an event without a type")
            self._events.append((seq[0] if seq else len(self._events), event))

    def _add_groups(self, table: pa.Table) -> None:
        for number, times, seqs in zip(
            table["group"].to_pylist(), _cells(table["t"]), _cells(table["seq"]), strict=True
        ):
            if len(seqs) != len(times):
                seqs = np.zeros(len(times), np.int64)
            if number in self._clocks or number is None:
                raise ValueError(f"two groups {number}")
            far = (times < -TIME_MAX_MS) | (times > TIME_MAX_MS)
            if far.any() or (seqs[1:] < seqs[:-1]).any():
                raise ValueError(f"times or sequence numbers of group {number} are out of range")
            self._clocks[number] = (times, seqs)

    def _add_series(self, part: int, rows: Sequence[int], table: pa.Table) -> None:
        names, numbers = table["name"].to_pylist(), table["group"].to_pylist()
        asked = {n: self._wanted is None or self._wanted(n) for n in dict.fromkeys(names)}
        wanted = [r for r in rows if asked[names[r]]]
        if not wanted:
            return
        labels = list(_label_sets(table["labels"], names))
        for row in wanted:
            number = numbers[row]
            known = self._labels.setdefault(number, [])
            self._places.setdefault(part, []).append(_Place(row, number, len(known)))
            known.append(labels[row])

    def allocate(self) -> list[int]:
        """Make room for the values; return the row groups that hold some."""
        if alone := self._labels.keys() - self._clocks.keys():
            raise ValueError(f"series of group {next(iter(alone))}, which has no row")
        if any(len(set(labels)) < len(labels) for labels in self._labels.values()):
            raise ValueError("the same series twice")
        shapes = {n: (len(x), len(self._clocks[n][0])) for n, x in self._labels.items()}
        # One array for all: large enough for huge pages, which cost a tenth of small ones.
        room, start = np.empty(sum(rows * columns for rows, columns in shapes.values())), 0
        for number, (rows, columns) in shapes.items():
            end = start + rows * columns
            self._values[number] = room[start:end].reshape(rows, columns)
            start = end
        return sorted(self._places)

    def fill(self, part: int, column: pa.ChunkedArray) -> None:
        """Take the values of one row group."""
        cells = list(_cells(column))
        for place in self._places[part]:
            target, source = self._values[place.number][place.index], cells[place.row]
            if len(source) != len(target):
                raise ValueError(f"{len(source)} values for the {len(target)} times of a group")
            target[:] = source

    def groups(self) -> tuple[Group, ...]:
        """Return all groups in order of number, with the series that were asked for."""
        return tuple(
            Group(
                self._labels.get(number, []), times, seqs,
                self._values.get(number, np.empty((0, len(times)))), number,
            )
            for number, (times, seqs) in sorted(self._clocks.items())
        )

    def events(self) -> tuple[tuple[int, Json], ...]:
        return tuple(sorted(self._events, key=lambda e: e[0]))


def _label_sets(column: pa.ChunkedArray, names: Sequence[str]) -> Iterator[Labels]:
    """Yield the label sets of all rows, without a Python object for each scalar of Arrow's."""
    known: dict[tuple[str, str], tuple[str, str]] = {}
    at = 0
    for chunk in column.chunks:
        keys = chunk.keys.to_numpy(zero_copy_only=False).tolist()
        texts = chunk.items.to_numpy(zero_copy_only=False).tolist()
        pairs = [known.setdefault(pair, pair) for pair in zip(keys, texts, strict=True)]
        for start, end in pairwise(chunk.offsets.to_numpy().tolist()):
            row = [pair for pair in (("__name__", names[at]), *pairs[start:end]) if pair[1]]
            row.sort()
            if any(a[0] == b[0] for a, b in pairwise(row)):
                raise ValueError("a label twice")
            yield tuple(row)
            at += 1


def _cells(column: pa.ChunkedArray) -> Iterator[NDArray[Any]]:
    """Yield the lists of a column as views of Arrow's memory; a null value becomes ABSENT."""
    for chunk in column.chunks:
        numbers = _numbers(chunk.values)
        for start, end in pairwise(chunk.offsets.to_numpy().tolist()):
            yield numbers[start:end]


def _numbers(flat: pa.Array) -> NDArray[Any]:
    """Return 64-bit numbers bit by bit; Arrow's own conversion melts NaNs where there are nulls."""
    valid, data = flat.buffers()
    kind = np.int64 if pa.types.is_int64(flat.type) else np.float64
    if data is None:
        return np.empty(0, kind)
    first, last = flat.offset, flat.offset + len(flat)
    numbers = np.frombuffer(data, kind, last)[first:]
    if not flat.null_count:
        return numbers
    if kind is np.int64:
        raise ValueError("a time or sequence number is missing")
    bits = np.unpackbits(np.frombuffer(valid, np.uint8), count=last, bitorder="little")
    return np.where(bits[first:].astype(bool), numbers, ABSENT)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
