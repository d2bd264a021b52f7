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
from resilience.gate.breaker import Outcome
from resilience.gate.budget import Budget, is_retried
from resilience.gate.causes import Cause, failure_of, failure_of_exception
from resilience.gate.dialects import DIALECTS, is_aborted, is_stream, next_number
from resilience.gate.observe import JUDGEMENT, note_body, opened, outcome_of
from resilience.gate.state import GateState
from resilience.gate.ticket import Refusal, Ticket

App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]
HELD_MAX = 64 * 1024
GRACE_S = 0.5  # what the application gets to end by itself, once it was told that the client left


class Attempt:
    """Stands between the application and the client for one attempt of a request."""

    # What most attempts never change is a default of the class: making one is on every path.
    _timer: asyncio.TimerHandle | None = None
    _hard: asyncio.Timeout | None = None
    _moved_s = 0.0  # when its stream last moved, by the event loop's clock
    _start: Message | None = None
    _held: list[Message] | None = None
    _held_size = 0
    _sse = False
    _whole = True  # the stream stands between two events
    _last = b""  # of what has gone out
    _aborted = False  # what has gone out says that the server aborted
    _short = False
    _starved = False  # cut off before its first token for want of time that others had taken
    _sending = False
    _unread = False  # its client took nothing of it any more when its time was over
    began = False
    late = False
    error: Exception | None = None
    outcome = "disconnected"  # unless it comes to its end

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

    async def run(self, app: App, scope: Message) -> None:
        """Call the application, within its time if there is a budget, and name how that ended.
        Keeps what it raises."""
        try:
            if self._budget is None:
                await app(scope, self._reader.replay, self.send)
            else:
                attempt_ms = self._budget.begin(self._state.clock_ms())
                self._short = self._budget.is_short(attempt_ms)
                await self._within(attempt_ms, app, scope)
        except Exception as error:
            if not self.late:
                self.error = error
                self._ticket.cause = failure_of_exception(error, self._ticket.streams)
        unmade = self.late and not (self._unread or self._ticket.done)
        if unmade:
            self._ticket.cause = "timeout"
            self._starved = self._is_starved()
        if self._starved and self._budget is not None and self._budget.attempts == 1:
            self.outcome = "expired"
        elif unmade or self.error is not None or self._ticket.aborted:
            self.outcome = "server_error" if self.error is None else "error"
        elif self.late or self._ticket.done or await self._reader.has_left():
            self.outcome = outcome_of(self._ticket)
        else:  # it stopped in the middle, and nobody had left
            self._ticket.cause = "stream_broken"
            self.outcome = "server_error"

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
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        left_s = self._stall_left_s()
        if left_s > 0:
            self._arm(left_s)
            return
        self.late, self._unread = True, self._sending
        self._reader.hang_up()
        if self._hard is not None:
            self._hard.reschedule(asyncio.get_running_loop().time() + GRACE_S)

    def _stall_left_s(self) -> float:
        """Return how long a stream may still be silent: a whole deadline from its last event on.
        The timer looks when it rings, as setting it at each event would cost more."""
        if self._budget is None or not self._moved_s:
            return 0.0
        now_s = asyncio.get_running_loop().time()
        return self._moved_s + self._budget.patience_ms / 1000 - now_s

    # --- what the application sends -------------------------------------------------------------

    async def send(self, message: Message) -> None:
        """Be the `send` of the application."""
        if self.late:
            raise OSError("the time of this request is over")
        kind = message["type"]
        if kind == "http.response.start":
            self._start_with(message)
            return
        if kind == "http.response.body":
            try:
                note_body(self._state, self._ticket, message)
            except Exception:
                self._failed("observe")
        if self._held is not None:
            await self._hold(message)
            return
        self._sending = True  # a server waits here for a client that does not read
        if self._start is not None:
            await self._out(self._opening(self._start))
        await (self._event(message) if self._sse else self._out(message))
        self._sending = False

    def _start_with(self, message: Message) -> None:
        """Keep the start: it goes with the first byte, so that it can tell the time."""
        ticket, self._start = self._ticket, message
        ticket.status = message["status"]
        self._sse = is_stream(message.get("headers", ()))
        ticket.dialect = DIALECTS.get(ticket.path) if self._sse else None
        if self._budget is not None and is_retried(ticket.status, None):
            self._held = []

    async def _hold(self, message: Message) -> None:
        assert self._held is not None
        self._held.append(message)
        self._held_size += len(message.get("body", b""))
        if self._held_size > HELD_MAX:
            await self._flush()

    async def _flush(self) -> None:
        held, self._held = self._held or [], None
        if held and self._start is not None:
            await self._out(self._opening(self._start))
        for message in held:
            await (self._event(message) if self._sse else self._out(message))

    def _opening(self, start: Message) -> Message:
        """Return the start as it goes out, now that the first byte is there."""
        self._start, self.began = None, True
        try:
            return opened(self._state, self._ticket, start, self._sse)
        except Exception:
            self._failed("observe")
            return start

    async def _event(self, message: Message) -> None:
        """Note where the stream stands; after an abort, end it in our words and not in `[DONE]`."""
        if message["type"] != "http.response.body":
            await self._out(message)
            return
        chunk = message.get("body", b"")
        if self._aborted and not is_aborted(chunk):
            if not message.get("more_body", False):
                self._ticket.cause = "stream_broken"
                await self._tell("the server aborted the request", "stream_broken", last=True)
            return
        self._aborted = self._ticket.aborted
        if chunk:
            self._last = chunk
            self._whole = chunk.endswith((b"\n\n", b"\r\n\r\n"))
        if self._budget is not None:
            self._moved_s = asyncio.get_running_loop().time()
        await self._out(message)

    # --- the end --------------------------------------------------------------------------------

    def _is_starved(self) -> bool:
        """A server that was cut off before its first token, because most of the time went in our
        queue, has proven nothing: unless it was silent to everybody for as long as half of a
        deadline."""
        return (self._budget is not None and self._short and not self.began
                and self._state.silent_ms() < self._budget.half_ms)

    @property
    def judgement(self) -> Outcome:
        """How breakers take it."""
        return "neutral" if self._starved else JUDGEMENT.get(self.outcome, "neutral")

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
        event = error_event(self._ticket.path, text, cause, self._last)
        body = event if self._whole else b"\n\n" + event
        await self._out({"type": "http.response.body", "body": body, "more_body": not last})


def error_event(path: str, text: str, cause: Cause, last: bytes) -> bytes:
    """Return the event that ends a broken stream, in the words of its API. `last` came before."""
    found: dict[str, Any]
    if path == "/v1/messages":
        found = {"type": "error", "error": {"type": "api_error", "message": f"{text} ({cause})"}}
    elif path == "/v1/responses":
        found = {"type": "error", "code": cause, "message": text, "param": None,
                 "sequence_number": next_number(last)}
    else:
        found = {"error": {"message": text, "type": "server_error", "param": None, "code": cause}}
        return b"data: " + json.dumps(found).encode() + b"\n\n"
    return b"event: error\ndata: " + json.dumps(found).encode() + b"\n\n"


def too_late(patience_ms: int) -> Refusal:
    """Return the answer to a request whose deadline passed before its first byte."""
    return Refusal(
        504, "timeout", "", "deadline", f"no answer within the deadline of {patience_ms / 1000:g} s"
    )
