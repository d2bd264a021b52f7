"""The engine's journal: what it intends, on disk before it acts.

One SQLite file in WAL mode with `synchronous=FULL`. A row is (kind, key, body); appending the same
(kind, key) again replaces the body and moves the row to the end, so that `load` is oldest first.
Kinds that grow with time are bounded by count and age in `compact`; kinds that describe what is
live (state, intent) are bounded by what they describe.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from resilience.errors import JournalError
from resilience.model import JournalEntry, Json, canonical_json

APPLICATION_ID = 0x72736C6A  # "rslj"
SCHEMA_VERSION = 1
PAGE_BYTES = 4096
SIZE_MAX_BYTES = 256 * 1024 * 1024
BODY_MAX_CHARS = 4 * 1024 * 1024
KEEP_MS = 30 * 24 * 3600 * 1000
BUSY_TIMEOUT_S = 5.0

# Impulses are kept longest: their keys are what makes a repeat impossible.
KEEP_ROWS: Mapping[str, int] = {
    "decision": 10_000, "execution": 10_000, "impulse": 50_000, "operator": 1_000, "bundle": 200,
    "inputs": 1_000, "impulse_planned": 1_000, "canary_decision": 2_000,
}

# One transaction, so that a crash in it leaves nothing, and never tables without our mark.
_CREATE = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS entries (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    body TEXT NOT NULL,
    UNIQUE (kind, key)
);
CREATE INDEX IF NOT EXISTS entries_by_kind ON entries (kind, seq);
PRAGMA application_id={APPLICATION_ID};
PRAGMA user_version={SCHEMA_VERSION};
COMMIT;
"""


class SqliteJournal:
    """model.Journal over one SQLite file; safe to call from several threads."""

    def __init__(self, path: Path) -> None:
        """Open or create `path`; raises JournalError if it is damaged or not a journal."""
        self.path = path
        self._lock = threading.Lock()
        try:
            _private(path)
            self._db = sqlite3.connect(
                path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
        except (sqlite3.Error, OSError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise JournalError(f"the journal `{path}` cannot be opened: {why}") from error
        try:
            self._prepare()
        except sqlite3.Error as error:
            self._db.close()
            raise _damaged(path, str(error)) from error
        except JournalError:
            self._db.close()
            raise

    def _prepare(self) -> None:
        self._identify()
        for pragma in (
            "auto_vacuum=INCREMENTAL", "journal_mode=WAL", "synchronous=FULL",
            f"journal_size_limit={SIZE_MAX_BYTES // 8}",
            f"max_page_count={SIZE_MAX_BYTES // PAGE_BYTES}",
        ):
            self._db.execute(f"PRAGMA {pragma}")
        check = self._db.execute("PRAGMA quick_check(1)").fetchone()
        if check[0] != "ok":
            raise _damaged(self.path, str(check[0]))
        self._db.executescript(_CREATE)

    def _identify(self) -> None:
        """Refuse somebody else's database and a journal of a newer engine."""
        application = self._db.execute("PRAGMA application_id").fetchone()[0]
        tables = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and application != APPLICATION_ID:
            raise JournalError(
                f"`{self.path}` is a database but not a journal of this engine; "
                "use another `--state`"
            )
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise JournalError(
                f"the journal `{self.path}` was written by a newer engine (version {version}); "
                "upgrade this one or use another `--state`"
            )

    def append(self, batch: Sequence[JournalEntry]) -> None:
        """Write the batch, all or nothing; when this returns it is on disk."""
        rows = [_row(entry) for entry in batch]
        with self._transaction("write") as db:
            for kind, key, body in rows:
                db.execute("DELETE FROM entries WHERE kind = ? AND key = ?", (kind, key))
                if body is not None:
                    db.execute(
                        "INSERT INTO entries (kind, key, body) VALUES (?, ?, ?)", (kind, key, body)
                    )

    def load(self, kind: str) -> Mapping[str, Json]:
        """Return the newest body of each key of `kind`, oldest first."""
        with self._guard("read"):
            rows = self._db.execute(
                "SELECT key, body FROM entries WHERE kind = ? ORDER BY seq", (kind,)
            ).fetchall()
        try:
            return {key: json.loads(body) for key, body in rows}
        except ValueError as error:
            raise _damaged(self.path, f"a row of kind `{kind}` is not JSON") from error

    def get(self, kind: str, key: str) -> Json | None:
        """Return the body of one row, or None."""
        with self._guard("read"):
            row = self._db.execute(
                "SELECT body FROM entries WHERE kind = ? AND key = ?", (kind, key)
            ).fetchone()
        return None if row is None else json.loads(row[0])

    def recent(
        self, kind: str, *, limit: int, since_ms: int = 0, policy: str | None = None,
        key_prefix: str = "",
    ) -> list[Json]:
        """Return the newest `limit` bodies of `kind`, oldest first; filters on their `t_ms`,
        `policy` and key."""
        with self._guard("read"):
            rows = self._db.execute(
                "SELECT body FROM entries WHERE kind = ? AND substr(key, 1, ?) = ? "
                "AND coalesce(json_extract(body, '$.t_ms'), 0) >= ? "
                "AND (? IS NULL OR json_extract(body, '$.policy') = ?) "
                "ORDER BY seq DESC LIMIT ?",
                (kind, len(key_prefix), key_prefix, since_ms, policy, policy, limit),
            ).fetchall()
        return [json.loads(body) for (body,) in reversed(rows)]

    def compact(self, *, now_ms: int) -> None:
        """Drop what is over its count or age, give the pages back, and empty the WAL."""
        with self._transaction("compact") as db:
            for kind, limit in KEEP_ROWS.items():
                db.execute(
                    "DELETE FROM entries WHERE kind = ? AND seq <= (SELECT seq FROM entries "
                    "WHERE kind = ? ORDER BY seq DESC LIMIT 1 OFFSET ?)",
                    (kind, kind, limit),
                )
                db.execute(
                    "DELETE FROM entries WHERE kind = ? AND kind != 'bundle' "
                    "AND json_extract(body, '$.t_ms') < ?",
                    (kind, now_ms - KEEP_MS),
                )
        with self._guard("compact"):
            self._db.execute("PRAGMA incremental_vacuum").fetchall()
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def _transaction(self, what: str) -> Generator[sqlite3.Connection]:
        with self._guard(what):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _guard(self, what: str) -> Generator[None]:
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                raise JournalError(f"cannot {what} the journal `{self.path}`: {error}") from error


def _private(path: Path) -> None:
    """Make the file for this user alone; SQLite gives its side files the same mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _damaged(path: Path, why: str) -> JournalError:
    return JournalError(
        f"the journal `{path}` is damaged ({why}); move it away to start afresh: "
        "claims in the core end with their leases"
    )


def _row(entry: JournalEntry) -> tuple[str, str, str | None]:
    if entry.body is None:
        return entry.kind, entry.key, None
    body = canonical_json(entry.body)
    if len(body) > BODY_MAX_CHARS:
        raise JournalError(
            f"a journal entry of kind `{entry.kind}` has {len(body)} characters, "
            f"more than the limit of {BODY_MAX_CHARS}"
        )
    return entry.kind, entry.key, body


class MemoryJournal:
    """model.Journal without a disk, for dry runs; the same order and replacement rules."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], str] = {}

    def append(self, batch: Sequence[JournalEntry]) -> None:
        for kind, key, body in [_row(entry) for entry in batch]:
            self._rows.pop((kind, key), None)
            if body is not None:
                self._rows[(kind, key)] = body

    def load(self, kind: str) -> Mapping[str, Json]:
        return {key: json.loads(body) for (k, key), body in self._rows.items() if k == kind}

    def get(self, kind: str, key: str) -> Json | None:
        body = self._rows.get((kind, key))
        return None if body is None else json.loads(body)

    def compact(self, *, now_ms: int) -> None:
        for kind, limit in KEEP_ROWS.items():
            keys = [row for row in self._rows if row[0] == kind]
            for row in keys[: max(0, len(keys) - limit)]:
                del self._rows[row]

    def close(self) -> None:
        pass
