"""One call of the application: what reaches the client, what is held back, when it is over.

Before the first byte a failed answer is held back, because another attempt may make it good; after
it, what breaks a stream is told inside the stream.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from resilience.gate.answer import Message, Send
from resilience.gate.body import BodyReader, Receive
from resilience.gate.budget import Budget, is_retried
from resilience.gate.causes import Cause, failure_of, failure_of_exception
from resilience.gate.observe import ABORTED, is_stream, observed, outcome_of, timed
from resilience.gate.state import GateState
from resilience.gate.ticket import Refusal, Ticket

App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]
HELD_MAX = 64 * 1024
GRACE_S = 0.5  # what the application gets to end by itself, once it was told that the client left
REARM_SHARE = 4


class Attempt:
    """Stands between the application and the client for one attempt of a request."""

    def __init__(
        self, state: GateState, ticket: Ticket, reader: BodyReader, send: Send,
        budget: Budget | None, failed: Callable[[str], None],
    ) -> None:
        self._state = state
        self._ticket = ticket
        self._reader = reader
        self._out = send
        self._budget = budget
        self._failed = failed
        self._timer: asyncio.TimerHandle | None = None
        self._hard: asyncio.Timeout | None = None
        self._armed_s = 0.0
        self._start: Message | None = None
        self._held: list[Message] | None = None
        self._held_size = 0
        self._sse = False
        self._whole = True  # the stream stands between two events
        self.began = False
        self.late = False
        self.error: Exception | None = None
        self.outcome = "error"

    async def run(self, app: App, scope: Message) -> None:
        """Call the application, within its time if there is a budget. Keeps what it raises."""
        try:
            if self._budget is None:
                await app(scope, self._reader.replay, self.send)
            else:
                await self._within(self._budget.begin(self._state.clock_ms()), app, scope)
        except Exception as error:
            if not self.late:
                self.error = error
                self._ticket.cause = failure_of_exception(error, self._ticket.streams)
        if self.late:
            self._ticket.cause = "timeout"

    async def _within(self, attempt_ms: int, app: App, scope: Message) -> None:
        """First tell the application that its client has left, then end it."""
        try:
            async with asyncio.timeout(None) as self._hard:
                self._arm(attempt_ms / 1000)
                await app({**scope}, self._reader.replay, self.send)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._hard = None

    def _arm(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        self._armed_s = loop.time()
        self._timer = loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        self.late = True
        self._reader.hang_up()
        if self._hard is not None:
            self._hard.reschedule(asyncio.get_running_loop().time() + GRACE_S)

    # --- what the application sends -------------------------------------------------------------

    async def send(self, message: Message) -> None:
        """Be the `send` of the application."""
        if self.late:
            raise OSError("the time of this request is over")
        try:
            message = observed(self._state, self._ticket, message)
        except Exception:
            self._failed("observe")
        if message["type"] == "http.response.start":
            self._start_with(message)
        elif self._held is not None:
            await self._hold(message)
        else:
            await self._pass(message)

    def _start_with(self, message: Message) -> None:
        """Keep the start: it goes with the first byte, so that it can tell the time."""
        self._start = message
        self._sse = is_stream(list(message.get("headers", ())))
        if self._budget is not None and is_retried(message["status"], None):
            self._held = []

    async def _hold(self, message: Message) -> None:
        assert self._held is not None
        self._held.append(message)
        self._held_size += len(message.get("body", b""))
        if self._held_size > HELD_MAX:
            await self._flush()

    async def _flush(self) -> None:
        held, self._held = self._held or [], None
        for message in held:
            await self._pass(message)

    async def _pass(self, message: Message) -> None:
        if self._start is not None:
            start, self._start = self._start, None
            self.began = True
            await self._out(self._timed(start))
        if self._sse and message["type"] == "http.response.body":
            if await self._broke(message):
                return
            self._progress()
        await self._out(message)

    async def _broke(self, message: Message) -> bool:
        """Note where the stream stands; after an abort, end it in our words and not in `[DONE]`."""
        chunk = message.get("body", b"")
        if chunk:
            self._whole = chunk.endswith((b"\n\n", b"\r\n\r\n"))
        if self._ticket.aborted and ABORTED not in chunk:
            if not message.get("more_body", False):
                self._ticket.cause = "stream_broken"
                await self._tell("the server aborted the request", "stream_broken", last=True)
            return True
        return False

    def _progress(self) -> None:
        """A stream that moves has time until its next chunk; re-armed now and then only."""
        if self._budget is None or self._hard is None:
            return
        patience_s = self._budget.patience_ms / 1000
        if asyncio.get_running_loop().time() - self._armed_s > patience_s / REARM_SHARE:
            self._arm(patience_s)

    def _timed(self, start: Message) -> Message:
        try:
            return timed(self._state, self._ticket, start)
        except Exception:
            self._failed("observe")
            return start

    # --- the end --------------------------------------------------------------------------------

    async def judge(self) -> None:
        """Name how the attempt ended; one that stopped in the middle was left, or broke."""
        ticket = self._ticket
        if self.late or self.error is not None or ticket.aborted:
            self.outcome = "server_error" if self.error is None else "error"
        elif ticket.done or await self._reader.has_left():
            self.outcome = outcome_of(ticket)
        else:
            ticket.cause = "stream_broken"
            self.outcome = "server_error"

    def may_mend(self) -> bool:
        """Say whether another attempt may still make it good: nothing has reached the client."""
        ticket = self._ticket
        if self.began or self.outcome not in ("server_error", "error") or self._reader.left:
            return False
        status = 504 if self.late else ticket.status or 500
        cause = ticket.cause or failure_of(status, ticket.tail)
        return is_retried(500 if self.error is not None else status, cause)

    async def deliver(self) -> None:
        """Give the client what it has not got: a held answer, or why its stream ends."""
        if self._held is not None and not self.late:
            await self._flush()
        elif (self._sse and self.began and not self._ticket.done
              and self.outcome in ("server_error", "error")):
            await self._tell(*self._reason())

    def _reason(self) -> tuple[str, Cause]:
        cause = self._ticket.cause or "stream_broken"
        if self.late:
            return "no token came within the deadline", cause
        return "the server failed in the middle of the stream", cause

    async def _tell(self, text: str, cause: Cause, last: bool = False) -> None:
        """Send an error event. The answer stays without its end, so the connection is closed."""
        event = error_event(self._ticket.path, text, cause)
        body = event if self._whole else b"\n\n" + event
        await self._out({"type": "http.response.body", "body": body, "more_body": not last})


def error_event(path: str, text: str, cause: Cause) -> bytes:
    """Return the event that ends a broken stream, in the words of its API."""
    found: dict[str, Any]
    if path == "/v1/messages":
        found = {"type": "error", "error": {"type": "api_error", "message": f"{text} ({cause})"}}
    elif path == "/v1/responses":
        found = {"type": "error", "code": cause, "message": text, "param": None}
    else:
        found = {"error": {"message": text, "type": "server_error", "param": None, "code": cause}}
        return b"data: " + json.dumps(found).encode() + b"\n\n"
    return b"event: error\ndata: " + json.dumps(found).encode() + b"\n\n"


def too_late(patience_ms: int) -> Refusal:
    """Return the answer to a request whose deadline passed before its first byte."""
    return Refusal(
        504, "timeout", "", "deadline", f"no answer within the deadline of {patience_ms / 1000:g} s"
    )
