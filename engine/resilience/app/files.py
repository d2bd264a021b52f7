"""The state folder, its lock, and the bounded streams of JSON lines in it."""

from __future__ import annotations

import fcntl
import os
import re
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from resilience.errors import UsageError

LINE_MAX_CHARS = 1024 * 1024
ROTATE_BYTES = 32 * 1024 * 1024
ROTATED_FILES = 3
SOCKET_PATH_MAX = 107  # what the kernel takes for a Unix socket
_NAME = re.compile(r"[a-z][a-z0-9_-]*\.jsonl")


def default_state_path() -> Path:
    """Return $RESILIENCE_STATE, else $XDG_STATE_HOME/resilience, else ~/.local/state/resilience."""
    if chosen := os.environ.get("RESILIENCE_STATE"):
        return Path(chosen)
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "resilience"


def default_socket_path(state: Path | None = None) -> Path:
    """Return $RESILIENCE_SOCKET, else the socket in the state folder."""
    if chosen := os.environ.get("RESILIENCE_SOCKET"):
        return Path(chosen)
    return (state or default_state_path()) / "engine.sock"


@dataclass(frozen=True, slots=True)
class StateFolder:
    """Everything that one engine keeps on disk; private to its user."""

    path: Path

    @classmethod
    def create(cls, path: Path) -> StateFolder:
        """Make the folder (0700) where it is missing; raises UsageError."""
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            (path / "bundles").mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UsageError(
                f"the state folder `{path}` cannot be made: {reason}; choose another with `--state`"
            ) from error
        if not os.access(path, os.W_OK | os.X_OK):
            raise UsageError(
                f"the state folder `{path}` is not writable; choose another with `--state`"
            )
        return cls(path)

    @property
    def journal(self) -> Path:
        return self.path / "journal.db"

    @property
    def socket(self) -> Path:
        return self.path / "engine.sock"

    @property
    def token(self) -> Path:
        return self.path / "core.token"

    @property
    def bundles(self) -> Path:
        return self.path / "bundles"


def read_token(path: Path) -> str:
    """Return the token in `path`; raises UsageError when there is none."""
    try:
        value = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or "not UTF-8 text").lower()
        raise UsageError(f"the token file `{path}` cannot be read: {reason}") from error
    if not value or any(c.isspace() for c in value):
        raise UsageError(f"the token file `{path}` must hold one token on one line")
    return value


class StateLock:
    """Holds the state folder for one engine; the kernel lets go when the process dies."""

    def __init__(self, folder: StateFolder) -> None:
        """Raises UsageError when another engine holds the folder."""
        path = folder.path / "engine.lock"
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid = self._file.read().strip() or "unknown"
            self._file.close()
            raise UsageError(
                f"another engine (pid {pid}) uses the state folder `{folder.path}`; "
                "stop it or choose another with `--state`"
            ) from error
        self._file.seek(0)
        self._file.truncate()
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def release(self) -> None:
        self._file.close()


def _is_torn(path: Path) -> bool:
    """Whether the last line has no end: the disk was full, or the engine died in it."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


class LineFiles:
    """model.Files in one folder: each stream is rotated by size and only so many files are kept.

    A line that cannot be written is counted in `dropped`, never an error: the tick goes on.
    """

    def __init__(
        self, folder: Path, *, rotate_bytes: int = ROTATE_BYTES, kept: int = ROTATED_FILES
    ) -> None:
        self._folder = folder
        self._rotate_bytes = rotate_bytes
        self._kept = kept
        self._open: dict[str, IO[str]] = {}
        self._lock = threading.Lock()
        self.dropped = 0

    def limit(self, rotate_bytes: int, kept: int) -> None:
        """Keep so much from now on; what is beyond goes at once."""
        with self._lock:
            for path in self._folder.glob("*.jsonl.*"):
                number = path.name.rpartition(".")[2]
                if number.isdigit() and int(number) >= kept:
                    path.unlink(missing_ok=True)
            self._rotate_bytes, self._kept = rotate_bytes, kept

    def append_line(self, name: str, line: str) -> None:
        """Append `line` to stream `name` (`WORD.jsonl`)."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"`{name}` is not the name of a stream")
        with self._lock:
            if len(line) > LINE_MAX_CHARS or "\n" in line:
                self.dropped += 1
                return
            try:
                file = self._file(name)
                file.write(line + "\n")
                file.flush()
            except OSError:
                self.dropped += 1
                self._forget(name)

    def close(self) -> None:
        with self._lock:
            for name in list(self._open):
                self._forget(name)

    def _file(self, name: str) -> IO[str]:
        file = self._open.get(name)
        if file is not None and file.tell() >= self._rotate_bytes:
            self._forget(name)
            self._rotate(name)
            file = None
        if file is None:
            descriptor = os.open(
                self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
            )
            # The lines are JSON: the escape of half a character, which is no UTF-8, is the same.
            file = self._open[name] = os.fdopen(
                descriptor, "a", encoding="utf-8", errors="backslashreplace")
            if _is_torn(self._folder / name):
                file.write("\n")
        return file

    def _rotate(self, name: str) -> None:
        """Move NAME to NAME.1, NAME.1 to NAME.2 and so on; the oldest goes."""
        paths = [self._folder / name, *(self._folder / f"{name}.{n}" for n in range(1, self._kept))]
        for older, newer in zip(reversed(paths[1:]), reversed(paths[:-1]), strict=True):
            if newer.exists():
                os.replace(newer, older)

    def _forget(self, name: str) -> None:
        file = self._open.pop(name, None)
        if file is not None:
            with suppress(OSError):  # what it could not write was counted
                file.close()
