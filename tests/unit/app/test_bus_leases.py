"""Claims of several leases under one bus: the shortest sets the pace. And what may go out, or be
asked again, at another value."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from resilience.app.bus import Bus
from resilience.errors import CoreUnreachableError
from resilience.model import Json

kit = sys.modules["app_rig"]  # loaded by conftest.py
FullDisk, T = kit.FullDisk, kit.T
BOTH = {"cache.max_running": {"": 8}, "throttle.max_concurrency": {"tier=best-effort": 4}}


def both(claim: Any, short_ms: int) -> list[Any]:
    return [
        claim(ttl_ms=120_000),
        claim("q", "throttle.max_concurrency", 4, tier="best-effort", ttl_ms=short_ms),
    ]


def test_the_shortest_lease_sets_the_pace_of_renewal(
    bus: Bus, core: Any, clock: Any, claim: Any
) -> None:
    claims = both(claim, 4_000)
    for _ in range(300):
        bus.drive([], claims, clock.now_ms(), 1_000)
        assert core.values() == BOTH
        left = bus.view().lease_remaining_ms
        assert left is not None and 2_900 <= left <= 4_000
        clock.forward(100)


def test_back_off_never_outlasts_the_shortest_lease(
    bus: Bus, core: Any, clock: Any, claim: Any
) -> None:
    claims = both(claim, 4_000)
    bus.drive([], claims, clock.now_ms(), 1_000)
    for _ in range(20):
        core.fail = [CoreUnreachableError("no answer")] * 5
        for _ in range(100):
            clock.forward(50)
            bus.maintain(clock.now_ms(), 1_000)
            bus.drive([], claims, clock.now_ms(), 1_000)
            assert core.values() == BOTH


def test_another_value_of_a_refused_claim_is_asked_for_at_once(
    bus: Bus, core: Any, claim: Any
) -> None:
    core.refuse = lambda body: "below what it needs" if body["value"] < 4 else None
    bus.drive([], [claim(value=2)], T, 1_000)
    assert core.values() == {} and bus.view().refused
    bus.drive([], [claim(value=6)], T, 1_000)
    assert core.values() == {"cache.max_running": {"": 6}}
    assert not bus.view().refused and bus.view().error is None


def test_what_was_refused_and_is_taken_later_is_refused_no_more(
    bus: Bus, core: Any, clock: Any, claim: Any
) -> None:
    core.refuse = lambda body: "no room yet"
    bus.drive([], [claim()], clock.now_ms(), 1_000)
    assert bus.view().refused
    core.refuse = lambda body: None
    for _ in range(70):
        clock.forward(1_000)
        bus.drive([], [claim()], clock.now_ms(), 1_000)
    assert core.values() == {"cache.max_running": {"": 8}}
    assert not bus.view().refused and bus.view().error is None


@pytest.mark.parametrize(("knob", "before", "after", "held"), [
    ("cache.max_running", 8, 16, 16), ("cache.max_running", 8, 8, 8),
    ("cache.max_running", 8, 4, 8),
    ("cache.prefix_enabled", False, False, False), ("cache.prefix_enabled", True, False, True),
])  # fmt: skip
def test_a_full_disk_lets_only_out_what_eases(
    core: Any, clock: Any, claim: Any, knob: str, before: Json, after: Json, held: Json
) -> None:
    disk = FullDisk()
    bus = Bus(core, disk, clock, jitter=lambda: 1.0)
    other = claim("other", "throttle.max_concurrency", 4, tier="best-effort")
    bus.drive([], [claim("p", knob, before), other], T, 1_000)
    disk.full = True
    bus.drive([], [claim("p", knob, after)], T, 1_000)
    assert core.values()[knob] == {"": held}
    assert ("throttle.max_concurrency" in core.values()) is (after != held)


def test_each_try_waits_longer_than_the_one_before(
    bus: Bus, core: Any, clock: Any, claim: Any
) -> None:
    core.fail = [CoreUnreachableError("no answer")] * 7
    began, tries, silent = clock.mono_ms, [], []
    for _ in range(400):
        left = len(core.fail)
        bus.drive([], [claim(ttl_ms=30_000)], clock.now_ms(), 1_000)
        if len(core.fail) < left:
            tries.append(clock.mono_ms - began)
            silent.append(bus.view().silent)
        clock.forward(50)
    waits = [after - before for before, after in zip(tries, tries[1:], strict=False)]
    assert waits == [250, 500, 1_000, 2_000, 3_750, 3_750]  # an eighth of the lease at most
    assert silent == [None] + ["no answer"] * 6
    assert core.values() == {"cache.max_running": {"": 8}}
