"""What the gate makes of a request before it is judged, and what it passes on afterwards.

A body is parsed only where something needs it: a limit by tokens or model, a route that takes this
request, or a word in it that its client may not say. Then the changed body is written once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from resilience.gate.answer import Header, Message, explained
from resilience.gate.body import (
    BODY_MAX,
    BodyReader,
    is_wide,
    may_claim,
    parsed,
    strip,
    with_length,
    with_priority,
    written,
)
from resilience.gate.budget import Budget
from resilience.gate.identity import PRIORITY_HEADER, Headers, Who, name_adapter, with_adapter
from resilience.gate.ladder import goes_down, prepare
from resilience.gate.limits import Limit
from resilience.gate.once import key_of
from resilience.gate.rungs import Plan
from resilience.gate.snapshot import Route, Snapshot
from resilience.gate.state import GateState
from resilience.gate.ticket import Lane, Ticket
from resilience.gate.tokens import (
    OUTPUT_DEFAULT,
    OUTPUT_KEYS,
    SEVERAL,
    TOKENS_IN,
    Amount,
    amount_of,
    asked_output,
    choices_of,
    length_estimate,
    path_meant,
    read_keys,
    reserve_for_output,
    sampling_of,
    whole,
)
from resilience.gate.trace import passed_on, span_of

# vLLM reads the priority header on these; on the others only the body's field counts. A request
# that nothing is said about is as important as the most important tier's.
HEADER_ONLY = frozenset({"/v1/messages"})
HEADER_PATHS = HEADER_ONLY | {"/v1/chat/completions", "/v1/completions", "/v1/responses"}
PRIORITY_PATHS = HEADER_PATHS | {
    "/v1/embeddings", "/v2/embed", "/cohere/v2/chat", "/pooling", "/classify", "/score", "/rerank",
    "/v1/score", "/v1/rerank", "/v2/rerank", "/generative_scoring", TOKENS_IN,
    "/v1/chat/completions/batch", "/v1/systemone", SEVERAL,
}
WRITING_PATHS = HEADER_PATHS | {"/cohere/v2/chat", "/v1/chat/completions/batch", TOKENS_IN}
Failed = Callable[[str], None]


class SlowBodyError(Exception):
    """The body of the request of `ticket` did not come within its deadline."""

    def __init__(self, ticket: Ticket) -> None:
        super().__init__()
        self.ticket = ticket


class Arrival:
    """A request that has come: its ticket, and what is passed on when it is let in.

    `body` is what was read (None: too large, or the client left), `fields` its JSON object if it
    was parsed (`unread` says why not), `changed` whether that differs from `body`. `model` is the
    model it will run on, where something needs to know, `own` the one that it asked for. `cap` is
    the limit on its output, `cut` the one that has cut it. `key` is what duplicates share, if any.
    `plan` is its way down the ladder, `answer_key` what equal requests share, if its answer may be
    given again. `seen` is what was in force when it was looked at, `stale` says that what is passed
    on has to be made, for the first time or anew.
    """

    # What most requests never change is a default of the class: making one is on every path.
    fields: dict[str, Any] | None = None
    unread = ""
    changed = False
    model = own = ""
    route: Route | None = None
    cap: Limit | None = None
    cut: Limit | None = None
    budget: Budget | None = None
    key: tuple[str, ...] | None = None
    attempts = 0
    plan: Plan | None = None
    answer_key: bytes | None = None
    stale = True

    def __init__(
        self, scope: Message, headers: Headers, ticket: Ticket, body: bytes | None,
        seen: Snapshot,
    ) -> None:
        self.scope = self.onward = scope
        self.seen = seen
        self.headers = headers
        self.ticket = ticket
        self.body = body


def introduced(state: GateState, scope: Message) -> tuple[Who, Headers, Headers]:
    """Return who is there, the headers without what it may not say itself, and those that told."""
    client, words = scope.get("client"), state.identity.words
    given = [*scope["headers"]]  # a server may add what a client sends behind its body
    told = [pair for pair in given if pair[0] in words]
    who, headers = state.identity.of(told, given, client[0] if client else "")
    return who, headers, told


def welcome(state: GateState, scope: Message, path: str) -> tuple[Ticket, Headers]:
    """Return a ticket for who is there, and the headers without what it may not say itself."""
    who, headers, told = introduced(state, scope)
    ticket = state.new_ticket((who.tier, who.tenant, ""), path)
    ticket.span = span = span_of(told)
    ticket.trace_id = span.trace_id
    return ticket, headers


async def arrive(
    state: GateState, scope: Message, path: str, reader: BodyReader, failed: Failed
) -> Arrival:
    """Read a request and make its ticket; what goes wrong with its body leaves the body alone."""
    ticket, headers = welcome(state, scope, path)
    budget = None if state.config.budget is None else state.new_budget(ticket)
    body = await (reader.read() if budget is None else _read_within(budget, reader, ticket))
    snapshot = state.snapshot()
    arrival = Arrival(scope, headers, ticket, body, snapshot)
    ticket.size = reader.size
    arrival.budget = budget
    if state.results is not None and body is not None and state.config.budget is not None:
        arrival.key = key_of(
            state.config.budget.request_id_header.encode(), headers, ticket.lane[1],
            state.config.tenant_header.encode())
    _direct(state, arrival, snapshot, failed)
    await _measure(state, arrival, snapshot, reader)
    return arrival


async def look_again(
    state: GateState, arrival: Arrival, reader: BodyReader, failed: Failed
) -> None:
    """Find out what claims ask for that came since the request was looked at: the route that there
    is now, its model, its tokens."""
    before, snapshot = arrival.seen, state.snapshot()
    arrival.seen = snapshot
    try:
        if arrival.fields is None and (snapshot.needs_tokens or snapshot.models):
            _look(arrival, snapshot, None)
        arrival.stale |= _reroute(state, arrival, before, snapshot)
    except Exception:
        failed("route")
    await _measure(state, arrival, snapshot, reader)


async def _measure(
    state: GateState, arrival: Arrival, snapshot: Snapshot, reader: BodyReader
) -> None:
    """Note the request's model and tokens, as far as some limit is by them."""
    ticket = arrival.ticket
    ticket.lane = _lane_in(snapshot, arrival)
    if snapshot.needs_tokens and ticket.size:
        await _count(state, arrival, reader)


def _lane_in(snapshot: Snapshot, arrival: Arrival) -> Lane:
    """Return the request's lane, with its model if some limit tells that apart."""
    lane = arrival.ticket.lane
    model = arrival.model if arrival.model in snapshot.models else ""
    return lane if model == lane[2] else (*lane[:2], model)


def has_to_be_made(state: GateState, arrival: Arrival) -> bool:
    """Say whether what is passed on has to be made, for the first time or anew: what was made
    before may have another route, or a longer output than may be asked for by now."""
    snapshot, before = state.snapshot(), arrival.cap
    arrival.cap = None
    if snapshot.needs_tokens:
        if arrival.fields is None and arrival.seen is not snapshot:  # that came as it was let in
            _look(arrival, snapshot, None)
        arrival.cap = state.admission.output_cap(_lane_in(snapshot, arrival))
    return arrival.stale or arrival.cap not in (None, before)


def _direct(state: GateState, arrival: Arrival, snapshot: Snapshot, failed: Failed) -> None:
    """Look at the body as far as something needs it, and decide where the request goes."""
    route = snapshot.routes.get(arrival.ticket.tier)
    try:
        if route is not None and not state.takes_route(arrival.ticket.tier, route):
            route = None
    except Exception:
        failed("route")
        route = None
    try:
        _look(arrival, snapshot, route)
        if state.ladder.answers is not None:
            prepare(arrival)
        if route is not None:
            _choose_model(state, arrival, route)
    except Exception:
        failed("route")
        arrival.route = arrival.plan = None  # what was taken out of the body stays out


async def _read_within(budget: Budget, reader: BodyReader, ticket: Ticket) -> bytes | None:
    """Read the body within the deadline. Raises SlowBodyError."""
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
    suspect = may_claim(body)
    needed = suspect or snapshot.needs_tokens or snapshot.models
    if not needed and route is None:
        return
    if len(body) > BODY_MAX and not needed:
        arrival.unread = "too_large"  # to parse it takes long, and a route is not worth that
        return
    fields = parsed(body)
    if isinstance(fields, str):
        arrival.unread = fields
        return
    arrival.fields = fields
    # What is not UTF-8 is written anew: nothing could be put into it as it stands.
    arrival.changed = suspect and (strip(fields) or is_wide(body))
    name_adapter(arrival.ticket.path, arrival.headers, fields)
    model = fields.get("model")
    arrival.model = arrival.own = model if isinstance(model, str) else ""


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


def _reroute(
    state: GateState, arrival: Arrival, before: Snapshot, snapshot: Snapshot
) -> bool:
    """Take a request off a route that has gone, and give it the one that has come meanwhile; says
    whether its way is another now."""
    tier = arrival.ticket.tier
    old, route = before.routes.get(tier), snapshot.routes.get(tier)
    went = old is not None and (route is None or route.to != old.to) and _turn_back(arrival)
    if arrival.route or arrival.plan or route is None:
        return went
    more = route.beyond(old)
    if more is None or not state.takes_route(tier, more):
        return went
    if arrival.fields is None:
        _look(arrival, snapshot, route)
    _choose_model(state, arrival, route)
    return went or arrival.route is not None or arrival.plan is not None


def _turn_back(arrival: Arrival) -> bool:
    """Give a request back the model that it asked for; says whether it had another way."""
    if arrival.route is None and arrival.plan is None:
        return False
    if arrival.route is not None and arrival.fields is not None:
        arrival.fields["model"] = arrival.own
    arrival.model, arrival.route, arrival.plan = arrival.own, None, None
    arrival.ticket.headers, arrival.ticket.stands_in = (), False
    return True


async def _count(state: GateState, arrival: Arrival, reader: BodyReader) -> None:
    """Put the tokens that the request asks for on its ticket."""
    ticket, fields = arrival.ticket, arrival.fields
    path = ticket.path if fields is None else path_meant(ticket.path, fields)
    if fields is None or arrival.body is None:
        amount = Amount(length_estimate(reader.size), None)
    elif len(arrival.body) > BODY_MAX:
        amount = Amount(length_estimate(reader.size), asked_output(fields, path))
    else:
        left_ms = None if arrival.budget is None else arrival.budget.left_ms(state.clock_ms())
        amount = await amount_of(fields, path, state.counter, left_ms)
    choices = 1 if fields is None else choices_of(fields, path)
    ticket.size = 0
    ticket.prompt_tokens = amount.prompt
    ticket.asked_output = amount.output or 0
    ticket.reserved = amount.prompt + reserve_for_output(path, amount.output, choices)
    ticket.cost = float(max(1, ticket.reserved))


def outgoing(
    state: GateState, arrival: Arrival, reader: BodyReader, failed: Failed
) -> Message:
    """Return the scope to pass on, and make `reader` hand out the body that goes with it."""
    headers, body, arrival.stale = arrival.headers, None, False
    try:
        if arrival.cap is not None:
            _cut_output(state, arrival, arrival.cap)
        if arrival.changed:
            _explain(state, arrival)
        to = None if arrival.route is None else arrival.route.to
        headers = with_adapter(arrival.ticket.path, headers, to)
        body = written(arrival.fields) if arrival.changed and arrival.fields is not None else None
        if state.admission.overtakes and arrival.ticket.path in PRIORITY_PATHS:
            headers, body = _prioritised(state, arrival, headers, body)
        if body is not None:
            headers = with_length(headers, len(body))
        span = arrival.ticket.span
        if span is not None:
            headers = passed_on(headers, span)
    except Exception:  # with what was decided on its body, and without what a client may not say
        failed("body")
        headers, body = _stripped(arrival, failed)
    if body is not None:
        reader.replace(body)
    return {**arrival.scope, "headers": headers}


def _stripped(arrival: Arrival, failed: Failed) -> tuple[list[Header], bytes | None]:
    """Return the headers without what a client may not say, and the body as it was decided on."""
    if not arrival.changed or arrival.fields is None:
        return arrival.headers, None
    try:
        body = written(arrival.fields)
    except Exception:  # nested so deep that it can be read, but not written
        failed("body")
        body = b""  # which the server refuses: what came holds what its client may not say
    return with_length(arrival.headers, len(body)), body


def _prioritised(
    state: GateState, arrival: Arrival, headers: list[Header], body: bytes | None
) -> tuple[list[Header], bytes | None]:
    """Tell the server's scheduler the tier's priority, where it listens."""
    ticket = arrival.ticket
    if state.priority_header and ticket.path in HEADER_PATHS:
        return [*headers, (PRIORITY_HEADER, b"%d" % ticket.priority)], body
    if ticket.path in HEADER_ONLY:
        return headers, body
    plain = arrival.body if body is None else body
    told = None if plain is None else with_priority(plain, ticket.priority)
    return headers, body if told is None else told


def _cut_output(state: GateState, arrival: Arrival, cap: Limit) -> None:
    """Cut the output that a request asks for to the limit in force."""
    fields, ticket = arrival.fields, arrival.ticket
    if fields is None:
        return
    meant = path_meant(ticket.path, fields)
    most, wanted, read = int(cap.number), sampling_of(fields, meant), read_keys(meant)
    asked = {key: n for key in OUTPUT_KEYS if (n := whole(wanted.get(key))) is not None}
    keys = [key for key, value in asked.items() if value > most]
    if asked.keys().isdisjoint(read) and most < OUTPUT_DEFAULT.get(meant, most + 1):
        keys.append(read[0])
    if not keys or meant not in WRITING_PATHS:
        return
    least = whole(wanted.get("min_tokens"))
    if least is not None and least > most:
        keys.append("min_tokens")
    wanted.update(dict.fromkeys(keys, most))
    arrival.changed, arrival.cut = True, cap
    state.metrics.clamped(ticket.tier, cap.policy)


def _explain(state: GateState, arrival: Arrival) -> None:
    """Make what the gate altered visible on the answer."""
    ticket, route = arrival.ticket, arrival.route
    if route is not None:
        told = explained(route.reason, route.policy, route.to)
        if ticket.headers == told:  # another attempt on the same way
            return
        ticket.headers = told
        state.metrics.rerouted(
            ticket.tier, route.to, route.policy, state.config.service, ticket.path)
    elif arrival.cut is not None:
        ticket.headers = explained(arrival.cut.reason, arrival.cut.policy, arrival.model)
