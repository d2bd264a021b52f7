"""`resilience …` that is killed at one step of its journal, and tells what it asked the core.

`python crash_at.py KIND:N:SIDE LOG …`: SIGKILL to itself before or after the N-th batch that holds
a row of KIND (`any` is every batch, N 0 never). LOG gets a line for each batch and each impulse.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resilience.app.journal import SqliteJournal
from resilience.cli import main
from resilience.cores.client import HttpCore
from resilience.model import JournalEntry


def install(kind: str, count: int, side: str, log: Path) -> None:
    """Put the kill and the log around the journal and the client of the core."""
    seen = 0
    append, call = SqliteJournal.append, HttpCore._call

    def write(line: str) -> None:
        with log.open("a") as file:
            file.write(line + "\n")

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def counted(self: SqliteJournal, batch: Sequence[JournalEntry]) -> None:
        nonlocal seen
        kinds = sorted({entry.kind for entry in batch})
        seen += kind == "any" or kind in kinds
        here = count and seen == count and (kind == "any" or kind in kinds)
        write(f"batch {' '.join(kinds)}")
        if here and side == "before":
            die()
        append(self, batch)
        if here and side == "after":
            die()

    def told(self: HttpCore, method: str, path: str, body: Any, deadline_ms: int) -> Any:
        answer = call(self, method, path, body, deadline_ms)
        if path.startswith("/v1/impulses/"):
            write(f"impulse {path.rpartition('/')[2]} {'again' if answer['repeated'] else 'done'}")
        return answer

    SqliteJournal.append = counted  # type: ignore[method-assign]
    HttpCore._call = told  # type: ignore[method-assign]


if __name__ == "__main__":
    point, path, *arguments = sys.argv[1:]
    wanted, number, when = point.split(":")
    install(wanted, int(number), when, Path(path))
    main(arguments)
