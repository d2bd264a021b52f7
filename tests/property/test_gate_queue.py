"""The gate's queue and admission on a simulated clock, against what they promise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.gate.admission import Admission
from resilience.gate.limiter import LimiterRule, Signals
from resilience.gate.limits import CONCURRENCY, OUTSTANDING, PROMPT_RATE, QUOTA, REQUEST_RATE, Limit
from resilience.gate.snapshot import LimiterClaim, Snapshot
from resilience.gate.ticket import Refusal, Ticket
from resilience.gate.waiting import WaitQueue

AGEING_MS = 1_000
TIERS = {"core": 0, "elastic": 10, "best-effort": 20}
WHERE = ("", "core", "best-effort")


@dataclass(eq=False)
class Person:
    """Who waits: just what the queue asks for."""

    lane: tuple[str, str, str]
    priority: int
    enqueued_ms: int
    cost: float = 1.0
    share: float = 1.0
    deadline_ms: int = 10**9


arrivals = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), min_size=1, max_size=40)


@given(arrivals)
def test_nobody_is_overtaken_by_who_came_later_than_ageing_allows(
    steps: list[tuple[int, int]]
) -> None:
    queue: WaitQueue[Person] = WaitQueue(AGEING_MS)
    now, people = 0, []
    for priority, gap in steps:
        now += gap
        person = Person((f"t{priority}", "", ""), priority, now)
        people.append(person)
        queue.push(person)
    order = [queue.pop(lambda _: None) for _ in people]
    assert len(queue) == 0 and {id(p) for p in order} == {id(p) for p in people}
    for place, late in enumerate(order):
        for early in order[place + 1:]:
            assert late is not None and early is not None
            bound_ms = max(0, early.priority - late.priority) * AGEING_MS
            assert late.enqueued_ms - early.enqueued_ms <= bound_ms


@given(st.lists(st.sampled_from("abc"), min_size=3, max_size=60))
def test_tenants_take_turns_by_weight(backlog: list[str]) -> None:
    """While two tenants wait, neither is served more than its weight and one request ahead."""
    weights = {"a": 1.0, "b": 1.0, "c": 2.0}
    queue: WaitQueue[Person] = WaitQueue(AGEING_MS)
    for number, tenant in enumerate(backlog):
        queue.push(Person(("t", tenant, ""), 0, number, share=weights[tenant]))
    left = {t: backlog.count(t) for t in weights}
    served = dict.fromkeys(weights, 0)
    while len(queue):
        person = queue.pop(lambda _: None)
        assert person is not None
        served[person.lane[1]] += 1
        left[person.lane[1]] -= 1
        for one in weights:
            for other in weights:
                if left[one] and left[other]:
                    ahead = served[one] / weights[one] - served[other] / weights[other]
                    assert ahead <= 1 / weights[one] + 1 / weights[other]


@dataclass
class World:
    """An admission with its clock, and what became of each request."""

    admission: Admission = field(default_factory=Admission)
    now: int = 1
    inside: list[Ticket] = field(default_factory=list[Ticket])
    waiting: dict[int, Ticket] = field(default_factory=dict[int, Ticket])
    refused: int = 0
    offered: int = 0

    def arrive(self, tier: str, tokens: int) -> None:
        ticket = Ticket((tier, "other", ""), "/v1/completions", self.now, TIERS[tier])
        ticket.prompt_tokens, ticket.reserved = tokens, 2 * tokens
        self.offered += 1
        ticket.verdict = lambda refusal: self.decided(ticket, refusal)
        refusal = self.admission.offer(ticket, self.now, patience_ms=5_000)
        if self.admission.waits(ticket):
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
                  st.sampled_from(WHERE), st.integers(1, 4)),
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
    assert world.admission.usage.tokens(("", "", "")) == 0


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


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0, 20])), max_size=60),
       st.integers(1, 10))
def test_a_full_queue_gives_up_the_longest_backlog_of_the_least_important(
    arriving: list[tuple[str, int]], room: int
) -> None:
    """A tenant that has less waiting than its half never loses a place to one that has more."""
    queue: WaitQueue[Person] = WaitQueue(AGEING_MS)
    waiting: list[Person] = []
    for number, (tenant, priority) in enumerate(arriving):
        person = Person((f"t{priority}", tenant, ""), priority, number)
        queue.push(person)
        waiting.append(person)
        if len(queue) > room:
            worst = queue.worst()
            assert worst is not None
            least = [p for p in waiting if p.priority == max(q.priority for q in waiting)]
            backlog = {t: [p for p in least if p.lane[1] == t] for t in "ab"}
            assert worst in least
            assert len(backlog[worst.lane[1]]) == max(map(len, backlog.values()))
            assert worst is backlog[worst.lane[1]][-1]
            queue.remove(worst)
            waiting.remove(worst)
        assert len(queue) == len(waiting) <= room
    while (found := queue.worst()) is not None:
        queue.remove(found)
    assert len(queue) == 0


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
