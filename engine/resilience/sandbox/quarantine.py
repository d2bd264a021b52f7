"""UDFs that fail again and again are not run until their file changes or an operator says so."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

FINE = frozenset({"ok", "QUARANTINED"})


class Quarantine:
    """Counts failures in a row. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: dict[str, int] = {}
        self._reasons: dict[str, str] = {}

    def reason(self, function: str) -> str | None:
        """Return why `function` is not run, None if it may be."""
        with self._lock:
            return self._reasons.get(function)

    def reasons(self) -> Mapping[str, str]:
        """Return function -> reason."""
        with self._lock:
            return dict(self._reasons)

    def count(self, function: str, outcome: str, limit: int) -> None:
        """Note one outcome; `limit` failures in a row quarantine the function (0: never)."""
        with self._lock:
            if outcome in FINE:
                self._failures.pop(function, None)
                return
            failures = self._failures[function] = self._failures.get(function, 0) + 1
            if failures >= limit > 0:
                self._reasons[function] = f"failed {failures} times in a row, last with {outcome}"

    def release(self, functions: Iterable[str]) -> bool:
        """Forget `functions`; True if one of them was quarantined."""
        with self._lock:
            for function in (names := list(functions)):
                self._failures.pop(function, None)
            return any([self._reasons.pop(function, None) is not None for function in names])
