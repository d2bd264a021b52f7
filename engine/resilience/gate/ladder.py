"""The ladder on the request path: a plan for each request that a route sends down it, and its way.

`Ladder.plan` is asked when a request arrives. `answered` serves what needs no server before anybody
waits for a seat. `Descent` stands around the application: it tries the rungs of a plan in turn,
until the first byte, and notes answers that may be given again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from resilience.gate.answer import Header, Message, Send, explained, header_text
from resilience.gate.body import BODY_MAX, parsed
from resilience.gate.config import GateConfig, is_within
from resilience.gate.decoder import decodes
from resilience.gate.other_server import OtherServers
from resilience.gate.own_answer import send_text
from resilience.gate.rungs import (
    RUNG_HEADER,
    SERVED,
    Asked,
    Plan,
    Skip,
    choose,
    has_tools,
    is_decoder,
    is_plain,
    meant,
)
from resilience.gate.stored import Answers, Stored, key_of, may_repeat
from resilience.gate.tokens import TokenCounter, estimate_of
from resilience.model import LADDER, Json, Rung

if TYPE_CHECKING:
    from resilience.gate.arrival import Arrival
    from resilience.gate.budget import Budget
    from resilience.gate.snapshot import Route
    from resilience.gate.state import GateState
    from resilience.gate.ticket import Ticket

REST_MS = 5_000


@dataclass(frozen=True, slots=True)
class Handed:
    """What `Descent` gets beside the request: the plan, or where to store."""

    state: GateState
    ticket: Ticket
    plan: Plan | None
    key: bytes | None
    budget: Budget | None = None

    def timeout_ms(self, rung: Rung, is_last: bool) -> int | None:
        """Return how long a rung may take to its first byte. One that others come after leaves them
        time before the request's own is over."""
        if rung.timeout_ms is None or is_last or self.budget is None:
            return rung.timeout_ms
        return self.budget.call_ms(rung.timeout_ms, self.state.clock_ms())


class Engines(Protocol):
    """The second engines that this server runs for its rungs of kind `engine`."""

    def url(self, rung: str) -> str | None:
        """Return where the engine of a rung answers now."""
        ...

    def is_starting(self, rung: str) -> bool: ...

    def using(self, rung: str) -> AbstractContextManager[None]:
        """Keep it running meanwhile."""
        ...

    def states(self) -> Mapping[str, Json]:
        """Return by rung {state, reason}."""
        ...


class Ladder:
    """The configured rungs, which of them rest after a failure, and the stored answers."""

    def __init__(self) -> None:
        self.rungs: tuple[Rung, ...] = ()
        self.answers: Answers | None = None
        self.servers = OtherServers()
        self.engines: Engines | None = None
        self._rests_until_ms: dict[str, int] = {}
        # Answers by rung: one that begins some while another request's time is over is well, and
        # that request was long. Its client must not keep it from the others.
        self.begun: Counter[str] = Counter()

    def configure(self, config: GateConfig) -> None:
        """Take other rungs; stored answers stay as long as there is a rung for them."""
        self.rungs = config.ladder
        self._rests_until_ms.clear()
        cached = next((rung for rung in self.rungs if rung.kind == "cached"), None)
        if cached is None:
            self.answers = None
        elif self.answers is None:
            self.answers = Answers(cached.max_bytes, cached.max_age_ms)
        else:
            self.answers.bytes_max, self.answers.max_age_ms = cached.max_bytes, cached.max_age_ms

    def rest(self, rung: Rung, now_ms: int) -> None:
        """Pass over a rung that failed, for a moment."""
        self._rests_until_ms[rung.name] = now_ms + REST_MS

    def is_resting(self, rung: Rung, now_ms: int) -> bool:
        return self._rests_until_ms.get(rung.name, 0) > now_ms

    def engine_skip(self, rung: Rung) -> Skip | None:
        """Say why the second engine of a rung cannot answer now, or None."""
        if self.engines is None:
            return "not_running"
        if self.engines.url(rung.name) is not None:
            return None
        return "starting" if self.engines.is_starting(rung.name) else "not_running"

    def stored(self, key: bytes | None, now_ms: int) -> Stored | None:
        if self.answers is None or key is None:
            return None
        return self.answers.get(key, now_ms)


def prepare(arrival: Arrival) -> None:
    """Say by which key the request's answer may be stored or found, if it may."""
    body = arrival.body
    if body is None or len(body) > BODY_MAX or not may_repeat(body):
        return
    fields = parsed(body) if arrival.fields is None else arrival.fields
    if not isinstance(fields, str):
        arrival.answer_key = key_of(arrival.ticket.lane[1], arrival.ticket.path, fields)


def goes_down(state: GateState, arrival: Arrival, route: Route) -> bool:
    """Plan the request's way when the route leads to rungs; says whether it does."""
    rungs = meant(route.to, state.ladder.rungs)
    if not rungs and route.to != LADDER:
        return False
    if arrival.fields is None or not arrival.model:
        state.metrics.skipped(arrival.unread or "no_model")
        return True
    if _comes_from_a_rung(state, arrival):
        state.metrics.skipped("from_rung")
        return True
    _plan(state, arrival, route, rungs)
    return True


def _comes_from_a_rung(state: GateState, arrival: Arrival) -> bool:
    """Another gate's ladder ends here: two servers never send one request back and forth."""
    client = arrival.scope.get("client")
    host = client[0] if client else ""
    return any(name == RUNG_HEADER for name, _ in arrival.headers) and is_within(
        host, state.config.trusted_peers)


def _plan(state: GateState, arrival: Arrival, route: Route, rungs: Sequence[Rung]) -> None:
    now_ms, ladder, ticket = state.clock_ms(), state.ladder, arrival.ticket
    fields = arrival.fields
    assert fields is not None

    def unavailable(rung: Rung) -> Skip | None:
        if ladder.is_resting(rung, now_ms):
            return "resting"
        if rung.kind == "engine":
            return ladder.engine_skip(rung)
        if rung.kind not in SERVED:
            return None
        lane = (ticket.lane[0], ticket.lane[1], rung.model or "")
        shut = any(not b.allows(now_ms) for b, _ in state.admission.breakers.of(lane))
        return "circuit_break" if shut else None

    asked = Asked(
        ticket.path, arrival.model, _tokens(fields, ticket.path, state.counter, rungs),
        has_tools(fields), is_plain(fields),
        ladder.stored(arrival.answer_key, now_ms) is not None,
        not any(map(is_decoder, rungs)) or decodes(fields),
    )
    left, reason = choose(rungs, asked, unavailable, state.metrics.passed_over)
    if not left:
        state.metrics.skipped("no_rung")
        return
    arrival.plan = Plan(left, reason, route.policy, route.reason)
    arrival.model = left[0].served_name or arrival.model


def _tokens(
    fields: Mapping[str, Any], path: str, counter: TokenCounter | None, rungs: Sequence[Rung]
) -> int:
    """Count only where some rung asks for it."""
    if all(rung.context is None for rung in rungs):
        return 0
    return estimate_of(fields, path, counter)


def handed(state: GateState, arrival: Arrival) -> Handed:
    """Return what `Descent` needs. The answer of another model is not stored as this one's, and
    no answer that was cut short."""
    own = arrival.route is None and arrival.cut is None
    key = arrival.answer_key if arrival.plan is not None or own else None
    return Handed(state, arrival.ticket, arrival.plan, key, arrival.budget)


async def answered(state: GateState, arrival: Arrival, send: Send) -> bool:
    """Answer a request whose first rung needs no server; says whether that was so.

    It takes no seat and waits for none. A template's text does not count as a kept promise.
    """
    plan, ticket = arrival.plan, arrival.ticket
    if plan is None or not plan.answers_itself:
        return False
    rung, begun = plan.rungs[0], False

    async def noted(message: Message) -> None:
        nonlocal begun
        begun = True
        await send(message)

    try:
        served = await answer_itself(state, ticket, rung, arrival.fields or {}, arrival.answer_key,
                                     noted, headers_of(plan, rung, arrival.model))
        if served:
            _count_served(state, ticket, plan, rung)
        return served
    except Exception:
        if not begun:
            raise
        state.metrics.failed_open("observe")
        return True  # nobody else may answer what has an answer already


def _count_served(state: GateState, ticket: Ticket, plan: Plan, rung: Rung) -> None:
    count(state, ticket, plan, rung, plan.reason)
    now_ms = state.clock_ms()
    seconds = (now_ms - ticket.arrived_ms) / 1000
    tenant = state.tenant_label(ticket.lane)
    state.metrics.ended(ticket.tier, tenant, "ok", seconds, ticket.trace_id)
    state.books[ticket.tier].ended(now_ms, None, rung.kind == "cached")


async def answer_itself(
    state: GateState, ticket: Ticket, rung: Rung, fields: Mapping[str, Any], key: bytes | None,
    send: Send, headers: tuple[Header, ...],
) -> bool:
    """Send the stored answer or the template; False when the answer has gone meanwhile."""
    if rung.kind == "template":
        await send_text(
            send, ticket.path, fields, rung.model or rung.name, rung.text or "", headers)
        return True
    now_ms = state.clock_ms()
    found = state.ladder.stored(key, now_ms)
    if found is None:
        return False
    age_s = max(0, now_ms - found.t_ms) // 1000
    marks = ((b"age", str(age_s).encode()), (b"x-resilience-cached", b"true"))
    await send_text(send, ticket.path, fields, found.model, found.text, (*headers, *marks),
                    found)
    return True


def headers_of(plan: Plan, rung: Rung, model: str = "") -> tuple[Header, ...]:
    """Return what the answer of a rung carries: why, by which policy, which model, which rung."""
    name = rung.served_name or (rung.name if rung.kind in ("cached", "template") else model)
    return (*explained(plan.why, plan.policy, name), (RUNG_HEADER, header_text(rung.name)))


def count(state: GateState, ticket: Ticket, plan: Plan, rung: Rung, reason: str) -> None:
    """Count one request that a rung has served."""
    state.metrics.stood_in(
        ticket.tier, rung.name, plan.policy, state.config.service, ticket.path, reason)


def body_for(rung: Rung, fields: Mapping[str, Any]) -> bytes:
    """Return the request's body with the rung's model in it."""
    name = rung.served_name
    model = {} if name is None else {"model": name}
    return json.dumps({**fields, **model}, ensure_ascii=False).encode("utf-8", "surrogatepass")


__all__ = [
    "Engines", "Handed", "Ladder", "answer_itself", "answered", "body_for", "count",
    "goes_down", "handed", "headers_of", "prepare",
]
