"""Everything the demo starts ends with it: processes, their tree, their memory.

The demo makes itself the reaper of its orphans, so a server that outlived its engine is still a
descendant, and the whole tree can be measured and ended by one walk.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
SAMPLE_S = 2.0
END_S = 10.0
_PROC = Path("/proc")


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (Linux; elsewhere nothing happens)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Return the process ids below `root`, parents before children."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            parent = _parent(entry)
            if parent is not None:
                children.setdefault(parent, []).append(int(entry.name))
    found = list(children.get(root, []))
    for pid in found:  # grows while it is walked
        found.extend(children.get(pid, []))
    return found


def _parent(entry: Path) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        # The command's name stands in brackets and may hold anything, blanks and brackets too.
        state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        return None if state == "Z" else int(parent)
    return None


def end_all(root: int, patience_s: float = END_S) -> None:
    """End every descendant of `root`: politely, then by force. Returns when they are gone."""
    _signal_all(root, signal.SIGTERM)
    _wait_gone(root, patience_s)
    _signal_all(root, signal.SIGKILL)
    _wait_gone(root, patience_s)


def _signal_all(root: int, number: signal.Signals) -> None:
    for pid in descendants(root):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _wait_gone(root: int, patience_s: float) -> None:
    ends_s = time.monotonic() + patience_s
    while descendants(root) and time.monotonic() < ends_s:
        _reap()
        time.sleep(0.1)


def _reap() -> None:
    """Collect ended children, adopted ones too; Popen copes with one that is gone already."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class MemoryWatch:
    """Samples the memory of this process and its descendants until it is left.

    Shared pages are counted once (proportional set size), so the sum is what the machine lost.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(SAMPLE_S + 5)

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            pids = [os.getpid(), *descendants(os.getpid())]
            self.peak_bytes = max(self.peak_bytes, sum(proportional_bytes(pid) for pid in pids))


def proportional_bytes(pid: int) -> int:
    """Return the proportional set size of `pid`; 0 when it has ended."""
    with suppress(OSError, ValueError, IndexError):
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
