"""Reads recording files: all of one, or just the metrics that are asked for.

Where the compiled kernel is there and the file is laid out as we write it, its pages are read
into place (`recording_pages`); everything else, and every complaint, is Arrow's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from resilience.errors import RecordingError
from resilience.samples import Labels, labels_of
from resilience.sources import recording_pages
from resilience.sources.recording_format import Contents, RecordingMeta
from resilience.sources.recording_rows import Collector, Names, Places, Rows

# What a footer or page raises whose numbers, lists and structs are not where they should be.
DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, MemoryError)


class RecordingFile(Protocol):
    """An open file: row groups, called parts."""

    @property
    def meta_text(self) -> bytes | None: ...
    @property
    def parts(self) -> int: ...
    def bounds(self, part: int, column: str) -> tuple[str, str] | None:
        """Return the least and the greatest text of `kind` or `name`, if the file tells."""
        ...

    def rows(self, part: int, only_series: bool) -> Rows:
        """Return all of a part but its values."""
        ...

    def fill(self, part: int, places: Places, target: NDArray[np.float64]) -> None:
        """Put the values of a part into place; raises ValueError if they do not fit."""
        ...


def read_meta(path: Path) -> RecordingMeta:
    """Return the metadata of one file without reading its samples; raises RecordingError."""
    from resilience.sources.recording_arrow import ArrowFile

    return _meta(ArrowFile(path), path)


def read_file(path: Path, names: Names = None) -> Contents:
    """Read one file; with `names` only the series of these metrics. Raises RecordingError."""
    try:
        with recording_pages.PagedFile(path) as pages:
            return _contents(pages, path, names)
    except (recording_pages.UnfitError, RecordingError, *DAMAGED):
        return _read_arrow(path, names)


def _read_arrow(path: Path, names: Names) -> Contents:
    import pyarrow as pa

    from resilience.sources.recording_arrow import ArrowFile

    file = ArrowFile(path)
    try:
        return _contents(file, path, names)
    except (pa.ArrowException, *DAMAGED) as error:
        raise RecordingError(f"`{path}` is damaged: {_first_line(error)}") from None


def _contents(file: RecordingFile, path: Path, names: Names) -> Contents:
    meta = _meta(file, path)
    collector = Collector(names)
    for part in range(file.parts):
        only_series = file.bounds(part, "kind") == ("series", "series")
        if not only_series or _may_hold(file, part, names):
            collector.add(part, file.rows(part, only_series))
    target = collector.allocate()
    for part, places in collector.places():
        file.fill(part, places, target)
    return Contents(meta, collector.groups(), collector.events())


def read_series(path: Path) -> list[tuple[Labels, int]]:
    """Return the labels and group of each series of one file, without samples."""
    import pyarrow as pa

    from resilience.sources.recording_arrow import ArrowFile

    try:
        rows: list[dict[str, Any]] = ArrowFile(path).series()
    except (OSError, pa.ArrowException) as error:
        raise RecordingError(f"`{path}` is damaged: {_first_line(error)}") from None
    return [
        (labels_of([("__name__", row["name"]), *(row["labels"] or [])]), row["group"])
        for row in rows
        if row["kind"] == "series"
    ]


def _meta(file: RecordingFile, path: Path) -> RecordingMeta:
    text = file.meta_text
    if text is None:
        raise RecordingError(f"`{path}` is a Parquet file but not a recording")
    try:
        return RecordingMeta.from_json(json.loads(text))
    except ValueError:
        raise RecordingError(f"`{path}` has unreadable metadata") from None


def _may_hold(file: RecordingFile, part: int, names: Names) -> bool:
    """Return whether a part of series may hold what is asked for, from its statistics."""
    bounds = file.bounds(part, "name")
    if not isinstance(names, frozenset) or bounds is None:
        return True
    low, high = bounds
    return any(low <= name <= high for name in names)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
