"""A clock that tests move, and a small core that obeys contracts.md and can be made to fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from resilience.errors import CoreError, CoreFencedError, CoreRefusedError, CoreUnreachableError
from resilience.knobs import ClaimTable, StaleDocumentError
from resilience.model import Actual, Capabilities, Claim, Desired, Json, KnobCapability

KNOBS = ("throttle.max_concurrency", "cache.prefix_enabled", "cache.max_running")


@dataclass
class HandClock:
    """Wall and monotonic time, moved by hand."""

    wall_ms: int = 1_000_000
    mono_ms: int = 5_000

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_ms(self) -> int:
        return self.mono_ms

    def forward(self, ms: int) -> None:
        self.wall_ms += ms
        self.mono_ms += ms


@dataclass
class SmallCore:
    """model.Core in memory. `fail` raises once for each entry; `lose` answers get lost after the
    work is done; `refuse` says why a claim is not accepted."""

    clock: HandClock
    table: ClaimTable = field(default_factory=ClaimTable)
    puts: list[Desired] = field(default_factory=list)
    looks: int = 0
    done: dict[str, Json] = field(default_factory=dict)
    times_done: list[str] = field(default_factory=list)
    fail: list[CoreError] = field(default_factory=list)
    lose: int = 0
    refuse: Callable[[Json], str | None] = lambda claim: None

    def restart(self) -> None:
        self.table, self.done = ClaimTable(), {}

    def capabilities(self, *, deadline_ms: int) -> Capabilities:
        self._maybe_fail()
        return Capabilities(
            "small", "1", {k: KnobCapability("gate") for k in KNOBS}, ("reset_prefix_cache",),
            epoch=self.table.epoch, generation=self.table.generation,
        )

    def put_desired(self, desired: Desired, *, deadline_ms: int) -> Actual:
        self._maybe_fail()
        body = desired.to_json()
        for claim in body["claims"]:
            why = self.refuse(claim)
            if why:
                raise CoreRefusedError(why)
        try:
            self.table.put(body, self.clock.mono_ms)
        except StaleDocumentError as error:
            raise CoreFencedError(str(error), epoch=error.epoch) from error
        self.puts.append(desired)
        self._maybe_lose()
        return self._actual()

    def actual(self, *, deadline_ms: int) -> Actual:
        self._maybe_fail()
        self.looks += 1
        return self._actual()

    def impulse(self, key: str, impulse: str, args: Json, *, epoch: int, deadline_ms: int) -> Json:
        self._maybe_fail()
        if epoch < self.table.epoch:
            raise CoreFencedError("an older epoch", epoch=self.table.epoch)
        if key not in self.done:
            self.done[key] = {"ok": True}
            self.times_done.append(key)
        self._maybe_lose()
        return self.done[key]

    def values(self) -> dict[str, dict[str, Json]]:
        return {
            knob: {scope: e.value for scope, e in scopes.items()}
            for knob, scopes in self.table.effective(self.clock.mono_ms).items()
        }

    def _actual(self) -> Actual:
        return Actual(
            self.table.epoch, self.table.generation, self.table.effective(self.clock.mono_ms)
        )

    def _maybe_fail(self) -> None:
        if self.fail:
            raise self.fail.pop(0)

    def _maybe_lose(self) -> None:
        if self.lose:
            self.lose -= 1
            raise CoreUnreachableError("no answer")


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def core(clock: HandClock) -> SmallCore:
    return SmallCore(clock)


@pytest.fixture
def small_core() -> type[SmallCore]:
    return SmallCore


@pytest.fixture
def claim() -> Callable[..., Claim]:
    def make(
        policy: str = "p", knob: str = "cache.max_running", value: Json = 8, *,
        tier: str | None = None, ttl_ms: int = 30_000, keep: bool = False, priority: int = 50,
    ) -> Claim:
        scope = (("tier", tier),) if tier else ()
        return Claim(policy, "i1", "0", knob, scope, value, ttl_ms, keep, priority, "sha256:1")

    return make
