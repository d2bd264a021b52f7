"""A server that is slow for a moment, just when the engine meets it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from resilience.app.bus import Bus
from resilience.app.reached import Server, connect
from resilience.cores.process import ServerProcess
from resilience.errors import CoreUnreachableError

BUSY = CoreUnreachableError("the engine process does not answer; try again")


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    """A process that lives until it is asked to end."""
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    yield ServerProcess(
        "http://127.0.0.1:1", "t", tmp_path / "t", tmp_path / "l", child.pid, child.pid, (), child)
    assert child.stdin is not None
    child.kill()
    child.wait()
    child.stdin.close()


def test_one_that_we_started_is_asked_again(
    bus: Bus, core: Any, clock: Any, process: ServerProcess
) -> None:
    core.fail = [BUSY, BUSY]
    connect(bus, Server(process.url, core, process), None, clock)
    assert bus.capabilities is not None


def test_one_that_ends_meanwhile_is_not(
    bus: Bus, core: Any, clock: Any, process: ServerProcess
) -> None:
    process.stop(60.0)
    core.fail = [BUSY, BUSY]
    with pytest.raises(CoreUnreachableError):
        connect(bus, Server(process.url, core, process), None, clock)
    assert core.fail == [BUSY]


@pytest.mark.parametrize("wait_ms", [None, 0])
def test_one_of_somebody_else_is_asked_again_only_if_that_was_said(
    bus: Bus, core: Any, clock: Any, wait_ms: int | None
) -> None:
    core.fail = [BUSY, BUSY]
    with pytest.raises(CoreUnreachableError):
        connect(bus, Server("http://127.0.0.1:1", core), wait_ms, clock)
    connect(bus, Server("http://127.0.0.1:1", core), 1_000, clock)
    assert bus.capabilities is not None


@dataclass
class Report:
    """How a scrape went."""

    error: str | None


@dataclass
class Scraper:
    """Fails as often as it is told to."""

    fails: int
    times: list[int] = field(default_factory=list)

    def scrape(self, now_ms: int, deadline_ms: int) -> Report:
        self.times.append(now_ms)
        return Report("it took too long" if len(self.times) <= self.fails else None)


@pytest.mark.parametrize(("fails", "tried"), [(0, 1), (3, 4), (1_000, 11)])
def test_the_first_scrape_is_repeated_until_one_comes_through_or_its_time_is_over(
    rig: Any, clock: Any, fails: int, tried: int
) -> None:
    scraper = rig.runtime.parts.scraper = Scraper(fails)
    rig.runtime.first_scrape(10_000, lambda: clock.forward(1_000))
    assert len(scraper.times) == tried
