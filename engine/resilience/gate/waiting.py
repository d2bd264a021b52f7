"""Who waits in the gate, and who goes next. Pure: it is told the time and asks who may go.

Lower priority numbers go first. Ageing makes up for one step of priority with every `ageing_ms` of
waiting, so nothing starves: what waits is overtaken only by what comes less than
(its priority - theirs) x `ageing_ms` after it. As all age alike, the order of two never changes and
a heap keeps it: adding and removing take O(log n).

Tenants of one tier share by weight (start-time fair queueing): a tenant with a long backlog does
not delay another's first request, and it is the longest backlog that gives way when the queue is
full. Whoever is held by a limit of its own does not hold up others;
whoever is held by a limit that others share keeps its turn.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

NEVER_MS = 1_000_000_000_000
LANES_MAX = 4_096


class Waiter(Protocol):
    """What can wait. `lane` is (tier, tenant, model): members of one lane go in order."""

    lane: tuple[str, str, str]
    priority: int
    cost: float
    share: float
    enqueued_ms: int
    deadline_ms: int


class Obstacle(Protocol):
    """Why a waiter may not go yet."""

    def covers(self, lane: tuple[str, str, str], /) -> bool:
        """Say whether it also stands in the way of a request of `lane`."""
        ...


W = TypeVar("W", bound=Waiter)


@dataclass(slots=True, order=True)
class _Place(Generic[W]):
    """A place in a heap; `waiter` None: it has left."""

    key: float
    number: int
    waiter: W | None = field(compare=False)


@dataclass(slots=True)
class _Lane(Generic[W]):
    tier: str
    heap: list[_Place[W]] = field(default_factory=list[_Place[W]])
    turn: float = 0.0

    def head(self) -> _Place[W] | None:
        while self.heap and self.heap[0].waiter is None:
            heapq.heappop(self.heap)
        return self.heap[0] if self.heap else None


class _Backlog(Generic[W]):
    """What one tenant has waiting at one priority, in order of arrival."""

    __slots__ = ("count", "places")

    def __init__(self) -> None:
        self.count = 0
        self.places: list[_Place[W]] = []

    def add(self, place: _Place[W]) -> None:
        self.count += 1
        self.places.append(place)

    def newest(self) -> _Place[W]:
        while self.places[-1].waiter is None:
            self.places.pop()
        return self.places[-1]

    def drop(self) -> None:
        """Note that one has left; its place has been cleared."""
        self.count -= 1
        if len(self.places) > 2 * self.count + 16:
            self.places = [place for place in self.places if place.waiter is not None]

    def weight(self) -> tuple[float, int]:
        """Return how much this backlog is for its tenant's share, and the number of its newest."""
        place = self.newest()
        assert place.waiter is not None
        return self.count / place.waiter.share, place.number


class WaitQueue(Generic[W]):
    """The waiting requests. `ageing_ms` None: strict priority, and low ones may starve."""

    def __init__(self, ageing_ms: int | None) -> None:
        self.step_ms = NEVER_MS if ageing_ms is None else ageing_ms
        self._lanes: dict[tuple[str, str, str], _Lane[W]] = {}
        self._places: dict[Hashable, _Place[W]] = {}
        self._turns: dict[str, float] = {}
        self._deadlines: list[_Place[W]] = []
        self._backlogs: dict[tuple[int, str], _Backlog[W]] = {}
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._places)

    def waiting(self, tier: str) -> int:
        """Return how many of a tier wait."""
        return sum(
            place.waiter is not None
            for lane in self._lanes.values() if lane.tier == tier for place in lane.heap
        )

    def push(self, waiter: W) -> None:
        """Let a request wait; its `enqueued_ms` and `deadline_ms` are set."""
        self._numbers += 1
        key = waiter.priority * self.step_ms + waiter.enqueued_ms
        place = _Place(float(key), self._numbers, waiter)
        lane = self._lane(waiter)
        if lane.head() is None:
            lane.turn = max(lane.turn, self._turns.get(lane.tier, 0.0))
        heapq.heappush(lane.heap, place)
        self._places[id(waiter)] = place
        heapq.heappush(self._deadlines, _Place(waiter.deadline_ms, self._numbers, waiter))
        self._backlogs.setdefault(_tenant_of(waiter), _Backlog()).add(place)
        self._tidy()

    def remove(self, waiter: W) -> bool:
        """Take a request out, wherever it stands; False when it does not wait."""
        place = self._places.pop(id(waiter), None)
        if place is None:
            return False
        place.waiter = None
        backlog = self._backlogs[_tenant_of(waiter)]
        backlog.drop()
        if not backlog.count:
            del self._backlogs[_tenant_of(waiter)]
        return True

    def pop(self, obstacle_of: Callable[[W], Obstacle | None]) -> W | None:
        """Take out and return who goes next, or None while nobody may."""
        shut: list[Obstacle] = []
        for lane in self._in_order():
            place = lane.head()
            if place is None or place.waiter is None:
                continue
            waiter = place.waiter
            if any(obstacle.covers(waiter.lane) for obstacle in shut):
                continue
            obstacle = obstacle_of(waiter)
            if obstacle is None:
                self._serve(lane, waiter)
                return waiter
            shut.append(obstacle)
        return None

    def pop_expired(self, now_ms: int) -> W | None:
        """Take out and return one whose deadline has passed."""
        waiter = self._first(self._deadlines)
        if waiter is None or waiter.deadline_ms > now_ms:
            return None
        self.remove(waiter)
        return waiter

    def next_deadline_ms(self) -> int | None:
        waiter = self._first(self._deadlines)
        return None if waiter is None else waiter.deadline_ms

    def worst(self) -> W | None:
        """Return who gives way in a full queue: of the least important, the newest of the tenant
        with the longest backlog for its share. It stays where it is."""
        if not self._backlogs:
            return None
        least = max(priority for priority, _ in self._backlogs)
        longest = max(
            (b for (priority, _), b in self._backlogs.items() if priority == least),
            key=_Backlog.weight)
        return longest.newest().waiter

    def _first(self, heap: list[_Place[W]]) -> W | None:
        while heap and (heap[0].waiter is None or id(heap[0].waiter) not in self._places):
            heapq.heappop(heap)
        return heap[0].waiter if heap else None

    def _lane(self, waiter: W) -> _Lane[W]:
        if waiter.lane not in self._lanes and len(self._lanes) >= LANES_MAX:
            self._lanes = {k: lane for k, lane in self._lanes.items() if lane.head() is not None}
        return self._lanes.setdefault(waiter.lane, _Lane(waiter.lane[0]))

    def _in_order(self) -> list[_Lane[W]]:
        """Return the lanes as they should be asked: the tier whose head is due, then fair turns."""
        heads = [(lane, head) for lane in self._lanes.values() if (head := lane.head()) is not None]
        due: dict[str, float] = {}
        for lane, head in heads:
            due[lane.tier] = min(head.key, due.get(lane.tier, head.key))
        heads.sort(key=lambda pair: (due[pair[0].tier], pair[0].turn, pair[1].key, pair[1].number))
        return [lane for lane, _ in heads]

    def _serve(self, lane: _Lane[W], waiter: W) -> None:
        self.remove(waiter)
        self._turns[lane.tier] = max(lane.turn, self._turns.get(lane.tier, 0.0))
        lane.turn += waiter.cost / waiter.share

    def _tidy(self) -> None:
        """Rebuild the heaps when most of what they hold has left."""
        if len(self._deadlines) > 2 * len(self._places) + 64:
            due = self._deadlines
            due[:] = [p for p in due if p.waiter and id(p.waiter) in self._places]
            heapq.heapify(due)
            for lane in self._lanes.values():
                lane.heap[:] = [p for p in lane.heap if p.waiter is not None]
                heapq.heapify(lane.heap)


def _tenant_of(waiter: Waiter) -> tuple[int, str]:
    return waiter.priority, waiter.lane[1]
