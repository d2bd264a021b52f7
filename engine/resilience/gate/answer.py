"""The answer to a refused request: 429 in OpenAI's shape, and who is behind it."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from resilience.gate.snapshot import Limit, Route

Message: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]

RETRY_MIN_S = 1
RETRY_SPREAD_S = 4


def header_text(text: str) -> bytes:
    """Make any text safe as a header value: one line of printable ASCII, at most 200 bytes."""
    plain = "".join(c if " " <= c <= "~" else "?" for c in text[:200])
    return plain.strip().encode("ascii")


def refusal_headers(limit: Limit, chance: Callable[[], float] = random.random) -> list[Header]:
    """Return the headers that explain a refusal, with a Retry-After that spreads the retries."""
    retry_s = RETRY_MIN_S + int(chance() * (RETRY_SPREAD_S + 1))
    return [
        (b"retry-after", str(retry_s).encode()),
        (b"x-resilience-reason", header_text(limit.reason)),
        (b"x-resilience-policy", header_text(limit.policy or "none")),
    ]


def route_headers(route: Route) -> list[Header]:
    """Return the headers that make a reroute visible on its answer."""
    return [
        (b"x-resilience-model", header_text(route.to)),
        (b"x-resilience-reason", header_text(route.reason)),
        (b"x-resilience-policy", header_text(route.policy)),
    ]


async def refuse(send: Send, limit: Limit, tier: str) -> None:
    """Send the whole 429 answer."""
    body = _body(limit, tier)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *refusal_headers(limit),
    ]
    await send({"type": "http.response.start", "status": 429, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _body(limit: Limit, tier: str) -> bytes:
    message = (
        f"too many requests in flight for tier {tier}: the limit is {limit.value}; "
        "retry after the time in Retry-After"
    )
    error = {
        "message": message, "type": "rate_limit_error", "param": None,
        "code": "rate_limit_exceeded",
    }
    return json.dumps({"error": error}).encode()
