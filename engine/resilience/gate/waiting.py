"""Who waits in the gate, and who goes next. Pure: it is told the time and asks who may go.

Lower priority numbers go first. Ageing makes up for one step of priority with every `ageing_ms` of
waiting, so nothing starves: what waits is overtaken only by what comes less than
(its priority - theirs) x `ageing_ms` after it. As all age alike, the order of two never changes and
a heap keeps it: adding and removing take O(log n).

Tenants of one tier share by weight (start-time fair queueing): a tenant with a long backlog does
not delay another's first requests, and it is the longest backlog that gives way when the queue is
full. Who has used less than its share has that to its credit for `BURST` requests: requests come in
bursts, and without it the second of three that come together waits for a turn of the backlog, the
third for two. Whoever is held by a limit of its own does not hold up others;
whoever is held by a limit that others share keeps its turn. A tier is due by the age of those of
its requests that may go, and by that of no other.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import product
from typing import Generic, Protocol, TypeAlias, TypeVar

NEVER_MS = 1_000_000_000_000
LANES_MAX = 4_096
BURST = 4
_NEVER = (float("inf"), 0)


class Waiter(Protocol):
    """What can wait. `lane` is (tier, tenant, model): members of one lane go in order."""

    lane: tuple[str, str, str]
    priority: int
    cost: float
    share: float
    enqueued_ms: int
    deadline_ms: int


class Obstacle(Protocol):
    """Why a waiter may not go yet. `scope` is (tier, tenant, model), "" for any: it stands in the
    way of all of them."""

    @property
    def scope(self) -> tuple[str, str, str]: ...


W = TypeVar("W", bound=Waiter)
Shut: TypeAlias = dict[tuple[str, str, str], Obstacle]


@dataclass(slots=True, order=True)
class _Place(Generic[W]):
    """A place in a heap; `waiter` None: it has left."""

    key: float
    number: int
    waiter: W | None = field(compare=False)

    @property
    def age(self) -> tuple[float, int]:
        """Return what is lower the longer it waits and the more important it is."""
        return self.key, self.number


@dataclass(slots=True)
class _Turn:
    """When a tenant's next request is due, in what its tier has served; for all its models."""

    at: float = 0.0


@dataclass(slots=True)
class _Lane(Generic[W]):
    tier: str
    turn: _Turn
    heap: list[_Place[W]] = field(default_factory=list[_Place[W]])

    def head(self) -> _Place[W] | None:
        while self.heap and self.heap[0].waiter is None:
            heapq.heappop(self.heap)
        return self.heap[0] if self.heap else None


_Head: TypeAlias = tuple[_Lane[W], _Place[W]]


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
    """The waiting requests. `ageing_ms` None: strict priority, and low ones may starve.

    `places` has one entry for each of them. `by_cost`: tenants share by what their requests cost,
    else by their number.
    """

    def __init__(self, ageing_ms: int | None, by_cost: bool = True) -> None:
        self.by_cost = by_cost
        self.step_ms = NEVER_MS if ageing_ms is None else ageing_ms
        self._lanes: dict[tuple[str, str, str], _Lane[W]] = {}
        self.places: dict[Hashable, _Place[W]] = {}
        self._turns: dict[tuple[str, str], _Turn] = {}
        self._served: dict[str, float] = {}
        self._deadlines: list[_Place[W]] = []
        self._backlogs: dict[tuple[int, str], _Backlog[W]] = {}
        self._numbers = 0

    def __len__(self) -> int:
        return len(self.places)

    def waiting(self, tier: str) -> int:
        """Return how many of a tier wait."""
        return sum(
            place.waiter is not None
            for lane in self._lanes.values() if lane.tier == tier for place in lane.heap
        )

    def all(self) -> list[W]:
        """Return who waits, in no particular order."""
        return [place.waiter for place in self.places.values() if place.waiter is not None]

    def count_by(self, by_cost: bool) -> None:
        """Share by another measure from now on. Turns begin anew: what was served is in the old,
        and a tenant would wait for as many requests as it had tokens."""
        self.by_cost = by_cost
        self._served.clear()
        for turn in self._turns.values():
            turn.at = 0.0

    def push(self, waiter: W) -> None:
        """Let a request wait; its `enqueued_ms` and `deadline_ms` are set."""
        self._numbers += 1
        key = waiter.priority * self.step_ms + waiter.enqueued_ms
        place = _Place(float(key), self._numbers, waiter)
        lane = self._lane(waiter)
        credit = BURST * waiter.cost / waiter.share
        lane.turn.at = max(lane.turn.at, self._served.get(lane.tier, 0.0) - credit)
        heapq.heappush(lane.heap, place)
        self.places[id(waiter)] = place
        heapq.heappush(self._deadlines, _Place(waiter.deadline_ms, self._numbers, waiter))
        self._backlogs.setdefault(_tenant_of(waiter), _Backlog()).add(place)
        self._tidy()

    def remove(self, waiter: W) -> bool:
        """Take a request out, wherever it stands; False when it does not wait."""
        place = self.places.pop(id(waiter), None)
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
        shut: Shut = {}
        tiers = self._in_turns()
        while tiers:
            tier = min(tiers, key=lambda t: min(place.age for _, place in tiers[t]))
            heads = tiers[tier]
            if not _drop_held(heads, shut, obstacle_of):
                del tiers[tier]
                continue
            rival = min((h[1].age for t in tiers if t != tier for h in tiers[t]), default=_NEVER)
            if _is_due(heads, rival, shut, obstacle_of):
                lane, place = heads[0]
                assert place.waiter is not None
                return self._serve(lane, place.waiter)
            heads[:] = [head for head in heads if head[1].age > rival]
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
        while heap and not self._still_waits(heap[0]):
            heapq.heappop(heap)
        return heap[0].waiter if heap else None

    def _still_waits(self, place: _Place[W]) -> bool:
        """Whoever comes back for another attempt has a new number: its old deadline is void."""
        now = self.places.get(id(place.waiter))
        return now is not None and now.number == place.number

    def _lane(self, waiter: W) -> _Lane[W]:
        if waiter.lane not in self._lanes and len(self._lanes) >= LANES_MAX:
            self._lanes = {k: lane for k, lane in self._lanes.items() if lane.head() is not None}
            self._turns = {k[:2]: lane.turn for k, lane in self._lanes.items()}
        turn = self._turns.setdefault(waiter.lane[:2], _Turn())
        return self._lanes.setdefault(waiter.lane, _Lane(waiter.lane[0], turn))

    def _in_turns(self) -> dict[str, list[_Head[W]]]:
        """Return the first of every lane by tier, in the order in which tenants take turns."""
        tiers: dict[str, list[_Head[W]]] = {}
        for lane in self._lanes.values():
            place = lane.head()
            if place is not None:
                tiers.setdefault(lane.tier, []).append((lane, place))
        for heads in tiers.values():
            heads.sort(key=lambda head: (head[0].turn.at, head[1].age))
        return tiers

    def _serve(self, lane: _Lane[W], waiter: W) -> W:
        self.remove(waiter)
        self._served[lane.tier] = max(lane.turn.at, self._served.get(lane.tier, 0.0))
        lane.turn.at += (waiter.cost if self.by_cost else 1.0) / waiter.share
        return waiter

    def _tidy(self) -> None:
        """Rebuild the heaps when most of what they hold has left."""
        if len(self._deadlines) > 2 * len(self.places) + 64:
            due = self._deadlines
            due[:] = [p for p in due if self._still_waits(p)]
            heapq.heapify(due)
            for lane in self._lanes.values():
                lane.heap[:] = [p for p in lane.heap if p.waiter is not None]
                heapq.heapify(lane.heap)


def _drop_held(
    heads: list[_Head[W]], shut: Shut, obstacle_of: Callable[[W], Obstacle | None]
) -> bool:
    """Take out those before the first that may go; says whether there is one. What holds them is
    added to `shut`: it holds whoever comes after them as well."""
    for index, (_, place) in enumerate(heads):
        obstacle = _obstacle(place, shut, obstacle_of)
        if obstacle is None:
            del heads[:index]
            return True
        shut[obstacle.scope] = obstacle
        if obstacle.scope[1:] == ("", ""):  # it holds every one of this tier
            return False
    return False


def _is_due(
    heads: list[_Head[W]], rival: tuple[float, int], shut: Shut,
    obstacle_of: Callable[[W], Obstacle | None],
) -> bool:
    """Say whether a tier's first head goes before another tier's, of age `rival`: by its own age,
    or because an older one may go that gives it its turn."""
    if heads[0][1].age < rival:
        return True
    return any(
        _obstacle(place, shut, obstacle_of) is None for _, place in heads if place.age < rival)


def _obstacle(
    place: _Place[W], shut: Shut, obstacle_of: Callable[[W], Obstacle | None]
) -> Obstacle | None:
    assert place.waiter is not None
    if shut:
        tier, tenant, model = place.waiter.lane
        for scope in product({"", tier}, {"", tenant}, {"", model}):
            if scope in shut:
                return shut[scope]
    return obstacle_of(place.waiter)


def _tenant_of(waiter: Waiter) -> tuple[int, str]:
    return waiter.priority, waiter.lane[1]
