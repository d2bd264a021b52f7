"""Reads recording files: all of one, or just the metrics that are asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from resilience.errors import RecordingError
from resilience.model import Json, Labels, labels_of
from resilience.promql.storage import ABSENT
from resilience.sources.recording_format import META_KEY, SCHEMA, Contents, Group, RecordingMeta

READERS = 4


def read_meta(path: Path) -> RecordingMeta:
    """Return the metadata of one file without reading its samples; raises RecordingError."""
    return _meta(_open(path), path)


def read_file(path: Path, names: frozenset[str] | None = None) -> Contents:
    """Read one file; with `names` only the series of these metrics. Raises RecordingError."""
    file = _open(path)
    meta = _meta(file, path)
    wanted = [i for i in range(file.num_row_groups) if _may_hold(file, i, names)]
    collector = _Collector(names)
    try:
        with ThreadPoolExecutor(READERS) as pool:
            for table in _ahead(pool, path, wanted):
                collector.add(table)
        return Contents(meta, collector.groups(), collector.events())
    except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
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


def _ahead(pool: ThreadPoolExecutor, path: Path, wanted: Sequence[int]) -> Iterator[pa.Table]:
    """Yield row groups in order, read by a few threads ahead of the consumer."""
    waiting: list[Any] = []
    for number in wanted:
        waiting.append(pool.submit(_row_group, path, number))
        if len(waiting) >= READERS:
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()


def _row_group(path: Path, number: int) -> pa.Table:
    with pq.ParquetFile(path) as file:
        return file.read_row_group(number, use_threads=False)


def _open(path: Path) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path)
    except FileNotFoundError:
        raise RecordingError(f"no recording `{path}`") from None
    except (OSError, pa.ArrowException):
        raise RecordingError(f"`{path}` is not a recording: no Parquet file") from None
    if not set(SCHEMA.names) <= set(file.schema_arrow.names):
        raise RecordingError(f"`{path}` is a Parquet file but not a recording")
    return file


def _meta(file: pq.ParquetFile, path: Path) -> RecordingMeta:
    text = (file.schema_arrow.metadata or {}).get(META_KEY)
    if text is None:
        raise RecordingError(f"`{path}` is a Parquet file but not a recording")
    try:
        return RecordingMeta.from_json(json.loads(text))
    except ValueError:
        raise RecordingError(f"`{path}` has unreadable metadata") from None


def _may_hold(file: pq.ParquetFile, number: int, names: frozenset[str] | None) -> bool:
    """Return whether a row group may hold what is asked for, from its statistics."""
    if names is None:
        return True
    kind = file.metadata.row_group(number).column(0).statistics
    name = file.metadata.row_group(number).column(1).statistics
    if kind is None or name is None or not (kind.has_min_max and name.has_min_max):
        return True
    return kind.min != "series" or any(name.min <= n <= name.max for n in names)


class _Collector:
    """Puts the rows of all row groups together."""

    def __init__(self, names: frozenset[str] | None) -> None:
        self._names = names
        self._clocks: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        self._rows: dict[int, list[tuple[Labels, NDArray[np.float64]]]] = {}
        self._events: list[tuple[int, Json]] = []

    def add(self, table: pa.Table) -> None:
        kinds = table["kind"].to_pylist()
        for kind in dict.fromkeys(kinds):
            rows = [i for i, k in enumerate(kinds) if k == kind]
            part = table if len(rows) == len(kinds) else table.take(rows)
            {"event": self._add_events, "group": self._add_groups, "series": self._add_series}[
                kind
            ](part.combine_chunks())

    def _add_events(self, table: pa.Table) -> None:
        for body, seq in zip(table["body"].to_pylist(), table["seq"].to_pylist(), strict=True):
            self._events.append((seq[0] if seq else len(self._events), json.loads(body)))

    def _add_groups(self, table: pa.Table) -> None:
        for number, times, seqs in zip(
            table["group"].to_pylist(), _cells(table["t"]), _cells(table["seq"]), strict=True
        ):
            if len(seqs) != len(times):
                seqs = np.zeros(len(times), np.int64)
            self._clocks[number] = (times, seqs)

    def _add_series(self, table: pa.Table) -> None:
        for name, labels, number, values in zip(
            table["name"].to_pylist(),
            table["labels"].to_pylist(),
            table["group"].to_pylist(),
            _cells(table["v"]),
            strict=True,
        ):
            if self._names is None or name in self._names:
                full = labels_of([("__name__", name), *(labels or [])])
                self._rows.setdefault(number, []).append((full, values))

    def groups(self) -> tuple[Group, ...]:
        """Return all groups in order of number, with the series that were asked for."""
        found: list[Group] = []
        for number, (times, seqs) in sorted(self._clocks.items()):
            rows = self._rows.pop(number, [])
            values = np.empty((len(rows), len(times)))
            for row, (_, cells) in enumerate(rows):
                values[row] = cells
            found.append(Group([labels for labels, _ in rows], times, seqs, values, number))
        if self._rows:
            raise ValueError(f"series of group {min(self._rows)}, which has no row")
        return tuple(found)

    def events(self) -> tuple[tuple[int, Json], ...]:
        return tuple(sorted(self._events, key=lambda e: e[0]))


def _cells(column: pa.ChunkedArray) -> Iterator[NDArray[Any]]:
    """Yield the lists of a column as arrays; a null number becomes ABSENT."""
    for chunk in column.chunks:
        flat = chunk.values
        gaps = flat.is_null().to_numpy(zero_copy_only=False) if flat.null_count else None
        numbers = flat.to_numpy(zero_copy_only=False)
        if gaps is not None:
            numbers = np.where(gaps, ABSENT, numbers)
        ends = chunk.offsets.to_numpy()
        for start, end in zip(ends[:-1], ends[1:], strict=True):
            yield numbers[start:end]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
