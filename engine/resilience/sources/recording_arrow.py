"""Reads a recording file with Arrow: any valid one, whoever wrote it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from resilience.errors import RecordingError
from resilience.promql.storage import ABSENT
from resilience.sources.recording_format import META_KEY
from resilience.sources.recording_rows import Places, Rows, shared
from resilience.sources.recording_schema import SCHEMA

HEAD = tuple(name for name in SCHEMA.names if name != "v")
SERIES = ("kind", "name", "labels", "group")
SNIFF_BYTES = 4_096


class ArrowFile:
    """Implements `recording_read.RecordingFile`."""

    def __init__(self, path: Path) -> None:
        """Raises RecordingError if there is no such file, or it is no recording."""
        self._file = _open(path)

    @property
    def meta_text(self) -> bytes | None:
        found: bytes | None = (self._file.schema_arrow.metadata or {}).get(META_KEY)
        return found

    @property
    def parts(self) -> int:
        return int(self._file.num_row_groups)

    def bounds(self, part: int, column: str) -> tuple[str, str] | None:
        chunk = self._file.metadata.row_group(part).column(SCHEMA.get_field_index(column))
        if chunk.physical_type != "BYTE_ARRAY":  # a damaged footer: Arrow would end the process
            return None
        found = chunk.statistics
        return (found.min, found.max) if found is not None and found.has_min_max else None

    def rows(self, part: int, only_series: bool) -> Rows:
        table = self._read(part, SERIES if only_series else HEAD)
        kinds, groups = table["kind"].to_pylist(), table["group"].to_pylist()
        names = shared(table["name"].to_pylist(), {})
        keys, texts, offsets = _labels(table["labels"])
        if only_series:
            return Rows(kinds, names, groups, keys, texts, offsets)
        t, seq = list(_cells(table["t"])), list(_cells(table["seq"]))
        body = table["body"].to_pylist()
        return Rows(kinds, names, groups, keys, texts, offsets, t, seq, body)

    def fill(self, part: int, places: Places, target: NDArray[np.float64]) -> None:
        cells = list(_cells(self._read(part, ("v",))["v"]))
        for row in np.flatnonzero(places.starts >= 0).tolist():
            start, length, source = places.starts[row], places.lengths[row], cells[row]
            if len(source) != length:
                raise ValueError(f"{len(source)} values for the {length} times of a group")
            target[start : start + length] = source

    def series(self) -> list[dict[str, Any]]:
        """Return what identifies the series, of all parts; raises what Arrow does."""
        found: list[dict[str, Any]] = self._file.read(columns=list(SERIES)).to_pylist()
        return found

    def _read(self, part: int, columns: Sequence[str]) -> pa.Table:
        """Read some columns in this thread: others would only make the same work cost more."""
        return self._file.read_row_group(part, columns=list(columns), use_threads=False)


def _open(path: Path) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path)
    except FileNotFoundError:
        raise RecordingError(f"no recording `{path}`") from None
    except UnicodeEncodeError:                        # Arrow takes no other names
        name = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise RecordingError(f"the name of `{name}` is not UTF-8; rename it") from None
    except PermissionError:
        raise RecordingError(f"the recording `{path}` cannot be read: permission denied") from None
    except (OSError, ValueError, pa.ArrowException):
        raise RecordingError(f"`{path}` is not a recording: {_instead(path)}") from None
    if reason := _other_schema(file.schema_arrow):
        raise RecordingError(f"`{path}` is a Parquet file but not a recording: {reason}")
    return file


def _instead(path: Path) -> str:
    """Say what a file is that is not Parquet, and how to make a recording of it."""
    with path.open("rb") as file:
        head = file.read(SNIFF_BYTES)
    text = head.decode("utf-8", "ignore")
    if not head:
        return "it is empty"
    if "\0" in text or len(text.encode()) < len(head) - 3:      # the last sign may be cut
        return "no Parquet file"
    kept = shlex.quote(str(path.with_name(path.name.split(".")[0] + ".parquet")))
    return (f"it is text; make one with `resilience record import {shlex.quote(str(path))} "
            f"--out {kept}`")


def _other_schema(found: pa.Schema) -> str | None:
    for field in SCHEMA:
        if field.name not in found.names:
            return f"no column `{field.name}`"
        if (have := found.field(field.name).type) != field.type:
            return f"column `{field.name}` holds {have}, not {field.type}"
    return None if found.names == SCHEMA.names else "its columns have another order"


def _labels(column: pa.ChunkedArray) -> tuple[list[str], list[str | None], list[int]]:
    """Return the labels of all rows, without a Python object for each scalar of Arrow's; equal
    texts are one object."""
    known: dict[Any, Any] = {}
    keys: list[str] = []
    texts: list[str | None] = []
    offsets = [0]
    for chunk in column.chunks:
        shift = len(keys)
        keys += shared(chunk.keys.to_numpy(zero_copy_only=False).tolist(), known)
        texts += shared(chunk.items.to_numpy(zero_copy_only=False).tolist(), known)
        offsets += [shift + end for end in chunk.offsets.to_numpy()[1:].tolist()]
    return keys, texts, offsets


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
