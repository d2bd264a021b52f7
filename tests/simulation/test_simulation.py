"""A short part of the simulation, and proof that it finds what it is there to find."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

import pytest

from tests.simulation import run
from tests.simulation.invariants import Violation, Watch
from tests.simulation.planted import FIRST_SEED, PLANTED
from tests.simulation.run import simulate
from tests.simulation.world import World

SEEDS = int(os.environ.get("RESILIENCE_SIMULATION_SEEDS", "40"))
SEARCHED = 60
EVERY_FAULT = frozenset({
    "torn write", "full disk", "crash before the write", "crash after the write", "slow core",
    "failing core", "lost reply", "repeated request", "late request", "core restart",
    "crash before the core", "crash after the core", "failing source", "silence", "NaN",
    "missing series", "stale markers", "backward sample", "clock jump", "lease expiry",
    "second engine", "disk that stays full", "reload", "pause", "release", "candidate",
    "failing UDF", "dead UDF worker",
})  # fmt: skip


def test_a_storm_breaks_no_promise_and_leaves_out_no_fault() -> None:
    tally = simulate(1, SEEDS, 100)
    assert tally.violation is None
    assert tally.decisions > 10 * SEEDS, "a storm in which nothing happens proves nothing"
    assert SEEDS < 40 or set(+tally.faults) >= EVERY_FAULT


@pytest.mark.parametrize("seed", [1873], ids=["a quarantine of a full disk, then a crash"])
def test_a_seed_that_once_failed_holds(seed: int) -> None:
    tally = simulate(seed, 1, 55)
    assert tally.violation is None
    assert tally.faults["full disk"]


def test_the_same_seed_is_the_same_world() -> None:
    one, two = Watch(World(7)), Watch(World(7))
    one.run(60)
    two.run(60)
    one.world.disk.recover()
    two.world.disk.recover()
    assert one.world.disk.rows == two.world.disk.rows


def test_how_many_processes_share_the_seeds_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "CHUNK", 1)
    monkeypatch.setattr(run, "collect_seldom", lambda: None)  # it is for the whole process
    alone, shared = (
        run._all(argparse.Namespace(seed=5, seeds=3, ticks=10, jobs=jobs), 0.0) for jobs in (1, 2)
    )
    assert alone == shared
    assert alone.seeds == 3


def test_a_violation_says_how_to_see_it_again() -> None:
    watch = Watch(World(3))
    with pytest.raises(Violation, match=r"seed 3, tick 0.*\nreplay: .*--seed 3 --seeds 1 --ticks"):
        watch._fail("broken")


@pytest.mark.parametrize("plant", PLANTED, ids=lambda p: p.__name__)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(Violation):
        first = FIRST_SEED.get(plant.__name__, 0)
        for seed in range(first, first + SEARCHED):
            Watch(World(seed)).run(100)
