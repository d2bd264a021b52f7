"""Who may pass, who waits and who is refused: the gate's decisions, without any I/O.

All times are the caller's monotonic milliseconds. After whatever may let a waiting request pass (an
end, other claims, another limit, time), call `poll`; `next_ms` says when time alone will.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from resilience.desired import CORE_POLICY
from resilience.gate.breaker import Breaker, Change, Outcome
from resilience.gate.breakers import BreakerClaim, BreakerSet, enter_all, leave_all, shut_of
from resilience.gate.limiter import Signals, allowed, allowed_others, next_limit
from resilience.gate.limits import LIMITER, METERED, OUTPUT, Judge, Limit, Meters, Usage
from resilience.gate.snapshot import Snapshot
from resilience.gate.ticket import Lane, Refusal, Ticket
from resilience.gate.waiting import NEVER_MS, Obstacle, WaitQueue

RULES_MAX = 4_096
EVERYWHERE: Lane = ("", "", "")
NOBODY_ELSE: Lane = ("\0", "\0", "\0")


@dataclass(frozen=True, slots=True)
class LaneRules:
    """What requests of one lane are judged by, until the claims change."""

    limits: tuple[Limit, ...]
    judges: tuple[tuple[Limit, Judge], ...]
    final: tuple[tuple[Limit, Judge], ...]  # those of them that no waiting helps against
    breakers: tuple[tuple[Breaker, BreakerClaim], ...]
    metered: tuple[Limit, ...]


@dataclass(frozen=True, slots=True)
class _Alone:
    """What holds one waiting request and no other."""

    scope: Lane = NOBODY_ELSE


ALONE = _Alone()
NO_RULES = LaneRules((), (), (), (), ())


class Admission:
    """One server's admission. `queue_max` 0: nobody waits, what is too much is refused at once.

    `overtakes`: inside the server a more important request goes before those that are there.
    """

    def __init__(self, changed: Callable[[Change], None] = lambda _: None) -> None:
        self.usage = Usage()
        self.breakers = BreakerSet(changed)
        self.queue: WaitQueue[Ticket] = WaitQueue(None, by_cost=False)
        self.limit: float | None = None
        self.start_limit = 1.0
        self.seats = math.inf
        self.busy_ms = 0  # since when there has always been something in flight
        self.first_priority = 0
        self.first_tiers: tuple[str, ...] = ()
        self.overtakes = False
        self._queue_max = 0
        self._meters = Meters(self.usage)
        self._snapshot = Snapshot()
        self._adaptive: Limit | None = None
        self._others = 0
        self._by_tier: dict[tuple[str, int], Limit] = {}
        self._rules: dict[Lane, LaneRules] = {}
        self._retry_ms: int | None = None

    def configure(self, queue_max: int, ageing_ms: int | None) -> None:
        """Set the queue's size and ageing; who waits already keeps waiting."""
        old, self.queue = self.queue, WaitQueue(ageing_ms, self.queue.by_cost)
        self._queue_max = queue_max
        while (ticket := old.pop(lambda _: None)) is not None:
            self.queue.push(ticket)

    def rank(self, priorities: Mapping[str, int]) -> None:
        """Say how important the tiers are; lower numbers go first, and several may be the first."""
        self.first_priority = first = min(priorities.values())
        self.first_tiers = tuple(tier for tier, number in priorities.items() if number == first)

    def adopt(self, snapshot: Snapshot, now_ms: int) -> None:
        """Judge by another snapshot from now on."""
        before, self._snapshot = self._snapshot, snapshot
        self.breakers.adopt(snapshot.breakers, now_ms)
        self._meters.adopt(snapshot.limits, now_ms)
        self.usage.watch({limit.scope for limit in snapshot.limits})
        self._rules.clear()
        self._set_limit(self.start_limit if self.limit is None else self.limit)
        if snapshot.needs_tokens != before.needs_tokens:
            self.queue.count_by(snapshot.needs_tokens)
        if snapshot.needs_tokens and not before.needs_tokens:
            self.usage.reserve_by_length()
        if snapshot.asks_more_than(before):
            self._recall()
        self._send_away(now_ms)
        self.poll(now_ms)

    def rules(self, lane: Lane) -> LaneRules:
        """Return what requests of `lane` are judged by."""
        found = self._rules.get(lane)
        if found is None:
            if len(self._rules) >= RULES_MAX:
                self._rules.clear()
            found = self._rules[lane] = self._rules_of(lane)
        return found

    def _rules_of(self, lane: Lane) -> LaneRules:
        limits = tuple(x for x in self._snapshot.limits if x.covers(lane))
        breakers = self.breakers.of(lane)
        if not limits and not breakers:
            return NO_RULES
        judged = ((x, self._meters.judge(x)) for x in limits)
        judges = tuple((limit, judge) for limit, judge in judged if judge is not None)
        final = tuple(pair for pair in judges if not pair[0].can_wait())
        return LaneRules(
            limits, judges, final, breakers, tuple(x for x in limits if x.kind in METERED))

    def output_cap(self, lane: Lane) -> Limit | None:
        """Return the limit on output tokens of a request of `lane`, or None."""
        caps = [x for x in self.rules(lane).limits if x.kind == OUTPUT]
        return min(caps, key=lambda x: x.number, default=None)

    # --- a request's way ------------------------------------------------------------------------

    def offer(
        self, ticket: Ticket, now_ms: int, patience_ms: int = 0, since_ms: int | None = None
    ) -> Refusal | None:
        """Let a request in (None), refuse it, or let it wait (None, and `ticket.verdict` will be
        called; `ticket.deadline_ms` tells the two apart). It waits at most `patience_ms`. One that
        was recalled has its place in the queue by `since_ms`."""
        rules = self._rules.get(ticket.lane) or self.rules(ticket.lane)
        if rules is NO_RULES and self._adaptive is None and not self.queue.places:
            self._enter(ticket, now_ms)
            return None
        limit = self._obstacle(ticket, rules, now_ms)
        if limit is None and not self.queue.places:
            return self._let_in(ticket, rules, now_ms)
        shut = shut_of(rules.breakers, now_ms)
        if shut is not None:
            return _broken(*shut, now_ms)
        if limit is not None:
            final = _final(ticket, rules, now_ms)
            if final is not None or patience_ms <= 0 or not self._queue_max:
                limit = final or limit
                return _refusal(limit, self._ready_in_ms(limit, ticket, now_ms))
        return self._let_wait(ticket, now_ms, max(1, patience_ms), since_ms)

    def leave(self, ticket: Ticket, outcome: Outcome, duration_ms: float, now_ms: int) -> None:
        """End a request that was let in: settle its tokens, judge it, let others in."""
        if ticket.actual_prompt is not None:
            for limit in self.rules(ticket.lane).limits:
                self._meters.settle(limit, ticket, now_ms)
        self.usage.leave(ticket)
        if ticket.passes:
            leave_all(ticket, outcome, duration_ms, now_ms)
        if self.queue.places:
            self.poll(now_ms)

    def abandon(self, ticket: Ticket, now_ms: int) -> bool:
        """Take out a request whose client left while it waited; False when it no longer does."""
        left = self.queue.remove(ticket)
        if left:
            ticket.deadline_ms = 0
            self.poll(now_ms)
        return left

    def stream(self, ticket: Ticket, tokens: int, now_ms: int) -> None:
        """Count output tokens as they come."""
        for limit in self.rules(ticket.lane).limits:
            self._meters.stream(limit, ticket, tokens, now_ms)

    # --- time and signals -----------------------------------------------------------------------

    def poll(self, now_ms: int) -> None:
        """Refuse who has waited too long, and let in who may go now."""
        while (late := self.queue.pop_expired(now_ms)) is not None:
            limit = self._held_by(late, now_ms)
            self._decide(late, _too_late(late, limit, self._ready_in_ms(limit, late, now_ms)))
        self._retry_ms = None
        while len(self.queue):
            ticket = self.queue.pop(lambda t: self._in_the_way_of(t, now_ms))
            if ticket is None:
                return
            self._decide(ticket, self._let_in(ticket, self.rules(ticket.lane), now_ms))

    def next_ms(self) -> int | None:
        """Return when to call `poll` although nothing happens; None while nobody waits."""
        if not len(self.queue):
            return None
        times = (self.queue.next_deadline_ms(), self._retry_ms)
        return min((t for t in times if t is not None), default=None)

    def adapt(self, signals: Signals, now_ms: int) -> None:
        """Move the adaptive limit by what the server showed in the last interval."""
        claim, peak = self._snapshot.limiter, self.usage.take_peak()
        if claim is None:
            return
        limit = self.start_limit if self.limit is None else self.limit
        self._set_limit(next_limit(limit, claim.rule, signals, peak, self.seats))
        self.poll(now_ms)

    def _set_limit(self, limit: float) -> None:
        claim = self._snapshot.limiter
        if claim is None:
            self.limit, self._adaptive = None, None
            return
        self.limit = min(max(limit, claim.rule.minimum), claim.rule.maximum)
        self._adaptive = Limit(
            LIMITER, EVERYWHERE, allowed(self.limit), claim.policy, claim.reason)
        self._others = allowed_others(self.limit, self.seats, claim.rule)
        self._by_tier.clear()

    def _recall(self) -> None:
        """Give back who waits to who can find out what the claims now ask for."""
        for ticket in self.queue.all():
            if ticket.learns:
                self.queue.remove(ticket)
                ticket.recalled = True
                self._decide(ticket, None)

    def _send_away(self, now_ms: int) -> None:
        """Refuse at once who waits although a limit that is new to it will never let it pass."""
        if not any(not limit.can_wait() for limit in self._snapshot.limits):
            return
        for ticket in self.queue.all():
            limit = _final(ticket, self.rules(ticket.lane), now_ms)
            if limit is not None:
                self.queue.remove(ticket)
                self._decide(ticket, _refusal(limit, 0))

    # --- inside ---------------------------------------------------------------------------------

    def _ready_in_ms(self, limit: Limit | None, ticket: Ticket, now_ms: int) -> int:
        """Return after how long time alone would let a refused request pass, 0 if nobody knows."""
        if limit is None or limit.kind not in METERED:
            return 0
        return (self._meters.ready_ms(limit, ticket, now_ms) or now_ms) - now_ms

    def _held_by(self, ticket: Ticket, now_ms: int) -> Limit | None:
        return self._obstacle(ticket, self.rules(ticket.lane), now_ms)

    def _in_the_way_of(self, ticket: Ticket, now_ms: int) -> Obstacle | None:
        """Return what holds a waiting request, and with it all others in its scope. What keeps the
        headroom free holds nobody else: another of the tier may have waited long enough."""
        limit, adaptive = self._held_by(ticket, now_ms), self._adaptive
        if (
            limit is None or adaptive is None or self.usage.total >= adaptive.value
            or limit is not self._by_tier.get((ticket.tier, self._others))
            or self.queue.step_ms == NEVER_MS
        ):
            return limit
        return ALONE

    def _obstacle(self, ticket: Ticket, rules: LaneRules, now_ms: int) -> Limit | None:
        """Return the limit that stands in a request's way; note when time will lift it."""
        for limit, exceeds in rules.judges:
            if exceeds(ticket, now_ms):
                ready_ms = self._meters.ready_ms(limit, ticket, now_ms)
                if ready_ms is not None:
                    self._retry_ms = min(ready_ms, self._retry_ms or ready_ms)
                return limit
        adaptive, total = self._adaptive, self.usage.total
        if adaptive is None or total < self._others:
            return None
        steps = ticket.priority - self.first_priority
        if total >= adaptive.value:
            return self._full(adaptive, ticket, steps)
        return self._others_limit(ticket, now_ms) if steps > 0 else None

    def _full(self, adaptive: Limit, ticket: Ticket, steps: int) -> Limit | None:
        """Return what a request meets when the limit is reached. A first tier's own count against
        it where the server lets them overtake the others, and what holds those does not hold it."""
        if not self.overtakes:
            return adaptive
        if steps > 0:
            return self._scoped(ticket.tier, adaptive.value)
        inside = sum(self.usage.count((tier, "", "")) for tier in self.first_tiers)
        return adaptive if inside >= adaptive.value else None

    def _others_limit(self, ticket: Ticket, now_ms: int) -> Limit | None:
        """Return what holds a lower tier back while the first one keeps its headroom; waiting makes
        up for a lower priority here, too."""
        if ticket.deadline_ms:
            steps = ticket.priority - self.first_priority
            equal_ms = ticket.enqueued_ms + steps * self.queue.step_ms
            if now_ms >= equal_ms:
                return None
            self._retry_ms = min(equal_ms, self._retry_ms or equal_ms)
        return self._scoped(ticket.tier, self._others)

    def _scoped(self, tier: str, value: int) -> Limit:
        """Return the adaptive limit as it holds for one tier."""
        found = self._by_tier.get((tier, value))
        if found is None:
            assert self._adaptive is not None
            found = replace(self._adaptive, scope=(tier, "", ""), value=value)
            self._by_tier[tier, value] = found
        return found

    def _let_in(self, ticket: Ticket, rules: LaneRules, now_ms: int) -> Refusal | None:
        if rules.breakers:
            shut = (enter_all(rules.breakers, ticket, now_ms) if ticket.is_judged
                    else shut_of(rules.breakers, now_ms))
            if shut is not None:
                return _broken(*shut, now_ms)
        for limit in rules.metered:
            self._meters.take(limit, ticket, now_ms)
        self._enter(ticket, now_ms)
        return None

    def _enter(self, ticket: Ticket, now_ms: int) -> None:
        if not self.usage.total:
            self.busy_ms = now_ms
        ticket.entered_ms = now_ms
        self.usage.enter(ticket)

    def _let_wait(
        self, ticket: Ticket, now_ms: int, patience_ms: int, since_ms: int | None
    ) -> Refusal | None:
        """Queue it; when that is too many, one of the least important has to go."""
        answer: list[Refusal | None] = []
        outside, ticket.verdict = ticket.verdict, answer.append
        ticket.enqueued_ms = now_ms if since_ms is None else since_ms
        ticket.deadline_ms = now_ms + patience_ms
        self.queue.push(ticket)
        # Who may not go itself makes room for nobody: to ask all the others is for nothing.
        if self._held_by(ticket, now_ms) is None or (self.queue.next_deadline_ms() or 0) <= now_ms:
            self.poll(now_ms)
        if not answer and len(self.queue) > self._queue_max:
            worst = self.queue.worst()
            if worst is not None:
                self.queue.remove(worst)
                held = self._held_by(worst, now_ms)
                self._decide(
                    worst, _crowded_out(worst, held, self._ready_in_ms(held, worst, now_ms)))
        if answer:
            return answer[0]
        ticket.verdict = outside
        return None

    def _decide(self, ticket: Ticket, refusal: Refusal | None) -> None:
        ticket.deadline_ms = 0
        verdict, ticket.verdict = ticket.verdict, None
        if verdict is not None:
            verdict(refusal)


def _final(ticket: Ticket, rules: LaneRules, now_ms: int) -> Limit | None:
    """Return the limit that a request breaks however long it waits."""
    return next((limit for limit, exceeds in rules.final if exceeds(ticket, now_ms)), None)


def _refusal(limit: Limit, ready_ms: int) -> Refusal:
    """429 for one request too many; 503 where the core itself takes none, as in a drain."""
    return Refusal(_status(limit), limit.cause, limit.policy, limit.reason, limit.text(), ready_ms)


def _status(limit: Limit | None) -> int:
    return 503 if limit is not None and limit.policy.startswith(CORE_POLICY) else 429


def _broken(breaker: Breaker, claim: BreakerClaim, now_ms: int) -> Refusal:
    return Refusal(
        503, "breaker_open", claim.policy, claim.reason,
        f"the breaker {breaker.name} is {breaker.state.replace('_', ' ')}: the server failed",
        breaker.retry_after_ms(now_ms),
    )


def _too_late(ticket: Ticket, limit: Limit | None, ready_ms: int) -> Refusal:
    waited = (ticket.deadline_ms - ticket.enqueued_ms) / 1000
    why = limit.text() if limit is not None else "others went first"
    return Refusal(
        _status(limit), "queue_timeout", limit.policy if limit else "",
        limit.reason if limit else "queue",
        f"waited {waited:g} s in the queue: {why}", ready_ms,
    )


def _crowded_out(ticket: Ticket, limit: Limit | None, ready_ms: int) -> Refusal:
    return Refusal(
        429, "queue_full", limit.policy if limit else "", limit.reason if limit else "queue",
        f"the queue is full of requests that go before this one of tier {ticket.tier}", ready_ms,
    )
