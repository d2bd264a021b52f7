"""Down the ladder: one rung after the other until the first byte, and never another after it.

It stands between the gate and the application, so that limits, times and objectives see a request
on the ladder as they see every other.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

from resilience.gate.answer import Message, Send, explained
from resilience.gate.body import Receive, parsed, with_length
from resilience.gate.dialects import is_aborted, is_stream
from resilience.gate.identity import with_adapter
from resilience.gate.ladder import Handed, answer_itself, body_for, count, headers_of
from resilience.gate.rungs import OWN, SERVED, Plan
from resilience.gate.stored import ANSWER_MAX, stored_of
from resilience.model import Rung

App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]
GATEWAY_TIMEOUT, BAD_GATEWAY = 504, 502
REQUEST_FORM = (400, 413, 415, 422)
NOT_FOUND = 404


class Descent:
    """The application behind the gate, and the rungs that may stand in for it."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def serve(
        self, handed: Handed, scope: Message, receive: Receive, send: Send
    ) -> None:
        """Be the application for a request that the ladder has to do with."""
        if handed.plan is None:
            note = Note(send)
            await self._app(scope, receive, note.send)
            _store(handed, note)
        else:
            await self._down(handed, handed.plan, scope, receive, send)

    async def _down(
        self, handed: Handed, plan: Plan, scope: Message, receive: Receive, send: Send
    ) -> None:
        fields = parsed(await _whole(receive))
        if isinstance(fields, str):     # the client left; nobody reads an answer
            return
        reason = plan.reason
        for rung in plan.rungs:
            is_last = rung is plan.rungs[-1]
            trial = Trial(rung, send, handed.timeout_ms(rung, is_last), is_last=is_last)
            trial.began_with = _counting(handed, plan, rung, reason)
            model = fields.get("model")
            handed.ticket.headers = headers_of(plan, rung, str(model))
            ladder = handed.state.ladder
            before = ladder.begun[rung.name]
            await trial.run(partial(self._run, handed, rung, fields, scope, receive))
            if trial.why is None:
                return
            handed.state.metrics.passed_over(rung.name, trial.why)
            if trial.why in ("timeout", "exception"):
                if trial.why == "exception" or ladder.begun[rung.name] == before:
                    ladder.rest(rung, handed.state.clock_ms())
                reason = trial.why
        handed.ticket.headers = explained(plan.why, plan.policy)  # no rung, no model
        await _give_up(send, reason)

    async def _run(
        self, handed: Handed, rung: Rung, fields: dict[str, Any], scope: Message,
        receive: Receive, send: Send,
    ) -> str | None:
        """Let one rung answer; returns why it cannot."""
        if rung.kind in OWN:
            handed.ticket.stands_in = rung.kind == "template"
            served = await answer_itself(
                handed.state, handed.ticket, rung, fields, handed.key, send, ())
            return None if served else "no_answer"
        body = body_for(rung, fields)
        if rung.kind == "engine":
            return await self._second(handed, rung, body, receive, send)
        if rung.url is not None:
            await handed.state.ladder.servers.ask(
                rung.url, handed.ticket.path, rung.name, body, receive, send)
            return None
        headers = with_length(scope["headers"], len(body))
        headers = with_adapter(handed.ticket.path, headers, rung.model)
        changed = {**scope, "headers": headers}
        await self._app(changed, _replaying(body, receive), send)
        return None

    async def _second(
        self, handed: Handed, rung: Rung, body: bytes, receive: Receive, send: Send
    ) -> str | None:
        """Let the second engine answer; it may have ended since the plan was made."""
        ladder = handed.state.ladder
        url = None if ladder.engines is None else ladder.engines.url(rung.name)
        if ladder.engines is None or url is None:
            return "not_running"
        with ladder.engines.using(rung.name):
            await ladder.servers.ask(
                url, handed.ticket.path, rung.name, body, receive, send)
        return None


class Trial:
    """One rung's chance to answer: until its first byte it can fail without being seen.

    Another server that ends in the middle of its work still says 200, with what it had until then:
    a whole answer of one is looked through before its first byte goes on.

    `why` None: it answered, or its client left; else `timeout`, `exception`, `no_answer`,
    `not_running`, or `form` when another server says that it does not take such a request.
    """

    def __init__(
        self, rung: Rung, send: Send, timeout_ms: int | None, *, is_last: bool
    ) -> None:
        self._rung = rung
        self._timeout_ms = timeout_ms
        self._out = send
        self._is_last = is_last
        self._start: Message | None = None
        self._held: list[Message] | None = None
        self._held_size = 0
        self._timer: asyncio.Timeout | None = None
        self.began_with: Callable[[], None] = _nothing
        self.began = False
        self.why: str | None = None

    async def run(self, answer: Callable[[Send], Awaitable[str | None]]) -> None:
        """Let the rung answer. Raises what it raised after its first byte, and what the last rung
        of this server raises, for whoever serves the application to deal with."""
        after_ms = self._timeout_ms
        try:
            async with asyncio.timeout(None if after_ms is None else after_ms / 1000) as timer:
                self._timer = timer
                self.why = await answer(self.send) or self.why
        except Exception as error:
            is_late = "timeout" in type(error).__name__.lower()
            if self.began or (self._is_last and self._rung.kind in SERVED and not is_late):
                raise
            self.why = "timeout" if is_late else "exception"

    async def send(self, message: Message) -> None:
        """Be the `send` of the rung."""
        if self.why is not None:
            return
        if message["type"] == "http.response.start":
            self.why = None if self._is_last else self._failure(message["status"])
            if self.why is not None:
                return
            self._start = message
            if not self._is_last and self._rung.kind not in SERVED:
                self._held = []
        elif self._held is not None:
            await self._look_through(self._held, message)
        else:
            await self._pass(message)

    async def _look_through(self, held: list[Message], message: Message) -> None:
        """Hold a whole answer until its end, and of a stream or a large one only what has come."""
        held.append(message)
        self._held_size += len(message.get("body", b""))
        ended = not message.get("more_body", False)
        streams = self._start is not None and is_stream(self._start.get("headers", ()))
        if not ended and self._held_size <= (0 if streams else ANSWER_MAX):
            return
        self._held = None
        if is_aborted(b"".join(one.get("body", b"") for one in held)):
            self.why = "exception"
            return
        for one in held:
            await self._pass(one)

    async def _pass(self, message: Message) -> None:
        if self._start is not None:
            await self._begin(self._start)
        await self._out(message)

    def _failure(self, status: int) -> str | None:
        """Say why an answer of this status is none, when another rung may still answer.

        This server's own 4xx is the client's error; another server may only lack a feature, or the
        model where the client chose it. What else it says is about itself, as a wrong key.
        """
        if status >= 500:
            return "timeout" if status == GATEWAY_TIMEOUT else "exception"
        if status < 400 or self._rung.kind in SERVED:
            return None
        asked_for = status in REQUEST_FORM or (status == NOT_FOUND and not self._rung.served_name)
        return "form" if asked_for else "exception"

    async def _begin(self, start: Message) -> None:
        self._start, self.began = None, True
        if self._timer is not None:
            self._timer.reschedule(None)
        if start["status"] < 400:
            self.began_with()
        await self._out(start)


def _nothing() -> None:
    return


def _counting(handed: Handed, plan: Plan, rung: Rung, reason: str) -> Callable[[], None]:
    def begun() -> None:
        handed.state.ladder.begun[rung.name] += 1
        count(handed.state, handed.ticket, plan, rung, reason)

    return begun


class Note:
    """Passes an answer on and keeps a copy, if it is whole, good, JSON and not too large."""

    def __init__(self, send: Send) -> None:
        self._out = send
        self._parts: list[bytes] | None = None
        self._size = 0
        self.body: bytes | None = None

    async def send(self, message: Message) -> None:
        self._keep(message)
        await self._out(message)

    def _keep(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            good = message["status"] == 200 and any(
                name.lower() == b"content-type" and value.startswith(b"application/json")
                for name, value in message.get("headers", ()))
            self._parts = [] if good else None
        elif self._parts is not None:
            piece = message.get("body", b"")
            self._size += len(piece)
            self._parts.append(piece)
            if self._size > ANSWER_MAX:
                self._parts = None
            elif not message.get("more_body", False):
                self.body, self._parts = b"".join(self._parts), None


def _store(handed: Handed, note: Note) -> None:
    answers = handed.state.ladder.answers
    if note.body is None or handed.key is None or answers is None:
        return
    found = stored_of(note.body, handed.ticket.path, handed.state.clock_ms())
    if found is not None:
        answers.put(handed.key, found)


async def _whole(receive: Receive) -> bytes:
    """Return the body, which the gate has read within its bound; nothing once the client left."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b""
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _replaying(body: bytes, receive: Receive) -> Receive:
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


async def _give_up(send: Send, reason: str) -> None:
    """Say that no rung could answer."""
    status = GATEWAY_TIMEOUT if reason == "timeout" else BAD_GATEWAY
    error = {
        "message": "no rung of the fallback ladder could answer; retry later",
        "type": "service_unavailable_error", "param": None, "code": "service_unavailable",
    }
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"),
               (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
