"""When things happen: APScheduler calls, and nothing else does.

One job for each interval of the bundle, on the epoch-aligned grid `t_ms = k * interval_ms`. All
ticks share one thread, so they never overlap, and every trigger of a tick sees one timestamp. A
tick that comes late takes the newest grid time and the ones that it stands for are counted.

APScheduler waits for times of the wall clock, so a clock that is set back by an hour would let it
sleep for an hour: a guard that counts monotonic time plans every job anew then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger

from resilience.app.troubles import tick_job
from resilience.model import Clock

TICK_THREADS = 1
OTHER_THREADS = 5  # scrape, renew, breakers, tidy, watch: none waits for another
GUARD_S = 0.5
STEP_MS = 100  # a clock that is set back by less only delays a job by as much
EARLY_MS = 2  # a timer may wake a moment before the grid time

Tick = Callable[[int, int, int], None]
OnError = Callable[[str, Exception], None]


class Grid:
    """The grid of one interval: which tick is due now, and how many were missed before it."""

    def __init__(self, interval_ms: int) -> None:
        self.interval_ms = interval_ms
        self._last_ms: int | None = None

    def due(self, now_ms: int) -> tuple[int, int] | None:
        """Return (t_ms, missed) of the tick at `now_ms`, or None if that tick was done already.

        After the wall clock was set back the grid starts anew at the new time.
        """
        t_ms = (now_ms + EARLY_MS) // self.interval_ms * self.interval_ms
        last = self._last_ms
        if last == t_ms:
            return None
        self._last_ms = t_ms
        if last is None or t_ms < last:
            return t_ms, 0
        return t_ms, (t_ms - last) // self.interval_ms - 1


class Scheduler:
    """APScheduler with one tick thread and a small pool for scrapes, leases and upkeep."""

    def __init__(
        self, clock: Clock, tick: Tick, on_error: OnError,
        on_end: Callable[[str], None] = lambda name: None,
    ) -> None:
        """`tick(t_ms, interval_ms, missed)` runs on the tick thread. Errors of a job go to
        `on_error`, and `on_end` hears of each that ended without one."""
        # Its own warnings (a run that was skipped) are our metric of missed ticks.
        logging.getLogger("apscheduler").setLevel(logging.CRITICAL)
        self._clock = clock
        self._tick = tick
        self._on_error = on_error
        self._on_end = on_end
        self._intervals: frozenset[int] = frozenset()
        self._stopped = threading.Event()
        self._guard: threading.Thread | None = None
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            executors={
                "ticks": ThreadPoolExecutor(TICK_THREADS),
                "default": ThreadPoolExecutor(OTHER_THREADS),
            },
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )

    def set_intervals(self, intervals_ms: Iterable[int]) -> None:
        """Tick at exactly these intervals from now on; those that stay keep their grid."""
        wanted = frozenset(intervals_ms)
        for interval_ms in self._intervals - wanted:
            self._scheduler.remove_job(tick_job(interval_ms))
        for interval_ms in sorted(wanted - self._intervals):
            self._add_tick(interval_ms)
        self._intervals = wanted

    def every(
        self, name: str, interval_ms: int, job: Callable[[], None], *, offset_ms: int = 0
    ) -> None:
        """Call `job` each `interval_ms` on the grid moved by `offset_ms`; never twice at once."""
        self._scheduler.add_job(
            self._guarded(name, job), _trigger(interval_ms, offset_ms), id=name,
            replace_existing=True,
        )

    def start(self) -> None:
        self._scheduler.start()
        self._guard = threading.Thread(target=self._mind_the_clock, name="clock", daemon=True)
        self._guard.start()

    def stop(self) -> None:
        """Stop calling and wait for the calls that run; all of them have deadlines."""
        self._stopped.set()
        if self._guard is not None:
            self._guard.join()
        if self._scheduler.running:
            self._scheduler.shutdown(wait=True)

    def _mind_the_clock(self) -> None:
        """Plan every job anew when the wall clock was set back against the monotonic one."""
        ahead_ms = self._clock.now_ms() - self._clock.monotonic_ms()
        while not self._stopped.wait(GUARD_S):
            now_ms = self._clock.now_ms() - self._clock.monotonic_ms()
            if now_ms < ahead_ms - STEP_MS:
                for job in self._scheduler.get_jobs():
                    with suppress(JobLookupError):
                        self._scheduler.reschedule_job(job.id, trigger=job.trigger)
            ahead_ms = now_ms

    def _add_tick(self, interval_ms: int) -> None:
        grid = Grid(interval_ms)

        def fire() -> None:
            due = grid.due(self._clock.now_ms())
            if due is not None:
                t_ms, missed = due
                self._tick(t_ms, interval_ms, missed)

        name = tick_job(interval_ms)
        self._scheduler.add_job(
            self._guarded(name, fire), _trigger(interval_ms, 0), id=name, executor="ticks"
        )

    def _guarded(self, name: str, job: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                job()
            except Exception as error:  # the schedule must outlive any job
                self._on_error(name, error)
            else:
                self._on_end(name)

        return run


def _trigger(interval_ms: int, offset_ms: int) -> IntervalTrigger:
    start = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=offset_ms)
    seconds: Any = interval_ms / 1000  # a fraction works as well, whatever the type says
    return IntervalTrigger(seconds=seconds, start_date=start, timezone=UTC)
