"""What a request's answer shows as it passes: status, first token, tokens, errors, its end.

Chunks are never changed; only the headers of an answer that the gate altered get an explanation.
"""

from __future__ import annotations

from collections.abc import Iterable

from resilience.gate.answer import Header, Message, latency_header
from resilience.gate.breaker import Outcome
from resilience.gate.causes import failure_of
from resilience.gate.state import GateState
from resilience.gate.ticket import Ticket
from resilience.gate.tokens import usage_in

# Their first chunk carries the first token; other streams open with an event before any token.
TOKEN_STREAMS = frozenset({"/v1/chat/completions", "/v1/completions"})
IN_STREAM_ERROR = b'data: {"error"'
EVENT = b"data: {"
ABORTED = b'"finish_reason":"abort"'
NO_CHOICE = b'"choices":[]'
TAIL_MAX = 4_096
JUDGEMENT: dict[str, Outcome] = {
    "ok": "success", "server_error": "failure", "error": "failure",
}


def observed(state: GateState, ticket: Ticket, message: Message) -> Message:
    """Note what one message of the answer shows; returns it, with headers where they are due."""
    if message["type"] == "http.response.start":
        return _started(ticket, message)
    if message["type"] == "http.response.body":
        ticket.done = not message.get("more_body", False)
        chunk = message.get("body", b"")
        if chunk and ticket.streams:
            _chunk(state, ticket, chunk)
        elif chunk and (ticket.status >= 500 or ticket.reserved):
            ticket.tail = (ticket.tail + chunk)[-TAIL_MAX:]
    return message


def timed(state: GateState, ticket: Ticket, start: Message) -> Message:
    """Say in the header of an answer how long the model took to its first byte."""
    latency_ms = state.clock_ms() - ticket.entered_ms
    if ticket.status < 400:
        state.latency_ms = latency_ms
    return {**start, "headers": [*start.get("headers", ()), latency_header(latency_ms)]}


def _started(ticket: Ticket, message: Message) -> Message:
    ticket.status = message["status"]
    ticket.streams = ticket.path in TOKEN_STREAMS and is_stream(message.get("headers", ()))
    if ticket.headers:
        return {**message, "headers": [*message.get("headers", ()), *ticket.headers]}
    return message


def is_stream(headers: Iterable[Header]) -> bool:
    """Say whether an answer is a stream of events."""
    for name, value in headers:
        if value.startswith(b"text/event-stream") and name.lower() == b"content-type":
            return True
    return False


def _chunk(state: GateState, ticket: Ticket, chunk: bytes) -> None:
    """Time the first chunk that carries a token; count tokens; notice an error in the stream."""
    if chunk.startswith(IN_STREAM_ERROR):
        ticket.status = 500  # the server had already said 200
        ticket.cause = failure_of(500, chunk, stream=True)
        return
    if chunk.startswith(b":"):
        return
    now_ms = state.clock_ms()
    if not ticket.first_ms:
        _first(state, ticket, now_ms)
    tokens = chunk.count(EVENT)
    if tokens and NO_CHOICE in chunk:
        tokens -= 1
        ticket.tail = chunk[-TAIL_MAX:]  # the event that states the usage
    if ABORTED in chunk:
        ticket.aborted = True
    if not tokens:
        return
    ticket.last_ms = now_ms
    ticket.chunks += tokens
    if ticket.reserved:
        state.admission.stream(ticket, tokens, now_ms)
        state.token_window.add(now_ms, tokens)


def _first(state: GateState, ticket: Ticket, now_ms: int) -> None:
    ticket.first_ms = now_ms
    waited_ms = now_ms - ticket.arrived_ms
    state.metrics.first_chunk(ticket.tier, waited_ms / 1000, ticket.trace_id)
    if ticket.reserved:
        load = state.token_window.totals(now_ms)[0]
        if state.slope.add(now_ms, load, now_ms - ticket.entered_ms):
            state.metrics.latency_grows()


def outcome_of(ticket: Ticket) -> str:
    """Name how the answer ended; one that never finished was left by its client."""
    if not ticket.done:
        return "disconnected"
    if ticket.status < 400:
        return "ok"
    return "client_error" if ticket.status < 500 else "server_error"


def settle(state: GateState, ticket: Ticket) -> None:
    """Take the real token counts from the answer's own words, and export the estimate's error."""
    found = usage_in(ticket.tail) if ticket.reserved and ticket.tail else None
    if found is None:
        return
    ticket.actual_prompt, ticket.actual_output = found
    state.metrics.estimated(ticket.tier, ticket.prompt_tokens, found[0])


def report(state: GateState, ticket: Ticket, outcome: str, now_ms: int) -> None:
    """Export how a request ended: outcome, cause, objectives, times."""
    metrics, tier = state.metrics, ticket.tier
    metrics.ended(
        tier, state.tenant_label(ticket.lane), outcome, (now_ms - ticket.arrived_ms) / 1000,
        ticket.trace_id)
    if outcome in ("server_error", "error"):
        state.blame(tier, ticket.cause or failure_of(ticket.status, ticket.tail))
    elif outcome != "ok":
        own = ticket.cause or "client_error"
        state.blame(tier, "client_left" if outcome == "disconnected" else own)
    if outcome in JUDGEMENT:
        state.judge(tier, outcome == "ok" and not ticket.stands_in and _in_time(state, ticket))
    if outcome == "ok":
        state.note_end(ticket, now_ms)
        gap_ms = ticket.time_per_token_ms()
        if gap_ms is not None:
            metrics.per_token(tier, gap_ms / 1000, ticket.trace_id)
    if ticket.reserved:
        metrics.tokens(tier, ticket.actual_prompt or ticket.prompt_tokens, ticket.output_tokens())


def _in_time(state: GateState, ticket: Ticket) -> bool:
    """The objective is on the first token, so only token streams are held to it."""
    known = state.config.tiers.get(ticket.tier)
    if known is None or known.p99_ms is None or not ticket.first_ms:
        return True
    return ticket.first_ms - ticket.arrived_ms <= known.p99_ms
