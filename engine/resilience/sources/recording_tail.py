"""The open part of a recording: lines of JSON that a killed engine leaves readable.

Parquet is only readable when it is complete, so what has not become a part yet is also appended
here, line by line. A last line that was cut is left out; every line before it counts.
"""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilience.errors import RecordingError
from resilience.promql.storage import ABSENT
from resilience.samples import Json, Labels, canonical_json
from resilience.sources.recording_format import Contents, Group, RecordingMeta


class Tail:
    """Appends to one file; the operating system has each line when a method returns."""

    def __init__(self, path: Path, meta: RecordingMeta) -> None:
        self.path = path
        try:
            self._file = path.open("w", encoding="utf-8")
        except OSError as error:
            raise RecordingError(f"cannot write `{path}`: {error.strerror}") from None
        self._line({"meta": meta.to_json()})

    def series(self, group: int, labels: list[Labels]) -> None:
        """Say that `group` has grown by these series, in this order."""
        self._line({"group": group, "series": [list(map(list, one)) for one in labels]})

    def batch(self, group: int, seq: int, t_ms: int, row: NDArray[np.float64]) -> None:
        """Append one value for each series of `group` so far, ABSENT where there is none."""
        text = base64.b64encode(row.astype("<f8").tobytes()).decode("ascii")
        self._line({"group": group, "seq": seq, "t": t_ms, "v": text})

    def event(self, ordinal: int, body: Json) -> None:
        self._line({"event": body, "n": ordinal})

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            raise RecordingError(f"cannot write `{self.path}`: {error.strerror}") from None

    def _line(self, body: Json) -> None:
        try:
            self._file.write(canonical_json(body) + "\n")
            self._file.flush()
        except (OSError, ValueError) as error:
            raise RecordingError(f"cannot write `{self.path}`: {error}") from None


def read_tail(path: Path) -> Contents | None:
    """Return what a tail holds, None if not even its first line is whole."""
    reader = _TailReader()
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.endswith("\n"):
                break
            try:
                reader.take(json.loads(line))
            except (ValueError, KeyError, TypeError, IndexError):
                raise RecordingError(f"`{path}` is damaged") from None
    return reader.contents()


class _TailReader:
    def __init__(self) -> None:
        self._meta: RecordingMeta | None = None
        self._series: dict[int, list[Labels]] = {}
        self._rows: dict[int, list[tuple[int, int, NDArray[np.float64]]]] = {}
        self._events: list[tuple[int, Json]] = []

    def take(self, line: dict[str, Any]) -> None:
        if "event" in line:
            self._events.append((line["n"], line["event"]))
        elif "series" in line:
            grown = self._series.setdefault(line["group"], [])
            grown.extend(tuple((k, v) for k, v in one) for one in line["series"])
        elif "v" in line:
            row = np.frombuffer(base64.b64decode(line["v"]), "<f8")
            self._rows.setdefault(line["group"], []).append((line["seq"], line["t"], row))
        else:
            self._meta = RecordingMeta.from_json(line["meta"])

    def contents(self) -> Contents | None:
        if self._meta is None:
            return None
        groups = [
            dense_group(number, labels, self._rows.get(number, []))
            for number, labels in sorted(self._series.items())
        ]
        return Contents(self._spanned(self._meta), tuple(groups), tuple(self._events))

    def _spanned(self, meta: RecordingMeta) -> RecordingMeta:
        """Its first line was written before there was a sample: the batches and ticks say from
        when to when it reaches, as for a complete part."""
        times = [t_ms for rows in self._rows.values() for _, t_ms, _ in rows]
        times += [e["t_ms"] for _, e in self._events if e.get("type") == "tick"]
        return replace(meta, start_ms=min(times), end_ms=max(times)) if times else meta


def dense_group(
    number: int, labels: list[Labels], rows: list[tuple[int, int, NDArray[np.float64]]]
) -> Group:
    """Return a group from its batches (seq, time, values); early ones know fewer series."""
    values = np.full((len(labels), len(rows)), ABSENT)
    for column, (_, _, row) in enumerate(rows):
        values[: len(row), column] = row
    return Group(
        list(labels),
        np.array([t for _, t, _ in rows], np.int64),
        np.array([seq for seq, _, _ in rows], np.int64),
        values,
        number,
    )
