"""Requests with an id: one inference, and its result for every duplicate (W10)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from resilience.gate.answer import Message, Send, explained, refuse
from resilience.gate.attempt import too_late
from resilience.gate.results import (
    WAITING_MAX,
    WAITING_OTHERS,
    Answer,
    ConflictError,
    CrowdedError,
    Results,
    Run,
)
from resilience.gate.ticket import Refusal

if TYPE_CHECKING:
    from resilience.gate.arrival import Arrival
    from resilience.gate.body import BodyReader
    from resilience.gate.identity import Headers
    from resilience.gate.state import GateState

Key: TypeAlias = tuple[str, ...]
Work: TypeAlias = Callable[[Send], Awaitable[bool]]
ID_MIN, ID_MAX = 16, 200
REPLAYED = (b"idempotent-replayed", b"true")
_CREDENTIALS = (b"authorization", b"x-api-key")


def key_of(header: bytes, headers: Headers, tenant: str, tenant_header: bytes) -> Key | None:
    """Return under what a request's result is kept, None if it has no one id.

    Tenant and credentials belong to the key: nobody gets what another was answered. `headers` hold
    the tenant's only from trusted peers; tenants that are not configured are all one `tenant`.
    """
    ids = {value.strip() for name, value in headers if name == header}
    if len(ids) != 1:
        return None
    given = ids.pop()
    if not ID_MIN <= len(given) <= ID_MAX:
        return None
    telling = (*_CREDENTIALS, tenant_header)
    secret = b"\0".join(b"%s:%s" % pair for pair in headers if pair[0] in telling)
    return tenant, hashlib.sha256(secret).hexdigest(), given.decode("latin-1")


class Once:
    """What happens to one request that has an id. `report(outcome)` is called for duplicates, with
    0 as second argument for one that was served without an attempt of its own."""

    def __init__(
        self, state: GateState, results: Results, arrival: Arrival, reader: BodyReader,
        report: Callable[..., None],
    ) -> None:
        assert arrival.key is not None
        self._state = state
        self._results = results
        self._arrival = arrival
        self._reader = reader
        self._report = report
        self._key = arrival.key
        path = arrival.ticket.path.encode()
        self._digest = hashlib.sha256(path + b"\0" + (arrival.body or b"")).digest()

    async def serve(self, send: Send, work: Work) -> None:
        """Run, or give the answer that there is, or wait for it."""
        try:
            found = self._results.begin(self._key, self._digest, self._state.clock_ms())
            if found is None:
                await self._wait(send, work)
                return
        except ConflictError:
            await self._refuse(send, _CONFLICT, "conflict", "client_error")
            return
        except CrowdedError:
            await self._refuse(send, _CROWDED, "crowded", "refused")
            return
        if isinstance(found, Run):
            await self._own(found, send, work)
        else:
            await self._give(found, send, "kept")

    async def _own(self, run: Run, send: Send, work: Work) -> None:
        """Run to the end, even when the client leaves: it comes back with the same id."""
        good = False

        async def noted(message: Message) -> None:
            self._results.add(run, _own_copy(message))
            await send(message)

        self._reader.keep_running()
        try:
            good = await work(noted)
        finally:
            self._results.end(run, good, self._state.clock_ms())

    async def _wait(self, send: Send, work: Work) -> None:
        """Wait for the one that runs, no longer than the own deadline."""
        arrival = self._arrival
        assert arrival.budget is not None
        answer: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        is_first = arrival.ticket.priority <= self._state.admission.first_priority
        run = self._results.wait(
            self._key, answer.set_result, WAITING_MAX if is_first else WAITING_OTHERS)
        left_s = arrival.budget.left_ms(self._state.clock_ms()) / 1000
        either: set[asyncio.Future[Any]] = {answer, self._reader.watch()}
        try:
            await asyncio.wait(either, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if answer.done() and answer.result() is None:
                self._results.end(run, False, self._state.clock_ms())
            self._state.metrics.duplicate(arrival.ticket.tier, "in_vain")
            self._report("disconnected")
            raise
        finally:
            self._results.leave(run, answer.set_result)
        if not answer.done():
            await self._in_vain(send)
        elif (found := answer.result()) is None:
            await self._own(run, send, work)
        else:
            await self._give(found, send, "waited")

    async def _in_vain(self, send: Send) -> None:
        self._state.metrics.duplicate(self._arrival.ticket.tier, "in_vain")
        if await self._reader.has_left():
            self._report("disconnected")
            return
        assert self._arrival.budget is not None
        self._arrival.ticket.cause = "timeout"
        self._report("server_error")
        await refuse(send, too_late(self._arrival.budget.patience_ms), self._arrival.model)

    async def _give(self, answer: Answer, send: Send, how: str) -> None:
        """Send the kept answer; a stream comes with all its events at once."""
        ticket = self._arrival.ticket
        self._state.metrics.duplicate(ticket.tier, how)
        ticket.done, ticket.status = True, answer[0]["status"]
        self._report("ok", 0)
        await send(self._marked(answer[0]))
        for message in answer[1:]:
            await send(message)

    def _marked(self, start: Message) -> Message:
        headers = list(start.get("headers", ()))
        if all(name != b"x-resilience-reason" for name, _ in headers):
            headers += explained("duplicate request id", "", self._arrival.model)
        return {**start, "headers": [*headers, REPLAYED]}

    async def _refuse(self, send: Send, refusal: Refusal, how: str, outcome: str) -> None:
        self._state.metrics.duplicate(self._arrival.ticket.tier, how)
        if outcome == "refused":
            self._state.note_refusal(self._arrival.ticket, refusal)
        else:
            self._report(outcome)
        await refuse(send, refusal, self._arrival.model)


def _own_copy(message: Message) -> Message:
    """Return a message that stays as it is: middlewares on the way out write their headers into an
    answer's start."""
    if "headers" not in message:
        return message
    return {**message, "headers": [*message["headers"]]}


_CONFLICT = Refusal(
    422, "client_error", "", "request id in use",
    "this request id belongs to another request of the last seconds: send a new one",
)
_CROWDED = Refusal(
    429, "queue_full", "", "duplicates", "too many requests wait for the result of another")
