"""Where samples and events go on their way to the store: also into a recording, while one runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilience.arrays import NDArray
from resilience.errors import ControlError, RecordingError, ResilienceError, UsageError
from resilience.model import Json, Labels

if TYPE_CHECKING:
    from resilience.sources.recording import RecordingMeta, RecordingWriter
    from resilience.sources.store import MemoryStore


def check_free(path: Path) -> None:
    """Raise UsageError where no recording can begin: what lies there is never overwritten."""
    from resilience.sources.recording import PARTS_SUFFIX

    parts = path.with_name(path.name + PARTS_SUFFIX)
    if path.exists():
        raise UsageError(f"`{path}` exists already; name a new file for the recording")
    if parts.exists() and (not parts.is_dir() or any(parts.iterdir())):
        raise UsageError(f"`{parts}` holds an unfinished recording; name a new file")
    home = next(p for p in parts.absolute().parents if p.exists())
    if not home.is_dir() or not os.access(home, os.W_OK | os.X_OK):
        raise UsageError(f"`{home}` is no folder that can be written to; name another file")


class Recorder:
    """Appends to the memory store as a scraper does, and to the recording that is running.

    A recording that cannot be written ends and says so; the engine goes on.
    """

    def __init__(self, store: MemoryStore, say: Callable[[str], None] = lambda text: None) -> None:
        self._store = store
        self._say = say
        self._lock = threading.Lock()
        self._writer: RecordingWriter | None = None
        self._path: Path | None = None
        self._scraped_ms: int | None = None

    @property
    def path(self) -> Path | None:
        """Where the running recording will lie; None when none runs."""
        return self._path

    def append(self, t_ms: int, labels: Sequence[Labels], values: NDArray[Any]) -> int:
        """Store one batch and return its sequence number."""
        with self._lock:
            seq = self._store.append(t_ms, labels, values)
            self._write(lambda writer: writer.batch(seq, t_ms, labels, values))
            return seq

    def scraped(self, t_ms: int) -> None:
        """Take note of a scrape that is stored: its samples are stamped `t_ms`."""
        with self._lock:
            self._scraped_ms = t_ms

    def mind_the_clock(self, now_ms: int, interval_ms: int) -> int | None:
        """Begin anew if the clock was set back behind the newest scrape; return by how much, or
        None.

        Less than a scrape interval changes nothing: the next scrape is still later than the last.
        """
        with self._lock:
            if self._scraped_ms is None or now_ms > self._scraped_ms - interval_ms:
                return None
            by_ms, self._scraped_ms = self._scraped_ms - now_ms, None
            body = {"type": "clock_set_back", "t_ms": now_ms, "seq": self._store.begin_anew()}
            self._write(lambda writer: writer.event(body))
            return by_ms

    def event(self, body: Json) -> None:
        """Record an event of the engine."""
        with self._lock:
            self._write(lambda writer: writer.event(body))

    def _write(self, do: Callable[[RecordingWriter], None]) -> None:
        if self._writer is None:
            return
        try:
            do(self._writer)
        except RecordingError as error:
            self._writer, self._path = None, None
            self._say(f"the recording has ended: {error}")

    def start(self, path: Path, meta: RecordingMeta) -> None:
        """Begin to record into `path`; raises UsageError or RecordingError."""
        from resilience.sources.recording import PARTS_SUFFIX, RecordingWriter

        with self._lock:
            if self._writer is not None:
                raise ControlError(
                    f"a recording into `{self._path}` runs already", code="conflict", status=409
                )
            check_free(path)
            writer = RecordingWriter(path.with_name(path.name + PARTS_SUFFIX), meta)
            writer.history(self._store)  # the first recorded tick looks back on it
            self._writer, self._path = writer, path

    def stop(self) -> Path | None:
        """End the recording and return where it lies; None when none runs."""
        with self._lock:
            writer, path = self._writer, self._path
            self._writer, self._path = None, None
        if writer is None or path is None:
            return None
        try:  # nobody else has this writer any more, and joining must not hold up scrapes and ticks
            return writer.close(path)
        except RecordingError as error:
            raise ResilienceError(
                f"the recording was not joined, its parts are in `{writer.folder}`: {error}"
            ) from error
