"""Memory over a simulated week: after the first days nothing more is kept, whatever happens."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field

import numpy as np
import pytest

from resilience.app.bus import Bus
from resilience.app.engine import Engine
from resilience.app.journal import MemoryJournal
from resilience.cores.simulated.core import SimulatedCore
from resilience.model import (
    Action,
    Bundle,
    ClaimSpec,
    ImpulseSpec,
    Limits,
    Policy,
    RateLimit,
    Trigger,
    labels_of,
)
from resilience.sources.embedded import EmbeddedSource
from resilience.sources.store import MemoryStore

T0 = 1_800_000_000_000
EVERY_MS = 600_000
A_DAY = 86_400_000 // EVERY_MS
SLACK = 20


@dataclass
class Clock:
    mono_ms: int = 0

    def now_ms(self) -> int:
        return T0 + self.mono_ms

    def monotonic_ms(self) -> int:
        return self.mono_ms


@dataclass
class Week:
    """One policy that fires and ends all the time, on series that come, go and come again."""

    clock: Clock = field(default_factory=Clock)
    store: MemoryStore = field(default_factory=lambda: MemoryStore(retention_ms=3_600_000))
    journal: MemoryJournal = field(default_factory=MemoryJournal)

    def __post_init__(self) -> None:
        action = Action(
            "0", "cache_degrade", (ClaimSpec("cache.max_running", 8),),
            (ImpulseSpec("reset_prefix_cache"),), disruptive=True,
        )
        policy = Policy(
            "queue", Trigger("load > 10", "resolve"), (action,), interval_ms=EVERY_MS,
            limits=Limits(cooldown_ms=1_000, rate=(RateLimit(5, 3_600_000),)),
        )
        self.core = SimulatedCore(self.clock.monotonic_ms)
        self.bus = Bus(self.core, self.journal, self.clock, jitter=lambda: 0.5)
        self.engine = Engine(
            Bundle("sha256:one", (policy,)), source=EmbeddedSource(self.store, EVERY_MS),
            journal=self.journal, propose=lambda result, action: (), bus=self.bus,
            keep_inputs=True,
        )
        self.engine.observe_capabilities(self.bus.attach(deadline_ms=1_000))

    def day(self, number: int) -> int:
        """Live through one day; return how many objects are kept at its end."""
        for tick in range(number * A_DAY, (number + 1) * A_DAY):
            self.clock.mono_ms += EVERY_MS
            steady = labels_of({"__name__": "load", "pod": "a"})
            passing = labels_of({"__name__": "load", "pod": f"p{tick // 10 % 7}"})
            values = np.array([20.0 * (tick % 2), 20.0 * (tick % 3 == 0)])
            self.store.append(self.clock.now_ms(), [steady, passing], values)
            self.engine.tick(self.clock.now_ms(), EVERY_MS)
        self.journal.compact(now_ms=self.clock.now_ms())
        gc.collect()
        return len(gc.get_objects())


def test_a_week_keeps_no_more_objects_than_its_first_days(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("resilience.app.engine.DECISIONS_KEPT", 100)
    week = Week()
    kept = [week.day(number) for number in range(7)]
    assert week.engine.state.ledger.firings["queue"] > 300, "a week without firings proves nothing"
    assert max(kept[4:]) <= kept[3] + SLACK
    assert len(week.engine.state.of("queue")) < A_DAY
