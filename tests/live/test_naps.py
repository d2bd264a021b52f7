"""A busy vLLM on a CPU leaves its cores to others while its processes wait for each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.live import serving as kit

pytestmark = pytest.mark.live
SLEEPS = 1_000  # vLLM alone, which never sleeps between two steps: one or two a second


def sleeps(pid: int) -> int:
    """Return how often the main thread of a process gave its core away by itself."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, count = line.partition(":")
        if name == "voluntary_ctxt_switches":
            return int(count)
    raise AssertionError("Linux says nothing of context switches")


def test_the_engine_and_its_worker_sleep_between_two_steps(server: Any) -> None:
    pids = kit.of_engine(server.pid)
    assert len(pids) == 2
    load = kit.Load(server.url)
    try:
        before = {pid: sleeps(pid) for pid in pids}
        kit.eventually(lambda: all(sleeps(p) - before[p] > SLEEPS for p in pids))
    finally:
        load.end()
