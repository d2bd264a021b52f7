"""The gate: a pure ASGI middleware on the request path of any OpenAI-style server.

A request goes through five steps, each in a module of its own:

1. `identity`: its tier and tenant; `body`: read, and stripped of what a client may not say.
2. `arrival`: a ticket with its lane, its tokens if some limit counts them, its route, its budget.
   A duplicate of another request goes no further: `once`, `results`.
3. `admission`: in, wait, or refuse. Pure; `state` holds it together with timers and gauges.
4. `attempt`: the application, with the body and headers that `arrival` decided on; again, from
   step 3, while `budget` allows it and nothing has reached the client.
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
import random
from collections.abc import Callable
from typing import Any, TypeAlias

from resilience.gate.answer import Message, Send, refuse
from resilience.gate.arrival import Arrival, SlowBodyError, arrive, outgoing, reroute
from resilience.gate.attempt import App, Attempt, too_late
from resilience.gate.body import BodyReader, Receive
from resilience.gate.config import is_switched_off
from resilience.gate.descent import Descent
from resilience.gate.ladder import answered
from resilience.gate.observe import JUDGEMENT, report, settle
from resilience.gate.once import Once
from resilience.gate.state import GateState, shared
from resilience.gate.ticket import Refusal, Ticket

Scope: TypeAlias = Message
SLOW_BODY = Refusal(
    408, "slow_body", "", "deadline", "the request's body did not come within its deadline"
)

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
        self._app = Descent(app)
        self._off = is_switched_off()
        self._state = shared() if state is None else state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._off or scope["type"] != "http" or not guards(scope["path"], scope["method"]):
            await self._app(scope, receive, send)
            return
        reader = BodyReader(receive, self._state.large_bodies)
        try:
            await self._handle(scope, reader, send)
        finally:
            reader.close()

    async def _handle(self, scope: Scope, reader: BodyReader, send: Send) -> None:
        try:
            arrival = await arrive(self._state, scope, reader, self._failed)
            if await answered(self._state, arrival, send):
                return
        except SlowBodyError as slow:
            slow.ticket.cause = SLOW_BODY.cause
            self._report(slow.ticket, "client_error")
            await refuse(send, SLOW_BODY)
            return
        except Exception:
            self._failed("admit")
            await self._app(scope, reader.replay, send)
            return
        results = self._state.results
        if results is None or arrival.key is None:
            await self._run(arrival, reader, send)
            return

        def report_duplicate(outcome: str) -> None:
            self._report(arrival.ticket, outcome)

        once = Once(self._state, results, arrival, reader, report_duplicate)
        await once.serve(send, lambda noted: self._run(arrival, reader, noted))

    async def _run(self, arrival: Arrival, reader: BodyReader, send: Send) -> bool:
        """Serve a request with as many attempts as it has; says whether its answer was good."""
        ticket, attempt = arrival.ticket, None
        try:
            while True:
                refusal = await self._admit(arrival, reader)
                if refusal is not None:
                    break
                again = attempt is not None
                attempt = Attempt(
                    self._state, ticket, reader, send, arrival.budget, self._failed)
                await self._attempt(arrival, attempt, reader, again)
                if not await self._pause(arrival, attempt, reader):
                    break
        except ClientLeftError:
            return False
        if attempt is None:
            assert refusal is not None
            self._guarded("release", lambda: self._state.note_refusal(ticket, refusal))
            await refuse(send, refusal, arrival.model)
            return False
        await self._finish(arrival, attempt, send)
        return attempt.outcome == "ok"

    async def _admit(self, arrival: Arrival, reader: BodyReader) -> Refusal | None:
        """Return None when the request may go, at once or after a wait, else its refusal."""
        state, ticket = self._state, arrival.ticket
        admission = state.admission
        try:
            patience_ms = state.patience_ms(ticket, arrival.budget)
            refusal = admission.offer(ticket, state.clock_ms(), patience_ms)
            if not admission.waits(ticket):
                return refusal
            verdict: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
            ticket.verdict = verdict.set_result
            state.arm()
        except Exception:
            self._failed("admit")
            return None
        try:
            await _first_of(verdict, reader)
        finally:
            gone = not verdict.done() and admission.abandon(ticket, state.clock_ms())
        if gone:
            self._report(ticket, "disconnected")
            raise ClientLeftError
        waited_s = (state.clock_ms() - ticket.enqueued_ms) / 1000
        self._guarded(
            "admit", lambda: state.metrics.waited(ticket.tier, waited_s, ticket.trace_id))
        return verdict.result()

    async def _attempt(
        self, arrival: Arrival, attempt: Attempt, reader: BodyReader, again: bool
    ) -> None:
        """Give the request to the application once, and give back what it held."""
        ticket = arrival.ticket
        attempt.outcome = "disconnected"  # unless it comes to its end
        try:
            self._prepare(arrival, reader, again)
            await attempt.run(self._app, arrival.onward)
            await attempt.judge()
        except asyncio.CancelledError:
            self._report(ticket, "disconnected", attempts=arrival.attempts)
            raise
        finally:
            self._leave(ticket, attempt.outcome, self._state.clock_ms())

    def _prepare(self, arrival: Arrival, reader: BodyReader, again: bool) -> None:
        """Decide on what is passed on; another attempt starts over, with a route that is new."""
        arrival.attempts += 1
        if again:
            arrival.ticket.begin()
            reader.rewind()
            if not self._rerouted(arrival):
                return
        arrival.onward = outgoing(self._state, arrival, reader, self._failed)
        if arrival.budget is not None:
            reader.mark()

    def _rerouted(self, arrival: Arrival) -> bool:
        try:
            return reroute(self._state, arrival)
        except Exception:
            self._failed("route")
            return False

    async def _pause(self, arrival: Arrival, attempt: Attempt, reader: BodyReader) -> bool:
        """Wait before another attempt; False when there is none, or nobody waits for it."""
        budget = arrival.budget
        if budget is None or not attempt.may_mend() or not reader.complete:
            return False
        pause_ms = budget.pause_ms(self._state.clock_ms(), random.random)
        if pause_ms is None:
            return False
        await asyncio.wait({reader.watch()}, timeout=pause_ms / 1000)
        return not await reader.has_left()

    async def _finish(self, arrival: Arrival, attempt: Attempt, send: Send) -> None:
        """Say how the request ended, to its client and in the metrics."""
        ticket, budget = arrival.ticket, arrival.budget
        self._report(ticket, attempt.outcome, attempts=arrival.attempts)
        if attempt.late and not attempt.began and budget is not None:
            await refuse(send, too_late(budget.patience_ms), arrival.model)
        else:
            await attempt.deliver()
        if attempt.error is not None:
            raise attempt.error

    def _report(self, ticket: Ticket, outcome: str, *, attempts: int = 0) -> None:
        """Say in the metrics how a request ended; never raises."""
        state = self._state
        try:
            if attempts:
                state.note_attempts(ticket.tier, attempts)
            report(state, ticket, outcome, state.clock_ms())
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
