"""Writes one recording file, sorted as the format wants it and in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from resilience.errors import RecordingError
from resilience.promql.storage import is_absent
from resilience.samples import Json, Labels, canonical_json, without_name
from resilience.sources.recording_format import META_KEY, Group, RecordingMeta, name_of
from resilience.sources.recording_schema import SCHEMA

ROW_GROUP_SAMPLES = 1_000_000
ROW_GROUP_ROWS = 20_000
EVENT_ROWS = 5_000
# What `recording_pages` can read into place. LZ4 over split bytes makes a file a sixth larger than
# zstd does, and needs no library to read.
PAGE_BYTES = 512 * 1024
NUMBERS = ("t.list.element", "seq.list.element", "v.list.element")
STATISTICS: Any = ["kind", "name"]
DICTIONARY: Any = ["kind", "name", "labels.key_value.key", "labels.key_value.value"]


class FileWriter:
    """Writes one file in the format's order: events, groups, then series sorted by name.

    It appears under its name only when it is complete.
    """

    def __init__(self, path: Path, meta: RecordingMeta) -> None:
        if path.exists() and not (path.is_file() or path.is_dir()):  # a device would be replaced
            raise RecordingError(f"cannot write `{path}`: it is no regular file")
        self._path = path
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        schema = SCHEMA.with_metadata({META_KEY: canonical_json(meta.to_json())})
        try:
            self._writer = pq.ParquetWriter(
                self._partial,
                schema,
                compression="lz4",
                use_dictionary=DICTIONARY,
                write_statistics=STATISTICS,
                column_encoding=dict.fromkeys(NUMBERS, "BYTE_STREAM_SPLIT"),
                data_page_size=PAGE_BYTES,
            )
        except OSError as error:
            raise RecordingError(f"cannot write `{path}`: {_why(error)}") from None

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self._writer.close()
            if kind is None:
                _sync(self._partial)
                self._partial.replace(self._path)
        except OSError as error:
            raise RecordingError(f"cannot write `{self._path}`: {_why(error)}") from None
        finally:
            self._partial.unlink(missing_ok=True)

    def events(self, events: Iterable[tuple[int, Json]]) -> None:
        """Write (ordinal, body) pairs; a body's `type` is its name."""
        rows = sorted(events, key=lambda e: (str(e[1].get("type", "")), e[0]))
        for at in range(0, len(rows), EVENT_ROWS):
            part = rows[at : at + EVENT_ROWS]
            self._rows(
                "event",
                name=[str(body.get("type", "")) for _, body in part],
                t=[_time(body) for _, body in part],
                seq=[[ordinal] for ordinal, _ in part],
                body=[canonical_json(body) for _, body in part],
            )

    def groups(self, clocks: Iterable[tuple[int, NDArray[np.int64], NDArray[np.int64]]]) -> None:
        """Write (number, times, sequence numbers) of the groups, in order of number."""
        part: list[tuple[int, NDArray[np.int64], NDArray[np.int64]]] = []
        size = 0
        for clock in clocks:
            part.append(clock)
            size += len(clock[1])
            if size >= ROW_GROUP_SAMPLES or len(part) >= ROW_GROUP_ROWS:
                self._groups(part)
                part, size = [], 0
        if part:
            self._groups(part)

    def _groups(self, part: Sequence[tuple[int, NDArray[np.int64], NDArray[np.int64]]]) -> None:
        self._rows(
            "group",
            name=[""] * len(part),
            group=[number for number, _, _ in part],
            t=[times for _, times, _ in part],
            seq=[seqs for _, _, seqs in part],
        )

    def series(self, rows: Iterable[tuple[Labels, int, NDArray[np.float64]]]) -> None:
        """Write (labels, number of the group, values), which come sorted by name."""
        part: list[tuple[Labels, int, NDArray[np.float64]]] = []
        size = 0
        for row in rows:
            part.append(row)
            size += len(row[2])
            if size >= ROW_GROUP_SAMPLES or len(part) >= ROW_GROUP_ROWS:
                self._series(part)
                part, size = [], 0
        if part:
            self._series(part)

    def _series(self, part: Sequence[tuple[Labels, int, NDArray[np.float64]]]) -> None:
        self._rows(
            "series",
            name=[name_of(labels) for labels, _, _ in part],
            labels=[list(without_name(labels)) for labels, _, _ in part],
            group=[number for _, number, _ in part],
            v=_lists([values for _, _, values in part]),
        )

    def _rows(self, kind: str, **columns: Any) -> None:
        count = len(columns["name"])
        columns["kind"] = [kind] * count
        arrays = [
            column
            if isinstance(column := columns.get(field.name, [None] * count), pa.Array)
            else pa.array(column, field.type)
            for field in SCHEMA
        ]
        try:
            self._writer.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA))
        except OSError as error:
            raise RecordingError(f"cannot write `{self._path}`: {_why(error)}") from None


def _time(body: Json) -> list[int] | None:
    return [body["t_ms"]] if isinstance(body.get("t_ms"), int) else None


def _lists(rows: Sequence[NDArray[np.float64]]) -> pa.Array:
    """Return a list array; a cell without a sample becomes null."""
    ends = np.cumsum([0, *(len(row) for row in rows)]).astype(np.int32)
    flat = np.concatenate(rows)
    gaps = is_absent(flat)
    return pa.ListArray.from_arrays(
        pa.array(ends), pa.array(flat, mask=gaps if gaps.any() else None)
    )


def write_file(
    path: Path, groups: Sequence[Group], events: Sequence[Json], meta: RecordingMeta
) -> None:
    """Write one recording; raises RecordingError and leaves nothing behind on failure."""
    with FileWriter(path, meta) as writer:
        writer.events(enumerate(events))
        writer.groups((n, g.times_ms, g.seqs) for n, g in enumerate(groups))
        places = [
            (name_of(labels), labels, number, row)
            for number, group in enumerate(groups)
            for row, labels in enumerate(group.labels)
        ]
        places.sort()
        writer.series((labels, n, groups[n].values[row]) for _, labels, n, row in places)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _why(error: OSError) -> str:
    """Return the system's words: Arrow's own name a hidden file, and C++."""
    return (os.strerror(error.errno) if error.errno else str(error)).lower()
