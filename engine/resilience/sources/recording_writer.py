"""What a live engine writes its recording with: batches and events as they happen."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from resilience.errors import RecordingError
from resilience.promql.storage import ABSENT, is_absent
from resilience.samples import Json, Labels
from resilience.sources.recording_format import RecordingMeta, name_of
from resilience.sources.recording_parts import merge_parts, part_path, tail_path
from resilience.sources.recording_tail import Tail, dense_group
from resilience.sources.recording_write import FileWriter
from resilience.sources.store import MemoryStore

PART_SAMPLES = 1_000_000
PART_EVENTS = 10_000
SERIES_MAX = 200_000
SEEN_MAX = 64

Row = NDArray[np.float64]
Places = NDArray[np.intp]
Piece = tuple[int, Places | None, Places]


class RecordingWriter:
    """Appends to a folder of parts; `close()` joins them into one file.

    Memory is bounded by one part. All that was written survives a kill of the process: complete
    parts as Parquet, the open one as a tail of lines. Safe to call from several threads.
    """

    def __init__(
        self,
        folder: Path,
        meta: RecordingMeta,
        *,
        part_samples: int = PART_SAMPLES,
        part_events: int = PART_EVENTS,
    ) -> None:
        """Raises RecordingError if `folder` cannot be made or already holds something."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise RecordingError(f"`{folder}` is not empty: name a new one for this recording")
        except OSError as error:
            raise RecordingError(f"cannot use `{folder}`: {error.strerror}") from None
        self.folder = folder
        self._meta = meta
        self._limits = (part_samples, part_events)
        self._lock = threading.Lock()
        self._groups = _Groups()
        self._part = 0
        self._ordinal = 0
        self._closed = False
        self._begin_part()

    def batch(self, seq: int, t_ms: int, labels: Sequence[Labels], values: Row) -> None:
        """Append one batch as it was given sequence number `seq` by the store."""
        with self._lock:
            self._check()
            for number, row in self._groups.rows(labels, values):
                self._tell(number)
                self._rows.setdefault(number, []).append((seq, t_ms, row))
                self._tail.batch(number, seq, t_ms, row)
                self._samples += len(row)
            self._spread(t_ms)
            self._seal_if_full()

    def history(self, store: MemoryStore) -> None:
        """Begin with what the store already holds: the first ticks look back at it."""
        for group in store.groups():
            for column in range(len(group.times)):
                self.batch(
                    int(group.seqs[column]),
                    int(group.times[column]),
                    group.labels,
                    group.values[:, column],
                )

    def event(self, body: Json) -> None:
        """Append an event: a JSON object with its kind in `type`, usually also `t_ms`."""
        with self._lock:
            self._check()
            self._events.append((self._ordinal, body))
            self._tail.event(self._ordinal, body)
            self._ordinal += 1
            if body.get("type") == "tick":
                self._spread(body["t_ms"])
            self._seal_if_full()

    def close(self, path: Path | None = None) -> Path:
        """Join all parts into `path` (default: the folder's name + `.parquet`); return it."""
        with self._lock:
            if path is None:
                path = self.folder.with_name(self.folder.name + ".parquet")
            self._check()
            self._closed = True
            self._seal()
            self._tail.close()
            self._tail.path.unlink(missing_ok=True)
            merge_parts(self.folder, path)
            return path

    def abandon(self) -> None:
        """Stop writing and leave the parts as they are; they stay readable."""
        with self._lock:
            self._closed = True
            self._tail.close()

    # --- parts ---------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._closed:
            raise RecordingError(f"the recording `{self.folder}` is closed")

    def _begin_part(self) -> None:
        self._rows: dict[int, list[tuple[int, int, Row]]] = {}
        self._events: list[tuple[int, Json]] = []
        self._told: dict[int, int] = {}
        self._samples = 0
        self._start_ms = self._end_ms = 0
        self._tail = Tail(tail_path(self.folder, self._part), self._meta)

    def _tell(self, number: int) -> None:
        """Write the series of a group that this part's tail does not know yet."""
        members = self._groups.members[number]
        told = self._told.get(number, 0)
        if told < len(members):
            self._tail.series(number, members[told:])
            self._told[number] = len(members)

    def _spread(self, t_ms: int) -> None:
        self._start_ms = min(self._start_ms, t_ms) if self._end_ms else t_ms
        self._end_ms = max(self._end_ms, t_ms)

    def _seal_if_full(self) -> None:
        samples, events = self._limits
        if self._samples >= samples or len(self._events) >= events:
            self._seal()
            old = self._tail
            self._part += 1
            self._begin_part()
            old.close()
            old.path.unlink(missing_ok=True)

    def _seal(self) -> None:
        """Write the open part as Parquet, sorted as the format wants it."""
        meta = replace(self._meta, start_ms=self._start_ms, end_ms=self._end_ms)
        groups = [
            dense_group(number, self._groups.members[number], rows)
            for number, rows in sorted(self._rows.items())
        ]
        rows = [
            (name_of(labels), labels, group.number, values)
            for group in groups
            for labels, values in zip(group.labels, group.values, strict=True)
            if not is_absent(values).all()
        ]
        rows.sort(key=lambda row: row[:3])
        with FileWriter(part_path(self.folder, self._part), meta) as writer:
            writer.events(self._events)
            writer.groups((g.number, g.times_ms, g.seqs) for g in groups)
            writer.series(row[1:] for row in rows)


class _Groups:
    """Which series belong together: a series stays in the group of its first batch."""

    def __init__(self) -> None:
        self.members: list[list[Labels]] = []
        self._place: dict[Labels, tuple[int, int]] = {}
        self._seen: dict[int, tuple[Sequence[Labels], list[Piece]]] = {}

    def rows(self, labels: Sequence[Labels], values: Row) -> list[tuple[int, Row]]:
        """Return (group, one value for each of its series) of a batch."""
        found: list[tuple[int, Row]] = []
        if not labels:
            return found
        for number, columns, places in self._pieces(labels):
            row = np.full(len(self.members[number]), ABSENT)
            row[places] = values if columns is None else values[columns]
            found.append((number, row))
        return found

    def _pieces(self, labels: Sequence[Labels]) -> list[Piece]:
        """Return (group, columns of the batch or None for all, places in the group).

        A scraper gives the same object again while its series stay the same.
        """
        seen = self._seen.get(id(labels))
        if seen is not None and seen[0] is labels and isinstance(labels, tuple):
            return seen[1]
        home = self._home(labels)
        pieces: dict[int, list[tuple[int, int]]] = {}
        for column, one in enumerate(labels):
            number, place = self._place.get(one) or self._add(one, home)
            pieces.setdefault(number, []).append((column, place))
        made: list[Piece] = []
        for number, pairs in pieces.items():
            columns, places = np.array(pairs, np.intp).T
            made.append((number, None if len(pieces) == 1 else columns, places))
        if len(self._seen) >= SEEN_MAX:
            self._seen.clear()
        self._seen[id(labels)] = (labels, made)
        return made

    def _home(self, labels: Sequence[Labels]) -> int:
        """Return the group of the first known series; new ones join it."""
        for one in labels:
            if one in self._place:
                return self._place[one][0]
        self.members.append([])
        return len(self.members) - 1

    def _add(self, labels: Labels, home: int) -> tuple[int, int]:
        if len(self._place) >= SERIES_MAX:
            raise RecordingError(f"the recording holds {SERIES_MAX} series already")
        place = self._place[labels] = (home, len(self.members[home]))
        self.members[home].append(labels)
        return place
