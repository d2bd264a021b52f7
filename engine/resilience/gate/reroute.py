"""Rewriting the model of one request's body, without losing a byte when that is not possible."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from resilience.gate.answer import Header, Message

Receive: TypeAlias = Callable[[], Awaitable[Message]]

BODY_MAX = 4 * 1024 * 1024


class BodyReader:
    """Reads a request's body up to a bound and can hand out everything it took again."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._taken: list[Message] = []

    async def read(self) -> bytes | None:
        """Return the whole body; None when it is too large or the client has left."""
        size = 0
        while size <= BODY_MAX:
            message = await self._receive()
            self._taken.append(message)
            if message["type"] != "http.request":
                return None
            size += len(message.get("body", b""))
            if not message.get("more_body", False):
                whole = b"".join(m.get("body", b"") for m in self._taken)
                return whole if size <= BODY_MAX else None
        return None

    def replace(self, body: bytes) -> None:
        """Let `replay` give `body` instead of what came."""
        self._taken = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay(self) -> Message:
        """Be the `receive` of the application: first what was read, then the rest."""
        if self._taken:
            return self._taken.pop(0)
        return await self._receive()


def with_model(body: bytes, to: str) -> bytes | str:
    """Return the body with `model` set to `to`, or why it stays as it is.

    The reasons are `not_json`, `no_model` and `same_model`.
    """
    try:
        parsed: Any = json.loads(body)
    except (ValueError, RecursionError):
        return "not_json"
    if not isinstance(parsed, dict) or not isinstance(parsed.get("model"), str):
        return "no_model"
    if parsed["model"] == to:
        return "same_model"
    parsed["model"] = to
    return json.dumps(parsed, ensure_ascii=False).encode("utf-8", "surrogatepass")


def with_length(headers: list[Header], size: int) -> list[Header]:
    """Return the headers with the length of the new body."""
    kept = [pair for pair in headers if pair[0] not in (b"content-length", b"transfer-encoding")]
    return [*kept, (b"content-length", str(size).encode())]
