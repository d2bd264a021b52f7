from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime, tzinfo
from typing import Self

import pytest

from resilience.app.clock import SystemClock
from resilience.app.schedule import Grid, Scheduler

WAIT_S = 60


def test_the_grid_is_aligned_to_the_epoch() -> None:
    grid = Grid(5_000)
    assert grid.due(12_345) == (10_000, 0)
    assert grid.due(15_000) == (15_000, 0)


def test_a_tick_is_due_once() -> None:
    grid = Grid(1_000)
    assert grid.due(3_000) == (3_000, 0)
    assert grid.due(3_400) is None


def test_late_ticks_are_counted() -> None:
    grid = Grid(1_000)
    grid.due(3_000)
    assert grid.due(7_200) == (7_000, 3)


def test_a_timer_that_wakes_a_moment_early_hits_its_own_tick() -> None:
    assert Grid(1_000).due(3_999) == (4_000, 0)


def test_a_clock_that_was_set_back_starts_the_grid_anew() -> None:
    grid = Grid(1_000)
    grid.due(100_000)
    assert grid.due(40_000) == (40_000, 0)
    assert grid.due(41_000) == (41_000, 0)


class Ticks:
    """Collects ticks and waits for a number of them."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int]] = []
        self.threads: set[str] = set()
        self.errors: list[tuple[str, Exception]] = []
        self._changed = threading.Condition()

    def tick(self, t_ms: int, interval_ms: int, missed: int) -> None:
        with self._changed:
            self.seen.append((t_ms, interval_ms, missed))
            self.threads.add(threading.current_thread().name)
            self._changed.notify_all()

    def error(self, name: str, error: Exception) -> None:
        with self._changed:
            self.errors.append((name, error))
            self._changed.notify_all()

    def wait(self, count: int, interval_ms: int) -> None:
        with self._changed:
            assert self._changed.wait_for(
                lambda: sum(i == interval_ms for _, i, _ in self.seen) >= count, WAIT_S
            )

    def wait_errors(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.errors) >= count, WAIT_S)


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


@pytest.fixture
def scheduler(ticks: Ticks) -> Iterator[Scheduler]:
    made = Scheduler(SystemClock(), ticks.tick, ticks.error)
    yield made
    made.stop()


def test_each_interval_ticks_on_its_grid_in_one_thread(
    scheduler: Scheduler, ticks: Ticks
) -> None:
    scheduler.set_intervals([50, 100])
    scheduler.start()
    ticks.wait(4, 50)
    ticks.wait(2, 100)
    scheduler.stop()
    for interval in (50, 100):
        times = [t for t, i, _ in ticks.seen if i == interval]
        assert all(t % interval == 0 for t in times)
        assert times == sorted(set(times))
    assert len(ticks.threads) == 1


def test_intervals_change_while_it_runs(scheduler: Scheduler, ticks: Ticks) -> None:
    scheduler.set_intervals([50])
    scheduler.start()
    ticks.wait(1, 50)
    scheduler.set_intervals([70])
    ticks.wait(1, 70)
    scheduler.stop()


def test_a_job_that_raises_is_reported_and_called_again(
    scheduler: Scheduler, ticks: Ticks
) -> None:
    def bad() -> None:
        raise RuntimeError("boom")

    scheduler.every("scrape", 50, bad, offset_ms=-10)
    scheduler.start()
    ticks.wait_errors(2)
    assert {name for name, _ in ticks.errors} == {"scrape"}


def test_missed_ticks_are_counted_and_never_run_at_once(
    scheduler: Scheduler, ticks: Ticks
) -> None:
    release, entered = threading.Event(), threading.Event()
    others: list[int] = []
    others_done = threading.Event()

    def slow(t_ms: int, interval_ms: int, missed: int) -> None:
        first = not entered.is_set()
        entered.set()
        if first:
            assert release.wait(WAIT_S)
        ticks.tick(t_ms, interval_ms, missed)

    def other() -> None:
        others.append(1)
        if len(others) >= 6:
            others_done.set()

    blocked = Scheduler(SystemClock(), slow, ticks.error)
    blocked.set_intervals([50])
    blocked.every("other", 50, other)
    blocked.start()
    try:
        assert entered.wait(WAIT_S)
        assert others_done.wait(WAIT_S)  # other jobs go on, so several ticks passed by
        release.set()
        ticks.wait(2, 50)
    finally:
        release.set()
        blocked.stop()
    assert sum(missed for _, _, missed in ticks.seen) >= 3


class _SetClock:
    """The system's clocks, of which the wall's can be set."""

    def __init__(self) -> None:
        self.set_by_ms = 0

    def now_ms(self) -> int:
        return SystemClock().now_ms() + self.set_by_ms

    def monotonic_ms(self) -> int:
        return SystemClock().monotonic_ms()


def test_a_clock_that_is_set_back_by_an_hour_lets_no_job_wait_for_an_hour(
    ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = _SetClock()

    class Wall(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp(clock.now_ms() / 1000, tz)

    monkeypatch.setattr("apscheduler.schedulers.base.datetime", Wall)
    scheduler = Scheduler(clock, ticks.tick, ticks.error)
    try:
        scheduler.set_intervals([50])
        scheduler.start()
        ticks.wait(2, 50)
        clock.set_by_ms = -3_600_000
        seen = len(ticks.seen)
        ticks.wait(seen + 3, 50)
    finally:
        scheduler.stop()
    times = [t for t, _, _ in ticks.seen]
    assert times[-1] < times[0]
    assert all(missed < 100 for _, _, missed in ticks.seen)
