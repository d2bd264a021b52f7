"""What is wrong in the engine now, and what its log says of it: once, not at each tick."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable
from hashlib import sha256

from resilience.errors import ResilienceError

FAULTS_MAX = 100
_TICK = "tick-"


def tick_job(interval_ms: int) -> str:
    """Return the name of the job that ticks at this interval."""
    return f"{_TICK}{interval_ms}"


class Troubles:
    """The errors of the engine's parts, by part. `say` writes to the log, `count` counts by part.

    Safe to call from several threads; a line may then be said twice.
    """

    def __init__(self, say: Callable[[str], None], count: Callable[[str], None]) -> None:
        self._say = say
        self._count = count
        self._now: dict[str, str] = {}
        self._faults: dict[str, None] = {}
        self._lock = threading.Lock()

    def note(self, part: str, error: str | None, well: str | None = None) -> None:
        """Remember the error of a part, or that it is over and then say `well`."""
        before = self._now.get(part)
        if error is None:
            if self._now.pop(part, None) is not None and well is not None:
                self._say(well)
        elif error != before:
            self._now[part] = error
            self._count(part)
            self._say(error)

    def failed(self, job: str, error: Exception) -> None:
        """A job ended with an error that it did not expect; it is called again."""
        self._count(job.partition("-")[0])
        text = f"{type(error).__name__}: {error}"
        if self._now.get(job) == text:
            return
        self._now[job] = text
        known = isinstance(error, ResilienceError)
        self._say(f"{job} failed: {text}" if known else f"{job} failed, {self._told(error)}")

    def well(self, job: str) -> None:
        """A job ended as it should: what it failed of is over."""
        self._now.pop(job, None)

    def ticking(self, intervals_ms: Iterable[int]) -> None:
        """Ticks are made at these intervals alone: no tick at another one will end well."""
        jobs = {tick_job(i) for i in intervals_ms}
        for job in self.view():
            if job.startswith(_TICK) and job not in jobs:
                self.well(job)

    def fault(self, part: str, error: Exception) -> str:
        """Write the trace of an error that nobody expected to the log, and return its name there:
        the same error at the same place has the same name and is written once."""
        self._count(part)
        return self._told(error)

    def _told(self, error: Exception) -> str:
        trace = "".join(traceback.format_exception(error)).rstrip()
        name = f"fault {sha256(trace.encode()).hexdigest()[:8]}"
        with self._lock:
            if name in self._faults:
                return name
            self._faults[name] = None
            if len(self._faults) > FAULTS_MAX:
                del self._faults[next(iter(self._faults))]
        self._say(f"{name}:\n{trace}")
        return name

    def view(self) -> dict[str, str]:
        """Return what is wrong now, by part."""
        return dict(self._now)
