"""What one limit is, what it counts, and when it lets the next request pass. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any, TypeAlias

from resilience.gate.causes import RefusalCause
from resilience.gate.ticket import Lane, Ticket, axes_of, covers
from resilience.gate.tokens import length_estimate, quota, reserve_for_output
from resilience.gate.windows import Bucket, Window

CONCURRENCY = "throttle.max_concurrency"
REQUEST_RATE = "throttle.max_requests_per_second"
PROMPT_RATE = "throttle.max_prompt_tokens_per_second"
OUTSTANDING = "throttle.max_outstanding_tokens"
CONTEXT = "throttle.max_context_tokens"
OUTPUT = "throttle.max_output_tokens"
QUOTA = "throttle.token_quota"
LIMITER = "limiter.rule"
LANES_MAX = 4_096
Judge: TypeAlias = Callable[[Ticket, int], bool]  # of a request, at a time in ms
THROTTLES = (CONCURRENCY, REQUEST_RATE, PROMPT_RATE, OUTSTANDING, CONTEXT, OUTPUT, QUOTA)
METERED = frozenset({REQUEST_RATE, PROMPT_RATE, QUOTA})
NEED_TOKENS = frozenset({PROMPT_RATE, OUTSTANDING, CONTEXT, OUTPUT, QUOTA})
CAUSES: dict[str, RefusalCause] = {
    CONCURRENCY: "concurrency", LIMITER: "concurrency", REQUEST_RATE: "rate",
    PROMPT_RATE: "tokens", OUTSTANDING: "tokens", QUOTA: "tokens", CONTEXT: "context",
}
_WORDS = {
    CONCURRENCY: "requests in flight", LIMITER: "requests in flight",
    REQUEST_RATE: "requests a second", PROMPT_RATE: "prompt tokens a second",
    OUTSTANDING: "tokens outstanding", QUOTA: "tokens in the window",
    CONTEXT: "tokens of context",
}


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit in force. `scope` is (tier, tenant, model), "" for any; `policy` "" is the Engine
    document's own. `value` is a number, for the quota a map of tokens and window_ms; `number` is
    what is compared."""

    kind: str
    scope: Lane
    value: Any
    policy: str
    reason: str
    number: float = field(init=False)

    def __post_init__(self) -> None:
        is_quota = self.kind == QUOTA
        number = quota(self.value["tokens"], self.value["window_ms"]) if is_quota else self.value
        object.__setattr__(self, "number", float(number))

    def covers(self, lane: Lane, /) -> bool:
        return covers(self.scope, lane)

    @property
    def cause(self) -> RefusalCause:
        return CAUSES[self.kind]

    def can_wait(self) -> bool:
        """Say whether waiting may help: not for what is too large, nor where nothing may pass."""
        return self.kind != CONTEXT and self.number > 0

    def text(self) -> str:
        """Say what is limited, for whom and to how much."""
        axes = axes_of(self.scope).items()
        whom = " ".join(f"{axis} {name}" for axis, name in axes) or "this server"
        return f"too many {_WORDS[self.kind]} for {whom}: the limit is {self.number:g}"


class Tally:
    """What one scope has in flight."""

    __slots__ = ("requests", "tokens")

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0


_NOTHING = Tally()


class Usage:
    """Requests in flight and the tokens reserved for them, by every scope that some limit counts.

    A mask says which axes a scope names: 1 tier, 2 tenant, 4 model.
    """

    def __init__(self) -> None:
        self.total = 0
        self.peak = 0
        self._masks: tuple[int, ...] = (0, 1)
        self._watched: set[Lane] = set()
        self._inside: set[Ticket] = set()
        self._tallies: dict[Lane, Tally] = {}
        self._by_lane: dict[Lane, tuple[Tally, ...]] = {}

    def count(self, scope: Lane) -> int:
        return self._tallies.get(scope, _NOTHING).requests

    def tally(self, scope: Lane) -> Tally:
        """Return what counts `scope`; it stays the same for as long as the scope is watched."""
        return self._tallies.setdefault(scope, Tally())

    def watch(self, scopes: set[Lane]) -> None:
        """Count for these scopes from now on, what is in flight already included."""
        self._watched = scopes
        masks = {0, 1} | {sum(1 << i for i, name in enumerate(scope) if name) for scope in scopes}
        if tuple(sorted(masks)) == self._masks:
            return
        inside = list(self._inside)
        for ticket in inside:
            self.leave(ticket)
        self._masks = tuple(sorted(masks))
        self._tidy()
        for ticket in inside:
            self.enter(ticket)

    def enter(self, ticket: Ticket) -> None:
        self.total += 1
        if self.total > self.peak:
            self.peak = self.total
        self._inside.add(ticket)
        ticket.tallies = tallies = self._by_lane.get(ticket.lane) or self._new(ticket.lane)
        for tally in tallies:
            tally.requests += 1
            tally.tokens += ticket.reserved

    def reserve_by_length(self) -> None:
        """Reserve tokens for those in flight that came before any limit counted tokens. Their
        `size` stays: before another attempt they are counted."""
        for ticket in self._inside:
            if not ticket.size or ticket.reserved or not ticket.tallies:
                continue
            ticket.prompt_tokens = length_estimate(ticket.size)
            ticket.reserved = ticket.prompt_tokens + reserve_for_output(ticket.path, None, 1)
            ticket.cost = float(max(1, ticket.reserved))
            for tally in ticket.tallies:
                tally.tokens += ticket.reserved

    def leave(self, ticket: Ticket) -> None:
        """Count it no longer. One that the gate let pass when it failed was never counted."""
        if ticket not in self._inside:
            return
        self.total -= 1
        self._inside.remove(ticket)
        for tally in ticket.tallies:
            tally.requests -= 1
            tally.tokens -= ticket.reserved
        ticket.tallies = ()

    def _new(self, lane: Lane) -> tuple[Tally, ...]:
        """Return what counts a lane that was not seen before, or not for long: each once, as a lane
        without a model is the same under two masks."""
        if len(self._by_lane) >= LANES_MAX:
            self._tidy()
        tallies = self._tallies
        found = self._by_lane[lane] = tuple(
            tallies.setdefault(scope, Tally())
            for scope in dict.fromkeys(_masked(lane, mask) for mask in self._masks))
        return found

    def _tidy(self) -> None:
        """Forget the scopes that have nothing in flight and that no limit counts."""
        self._by_lane.clear()
        self._tallies = {
            scope: tally for scope, tally in self._tallies.items()
            if tally.requests or scope in self._watched}

    def take_peak(self) -> int:
        """Return the most in flight since the last call."""
        peak, self.peak = self.peak, self.total
        return peak


def _masked(lane: Lane, mask: int) -> Lane:
    return (lane[0] if mask & 1 else "", lane[1] if mask & 2 else "", lane[2] if mask & 4 else "")


class Meters:
    """The buckets and windows of the limits in force. A limit that goes takes its meter along."""

    def __init__(self, usage: Usage) -> None:
        self._usage = usage
        self._buckets: dict[tuple[str, Lane], Bucket] = {}
        self._windows: dict[tuple[str, Lane], Window] = {}
        self._since: dict[tuple[str, Lane], int] = {}

    def adopt(self, limits: tuple[Limit, ...], now_ms: int) -> None:
        """Keep, make and drop meters so that exactly these limits have theirs."""
        buckets, windows = {}, {}
        for limit in limits:
            key = (limit.kind, limit.scope)
            if limit.kind in (REQUEST_RATE, PROMPT_RATE):
                bucket = self._buckets.get(key)
                if bucket is None:
                    bucket = Bucket(limit.value, now_ms)
                bucket.tune(limit.value, now_ms)
                buckets[key] = bucket
            elif limit.kind == QUOTA:
                windows[key] = self._window(key, limit.value["window_ms"])
        meters = [*buckets.items(), *windows.items()]
        old = {**self._buckets, **self._windows}
        self._since = {
            key: self._since[key] if old.get(key) is meter else now_ms for key, meter in meters}
        self._buckets, self._windows = buckets, windows

    def _window(self, key: tuple[str, Lane], window_ms: int) -> Window:
        known = self._windows.get(key)
        return known if known is not None and known.window_ms == window_ms else Window(window_ms)

    def judge(self, limit: Limit) -> Judge | None:
        """Return what says whether one more request would break the limit, until the next `adopt`;
        None: none ever does."""
        kind, bucket = limit.kind, self._buckets.get((limit.kind, limit.scope))
        if bucket is not None:
            return partial(_over_requests if kind == REQUEST_RATE else _over_prompt, bucket)
        if kind == QUOTA:
            return partial(_over_quota, self._windows[kind, limit.scope], limit.number)
        if kind == OUTSTANDING:
            return partial(_over_tokens, self._usage.tally(limit.scope), limit.number)
        if kind == CONTEXT:
            return partial(_over_context, limit.number)
        return None if kind == OUTPUT else partial(
            _over_count, self._usage.tally(limit.scope), limit.number)

    def take(self, limit: Limit, ticket: Ticket, now_ms: int) -> None:
        """Count an admitted request, for a limit of one of the `METERED` kinds; what is in flight
        is counted by Usage."""
        if limit.kind == REQUEST_RATE:
            self._bucket(limit).take(1.0, now_ms)
        elif limit.kind == PROMPT_RATE:
            self._bucket(limit).take(ticket.prompt_tokens, now_ms)
        elif limit.kind == QUOTA:
            self._windows[limit.kind, limit.scope].add(now_ms, ticket.prompt_tokens)

    def stream(self, limit: Limit, ticket: Ticket, tokens: int, now_ms: int) -> None:
        """Count output tokens in the window in which they come, not in the one of the request."""
        window = self._windows.get((limit.kind, limit.scope))
        if window is not None:
            window.add(now_ms, tokens)

    def settle(self, limit: Limit, ticket: Ticket, now_ms: int) -> None:
        """Correct what was estimated at admission by what the server says it was. Nothing was taken
        of who came before the meter did, and what has left a window since is not taken twice."""
        if ticket.actual_prompt is None:
            return
        key = (limit.kind, limit.scope)
        since_ms = self._since.get(key, 0)
        over = ticket.prompt_tokens - ticket.actual_prompt if ticket.entered_ms >= since_ms else 0
        if limit.kind == PROMPT_RATE and key in self._buckets:
            self._buckets[key].give_back(over, ticket.entered_ms, now_ms)
        elif limit.kind == QUOTA and key in self._windows:
            window, more = self._windows[key], ticket.unstreamed()
            window.correct(ticket.entered_ms, -over, now_ms)
            if more >= 0:
                window.add(now_ms, more)
            elif ticket.first_ms >= since_ms:
                window.correct(ticket.first_ms, more, now_ms)

    def ready_ms(self, limit: Limit, ticket: Ticket, now_ms: int) -> int | None:
        """Return when time alone lets the request pass this limit; None: only others' ends do."""
        if limit.kind == REQUEST_RATE:
            return self._bucket(limit).ready_ms(1.0, now_ms)
        if limit.kind == PROMPT_RATE:
            return self._bucket(limit).ready_ms(ticket.prompt_tokens, now_ms)
        if limit.kind == QUOTA:
            window = self._windows[limit.kind, limit.scope]
            used = window.totals(now_ms)[0]
            over = min(used, ceil(used + ticket.prompt_tokens - limit.number / ticket.factor))
            return max(now_ms + 1, window.frees_at_ms(now_ms, over))
        return None

    def _bucket(self, limit: Limit) -> Bucket:
        return self._buckets[limit.kind, limit.scope]


# What judges a limit: whether it would be broken by one more request, this one, now.


def _over_count(tally: Tally, most: float, _ticket: Ticket, _now_ms: int) -> bool:
    return tally.requests >= most


def _over_requests(bucket: Bucket, _ticket: Ticket, now_ms: int) -> bool:
    return not bucket.has(1.0, now_ms)


def _over_prompt(bucket: Bucket, ticket: Ticket, now_ms: int) -> bool:
    return not bucket.has(ticket.prompt_tokens, now_ms)


def _over_tokens(tally: Tally, most: float, ticket: Ticket, _now_ms: int) -> bool:
    """What is larger than the limit alone passes alone."""
    have = tally.tokens
    return most <= 0 or (have > 0 and have + ticket.reserved > most)


def _over_quota(window: Window, most: float, ticket: Ticket, now_ms: int) -> bool:
    """The window counts the server's own tokens: a streamed one alone may be worth less than half a
    token of the reference, and would be rounded away."""
    used = window.totals(now_ms)[0]
    return used > 0 and ticket.comparable(used + ticket.prompt_tokens) > most


def _over_context(most: float, ticket: Ticket, _now_ms: int) -> bool:
    return ticket.prompt_tokens + ticket.asked_output > most
