"""Rows of the engine's history: what the journal has no room for now is written later.

The engine acts without them, so a full disk must not stop it; but what was done should be told by
`history` and `explain` once there is room again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from resilience.app.journal import SqliteJournal, is_too_large
from resilience.errors import JournalError
from resilience.model import Clock, JournalEntry

OWED_MAX = 2_000
RETRY_MS = 2_000
PART = "journal"
WELL = "the journal can be written again"
PROBE = JournalEntry("probe", "journal", {})  # written to see whether there is room again

Note = Callable[[str, "str | None", "str | None"], None]


class Records:
    """Writes rows of the history and keeps `note` informed of how the journal is."""

    def __init__(self, journal: SqliteJournal, clock: Clock, note: Note) -> None:
        self._journal = journal
        self._clock = clock
        self._note = note
        self._owed: deque[JournalEntry] = deque()
        self._not_before = 0
        self._lock = threading.Lock()
        self.dropped = 0

    def write(self, rows: Sequence[JournalEntry]) -> None:
        """Write `rows`, and before them what is owed; never raises. What is too large for the
        journal is dropped at once: it would hold up all that comes after it."""
        fitting = [row for row in rows if not is_too_large(row)]
        with self._lock:
            self.dropped += len(rows) - len(fitting)
            self._owed.extend(fitting)
            self._write()

    def retry(self) -> None:
        """Try again what had no room; with nothing to write, look whether there is room again."""
        with self._lock:
            waits = bool(self._owed) or self._journal.error is not None
            if waits and self._clock.monotonic_ms() >= self._not_before:
                self._write()

    def heard(self, error: str | None) -> None:
        """Learn how a write to the journal went: `error`, or what it says itself."""
        if error is not None:
            self._not_before = self._clock.monotonic_ms() + RETRY_MS
        self._note(PART, error or self._journal.error, WELL)

    def _write(self) -> None:
        try:
            self._journal.append([*self._owed] or [PROBE])
        except JournalError as error:
            while len(self._owed) > OWED_MAX:
                self._owed.popleft()
                self.dropped += 1
            self.heard(str(error))
            return
        self._owed.clear()
        self.heard(None)
