"""How many requests may be in flight, found from how the server does. Pure arithmetic.

It looks at what tells overload apart from long answers: how long requests wait inside the server,
how long one token takes, and how full the KV cache is. End-to-end latency is no signal: a long
answer is slow on an idle server too. Enforcement is elsewhere (`admission`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

BUSY_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class LimiterRule:
    """Targets above which the limit shrinks by `decrease`; below all of them it grows by
    `increase` while it is used. None: not looked at. The limit stays in `minimum`..`maximum`.
    `headroom` is the share of it, 0..1, that only the first tier may take."""

    queue_time_ms: int | None = None
    time_per_token_ms: int | None = None
    kv_usage: float | None = None
    increase: float = 0.15
    decrease: float = 0.1
    minimum: int = 1
    maximum: int = 1_000
    headroom: float | None = None

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> LimiterRule:
        """Build from the value of the knob, which has been checked."""
        return cls(**{f.name: body[f.name] for f in fields(cls)})


@dataclass(frozen=True, slots=True)
class Signals:
    """How the server did since the last look; None where nothing was seen.

    `queue_time_ms` is the mean wait inside the server, `time_per_token_ms` the mean gap between
    output tokens, `kv_usage` the share 0..1 of the cache in use.
    """

    queue_time_ms: float | None = None
    time_per_token_ms: float | None = None
    kv_usage: float | None = None


def next_limit(
    limit: float, rule: LimiterRule, signals: Signals, peak: int, seats: float = math.inf
) -> float:
    """Return the limit for the next interval; `peak` is the most that was in flight in this one,
    `seats` how many requests the server runs at once.

    The limit is a real number so that small ones can grow by a share; `allowed` rounds it.
    """
    if is_overloaded(rule, signals):
        limit *= 1 - rule.decrease
    elif is_used(limit, rule, peak, seats):
        limit *= 1 + rule.increase
    return min(max(limit, rule.minimum), rule.maximum)


def is_used(limit: float, rule: LimiterRule, peak: int, seats: float) -> bool:
    """Say whether a limit was nearly reached, or held back whom it may: below 2 it lets one request
    run, which is no large share of it, and lower tiers never reach a limit with headroom. Beyond
    the seats only the first tier is let in, so the lower ones make no use of more."""
    if peak >= min(BUSY_SHARE * limit, allowed(limit)):
        return True
    return limit < seats and peak >= allowed_others(limit, seats, rule)


def allowed(limit: float) -> int:
    """Return the whole number of requests that a limit lets run."""
    return math.floor(limit + 1e-9)


def allowed_others(limit: float, seats: float, rule: LimiterRule) -> int:
    """Return how many may run, all tiers together, when one more of a lower tier is let in.

    What is above the server's `seats` waits inside the server, so it is no room to leave free.
    """
    if rule.headroom is None:
        return allowed(limit)
    return max(1, allowed(min(limit, seats) * (1 - rule.headroom)))


def is_overloaded(rule: LimiterRule, signals: Signals) -> bool:
    """Say whether one of the targets is missed."""
    pairs = (
        (signals.queue_time_ms, rule.queue_time_ms),
        (signals.time_per_token_ms, rule.time_per_token_ms),
        (signals.kv_usage, rule.kv_usage),
    )
    return any(seen is not None and most is not None and seen > most for seen, most in pairs)
