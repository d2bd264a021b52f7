"""Whether a file of ours may be written at a place: nothing that somebody else wrote is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from resilience.errors import UsageError

HEAD = 256
_STREAMS = ("/dev/", "/proc/")  # a pipe on standard output is /proc/PID/fd/pipe:[N]


def check_place(
    path: Path, is_ours: Callable[[bytes], bool], what: str, option: str, *,
    in_place: bool = False,
) -> None:
    """Raise UsageError where `what` cannot be written: better before a long run than after it.

    A file that stands there may go if `is_ours` says so of its first bytes, or if it is empty.
    `option` named the place. `in_place`: what stands there is written to, not replaced, so that
    it may be `/dev/stdout`, too.
    """
    if in_place and str(path.resolve()).startswith(_STREAMS):
        return
    if not path.parent.is_dir():
        raise UsageError(f"{option}: there is no folder `{path.parent}`; make it")
    if path.exists():
        _check_file(path, is_ours, what, option)
    if in_place and path.exists():
        if not os.access(path, os.W_OK):
            raise UsageError(f"{option}: `{path}` cannot be written: it is read-only")
    elif not os.access(path.parent, os.W_OK):
        raise UsageError(f"{option}: `{path}` cannot be written: its folder is read-only")


def _check_file(path: Path, is_ours: Callable[[bytes], bool], what: str, option: str) -> None:
    if not path.is_file():             # to open a pipe waits, and a device would be replaced
        raise UsageError(f"{option}: `{path}` cannot be written: it is no regular file")
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError as error:
        raise UsageError(
            f"{option}: `{path}` may be no {what} and would be lost, it cannot be read: "
            f"{(error.strerror or '').lower()}"
        ) from error
    if head and not is_ours(head):
        raise UsageError(f"{option}: `{path}` is no {what} and would be lost: choose another name")
