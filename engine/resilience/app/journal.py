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
    "breaker": 1_000,
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
        self.error: str | None = None  # why the newest `append` was refused
        self._lock = threading.Lock()
        try:
            _private(path)
            self._db = sqlite3.connect(
                path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
        except (sqlite3.Error, OSError) as error:
            why = (getattr(error, "strerror", None) or str(error)).lower()
            raise JournalError(f"the journal `{path}` cannot be opened: {why}") from error
        try:
            self._prepare()
            self._inode = path.stat().st_ino
        except (sqlite3.Error, OSError) as error:
            self._db.close()
            if _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise _damaged(path, str(error)) from error
            raise JournalError(
                f"the journal `{path}` cannot be opened: {_why(error)}") from error
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
        try:
            self._append([_row(entry) for entry in batch])
        except JournalError as error:
            self.error = str(error)
            raise
        self.error = None

    def _append(self, rows: Sequence[tuple[str, str, str | None]]) -> None:
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
        return {key: self._read(kind, body) for key, body in rows}

    def _read(self, kind: str, body: str) -> Json:
        try:
            return json.loads(body)
        except ValueError as error:
            raise _damaged(self.path, f"a row of kind `{kind}` is not JSON") from error

    def get(self, kind: str, key: str) -> Json | None:
        """Return the body of one row, or None."""
        with self._guard("read"):
            row = self._db.execute(
                "SELECT body FROM entries WHERE kind = ? AND key = ?", (kind, key)
            ).fetchone()
        return None if row is None else self._read(kind, row[0])

    def recent(
        self, kind: str, *, limit: int, since_ms: int = 0, policy: str | None = None,
        key_prefix: str = "",
    ) -> list[Json]:
        """Return the newest `limit` bodies of `kind`, oldest first; filters on their `t_ms`,
        `policy` and key. A row that has rotted is left out: the others are still worth reading."""
        with self._guard("read"):
            rows = self._db.execute(
                "SELECT body FROM entries WHERE kind = ? AND substr(key, 1, ?) = ? "
                "AND CASE WHEN json_valid(body) THEN "
                "coalesce(json_extract(body, '$.t_ms'), 0) >= ? "
                "AND (? IS NULL OR json_extract(body, '$.policy') = ?) ELSE 0 END "
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
                    "AND CASE WHEN json_valid(body) THEN json_extract(body, '$.t_ms') < ? "
                    "ELSE kind != 'impulse' END",  # its key alone forbids a repeat
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
            self._find_the_file()
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _find_the_file(self) -> None:
        """A file that was removed takes rows without a word, and no restart finds them."""
        try:
            if self.path.stat().st_ino == self._inode:
                return
        except OSError:
            pass
        raise JournalError(
            f"the journal `{self.path}` was removed or replaced while the engine runs; "
            "restart the engine")

    @contextmanager
    def _guard(self, what: str) -> Generator[None]:
        with self._lock:
            # SQLite maps its side file: to write there once it is read-only ends the process.
            if not os.access(self.path, os.W_OK) and self.path.exists():
                raise JournalError(
                    f"cannot {what} the journal `{self.path}`: its file or file system has become "
                    "read-only; make it writable")
            try:
                yield
            except (sqlite3.Error, UnicodeEncodeError) as error:
                raise JournalError(
                    f"cannot {what} the journal `{self.path}`: {_why(error)}") from error


def _private(path: Path) -> None:
    """Make the file for this user alone; SQLite gives its side files the same mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _code(error: Exception) -> int | None:
    """Return SQLite's primary code of an error, without what the extended one adds."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


_WHAT_TO_DO: Mapping[int | None, str] = {
    sqlite3.SQLITE_FULL: "; make room on its disk",
    sqlite3.SQLITE_READONLY: "; make its file and folder writable",
    sqlite3.SQLITE_IOERR: "; its disk may be full, read-only or failing",
    sqlite3.SQLITE_CANTOPEN: "; its folder may be gone, read-only or on a full disk",
}


def _why(error: Exception) -> str:
    return f"{' '.join(str(error).split())}{_WHAT_TO_DO.get(_code(error), '')}"


def _damaged(path: Path, why: str) -> JournalError:
    return JournalError(
        f"the journal `{path}` is damaged ({' '.join(why.split())}); move it away to start afresh: "
        "claims in the core end with their leases"
    )


def is_too_large(entry: JournalEntry) -> bool:
    """Whether no journal ever takes this row, nor any batch that holds it."""
    try:
        _row(entry)
    except JournalError:
        return True
    return False


def _row(entry: JournalEntry) -> tuple[str, str, str | None]:
    if entry.body is None:
        return entry.kind, entry.key, None
    # Half a character, which a core's answer may hold, is no UTF-8; its escape is the same JSON.
    body = canonical_json(entry.body).encode("utf-8", "backslashreplace").decode()
    if len(body) > BODY_MAX_CHARS:
        raise JournalError(
            f"a journal entry of kind `{entry.kind}` has {len(body)} characters, "
            f"more than the limit of {BODY_MAX_CHARS}"
        )
    return entry.kind, entry.key, body


class MemoryJournal:
    """model.Journal without a disk, for tests; the same order, limits and replacement rules, which
    one suite holds both to."""

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
