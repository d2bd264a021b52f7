"""Follow a rules folder: a change is applied as a whole once the folder is quiet.

Looking (names, sizes, times, inodes) works on every mount, also where a ConfigMap is swapped by its
links and where nobody sends events. A bundle that is refused changes nothing and is said once; the
next change is another chance. An engine that does not answer is asked again, as is one that had no
room on its disk: each time after twice the wait, for a try costs a whole check of the rules.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from resilience.app.bundles import Sources
from resilience.app.rules_folders import FILES_MAX, each_folder, udfs_near
from resilience.errors import ControlError, CoreError, FindingsError, JournalError, ResilienceError

QUIET_MS = 1_000
RETRY_MS = 3_000  # after what has nothing to do with the rules: no answer, no room on the disk
RETRY_MAX_MS = 60_000  # what the wait grows to
POLL_MS = 500
LOOKED_AT_MAX = 4 * FILES_MAX

Stamp: TypeAlias = tuple[tuple[str, int, int, int], ...]


def stamp(rules: Path, udf_dirs: Sequence[Path] = (), config: Path | None = None) -> Stamp:
    """Return what changes when anything in the folders does; what is missing is left out."""
    roots = [rules, *(udf_dirs or udfs_near(rules)), *([config] if config else [])]
    found: list[tuple[str, int, int, int]] = []
    for path in _files(roots):
        try:
            status = os.stat(path)
        except OSError:
            continue
        found.append((path, status.st_mtime_ns, status.st_size, status.st_ino))
        if len(found) >= LOOKED_AT_MAX:
            break
    return tuple(sorted(found))


def _files(roots: Sequence[Path]) -> Iterator[str]:
    for root in roots:
        if not root.is_dir():
            yield str(root)
            continue
        for folder, names, files in each_folder(root):
            names[:] = [n for n in names if not n.startswith(".") and n != "__pycache__"]
            yield from (os.path.join(folder, n) for n in files if not n.startswith("."))


class Watch:
    """Call `poll` now and then. `look` returns a stamp, `read` the sources, `use` applies them."""

    def __init__(
        self, look: Callable[[], Stamp], read: Callable[[], Sources],
        use: Callable[[Sources], None], say: Callable[[str], None], *, applied: Stamp | None,
    ) -> None:
        """`applied`: the stamp of what is active already, taken before that was read: whoever
        saves while a server starts has changed something."""
        self._look, self._read, self._use, self._say = look, read, use, say
        self._tried = applied
        self._seen: Stamp | None = None
        self._since_ms = 0
        self._said: str | None = None
        self._not_before_ms = 0
        self._wait_ms = RETRY_MS

    def poll(self, now_ms: int) -> bool:
        """Look once at `now_ms`, a monotonic time, and apply what has been there for QUIET_MS;
        returns whether it was tried."""
        now = self._look()
        if now != self._seen:
            self._seen, self._since_ms = now, now_ms
            self._not_before_ms = min(self._not_before_ms, now_ms + RETRY_MS)
            self._wait_ms = RETRY_MS
        if now == self._tried or now_ms - self._since_ms < QUIET_MS:
            return False
        return now_ms >= self._not_before_ms and self._try(now, now_ms)

    def _try(self, now: Stamp, now_ms: int) -> bool:
        try:
            sources = self._read()
            if self._look() != now:  # it changed while it was read: half of two states is neither
                return False
            self._use(sources)
        except (ControlError, CoreError, JournalError) as error:
            if isinstance(error, ControlError) and 400 <= error.status < 500:
                self._tried = now
            else:
                self._not_before_ms = now_ms + self._wait_ms
                self._wait_ms = min(2 * self._wait_ms, RETRY_MAX_MS)
            self._refused(error)
        except ResilienceError as error:
            self._tried = now
            self._refused(error)
        else:
            self._tried, self._said = now, None
        return True

    def _refused(self, error: ResilienceError) -> None:
        findings = getattr(error, "findings", ())
        errors = [f for f in findings if f.severity == "error"]
        text = "; ".join(str(f) for f in errors[:5]) or str(error)
        if text != self._said:
            self._said = text
            what = "refused" if isinstance(error, FindingsError) or errors else "not applied"
            self._say(f"the changed rules are {what}, the active ones go on: {text}")
