"""The gate: a pure ASGI middleware on the request path of any OpenAI-style server.

A request goes through five steps, each in a module of its own:

1. `identity`: its tier and tenant; `body`: read, and stripped of what a client may not say.
2. `arrival`: a ticket with its lane, its tokens if some limit counts them, its route, its budget.
   A duplicate of another request goes no further: `once`, `results`.
3. `admission`: in, wait, or refuse. Pure; `state` holds it together with timers and gauges.
4. `attempt`: the application, or the rungs that stand in for it (`ladder`, `descent`), with the
   body and headers that `arrival` decided on; again, from step 3, while `budget` allows it and
   nothing has reached the client.
5. `observe`: what the answer shows, and at its end the settlement.

Where more can be put in: a new reason to refuse is a `Refusal` with its cause in `causes`; what one
answer shows is noted in `observe` and kept on the `Ticket`; what is counted of a tier, in `book`.

It reads one snapshot and never waits for the control path. Whatever fails in the gate itself lets
the request through and is counted; what the application raises passes untouched.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from resilience.gate.answer import Message, Send, path_of, refuse, refuse_session
from resilience.gate.arrival import (
    Arrival,
    SlowBodyError,
    arrive,
    has_to_be_made,
    introduced,
    look_again,
    outgoing,
    welcome,
)
from resilience.gate.attempt import App, Attempt, too_late
from resilience.gate.body import BodyReader, Receive
from resilience.gate.breaker import Outcome
from resilience.gate.budget import Budget
from resilience.gate.causes import failure_of_exception
from resilience.gate.config import is_switched_off
from resilience.gate.descent import Descent
from resilience.gate.guarded import TYPES, guards
from resilience.gate.ladder import answered, handed
from resilience.gate.observe import JUDGEMENT, note_session, report, settle
from resilience.gate.once import Once
from resilience.gate.snapshot import Snapshot
from resilience.gate.state import GateState, shared
from resilience.gate.ticket import Refusal, Ticket

Scope: TypeAlias = Message
GRACE_S = 1.0  # beyond a request's patience in the queue, when it should have been refused
SLOW_BODY = Refusal(
    408, "slow_body", "", "deadline", "the request's body did not come within its deadline"
)


class ClientLeftError(Exception):
    """The client left while its request waited."""


class AnsweredError(Exception):
    """The request needs no server any more: it has its answer."""


class Gate:
    """Admission, queue and routing. `state` is the process's own unless it is given."""

    def __init__(self, app: App, state: GateState | None = None) -> None:
        self._app = app
        self._ladder = Descent(app)
        self._off = is_switched_off()
        self._state = shared() if state is None else state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = "" if self._off or scope["type"] not in TYPES else path_of(scope)
        if not guards(path, scope.get("method", "POST")):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await self._session(scope, path, receive, send)
            return
        reader = BodyReader(receive, self._state.large_bodies)
        try:
            arrival = await arrive(self._state, scope, path, reader, self._failed)
            if reader.left:  # in the middle of its body: it must take nobody's place
                self._report(arrival.ticket, "disconnected")
                return
            if arrival.plan is not None and await answered(self._state, arrival, send):
                return
        except Exception as error:
            await self._without(error, scope, reader, send)
            return
        else:
            if arrival.key is None:
                await self._run(arrival, reader, send)
            else:
                await self._run_once(arrival, reader, send)
        finally:
            reader.close()

    async def _without(
        self, error: Exception, scope: Scope, reader: BodyReader, send: Send
    ) -> None:
        """Refuse a request whose body does not come; let one through that the gate failed at."""
        if isinstance(error, SlowBodyError):
            error.ticket.cause = SLOW_BODY.cause
            self._report(error.ticket, "client_error")
            await refuse(send, SLOW_BODY)
            return
        self._failed("admit")
        with suppress(Exception):  # who is there may be what the gate failed at
            scope = {**scope, "headers": introduced(self._state, scope)[1]}
        await self._app(scope, reader.replay, send)

    async def _session(self, scope: Scope, path: str, receive: Receive, send: Send) -> None:
        """Serve a WebSocket: it has a place for as long as it is open, and is one request.

        How long it lasts is its client's choice: a breaker that is open keeps it out, but none
        takes it for a probe, and no objective or histogram counts it.
        """
        reader = BodyReader(receive)
        await reader.connect()
        try:
            ticket, headers = welcome(self._state, scope, path)
            ticket.is_judged = False
            self._state.snapshot()  # leases may have ended since anybody asked
        except Exception:
            self._failed("admit")
            await self._app(scope, reader.replay, send)
            return
        try:
            refusal = await self._admitted(ticket, reader)
            if refusal is None:
                await self._open(ticket, {**scope, "headers": headers}, reader.replay, send)
        except ClientLeftError:
            return
        finally:
            reader.close()
        if refusal is not None:
            self._guarded("release", partial(self._state.note_refusal, ticket, refusal))
            await refuse_session(send, scope.get("extensions") or {}, refusal)

    async def _open(self, ticket: Ticket, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a WebSocket be open."""
        outcome = "disconnected"
        try:
            await self._app(scope, receive, send)
            outcome = "ok"
        except Exception as error:
            outcome, ticket.cause = "error", failure_of_exception(error, streaming=True)
            raise
        finally:
            self._leave(ticket, JUDGEMENT.get(outcome, "neutral"))
            self._guarded("release", partial(note_session, self._state, ticket, outcome))

    async def _run_once(self, arrival: Arrival, reader: BodyReader, send: Send) -> None:
        """Serve a request with an id, of which there may be duplicates."""
        results = self._state.results
        if results is None:  # nothing is kept any more
            await self._run(arrival, reader, send)
            return
        once = Once(self._state, results, arrival, reader, partial(self._report, arrival.ticket))
        await once.serve(send, lambda noted: self._run(arrival, reader, noted))

    async def _run(self, arrival: Arrival, reader: BodyReader, send: Send) -> bool:
        """Serve a request with as many attempts as it has; says whether its answer was good, and
        what was promised."""
        ticket, attempt = arrival.ticket, None
        try:
            while True:
                refusal = await self._admitted(ticket, reader, arrival, send)
                if refusal is not None:
                    break
                again = attempt is not None
                attempt = Attempt(
                    self._state, ticket, reader, send, arrival.budget, self._failed)
                await self._attempt(arrival, attempt, reader, again)
                if attempt.outcome == "ok" or not await self._pause(arrival, attempt, reader):
                    break
        except (ClientLeftError, AnsweredError):
            return False
        if attempt is None:
            assert refusal is not None
            self._guarded("release", partial(self._state.note_refusal, ticket, refusal))
            await refuse(send, refusal, arrival.model)
            return False
        self._report(ticket, attempt.outcome, arrival.attempts)
        if attempt.outcome == "ok":
            return not ticket.stands_in
        await self._finish(arrival, attempt, send)
        return False

    async def _admitted(
        self, ticket: Ticket, reader: BodyReader, arrival: Arrival | None = None,
        send: Send | None = None,
    ) -> Refusal | None:
        """Let a request in, now or when it has waited: None. Else its refusal. What claims ask for
        that come meanwhile is looked up. Raises ClientLeftError, AnsweredError."""
        since_ms: int | None = None
        budget = None if arrival is None else arrival.budget
        while True:
            if arrival is not None and arrival.seen is not self._snapshot():
                await self._look_again(arrival, reader)
                if send is not None and await self._answered(arrival, send):
                    raise AnsweredError
            refusal = self._offer(ticket, budget, since_ms)
            if ticket.deadline_ms:
                ticket.learns = arrival is not None
                attempts = None if arrival is None else arrival.attempts or None
                refusal = await self._wait(ticket, reader, attempts)
                if ticket.recalled:
                    ticket.recalled, since_ms = False, ticket.enqueued_ms
                    continue
            elif since_ms is None:
                return refusal
            self._guarded("admit", partial(self._note_wait, ticket))
            return refusal

    async def _look_again(self, arrival: Arrival, reader: BodyReader) -> None:
        """Find out what claims ask for by now: others may come while tokens are counted."""
        try:
            while arrival.seen is not self._state.snapshot():
                await look_again(self._state, arrival, reader, self._failed)
        except asyncio.CancelledError:
            self._report(arrival.ticket, "disconnected", arrival.attempts or None)
            raise
        except Exception:
            self._failed("admit")

    def _snapshot(self) -> Snapshot | None:
        try:
            return self._state.snapshot()
        except Exception:
            return None  # who looks again finds out what is wrong

    async def _answered(self, arrival: Arrival, send: Send) -> bool:
        """Serve who waited for the server, and whose way leads to an answer that needs none."""
        try:
            return not arrival.attempts and await answered(self._state, arrival, send)
        except Exception:
            self._failed("route")
            return False

    def _offer(
        self, ticket: Ticket, budget: Budget | None, since_ms: int | None
    ) -> Refusal | None:
        """Return why a request is refused; None when it may go, or has to wait: `deadline_ms`."""
        state = self._state
        try:
            now_ms, patience_ms = state.clock_ms(), ticket.patience_ms
            if since_ms is not None:
                patience_ms -= now_ms - since_ms
            if budget is not None:
                patience_ms = min(patience_ms, budget.left_ms(now_ms))
            refusal = state.admission.offer(ticket, now_ms, patience_ms, since_ms)
            if ticket.deadline_ms:
                state.arm()
            return refusal
        except Exception:
            self._failed("admit")
            self._unqueue(ticket)
            ticket.deadline_ms = 0
            return None

    async def _wait(
        self, ticket: Ticket, reader: BodyReader, attempts: int | None
    ) -> Refusal | None:
        """Wait in the queue: as `_admitted`. Who is not woken when its time is over goes through:
        whatever had to wake it has failed."""
        verdict: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        ticket.verdict = verdict.set_result
        most_s = (ticket.deadline_ms - self._state.clock_ms()) / 1000 + GRACE_S
        try:
            has_left = await reader.leaves_before(verdict, most_s)
        except asyncio.CancelledError:
            if not (self._unqueue(ticket) or ticket.recalled) and verdict.result() is None:
                self._leave(ticket, "neutral")
            self._report(ticket, "disconnected", attempts)
            raise
        if not verdict.done() and self._unqueue(ticket):
            if has_left:
                self._report(ticket, "disconnected", attempts)
                raise ClientLeftError
            self._failed("admit")
            return None
        return verdict.result()

    def _note_wait(self, ticket: Ticket) -> None:
        waited_ms = self._state.clock_ms() - ticket.enqueued_ms
        ticket.waited_ms += waited_ms
        self._state.metrics.waited(ticket.tier, waited_ms / 1000, ticket.trace_id)

    def _unqueue(self, ticket: Ticket) -> bool:
        """Take a request out of the queue; False when it has its verdict already."""
        try:
            return self._state.admission.abandon(ticket, self._state.clock_ms())
        except Exception:  # it is out, and what comes after that has failed
            self._failed("admit")
            return True

    async def _attempt(
        self, arrival: Arrival, attempt: Attempt, reader: BodyReader, again: bool
    ) -> None:
        """Give the request to the application once, and give back what it held."""
        ticket = arrival.ticket
        arrival.attempts += 1
        try:
            if again:
                ticket.begin()
                reader.rewind()
            if self._has_to_be_made(arrival):
                arrival.onward = outgoing(self._state, arrival, reader, self._failed)
                if arrival.budget is not None:
                    reader.mark()
            app = self._app
            if arrival.plan is not None or arrival.answer_key is not None:
                app = partial(self._ladder.serve, handed(self._state, arrival))
            await attempt.run(app, arrival.onward)
        except asyncio.CancelledError:
            self._report(ticket, "disconnected", arrival.attempts)
            raise
        finally:
            self._leave(ticket, attempt.judgement)

    def _has_to_be_made(self, arrival: Arrival) -> bool:
        try:
            return has_to_be_made(self._state, arrival)
        except Exception:
            self._failed("admit")
            return arrival.stale

    async def _pause(self, arrival: Arrival, attempt: Attempt, reader: BodyReader) -> bool:
        """Wait before another attempt; False when there is none, or nobody waits for it."""
        budget = arrival.budget
        if budget is None or not attempt.may_mend() or not reader.complete:
            return False
        pause_ms = budget.pause_ms(self._state.clock_ms(), random.random)
        if pause_ms is None:
            return False
        try:
            await asyncio.wait({reader.watch()}, timeout=pause_ms / 1000)
        except asyncio.CancelledError:
            self._report(arrival.ticket, "disconnected", arrival.attempts)
            raise
        return not await reader.has_left()

    async def _finish(self, arrival: Arrival, attempt: Attempt, send: Send) -> None:
        """Tell the client how a request ended that did not end well."""
        budget = arrival.budget
        if attempt.late and not attempt.began and budget is not None:
            await refuse(send, too_late(budget.patience_ms), arrival.model)
        else:
            await attempt.deliver()
        if attempt.error is not None:
            raise attempt.error

    def _report(self, ticket: Ticket, outcome: str, attempts: int | None = None) -> None:
        """Say in the metrics how a request ended; never raises."""
        state = self._state
        try:
            report(state, ticket, outcome, attempts, state.clock_ms())
            if state.admission.queue.places:
                state.arm()
        except Exception:
            self._failed("release")

    def _leave(self, ticket: Ticket, judgement: Outcome) -> None:
        """Settle, give back and judge; the second happens even when the first fails."""
        now_ms = self._state.clock_ms()
        try:
            if ticket.reserved:
                settle(self._state, ticket)
        except Exception:
            self._failed("release")
        try:
            self._state.admission.leave(ticket, judgement, ticket.took_ms(now_ms), now_ms)
            if self._state.admission.queue.places:  # who waits next may wait for time alone
                self._state.arm()
        except Exception:
            self._failed("release")

    def _guarded(self, stage: str, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception:
            self._failed(stage)

    def _failed(self, stage: str) -> None:
        try:
            self._state.metrics.failed_open(stage)
        except Exception:  # even the counter may be what is broken; the request goes on
            return
