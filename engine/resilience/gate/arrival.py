"""What the gate makes of a request before it is judged, and what it passes on afterwards.

A body is parsed only where something needs it: a limit by tokens or model, a route that takes this
request, or a word in it that its client may not say. Then the changed body is written once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from resilience.gate.answer import Header, Message, explained
from resilience.gate.body import (
    BODY_MAX,
    BodyReader,
    may_claim,
    parsed,
    strip,
    with_length,
    with_priority,
    written,
)
from resilience.gate.budget import Budget
from resilience.gate.identity import PRIORITY_HEADER, Headers
from resilience.gate.ladder import goes_down, hand_over, prepare
from resilience.gate.limits import Limit
from resilience.gate.metrics import METHODS
from resilience.gate.once import key_of
from resilience.gate.rungs import Plan
from resilience.gate.snapshot import Route, Snapshot
from resilience.gate.state import GateState
from resilience.gate.ticket import Ticket
from resilience.gate.tokens import (
    Amount,
    amount_of,
    choices_of,
    length_estimate,
    reserve_for_output,
)
from resilience.gate.trace import passed_on, span_of

# vLLM reads the priority header on these; on the others only the body's field counts.
HEADER_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})
PRIORITY_PATHS = HEADER_PATHS | {
    "/v1/embeddings", "/v2/embed", "/cohere/v2/chat", "/pooling", "/classify", "/score", "/rerank",
    "/v1/score", "/v1/rerank", "/v2/rerank", "/generative_scoring", "/inference/v1/generate",
}
OUTPUT_KEYS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
OUTPUT_KEY = {
    "/v1/chat/completions": "max_completion_tokens", "/v1/responses": "max_output_tokens",
}
Failed = Callable[[str], None]


class SlowBodyError(Exception):
    """The body of the request of `ticket` did not come within its deadline."""

    def __init__(self, ticket: Ticket) -> None:
        super().__init__()
        self.ticket = ticket


@dataclass(slots=True)
class Arrival:
    """A request that has come: its ticket, and what is passed on when it is let in.

    `body` is what was read (None: too large, or the client left), `fields` its JSON object if it
    was parsed (`unread` says why not), `changed` whether that differs from `body`. `model` is the
    model it will run on, where something needs to know. `key` is what duplicates share, if any.
    `plan` is its way down the ladder, `answer_key` what equal requests share, if its answer may be
    given again.
    """

    scope: Message
    headers: Headers
    ticket: Ticket
    body: bytes | None
    fields: dict[str, Any] | None = None
    unread: str = ""
    changed: bool = False
    model: str = ""
    route: Route | None = None
    cap: Limit | None = None
    budget: Budget | None = None
    key: tuple[str, ...] | None = None
    onward: Message = field(default_factory=dict[str, Any])
    attempts: int = 0
    plan: Plan | None = None
    answer_key: bytes | None = None


async def arrive(
    state: GateState, scope: Message, reader: BodyReader, failed: Failed
) -> Arrival:
    """Read a request and make its ticket; what goes wrong with its body leaves the body alone."""
    client = scope.get("client")
    who, headers = state.identity.of(scope["headers"], client[0] if client else "")
    ticket = state.new_ticket((who.tier, who.tenant, ""), scope["path"])
    budget = state.new_budget(ticket)
    ticket.span = span_of(headers)
    body = await _read(reader, budget, ticket)
    arrival = Arrival(scope, headers, ticket, body, budget=budget)
    if state.results is not None and arrival.body is not None and state.config.budget is not None:
        arrival.key = key_of(state.config.budget.request_id_header.encode(), headers, who.tenant)
    snapshot = state.snapshot()
    try:
        route = snapshot.routes.get(who.tier)
        if route is not None and not state.takes_route(who.tier, route):
            route = None
        _look(arrival, snapshot, route)
        prepare(state, arrival)
        if route is not None:
            _choose_model(state, arrival, route)
    except Exception:
        failed("route")
        arrival.fields, arrival.changed, arrival.route = None, False, None
        arrival.plan = None
    if arrival.model in snapshot.models:
        ticket.lane = (who.tier, who.tenant, arrival.model)
    if snapshot.needs_tokens:
        await _count(state, arrival, reader)
        arrival.cap = state.admission.output_cap(ticket.lane)
    return arrival


async def _read(reader: BodyReader, budget: Budget | None, ticket: Ticket) -> bytes | None:
    """Read the body, within the deadline if there is one. Raises SlowBodyError."""
    if budget is None:
        return await reader.read()
    try:
        async with asyncio.timeout(budget.patience_ms / 1000):
            return await reader.read()
    except TimeoutError:
        raise SlowBodyError(ticket) from None


def _look(arrival: Arrival, snapshot: Snapshot, route: Route | None) -> None:
    """Parse the body if anything needs it, and strip it."""
    body = arrival.body
    if body is None:
        arrival.unread = "too_large"
        return
    needed = route is not None or snapshot.needs_tokens or snapshot.models
    large, suspect = len(body) > BODY_MAX, may_claim(body)
    if large and not suspect:
        arrival.unread = "too_large"  # to parse it takes long, and only stripping is worth that
        return
    if not needed and not suspect:
        return
    fields = parsed(body)
    if isinstance(fields, str):
        arrival.unread = fields
        return
    arrival.fields = fields
    arrival.changed = suspect and strip(fields)
    model = fields.get("model")
    arrival.model = model if isinstance(model, str) else ""


def _choose_model(state: GateState, arrival: Arrival, route: Route) -> None:
    """Send the request to the route's model, or count why that cannot be."""
    if goes_down(state, arrival, route):
        return
    why = arrival.unread or None
    if why == "no_object" or (why is None and not arrival.model):
        why = "no_model"
    elif why is None and arrival.model == route.to:
        why = "same_model"
    if why is not None:
        state.metrics.skipped(why)
        return
    assert arrival.fields is not None
    arrival.fields["model"] = arrival.model = route.to
    arrival.changed, arrival.route = True, route


def reroute(state: GateState, arrival: Arrival) -> bool:
    """Give another attempt the route that has come meanwhile; says whether there is one."""
    tier = arrival.ticket.tier
    route = state.snapshot().routes.get(tier)
    if arrival.route or arrival.plan or route is None or not state.takes_route(tier, route):
        return False
    if arrival.fields is None:
        _look(arrival, state.snapshot(), route)
    _choose_model(state, arrival, route)
    return arrival.route is not None or arrival.plan is not None


async def _count(state: GateState, arrival: Arrival, reader: BodyReader) -> None:
    """Put the tokens that the request asks for on its ticket."""
    ticket, fields = arrival.ticket, arrival.fields
    if fields is None:
        amount = Amount(length_estimate(reader.size), None)
    else:
        amount = await amount_of(fields, state.counter)
    choices = 1 if fields is None else choices_of(fields)
    ticket.prompt_tokens = amount.prompt
    ticket.asked_output = amount.output or 0
    ticket.reserved = amount.prompt + reserve_for_output(ticket.path, amount.output, choices)
    ticket.cost = float(max(1, ticket.reserved))


def outgoing(
    state: GateState, arrival: Arrival, reader: BodyReader, failed: Failed
) -> Message:
    """Return the scope to pass on, and make `reader` hand out the body that goes with it."""
    scope, headers = arrival.scope, arrival.headers
    try:
        _cut_output(state, arrival)
        body = written(arrival.fields) if arrival.changed and arrival.fields is not None else None
        if state.by_priority and arrival.ticket.path in PRIORITY_PATHS:
            headers, body = _prioritised(state, arrival, headers, body)
        if body is not None:
            reader.replace(body)
            headers = with_length(headers, len(body))
        if arrival.ticket.span is not None:
            headers = passed_on(headers, arrival.ticket.span)
        _explain(state, arrival)
    except Exception:
        failed("body")
        return scope
    return hand_over(state, arrival, {**scope, "headers": headers})


def _prioritised(
    state: GateState, arrival: Arrival, headers: list[Header], body: bytes | None
) -> tuple[list[Header], bytes | None]:
    """Tell the server's scheduler the tier's priority, where it listens."""
    ticket = arrival.ticket
    if state.priority_header and ticket.path in HEADER_PATHS:
        return [*headers, (PRIORITY_HEADER, b"%d" % ticket.priority)], body
    plain = arrival.body if body is None else body
    told = None if plain is None else with_priority(plain, ticket.priority)
    return headers, body if told is None else told


def _cut_output(state: GateState, arrival: Arrival) -> None:
    """Cut the output that a request asks for to the limit in force."""
    cap, fields, ticket = arrival.cap, arrival.fields, arrival.ticket
    if cap is None or fields is None:
        return
    most = int(cap.number)
    given = [key for key in OUTPUT_KEYS if _above(fields.get(key), most)]
    named = any(isinstance(fields.get(key), int) for key in OUTPUT_KEYS)
    keys = given or ([] if named else [OUTPUT_KEY.get(ticket.path, "max_tokens")])
    if not keys or ticket.path in ("/v1/embeddings", "/pooling", "/score", "/rerank", "/classify"):
        arrival.cap = None
        return
    for key in keys:
        fields[key] = most
    arrival.changed = True
    state.metrics.clamped(ticket.tier, cap.policy)


def _above(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > most


def _explain(state: GateState, arrival: Arrival) -> None:
    """Make what the gate altered visible on the answer."""
    ticket, route = arrival.ticket, arrival.route
    if route is not None:
        ticket.headers = explained(route.reason, route.policy, route.to)
        method = ticket.path if ticket.path in METHODS else "other"
        state.metrics.rerouted(
            ticket.tier, route.to, route.policy, state.config.service, method)
    elif arrival.cap is not None and arrival.changed:
        ticket.headers = explained(arrival.cap.reason, arrival.cap.policy, arrival.model)
