"""The gate: a pure ASGI middleware on the request path of any OpenAI-style server.

A request goes through five steps, each in a module of its own:

1. `identity`: its tier and tenant; `body`: read, and stripped of what a client may not say.
2. `arrival`: a ticket with its lane, its tokens if some limit counts them, its route.
3. `admission`: in, wait, or refuse. Pure; `state` holds it together with timers and gauges.
4. The application, with the body and headers that `arrival` decided on.
5. `observe`: what the answer shows, and at its end the settlement.

Where more can be put in: a deadline or a retry belongs around step 4, in `_serve`, where a ticket
says when it arrived and was let in; a repeated request is recognised before `_admit`, with the
arrival's body at hand; a new reason to refuse is a `Refusal` with its cause in `causes`; what one
answer shows is noted in `observe` and kept on the `Ticket`.

It reads one snapshot and never waits for the control path. Whatever fails in the gate itself lets
the request through and is counted; what the application raises passes untouched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from resilience.gate.answer import Message, Send, refuse
from resilience.gate.arrival import Arrival, arrive, outgoing
from resilience.gate.body import BodyReader, Receive
from resilience.gate.causes import failure_of_exception
from resilience.gate.config import is_switched_off
from resilience.gate.observe import JUDGEMENT, observed, outcome_of, report, settle, timed
from resilience.gate.state import GateState, shared
from resilience.gate.ticket import Refusal, Ticket

Scope: TypeAlias = Message
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

GUARDED = (
    "/v1/", "/v2/", "/inference/", "/cohere/", "/invocations", "/pooling", "/classify", "/score",
    "/rerank", "/generative_scoring",
)
EXEMPT = frozenset({
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/messages/count_tokens",
})
EXEMPT_ENDS = ("/cancel", "/render", "/derender", "/abort_requests")


def guards(path: str, method: str) -> bool:
    """Say whether a request costs inference, and so passes the gate."""
    if method != "POST" or not path.startswith(GUARDED):
        return False
    return path not in EXEMPT and not path.endswith(EXEMPT_ENDS)


class ClientLeftError(Exception):
    """The client left while its request waited."""


class Gate:
    """Admission, queue and routing. `state` is the process's own unless it is given."""

    def __init__(self, app: App, state: GateState | None = None) -> None:
        self._app = app
        self._off = is_switched_off()
        self._state = shared() if state is None else state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._off or scope["type"] != "http" or not guards(scope["path"], scope["method"]):
            await self._app(scope, receive, send)
            return
        reader = BodyReader(receive)
        try:
            await self._handle(scope, reader, send)
        finally:
            reader.close()

    async def _handle(self, scope: Scope, reader: BodyReader, send: Send) -> None:
        try:
            arrival = await arrive(self._state, scope, reader, self._failed)
            refusal = await self._admit(arrival, reader)
        except ClientLeftError:
            return
        except Exception:
            self._failed("admit")
            await self._app(scope, reader.replay, send)
            return
        if refusal is not None:
            self._note_refusal(arrival.ticket, refusal)
            await refuse(send, refusal, arrival.model)
            return
        await self._serve(arrival, reader, send)

    async def _admit(self, arrival: Arrival, reader: BodyReader) -> Refusal | None:
        """Return None when the request may go, at once or after a wait, else its refusal."""
        state, ticket = self._state, arrival.ticket
        admission = state.admission
        refusal = admission.offer(ticket, state.clock_ms(), state.patience_ms(ticket))
        if not admission.waits(ticket):
            return refusal
        verdict: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        ticket.verdict = verdict.set_result
        state.arm()
        try:
            await _first_of(verdict, reader)
        finally:
            gone = not verdict.done() and admission.abandon(ticket, state.clock_ms())
        if gone:
            self._end(ticket, "disconnected", admitted=False)
            raise ClientLeftError
        waited_s = (state.clock_ms() - ticket.enqueued_ms) / 1000
        self._guarded("admit", lambda: state.metrics.waited(ticket.tier, waited_s))
        return verdict.result()

    async def _serve(self, arrival: Arrival, reader: BodyReader, send: Send) -> None:
        ticket, outcome = arrival.ticket, "error"
        try:
            scope = outgoing(self._state, arrival, reader, self._failed)
            await self._app(scope, reader.replay, self._watched(ticket, send))
            outcome = outcome_of(ticket)
        except asyncio.CancelledError:
            outcome = "disconnected"
            raise
        except Exception as error:
            ticket.cause = failure_of_exception(error, ticket.streams)
            raise
        finally:
            self._end(ticket, outcome, admitted=True)

    def _end(self, ticket: Ticket, outcome: str, *, admitted: bool) -> None:
        """Give back what the request held, then say how it ended; never raises."""
        state, now_ms = self._state, self._state.clock_ms()
        if admitted:
            self._leave(ticket, outcome, now_ms)
        try:
            report(state, ticket, outcome, now_ms)
            state.arm()
        except Exception:
            self._failed("release")

    def _leave(self, ticket: Ticket, outcome: str, now_ms: int) -> None:
        """Settle and give back; the second happens even when the first fails."""
        try:
            settle(self._state, ticket)
        except Exception:
            self._failed("release")
        try:
            took_ms = now_ms - ticket.entered_ms
            judgement = JUDGEMENT.get(outcome, "neutral")
            self._state.admission.leave(ticket, judgement, took_ms, now_ms)
        except Exception:
            self._failed("release")

    def _note_refusal(self, ticket: Ticket, refusal: Refusal) -> None:
        state = self._state

        def note() -> None:
            state.metrics.refused(ticket.tier, state.tenant_label(ticket.lane), refusal.policy)
            state.blame(ticket.tier, refusal.cause)
            state.judge(ticket.tier, False)

        self._guarded("release", note)

    def _watched(self, ticket: Ticket, send: Send) -> Send:
        async def watched(message: Message) -> None:
            try:
                message = observed(self._state, ticket, message)
            except Exception:
                self._failed("observe")
            if message["type"] == "http.response.start":
                ticket.held = message  # it goes with the first byte, so that it can tell the time
                return
            if ticket.held is not None:
                await send(self._timed(ticket, ticket.held))
                ticket.held = None
            await send(message)

        return watched

    def _timed(self, ticket: Ticket, start: Message) -> Message:
        try:
            return timed(self._state, ticket, start)
        except Exception:
            self._failed("observe")
            return start

    def _guarded(self, stage: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            self._failed(stage)

    def _failed(self, stage: str) -> None:
        try:
            self._state.metrics.failed_open(stage)
        except Exception:  # even the counter may be what is broken; the request goes on
            return


async def _first_of(verdict: asyncio.Future[Refusal | None], reader: BodyReader) -> None:
    """Wait for the verdict or for the client to leave, whichever comes first."""
    if not reader.complete:
        await verdict
        return
    either: set[asyncio.Future[Any]] = {verdict, reader.watch()}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
