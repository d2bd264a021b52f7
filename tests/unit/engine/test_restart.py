"""A restart in the middle of anything: the same decisions, the same values in the core, no impulse
twice, and no time lost or won. The real engine, bus and SQLite journal; the core stays alive.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resilience.app.bus import Bus
from resilience.app.engine import Engine
from resilience.app.journal import SqliteJournal
from resilience.app.recorder import Recorder
from resilience.cores.simulated.core import SimulatedCore
from resilience.model import (
    Action,
    Bundle,
    ClaimSpec,
    Escalation,
    ImpulseSpec,
    Json,
    Policy,
    Probe,
    Recovery,
    Resolve,
    Trigger,
    Verify,
    labels_of,
)
from resilience.sources.embedded import EmbeddedSource
from resilience.sources.store import MemoryStore

T0 = 1_800_000_000_000
LOAD = labels_of({"__name__": "load", "engine": "a"})
RUNNING = "cache.max_running"
LEASE_MS = 4_000
HOUR_MS = 3_600_000


@dataclass
class Clock:
    mono_ms: int = 10_000
    set_ms: int = 0

    def now_ms(self) -> int:
        return T0 + self.mono_ms + self.set_ms

    def monotonic_ms(self) -> int:
        return self.mono_ms


@dataclass
class Rig:
    """One engine with its journal on disk, fed one value a second."""

    policy: Policy
    path: Path
    clock: Clock = field(default_factory=Clock)
    store: MemoryStore = field(default_factory=lambda: MemoryStore(retention_ms=600_000))
    decisions: list[Json] = field(default_factory=list)
    values: list[Json] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.core = SimulatedCore(self.clock.monotonic_ms)
        self.recorder = Recorder(self.store)
        self.start()

    def start(self) -> None:
        self.journal = SqliteJournal(self.path)
        self.bus = Bus(self.core, self.journal, self.clock, jitter=lambda: 0.5)
        self.engine = Engine(
            Bundle("sha256:one", (self.policy,)), source=EmbeddedSource(self.store, 1_000),
            journal=self.journal, propose=lambda result, action: (), bus=self.bus,
        )
        self.engine.restore()
        self.engine.observe_capabilities(self.bus.attach(deadline_ms=1_000))

    def restart(self) -> None:
        """Come back as after `kill -9`: nothing is said to anyone, only the file is left."""
        before = self.engine.state
        self.journal.close()
        self.start()
        assert self.engine.state == before

    def feed(self, value: float) -> None:
        self.clock.mono_ms += 1_000
        t_ms = self.clock.now_ms()
        self.recorder.mind_the_clock(t_ms, 1_000)
        self.recorder.append(t_ms, [LOAD], np.array([value]))
        self.recorder.scraped(t_ms)
        report = self.engine.tick(t_ms, 1_000)
        self.decisions += [d.to_json() for d in report.decisions]
        self.values.append(self.core.value(RUNNING))


def claiming(key: str, value: int) -> Action:
    return Action(key, "cache_degrade", (ClaimSpec(RUNNING, value),), lease_ms=LEASE_MS)


RESET = Action(
    "1", "reset_prefix_cache", impulses=(ImpulseSpec("reset_prefix_cache"),), lease_ms=LEASE_MS
)
HOLDS = Trigger("load > 10", "hold", resolve=Resolve("load < 5"))
PLAIN = Policy("queue", HOLDS, (claiming("0", 8), RESET), interval_ms=1_000)
# What the core holds after each second, without a restart.
MIDST: dict[str, tuple[dict[str, Any], list[int], list[int]]] = {
    "for": (
        {"trigger": replace(HOLDS, for_ms=4_000)}, [20] * 6 + [2], [32, 32, 32, 32, 8, 8, 32],
    ),
    "keep_firing_for": (
        {"trigger": Trigger("load > 10", "hold", keep_firing_for_ms=3_000)},
        [20, 2, 2, 2, 2, 2], [8, 8, 8, 8, 32, 32],
    ),
    "ramp": (
        {"recovery": Recovery((0.25, 0.5, 1.0), 2_000)}, [20, 2, 2, 2, 2, 2, 2],
        [8, 14, 14, 20, 20, 32, 32],
    ),
    "lease": ({}, [20] * 12 + [2], [8] * 12 + [32]),
    "escalation": (
        {"escalation": (Escalation(3_000, (claiming("e0.0", 4),)),)}, [20] * 6 + [2],
        [8, 8, 8, 4, 4, 4, 32],
    ),
    "verify": (
        {"verify": Verify("load < 15", 3_000, quarantine_ms=3_000)}, [20] * 8 + [2],
        [8, 8, 8, 32, 32, 32, 8, 8, 32],
    ),
    "probe": (
        {"probe": Probe(2_000, share=0.5, for_ms=2_000, max=2)}, [20] + [7] * 8 + [2],
        [8, 8, 20, 20, 8, 8, 20, 20, 8, 32],
    ),
}  # fmt: skip


@pytest.mark.parametrize("midst", MIDST)
def test_a_restart_in_the_midst_changes_nothing(midst: str, tmp_path: Path) -> None:
    fields, loads, values = MIDST[midst]
    policy = replace(PLAIN, **fields)
    whole = Rig(policy, tmp_path / "whole.db")
    for load in loads:
        whole.feed(load)
    assert whole.values == values
    broken = Rig(policy, tmp_path / "broken.db")
    for load in loads:
        broken.feed(load)
        broken.restart()
    assert broken.values == values
    assert broken.decisions == whole.decisions
    assert [key for key, _, _ in broken.core.done] == [key for key, _, _ in whole.core.done]


@pytest.mark.parametrize("midst", MIDST)
def test_a_clock_set_back_by_an_hour_in_the_midst_changes_nothing(
    midst: str, tmp_path: Path
) -> None:
    fields, loads, values = MIDST[midst]
    policy = replace(PLAIN, **fields)
    for place in range(1, len(loads)):
        rig = Rig(policy, tmp_path / f"{place}.db")
        for number, load in enumerate(loads):
            if number == place:
                rig.clock.set_ms = -HOUR_MS
            rig.feed(load)
        assert rig.values == values, f"set back before second {place}"
        rig.journal.close()


@pytest.mark.parametrize("midst", MIDST)
def test_nothing_waits_an_hour_when_the_clock_was_set_back_while_the_engine_was_dead(
    midst: str, tmp_path: Path
) -> None:
    fields, loads, values = MIDST[midst]
    rig = Rig(replace(PLAIN, **fields), tmp_path / "journal.db")
    for load in loads[:3]:
        rig.feed(load)
    rig.clock.set_ms = -HOUR_MS
    rig.restart()
    for load in [*loads[2:-1], *[loads[-1]] * 8]:
        rig.feed(load)
    assert rig.values[-1] == values[-1]
    clocks = [t for i in rig.engine.state.of("queue").values() for _, t in i.clocks()]
    assert all(t is None or t <= rig.clock.now_ms() + 3_000 for t in clocks)


def test_an_engine_that_is_away_longer_than_a_lease_takes_up_again(tmp_path: Path) -> None:
    rig = Rig(PLAIN, tmp_path / "journal.db")
    rig.feed(20)
    rig.clock.mono_ms += 2 * LEASE_MS
    assert rig.core.value(RUNNING) == 32, "the lease ended without the engine"
    rig.restart()
    rig.feed(20)
    assert rig.values[-1] == 8 and len(rig.decisions) == 1 and len(rig.core.done) == 1


def test_a_journal_torn_anywhere_holds_a_state_that_was(tmp_path: Path) -> None:
    """SQLite's write-ahead log cut short at any place: whole batches, the oldest first."""
    rig = Rig(PLAIN, tmp_path / "journal.db")
    states = [rig.engine.state]
    for load in (20, 20, 2, 20):
        rig.feed(load)
        states.append(rig.engine.state)
    base = rig.path.read_bytes()
    log = rig.path.with_name("journal.db-wal").read_bytes()
    found: list[int] = []
    for number, cut in enumerate(range(0, len(log), max(1, len(log) // 24))):
        path = tmp_path / f"torn{number}.db"
        path.write_bytes(base)
        path.with_name(f"{path.name}-wal").write_bytes(log[:cut])
        engine = Engine(
            rig.engine.bundle, source=EmbeddedSource(rig.store, 1_000),
            journal=(journal := SqliteJournal(path)), propose=lambda result, action: (),
        )
        engine.restore()
        journal.close()
        found.append(states.index(engine.state))
    rig.journal.close()
    assert found == sorted(found) and found[-1] > 0
