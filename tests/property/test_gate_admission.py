"""The gate's admission on a simulated clock, against what it promises."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.gate.admission import Admission
from resilience.gate.limiter import LimiterRule, Signals
from resilience.gate.limits import CONCURRENCY, OUTSTANDING, PROMPT_RATE, QUOTA, REQUEST_RATE, Limit
from resilience.gate.snapshot import LimiterClaim, Snapshot
from resilience.gate.ticket import Refusal, Ticket

AGEING_MS = 1_000
TIERS = {"core": 0, "elastic": 10, "best-effort": 20}
WHERE = ("", "core", "best-effort")


@dataclass
class World:
    """An admission with its clock, and what became of each request."""

    admission: Admission = field(default_factory=Admission)
    now: int = 1
    inside: list[Ticket] = field(default_factory=list[Ticket])
    waiting: dict[int, Ticket] = field(default_factory=dict[int, Ticket])
    refused: int = 0
    offered: int = 0

    def __post_init__(self) -> None:
        self.admission.rank(TIERS)

    def arrive(self, tier: str, tokens: int, tenant: str = "other") -> None:
        ticket = Ticket((tier, tenant, ""), "/v1/completions", self.now, TIERS[tier])
        ticket.prompt_tokens, ticket.reserved = tokens, 2 * tokens
        self.offered += 1
        ticket.verdict = lambda refusal: self.decided(ticket, refusal)
        refusal = self.admission.offer(ticket, self.now, patience_ms=5_000)
        if ticket.deadline_ms:
            self.waiting[id(ticket)] = ticket
        else:
            self.came_out(ticket, refusal)

    def decided(self, ticket: Ticket, refusal: Refusal | None) -> None:
        assert self.waiting.pop(id(ticket)) is ticket, "a verdict for one that does not wait"
        self.came_out(ticket, refusal)

    def came_out(self, ticket: Ticket, refusal: Refusal | None) -> None:
        if refusal is None:
            self.inside.append(ticket)
        else:
            self.refused += 1

    def end(self, index: int) -> None:
        if self.inside:
            ticket = self.inside.pop(index % len(self.inside))
            self.admission.leave(ticket, "success", 10.0, self.now)

    def leave_queue(self, index: int) -> None:
        if self.waiting:
            ticket = list(self.waiting.values())[index % len(self.waiting)]
            assert self.admission.abandon(ticket, self.now)
            del self.waiting[id(ticket)]
            self.refused += 1

    def wait(self, ms: int) -> None:
        """Let time pass as the timer does: never beyond what `next_ms` asks for unpolled."""
        ends = self.now + ms
        for _ in range(10_000):
            due = self.admission.next_ms()
            if due is None or due > ends:
                break
            self.now = max(self.now + 1, due)
            self.admission.poll(self.now)
        self.now = max(self.now, ends)


limits = st.lists(
    st.one_of(
        st.builds(lambda w, v: Limit(CONCURRENCY, (w, "", ""), v, "p", "r"),
                  st.sampled_from(WHERE), st.integers(0, 4)),
        st.builds(lambda w, v: Limit(OUTSTANDING, (w, "", ""), v, "p", "r"),
                  st.sampled_from(WHERE), st.integers(10, 200)),
        st.builds(lambda v: Limit(REQUEST_RATE, ("", "", ""), v, "p", "r"), st.floats(0.5, 5)),
        st.builds(lambda v: Limit(PROMPT_RATE, ("", "", ""), v, "p", "r"), st.floats(5, 100)),
        st.builds(lambda v: Limit(QUOTA, ("", "", ""), {"tokens": v, "window_ms": 2_000}, "p", "r"),
                  st.integers(60, 300)),
    ),
    max_size=3, unique_by=lambda limit: (limit.kind, limit.scope),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.sampled_from(list(TIERS)), st.integers(1, 60)),
        st.tuples(st.just("end"), st.integers(0, 20)),
        st.tuples(st.just("leave_queue"), st.integers(0, 20)),
        st.tuples(st.just("wait"), st.integers(1, 3_000)),
    ),
    max_size=60,
)


def within(world: World, limit: Limit) -> bool:
    inside = [t for t in world.inside if limit.covers(t.lane)]
    if limit.kind == CONCURRENCY:
        return len(inside) <= limit.number
    if limit.kind == OUTSTANDING:
        return sum(t.reserved for t in inside) <= limit.number or len(inside) == 1
    return True


@settings(max_examples=200)
@given(limits, steps, st.integers(0, 8), st.none() | st.integers(1, 4),
       st.sampled_from([None, 0.25, 0.5]))
def test_admission_keeps_its_promises(
    wanted: list[Limit], script: list[Any], queue_max: int, adaptive: int | None,
    headroom: float | None,
) -> None:
    world = World()
    world.admission.configure(queue_max, AGEING_MS)
    limiter = None
    if adaptive is not None:
        rule = LimiterRule(
            queue_time_ms=100, minimum=adaptive, maximum=adaptive, headroom=headroom)
        limiter = LimiterClaim(rule, "p", "r")
    world.admission.adopt(Snapshot(limits=tuple(wanted), limiter=limiter), world.now)
    for name, *arguments in script:
        getattr(world, name)(*arguments)
        assert all(within(world, limit) for limit in wanted), "over a cap"
        assert adaptive is None or len(world.inside) <= adaptive
        assert len(world.waiting) == len(world.admission.queue) <= queue_max
        assert world.admission.usage.total == len(world.inside)
        assert_no_lost_wake_up(world)
    # Without limits everybody who waits goes at once, and the counters go back to zero.
    world.admission.adopt(Snapshot(), world.now)
    assert not world.waiting
    while world.inside:
        world.end(0)
    assert world.admission.usage.total == 0
    assert world.admission.usage.count(("", "", "")) == 0
    assert world.admission.usage.tally(("", "", "")).tokens == 0


def assert_no_lost_wake_up(world: World) -> None:
    """Another poll at this very moment would let nobody in: nobody was forgotten."""
    before = len(world.inside)
    world.admission.poll(world.now)
    assert len(world.inside) == before
    if world.waiting:
        assert world.admission.next_ms() is not None  # at least the end of their patience


@given(st.integers(1, 30))
def test_nobody_waits_longer_than_its_patience(crowd: int) -> None:
    world = World()
    world.admission.configure(100, AGEING_MS)
    limit = Limit(CONCURRENCY, ("", "", ""), 1, "p", "r")
    world.admission.adopt(Snapshot(limits=(limit,)), world.now)
    for _ in range(crowd):
        world.arrive("core", 1)
    world.wait(5_001)
    assert not world.waiting and world.refused == crowd - 1


def test_a_full_queue_gives_up_the_least_important() -> None:
    world = World()
    world.admission.configure(2, AGEING_MS)
    limit = Limit(CONCURRENCY, ("", "", ""), 1, "p", "r")
    world.admission.adopt(Snapshot(limits=(limit,)), world.now)
    for tier in ("best-effort", "best-effort", "elastic", "core", "core"):
        world.arrive(tier, 1)
    assert sorted(t.tier for t in world.waiting.values()) == ["core", "core"]
    world.arrive("best-effort", 1)
    assert sorted(t.tier for t in world.waiting.values()) == ["core", "core"]
    assert world.refused == 3


def with_headroom(queue_max: int = 0) -> World:
    """Ten seats, of which two are for core alone."""
    world = World()
    world.admission.configure(queue_max, AGEING_MS)
    world.admission.start_limit = world.admission.seats = 10.0
    rule = LimiterRule(queue_time_ms=100, minimum=1, maximum=20, headroom=0.2)
    world.admission.adopt(Snapshot(limiter=LimiterClaim(rule, "p", "r")), world.now)
    return world


def test_the_headroom_is_for_the_first_tier() -> None:
    world = with_headroom()
    for _ in range(9):
        world.arrive("best-effort", 1)
    assert (len(world.inside), world.refused) == (8, 1)
    world.arrive("elastic", 1)
    assert world.refused == 2
    for _ in range(3):
        world.arrive("core", 1)
    assert (len(world.inside), world.refused) == (10, 3)
    for _ in range(2):
        world.end(0)
    world.arrive("best-effort", 1)
    assert world.refused == 4, "eight are inside again, whoever they are"


@pytest.mark.parametrize(("overtakes", "let_in"), [(True, 5), (False, 0)])
def test_lower_tiers_take_no_place_that_the_server_gives_to_core_anyway(
    overtakes: bool, let_in: int
) -> None:
    """The limit has shrunk to 5 while 8 requests of a lower tier are inside: where the server lets
    core overtake them, only core's own count against core."""
    world = with_headroom()
    world.admission.overtakes = overtakes
    for _ in range(8):
        world.arrive("best-effort", 1)
    while world.admission.limit is not None and world.admission.limit >= 6:
        world.admission.adapt(Signals(queue_time_ms=500.0), world.now)
    for _ in range(7):
        world.arrive("core", 1)
    assert (len(world.inside), world.refused) == (8 + let_in, 7 - let_in)
    world.arrive("elastic", 1)
    world.arrive("best-effort", 1)
    assert len(world.inside) == 8 + let_in


def test_who_waits_for_the_limit_does_not_hold_core_back_in_the_queue() -> None:
    """A request that has waited long goes first, but it cannot go, and core can."""
    world = with_headroom(queue_max=10)
    world.admission.overtakes = True
    for _ in range(8):
        world.arrive("best-effort", 1)
    while world.admission.limit is not None and world.admission.limit >= 6:
        world.admission.adapt(Signals(queue_time_ms=500.0), world.now)
    world.arrive("best-effort", 1)
    world.wait(3 * AGEING_MS)
    world.arrive("core", 1)
    assert (len(world.inside), len(world.waiting)) == (9, 1)


def test_a_limit_that_grew_past_the_seats_leaves_no_room_to_lower_tiers() -> None:
    """What is let in beyond the seats waits inside the server: only core may."""
    world = with_headroom()
    for _ in range(8):
        world.arrive("best-effort", 1)
    for _ in range(5):
        world.admission.adapt(Signals(queue_time_ms=5.0), world.now)
    assert world.admission.limit is not None and world.admission.limit > 10
    world.arrive("best-effort", 1)
    assert world.refused == 1
    world.arrive("core", 1)
    assert len(world.inside) == 9


def test_who_has_aged_long_enough_takes_a_place_of_the_headroom() -> None:
    world = with_headroom(queue_max=4)
    for _ in range(9):
        world.arrive("best-effort", 1)
    (waiting,) = world.waiting.values()
    waiting.deadline_ms = 10**9  # as patient as it takes
    world.wait(20 * AGEING_MS - 1)
    assert len(world.inside) == 8
    world.wait(1)
    assert len(world.inside) == 9 and not world.waiting


def test_the_adaptive_limit_lets_waiters_in_when_it_grows() -> None:
    world = World()
    world.admission.configure(10, AGEING_MS)
    world.admission.start_limit = 2.0
    rule = LimiterRule(queue_time_ms=100, increase=1.0, minimum=1, maximum=8)
    world.admission.adopt(Snapshot(limiter=LimiterClaim(rule, "p", "r")), world.now)
    for _ in range(6):
        world.arrive("core", 1)
    assert (len(world.inside), len(world.waiting)) == (2, 4)
    world.admission.adapt(Signals(queue_time_ms=5.0), world.now)
    assert (len(world.inside), len(world.waiting)) == (4, 2)
    world.admission.adapt(Signals(queue_time_ms=500.0), world.now)
    assert world.admission.limit == 4 * 0.9
    world.end(0)
    assert len(world.inside) == 3  # the limit is 3 now: nobody took the place


@given(st.integers(1, 40), st.sampled_from(list(TIERS)), st.integers(0, 60),
       st.none() | st.floats(0.001, 0.9), st.booleans(), st.floats(0.05, 0.9))
def test_a_limit_that_shrank_comes_back_whoever_asks(
    seats: int, tier: str, bad_s: int, headroom: float | None, overtakes: bool, decrease: float
) -> None:
    """After an overload of any length a crowd of one tier has all that it had before."""
    world = World()
    world.admission.configure(500, AGEING_MS)
    world.admission.overtakes = overtakes
    world.admission.start_limit = world.admission.seats = float(seats)
    rule = LimiterRule(queue_time_ms=100, headroom=headroom, decrease=decrease)
    world.admission.adopt(Snapshot(limiter=LimiterClaim(rule, "p", "r")), world.now)
    for _ in range(60):
        world.arrive(tier, 1)
    before = len(world.inside)
    for _ in range(bad_s):
        world.admission.adapt(Signals(queue_time_ms=900.0), world.now)
    for _ in range(before):
        world.end(0)
    for _ in range(60):
        world.arrive(tier, 1)
        world.admission.adapt(Signals(queue_time_ms=5.0), world.now)
    assert len(world.inside) >= before


def test_who_has_aged_takes_a_place_of_the_headroom_although_another_tenant_has_its_turn() -> None:
    world = with_headroom(queue_max=4)
    for _ in range(8):
        world.arrive("best-effort", 1, "old")
    world.arrive("best-effort", 1, "old")
    (waiting,) = world.waiting.values()
    waiting.deadline_ms = 10**9
    world.admission.queue._turns["best-effort", "old"].at = 5.0  # it was served before
    world.wait(20 * AGEING_MS - 500)
    world.arrive("best-effort", 1, "new")
    world.wait(1_000)
    assert len(world.inside) == 9 and [t.lane[1] for t in world.waiting.values()] == ["new"]


def test_turns_by_tokens_are_not_owed_in_requests() -> None:
    """While tokens count, a tenant's turn costs what its request does; when the claim has gone, it
    does not wait for as many requests of another as it has had tokens."""
    world = World()
    world.admission.configure(500, AGEING_MS)
    one = Limit(CONCURRENCY, ("", "", ""), 1, "p", "r")
    world.admission.adopt(Snapshot(limits=(one,), needs_tokens=True), world.now)
    for tenant in ("big", "small", "big", "small"):
        world.arrive("core", 1, tenant)
        for ticket in world.waiting.values():
            ticket.cost = 4_000.0 if ticket.lane[1] == "big" else 10.0
    for _ in range(3):
        world.end(0)
    world.admission.adopt(Snapshot(limits=(one,)), world.now)
    for _ in range(20):
        world.arrive("core", 1, "small")
    world.arrive("core", 1, "big")
    served = []
    for _ in range(3):
        world.end(0)
        served.append(world.inside[0].lane[1])
    assert "big" in served
