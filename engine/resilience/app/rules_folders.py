"""Reads what rules folders and UDF folders hold: each file once, none without a limit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from resilience.errors import UsageError
from resilience.policy.document import is_policy_file
from resilience.policy.encoding import FILE_MAX_BYTES

FILES_MAX = 20_000
BYTES_MAX = 64 * 1024 * 1024  # all documents together; of one that is too large `check` says so
UDF_BYTES_MAX = 1024 * 1024
DEPTH_MAX = 16
LEFT_BEHIND = ("~", "#", ".bak", ".orig", ".rej", ".swp", ".tmp")
TEST_ENDINGS = (".test.yaml", ".test.yml")

Texts = tuple[tuple[str, str], ...]
Refuse = Callable[[Path, UsageError], None]       # what to do about a path that cannot be read


def refuse_all(path: Path, error: UsageError) -> None:
    """Refuse a whole folder for the first path that cannot be read."""
    raise error


def policy_tests(folder: Path) -> list[Path]:
    """Return the policy tests under `folder`, in order; raises UsageError."""
    return _walk(readable_name(folder), lambda name: name.lower().endswith(TEST_ENDINGS))


def read_documents(
    rules: Path, refuse: Refuse
) -> tuple[list[tuple[str, bytes]], dict[str, str]]:
    """Return (name, bytes) of the policy files of a folder or file, and each name's path as the
    user can open it; raises UsageError."""
    if not rules.exists():
        raise UsageError(_missing(rules, "rules folder or file"))
    if not rules.is_dir():
        return [(rules.name, read_file(rules))], {rules.name: str(rules)}
    found = [
        path for path in _walk(rules, is_policy_file, refuse)
        if "udfs" not in path.relative_to(rules).parts[:-1]
    ]
    shown = {path.relative_to(rules).as_posix(): str(path) for path in found}
    return _read_all(rules, shown, refuse), shown


def _read_all(
    rules: Path, shown: Mapping[str, str], refuse: Refuse
) -> list[tuple[str, bytes]]:
    read: list[tuple[str, bytes]] = []
    left = BYTES_MAX
    for name, path in shown.items():
        try:
            read.append((name, read_file(Path(path))))
        except UsageError as error:
            refuse(Path(path), error)
            continue
        left -= len(read[-1][1])
        if left < 0:
            raise UsageError(f"the policy files in `{rules}` have more than {BYTES_MAX >> 20} MiB "
                             "together; split the folder")
    return read


def _missing(path: Path, what: str) -> str:
    if path.is_symlink():
        return f"`{path}` is a link that points nowhere"
    return f"the {what} `{path}` does not exist"


def udfs_near(rules: Path) -> list[Path]:
    """Return the UDF folder inside or beside the rules folder, if there is one; the folder of a
    single file is its rules folder."""
    folder = rules if rules.is_dir() else rules.parent
    candidates = [folder / "udfs", folder.absolute().parent / "udfs"]
    return [path for path in candidates if path.is_dir()][:1]


def read_udfs(root: Path, prefix: str, shown: dict[str, str], refuse: Refuse) -> Texts:
    """Return (name, text) of the UDF files under `root`, the names below `prefix`; adds their paths
    to `shown`. Raises UsageError."""
    if not root.is_dir():
        raise UsageError(_missing(root, "UDF folder"))
    texts: list[tuple[str, str]] = []
    for path in _walk(root, _is_udf_file, refuse):
        name = f"{prefix}/{path.relative_to(root).as_posix()}"
        shown[name] = str(path)
        try:
            texts.append((name, _read_udf(path)))
        except UsageError as error:
            refuse(path, error)
    return tuple(texts)


def _read_udf(path: Path) -> str:
    body = read_file(path, UDF_BYTES_MAX)
    if len(body) > UDF_BYTES_MAX:
        raise UsageError(f"`{path}` is larger than {UDF_BYTES_MAX} bytes")
    return text_of(str(path), body)


def _is_udf_file(name: str) -> bool:
    return name.endswith(".py") and not name.endswith((".test.py", "_test.py"))


def _walk(root: Path, wanted: Callable[[str], bool], refuse: Refuse = refuse_all) -> list[Path]:
    """Return the files under `root` with wanted names, in order: links are followed once, hidden
    ones skipped. A pipe or device of such a name and a folder that cannot be listed are refused.

    A ConfigMap mount is a hidden folder of files and a link to each, so every file comes once.
    """
    found: list[Path] = []
    for folder, names, files in each_folder(root, partial(_refuse_folder, refuse)):
        here = Path(folder)
        if len(here.relative_to(root).parts) > DEPTH_MAX:
            raise UsageError(f"`{here}` lies deeper than {DEPTH_MAX} folders")
        names[:] = sorted(n for n in names if not _ignored(n) and n != "__pycache__")
        found += [here / n for n in files if not _ignored(n) and wanted(n)]
        if len(found) > FILES_MAX:
            raise UsageError(f"`{root}` holds more than {FILES_MAX} such files")
    return [path for path in sorted(found) if _is_regular(path, refuse)]


def each_folder(
    root: Path, unlisted: Callable[[OSError], None] = lambda error: None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk as `os.walk` does, links too, but into each folder once. `unlisted` hears of a folder
    that cannot be read or is gone meanwhile."""
    seen: set[tuple[int, int]] = set()
    for folder, names, files in os.walk(root, followlinks=True, onerror=unlisted):
        try:
            status = os.stat(folder)
        except OSError as error:
            names.clear()
            unlisted(error)
            continue
        if (status.st_dev, status.st_ino) in seen:  # a link that leads back
            names.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        yield folder, names, files


def _refuse_folder(refuse: Refuse, error: OSError) -> None:
    """Say which folder cannot be listed: left out, its policies would be missing silently."""
    why = f"`{error.filename}` cannot be read: {(error.strerror or '').lower()}"
    refuse(Path(error.filename), UsageError(why))


def readable_name(path: Path) -> Path:
    """Return `path`; raises UsageError for a name that no message, JSON or journal can hold."""
    try:
        os.fsencode(path).decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"the name of `{shown_name(path)}` is not UTF-8; rename it") from None
    return path


def shown_name(path: Path) -> str:
    """Return a path for a message, whatever bytes its name has."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _is_regular(path: Path, refuse: Refuse) -> bool:
    """Return whether a file of a folder may be opened; if not, it has been refused."""
    try:
        readable_name(path)
        if path.exists() and not path.is_file():
            raise UsageError(f"`{path}` is no regular file; move it out of the folder")
    except UsageError as error:
        refuse(path, error)
        return False
    return True


def _ignored(name: str) -> bool:
    """Whether `name` is hidden or what an editor left behind."""
    return name.startswith(".") or name.endswith(LEFT_BEHIND)


def read_file(path: Path, most: int = FILE_MAX_BYTES) -> bytes:
    """Return the file, or its first `most` bytes and one more: who checks it says that it is too
    large. Raises UsageError for what cannot be read."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            return file.read(most + 1)
    except FileNotFoundError as error:
        raise UsageError(_missing(path, "file")) from error
    except OSError as error:
        raise UsageError(f"`{path}` cannot be read: {(error.strerror or '').lower()}") from error


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for somebody to write into a named pipe: without one it is empty."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor


def text_of(path: str, body: bytes) -> str:
    """Return the text of a file that was read; raises UsageError for bytes that are none."""
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"`{path}` is not UTF-8 text: {error.reason}") from error
