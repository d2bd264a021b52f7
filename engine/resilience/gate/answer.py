"""The words of ASGI that the gate's parts share; the answer to a refused request, in OpenAI's
shape, and the headers of every altered answer."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from resilience.gate.ticket import Refusal

Message: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]

RETRY_MIN_S = 1
RETRY_SPREAD_S = 4
COME_BACK = (429, 503)
DENIAL = "websocket.http.response"
TRY_AGAIN_LATER = 1013
_KINDS = {
    408: ("timeout_error", "request_timeout"),
    422: ("invalid_request_error", "request_id_in_use"),
    504: ("timeout_error", "deadline_exceeded"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    503: ("service_unavailable_error", "service_unavailable"),
}


def path_of(scope: Message) -> str:
    """Return the path that the application routes by: without the prefix that it is mounted under,
    which a proxy may have left in."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root):] if root and path.startswith(root + "/") else path


def header_text(text: str) -> bytes:
    """Make any text safe as a header value: one line of printable ASCII, at most 200 bytes."""
    plain = "".join(c if " " <= c <= "~" else "?" for c in text[:200])
    return plain.strip().encode("ascii")


def explained(reason: str, policy: str, model: str = "") -> tuple[Header, ...]:
    """Return the headers that every altered answer carries: why, by which policy, which model.

    A limit of the Engine document itself has no policy, and a request that reaches no model has no
    model: both are then `none`.
    """
    return (
        (b"x-resilience-reason", header_text(reason)),
        (b"x-resilience-policy", header_text(policy or "none")),
        (b"x-resilience-model", header_text(model or "none")),
    )


def latency_header(milliseconds: float) -> Header:
    """Return the header that says how long the model took to its first byte, in ms."""
    return (b"x-model-latency", b"%d" % round(milliseconds))


def retry_after_s(wait_ms: int, chance: Callable[[], float] = random.random) -> int:
    """Return whole seconds for Retry-After: the known wait, spread so that not all come at once."""
    known_s = max(RETRY_MIN_S, -(-wait_ms // 1000))
    return known_s + int(chance() * (RETRY_SPREAD_S + 1))


async def refuse(send: Send, refusal: Refusal, model: str = "") -> None:
    """Send the whole answer: its status and cause, and with 429 and 503 when to come back."""
    body = _body(refusal)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-resilience-cause", refusal.cause.encode()),
        *explained(refusal.reason, refusal.policy, model),
    ]
    if refusal.status in COME_BACK:
        wait = str(retry_after_s(refusal.retry_after_ms)).encode()
        headers.append((b"retry-after", wait))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def refuse_session(
    send: Send, extensions: Mapping[str, Any], refusal: Refusal, model: str = ""
) -> None:
    """Refuse a WebSocket before it is one: by the same answer where the server can send one, else
    by a close, which it makes a 403 of."""
    if DENIAL not in extensions:
        await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": refusal.cause})
        return

    async def denying(message: Message) -> None:
        await send({**message, "type": f"websocket.{message['type']}"})

    await refuse(denying, refusal, model)


def _body(refusal: Refusal) -> bytes:
    kind, code = _KINDS[refusal.status]
    message = refusal.message
    if refusal.status in COME_BACK:
        message += "; retry after the time in Retry-After"
    error = {"message": message, "type": kind, "param": None, "code": code}
    return json.dumps({"error": error}).encode()
