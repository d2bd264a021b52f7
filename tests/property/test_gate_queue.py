"""The queue of the gate, without a clock of its own, against what it promises."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.gate.limits import CONCURRENCY, Limit
from resilience.gate.waiting import BURST, LANES_MAX, WaitQueue

AGEING_MS = 1_000


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


def test_what_holds_a_whole_tier_is_asked_for_once() -> None:
    queue: WaitQueue[Person] = WaitQueue(AGEING_MS)
    for number in range(100):
        queue.push(Person(("core", f"tenant-{number}", ""), 0, number))
    asked: list[Person] = []

    def held(waiter: Person) -> Limit:
        asked.append(waiter)
        return Limit(CONCURRENCY, ("core", "", ""), 1, "", "")

    assert queue.pop(held) is None
    assert len(asked) == 1


def test_an_old_deadline_of_who_came_back_holds_up_nobody() -> None:
    """One that was let in, failed and waits again has a later deadline than the one between."""
    queue: WaitQueue[Person] = WaitQueue(AGEING_MS)
    again = Person(("core", "", ""), 0, 0, deadline_ms=100)
    between = Person(("core", "", ""), 0, 50, deadline_ms=150)
    queue.push(again)
    queue.push(between)
    assert queue.pop(lambda _: None) is again
    again.enqueued_ms, again.deadline_ms = 90, 190
    queue.push(again)
    assert queue.next_deadline_ms() == 150
    assert queue.pop_expired(150) is between
    assert queue.pop_expired(150) is None and queue.next_deadline_ms() == 190


CAP = Limit(CONCURRENCY, ("", "held", ""), 1, "p", "why")


@given(st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 400), st.sampled_from(["a", "held", "b"])),
    min_size=1, max_size=40))
def test_whoever_is_held_by_its_own_limit_lends_its_age_to_nobody(
    steps: list[tuple[int, int, str]]
) -> None:
    """Of those who may go, each is overtaken only as its own age and the other's allow, or by a
    tenant whose turn it is in a tier that is due."""
    queue: WaitQueue[Person] = WaitQueue(AGEING_MS)
    now, people = 0, []
    for priority, gap, tenant in steps:
        now += gap
        people.append(Person((f"t{priority}", tenant, ""), priority, now))
        queue.push(people[-1])
    free = [person for person in people if person.lane[1] != "held"]

    def due(person: Person) -> tuple[int, int]:
        return person.priority * AGEING_MS + person.enqueued_ms, people.index(person)

    while free:
        went = queue.pop(lambda person: CAP if CAP.covers(person.lane) else None)
        assert went in free
        assert went is not None and went.lane[0] == min(free, key=due).lane[0]
        free.remove(went)
    assert queue.pop(lambda _: CAP) is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["", "m", "n"])),
                min_size=3, max_size=60))
def test_tenants_take_turns_by_weight(asked: list[tuple[str, str]]) -> None:
    """While two tenants wait, neither is served more than its weight and one request ahead, however
    many models it asks for."""
    weights = {"a": 1.0, "b": 1.0, "c": 2.0}
    queue: WaitQueue[Person] = WaitQueue(AGEING_MS)
    for number, (tenant, model) in enumerate(asked):
        queue.push(Person(("t", tenant, model), 0, number, share=weights[tenant]))
    backlog = [tenant for tenant, _ in asked]
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


WEIGHTS = {"a": 1.0, "b": 1.0, "c": 2.0}


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c", "next"]), st.integers(1, 20)),
                min_size=4, max_size=30))
def test_who_comes_and_goes_is_never_served_more_than_its_burst_ahead(
    bursts: list[tuple[str, int]]
) -> None:
    """While a tenant waits, another gets its share, one request and what it had to its credit."""
    queue: WaitQueue[Person] = WaitQueue(AGEING_MS)
    left = dict.fromkeys(WEIGHTS, 0)
    ahead = {(one, other): 0.0 for one in WEIGHTS for other in WEIGHTS if one != other}
    steps = [step for step, times in bursts for _ in range(times)]
    for number, step in enumerate(steps):
        if step != "next":
            queue.push(Person(("t", step, ""), 0, number, share=WEIGHTS[step]))
            left[step] += 1
            continue
        person = queue.pop(lambda _: None)
        if person is None:
            continue
        served = person.lane[1]
        for (one, other), lead in ahead.items():
            if not left[other]:
                ahead[one, other] = 0.0  # it did not wait: nothing was withheld from it
                continue
            step_ahead = (served == one) / WEIGHTS[one] - (served == other) / WEIGHTS[other]
            ahead[one, other] = max(0.0, lead + step_ahead)  # the worst of all times since it waits
            assert ahead[one, other] <= (BURST + 1) / WEIGHTS[one] + 1 / WEIGHTS[other]
        left[served] -= 1


@pytest.mark.parametrize("share", [0.5, 1.0, 3.0])
def test_a_burst_of_who_used_less_than_its_share_goes_first(share: float) -> None:
    """But not all of a longer one: then the two take turns."""
    queue: WaitQueue[Person] = WaitQueue(AGEING_MS)
    for number in range(60):
        queue.push(Person(("t", "noisy", ""), 0, number, share=share))
    for _ in range(20):
        assert queue.pop(lambda _: None) is not None
    for number in range(BURST + 4):
        queue.push(Person(("t", "quiet", ""), 0, 100 + number, share=share))
    order = [person.lane[1] for _ in range(BURST + 8) if (person := queue.pop(lambda _: None))]
    assert order[:BURST] == ["quiet"] * BURST
    assert 1 <= order[BURST:BURST + 4].count("noisy") <= 3


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


def test_who_asks_for_the_first_time_catches_up_no_more_than_a_burst() -> None:
    """One tenant was served alone for long: after the burst they take turns."""
    queue: WaitQueue[Person] = WaitQueue(AGEING_MS)
    for number in range(10):
        queue.push(Person(("t", "a", ""), 0, number))
        assert queue.pop(lambda _: None) is not None
    for number in range(10, 20):
        for tenant in "ab":
            queue.push(Person(("t", tenant, ""), 0, number))
    popped = [queue.pop(lambda _: None) for _ in range(BURST + 8)]
    order = "".join(person.lane[1] for person in popped if person is not None)
    assert order[:BURST] == "b" * BURST and order[BURST:] in ("abababab", "babababa")


def test_who_has_left_takes_no_memory() -> None:
    """One waits for long, while others come and go before it."""
    queue: WaitQueue[Person] = WaitQueue(AGEING_MS)
    queue.push(Person(("t", "a", ""), 0, 0))
    for number in range(2_000):
        person = Person(("t", "a", "m" if number % 2 else ""), 0, number)
        queue.push(person)
        assert queue.remove(person)
    kept = [len(queue._deadlines), *(len(lane.heap) for lane in queue._lanes.values()),
            *(len(backlog.places) for backlog in queue._backlogs.values())]
    assert len(queue) == 1 and max(kept) < 100


def test_lanes_in_which_nobody_waits_are_forgotten() -> None:
    queue: WaitQueue[Person] = WaitQueue(AGEING_MS)
    for number in range(LANES_MAX + 10):
        person = Person(("t", str(number), ""), 0, number)
        queue.push(person)
        assert queue.pop(lambda _: None) is person
    assert len(queue._lanes) <= LANES_MAX and len(queue._turns) <= LANES_MAX


def test_a_backlog_is_long_by_its_tenants_share() -> None:
    """Three of a tenant that has three shares are less than two of one that has one."""
    queue: WaitQueue[Person] = WaitQueue(AGEING_MS)
    people = [Person(("t", "large", ""), 0, number, share=3.0) for number in range(3)]
    people += [Person(("t", "small", ""), 0, number) for number in range(2)]
    for person in people:
        queue.push(person)
    assert queue.worst() is people[-1]
