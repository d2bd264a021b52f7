"""Follow a rules folder: a change is applied as a whole once the folder is quiet.

Looking (names, sizes, times, inodes) works on every mount, also where a ConfigMap is swapped by its
links and where nobody sends events. A bundle that is refused changes nothing and is said once; the
next change is another chance. An engine that does not answer is asked again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from resilience.app.bundles import FILES_MAX, Sources, udfs_near
from resilience.errors import ControlError, CoreError, FindingsError, ResilienceError

QUIET_MS = 1_000
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
        for folder, names, files in os.walk(root):
            names[:] = [n for n in names if not n.startswith(".") and n != "__pycache__"]
            yield from (os.path.join(folder, n) for n in files if not n.startswith("."))


class Watch:
    """Call `poll` now and then. `look` returns a stamp, `read` the sources, `use` applies them."""

    def __init__(
        self, look: Callable[[], Stamp], read: Callable[[], Sources],
        use: Callable[[Sources], None], say: Callable[[str], None], *, applied: bool,
    ) -> None:
        """`applied`: what the folder holds now is active already."""
        self._look, self._read, self._use, self._say = look, read, use, say
        self._tried: Stamp | None = look() if applied else None
        self._seen: Stamp | None = None
        self._since_ms = 0
        self._said: str | None = None

    def poll(self, now_ms: int) -> bool:
        """Look once at `now_ms`, a monotonic time, and apply what has been there for QUIET_MS;
        returns whether it was tried."""
        now = self._look()
        if now != self._seen:
            self._seen, self._since_ms = now, now_ms
        if now == self._tried or now_ms - self._since_ms < QUIET_MS:
            return False
        return self._try(now)

    def _try(self, now: Stamp) -> bool:
        try:
            sources = self._read()
            if self._look() != now:  # it changed while it was read: half of two states is neither
                return False
            self._use(sources)
        except (ControlError, CoreError) as error:
            final = isinstance(error, ControlError) and error.status != 0
            self._tried = now if final else self._tried
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
