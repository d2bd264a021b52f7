"""A request to another OpenAI-style server, answered through the same `send`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable
from typing import TYPE_CHECKING, Any

from resilience.addresses import IDLE_MAX_S
from resilience.gate.answer import Send
from resilience.gate.body import Receive
from resilience.gate.dialects import is_stream
from resilience.gate.rungs import RUNG_HEADER

if TYPE_CHECKING:
    import httpx

CONNECTIONS_MAX = 100
CONNECT_S = 2.0
READ_S = 300.0
EVENT_MAX = 1024 * 1024
_EVENT_END = re.compile(rb"\r?\n\r?\n")


class OtherServers:
    """Connections to other servers, made when the first request needs one."""

    def __init__(self) -> None:
        self._clients: dict[bool, httpx.AsyncClient] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def client(self, secure: bool = False) -> httpx.AsyncClient:
        """Return the client of this event loop for `https` or for `http`: only the first one reads
        certificates, which takes 50 ms in which no request gets on."""
        import httpx

        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._clients = loop, {}
        if secure not in self._clients:
            self._clients[secure] = httpx.AsyncClient(
                trust_env=False, verify=secure, timeout=httpx.Timeout(READ_S, connect=CONNECT_S),
                limits=httpx.Limits(
                    max_connections=CONNECTIONS_MAX, keepalive_expiry=IDLE_MAX_S),
            )
        return self._clients[secure]

    async def ask(
        self, url: str, path: str, rung: str, body: bytes, receive: Receive, send: Send
    ) -> None:
        """Post `body` and pass the answer on; ends early when the client leaves."""
        await _unless(receive, self._post(url.rstrip("/") + path, rung, body, send))

    async def _post(self, url: str, rung: str, body: bytes, send: Send) -> None:
        headers = {"content-type": "application/json", RUNG_HEADER.decode(): rung}
        client = self.client(url.lower().startswith("https:"))
        async with client.stream("POST", url, content=body, headers=headers) as answer:
            kept = [pair for pair in answer.headers.raw if pair[0].lower() == b"content-type"]
            await send(
                {"type": "http.response.start", "status": answer.status_code, "headers": kept})
            pieces = answer.aiter_bytes()
            async for chunk in events_of(pieces) if is_stream(kept) else pieces:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def events_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield a stream's events one by one, however the network has cut it: what looks at them finds
    an error or an abort at its place. One that is too long comes as it is."""
    rest = b""
    async for piece in pieces:
        rest += piece
        at = 0
        for end in _EVENT_END.finditer(rest):
            yield rest[at:end.end()]
            at = end.end()
        rest = rest[at:]
        if len(rest) > EVENT_MAX:
            yield rest
            rest = b""
    if rest:
        yield rest


async def _unless(receive: Receive, work: Awaitable[None]) -> None:
    """Do the work, or stop it when the client leaves."""
    task: asyncio.Future[Any] = asyncio.ensure_future(work)
    left: asyncio.Future[Any] = asyncio.ensure_future(receive())
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        for part in (task, left):
            part.cancel()
        await asyncio.gather(task, left, return_exceptions=True)
