"""Whatever dies, whenever: the core ends with what is wanted, and no impulse is done twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from resilience.app.bus import Bus
from resilience.app.journal import MemoryJournal
from resilience.app.reconcile import differences, folded_values
from resilience.cores.simulated.core import Fault, SimulatedCore
from resilience.errors import JournalError
from resilience.model import Claim, Decision, Impulse, JournalEntry, Reason, State, Truth

TTL_MS = 30_000
KNOBS = ("throttle.max_concurrency", "cache.max_running", "cache.step_tokens")
CLAIMS = st.lists(
    st.builds(
        lambda policy, knob, value: Claim(
            policy, "i", "0", knob, (), value, TTL_MS, False, 50, "sha256:1"
        ),
        st.sampled_from(["a", "b", "c"]), st.sampled_from(KNOBS), st.integers(1, 40),
    ),
    max_size=5, unique_by=lambda c: c.key,
)
FAULTS = st.lists(
    st.sampled_from([Fault("failing"), Fault("lost_reply"), None]), min_size=1, max_size=4
)


@dataclass
class Clock:
    mono_ms: int = 0

    def now_ms(self) -> int:
        return 1_800_000_000_000 + self.mono_ms

    def monotonic_ms(self) -> int:
        return self.mono_ms


class Disk(MemoryJournal):
    """A journal whose disk can be full."""

    full = False

    def append(self, batch: Sequence[JournalEntry]) -> None:
        if self.full:
            raise JournalError("disk full")
        super().append(batch)


class BusUnderFaults(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.core = SimulatedCore(self.clock.monotonic_ms)
        self.disk = Disk()
        self.bus = self.new_bus()
        self.wanted: list[Claim] = []
        self.firings = 0

    def new_bus(self) -> Bus:
        return Bus(self.core, self.disk, self.clock, jitter=lambda: 0.5)

    def drive(self, *decisions: Decision) -> None:
        self.bus.drive(list(decisions), self.wanted, self.clock.now_ms(), 1_000)

    @rule(claims=CLAIMS)
    def want(self, claims: list[Claim]) -> None:
        self.wanted = claims
        self.drive()

    @rule()
    def fire_an_impulse(self) -> None:
        self.firings += 1
        impulse = Impulse("a", "i", self.firings, "1", "reset_prefix_cache")
        self.drive(Decision(
            self.clock.now_ms(), "sha256:1", "a", "h", "i", (), 1.0, Truth.TRUE, Reason.BREACH,
            State.PENDING, State.FIRING, impulses=(impulse,),
        ))

    @rule(ms=st.sampled_from([100, 1_000, 5_000, 20_000]))
    def time_passes(self, ms: int) -> None:
        self.clock.mono_ms += ms
        self.drive()

    @rule(faults=FAULTS)
    def calls_go_wrong(self, faults: list[Fault | None]) -> None:
        self.core.script(*faults)

    @rule()
    def the_core_restarts(self) -> None:
        self.core.restart()

    @rule()
    def the_engine_is_killed_and_started(self) -> None:
        self.disk.full = False
        self.bus = self.new_bus()

    @rule(full=st.booleans())
    def the_disk_fills_or_is_emptied(self, full: bool) -> None:
        self.disk.full = full

    @rule()
    def quiet_brings_everything_into_line(self) -> None:
        self.disk.full = False
        for _ in range(80):
            self.clock.mono_ms += 1_000
            self.drive()
        view = self.bus.view()
        assert view.in_sync, view.error
        assert differences(folded_values(self.wanted), self.core.actual(deadline_ms=1)) == []
        assert view.impulses_pending == 0

    @invariant()
    def no_impulse_is_done_twice(self) -> None:
        keys = [key for key, _, _ in self.core.done]
        assert len(keys) == len(set(keys))

    @invariant()
    def the_lease_is_never_counted_longer_than_the_core_does(self) -> None:
        left = self.bus.view().lease_remaining_ms
        assert left is None or 0 <= left <= TTL_MS


TestBusUnderFaults = BusUnderFaults.TestCase
TestBusUnderFaults.settings = settings(max_examples=60, stateful_step_count=25)
