"""What a request's answer shows as it passes: status, first token, tokens, errors, its end.

Chunks are never changed. The headers get the time that the model took, and an explanation where the
gate altered something.
"""

from __future__ import annotations

from resilience.gate.answer import Message, latency_header
from resilience.gate.breaker import Outcome
from resilience.gate.breakers import hear_all
from resilience.gate.causes import failure_of
from resilience.gate.dialects import ABORT, COMMENT, HEARSAY, Dialect, is_aborted
from resilience.gate.state import GateState
from resilience.gate.ticket import Ticket
from resilience.gate.tokens import usage_in, usage_part

TAIL_MAX = 4_096
JUDGEMENT: dict[str, Outcome] = {
    "ok": "success", "server_error": "failure", "error": "failure",
}


def note_body(state: GateState, ticket: Ticket, message: Message) -> None:
    """Note what one part of the answer shows; of a whole one keep what it ends with, and notice
    that its server broke it off."""
    ticket.done = not message.get("more_body", False)
    if ticket.done and not ticket.answered_ms:
        ticket.answered_ms = state.clock_ms()
    chunk = message.get("body", b"")
    if not chunk:
        return
    if ticket.dialect is not None:
        _chunk(state, ticket, ticket.dialect, chunk)
        return
    if ticket.status >= 500 or ticket.reserved or not ticket.done or ticket.tail:
        chunk = ticket.tail + chunk  # what is looked for may be cut in two
        ticket.tail = chunk[-TAIL_MAX:]
        if ticket.reserved and len(chunk) > TAIL_MAX:  # more than a tail may follow the usage
            ticket.stated = usage_part(chunk) or ticket.stated
    if ABORT in chunk and ticket.path not in HEARSAY and is_aborted(chunk):
        ticket.aborted, ticket.cause = True, "stream_broken"
    elif ticket.is_probe and ticket.status < 400 and not chunk.startswith(COMMENT):
        hear_all(ticket, state.clock_ms())


def opened(state: GateState, ticket: Ticket, start: Message, streams: bool) -> Message:
    """Return an answer's start with what the gate altered in its headers, and how long the model
    took to its first byte. To be called when that is there. `streams`: it sends events."""
    now_ms = state.clock_ms()
    latency_ms = now_ms - ticket.entered_ms
    if streams and ticket.dialect is None:  # of which no more is known than that it has begun
        ticket.answered_ms = now_ms
    if ticket.status < 500 and not ticket.stands_in:
        state.heard_ms = now_ms
    if ticket.status < 400:
        state.latency_ms = latency_ms
    headers = [*start.get("headers", ()), *ticket.headers, latency_header(latency_ms)]
    return {**start, "headers": headers}


def _chunk(state: GateState, ticket: Ticket, dialect: Dialect, chunk: bytes) -> None:
    """Time the first chunk that carries a token; count tokens; notice an error in the stream."""
    if dialect.failed(chunk):
        ticket.status = 500  # the server had already said 200
        ticket.cause = failure_of(500, chunk, stream=True)
        return
    if dialect.states_usage(chunk):
        ticket.tail = usage_part(chunk)
    if ABORT in chunk and ticket.path not in HEARSAY and is_aborted(chunk):
        ticket.aborted = True
    if not ticket.first_ms and dialect.begins(chunk):
        _first(state, ticket, state.clock_ms())
    tokens = dialect.tokens(chunk)
    if not tokens:
        return
    ticket.last_ms = state.heard_ms = now_ms = state.clock_ms()
    ticket.chunks += tokens
    if ticket.is_probe and not ticket.aborted:
        hear_all(ticket, now_ms)
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
    """Name how the answer ended; one that never finished was left by its client. A redirect says
    that the client asked at the wrong place, nothing of how well the server is."""
    if not ticket.done:
        return "disconnected"
    if ticket.status < 300:
        return "ok"
    return "client_error" if ticket.status < 500 else "server_error"


def settle(state: GateState, ticket: Ticket) -> None:
    """Take the real token counts from the answer's own words, and export the estimate's error. A
    stream that did not come to its end may have said only how it began."""
    found = (usage_in(ticket.tail) if ticket.tail else None) or usage_in(ticket.stated)
    if found is None:
        return
    ticket.actual_prompt, output = found
    ticket.actual_output = output if output and ticket.done else max(output, ticket.chunks)
    state.metrics.estimated(ticket.tier, ticket.prompt_tokens, ticket.actual_prompt)


def report(
    state: GateState, ticket: Ticket, outcome: str, attempts: int | None, now_ms: int
) -> None:
    """Export how a request ended: outcome, attempts (None: it did not come so far), cause,
    objectives, times."""
    metrics, tier = state.metrics, ticket.tier
    tenant = state.tenant_label(ticket.lane)
    metrics.ended(tier, tenant, outcome, (now_ms - ticket.arrived_ms) / 1000, ticket.trace_id)
    book = state.books[tier]
    if outcome == "ok":
        in_time = not ticket.first_ms or _in_time(state, ticket)
        book.ended(now_ms, attempts, in_time and not ticket.stands_in)
        took_ms = now_ms - ticket.arrived_ms
        book.times.append((took_ms, took_ms - ticket.waited_ms))
        gap_ms = ticket.time_per_token_ms() if ticket.first_ms else None
        if gap_ms is not None:
            metrics.per_token(tier, gap_ms / 1000, ticket.trace_id)
    elif outcome in JUDGEMENT or outcome == "expired":
        state.blame(tier, ticket.cause or failure_of(ticket.status, ticket.tail))
        book.ended(now_ms, attempts, False)
    else:
        own = ticket.cause or "client_error"
        state.blame(tier, "client_left" if outcome == "disconnected" else own)
        book.ended(now_ms, attempts, None)
    if ticket.reserved and attempts:
        metrics.tokens(tier, ticket.actual_prompt or ticket.prompt_tokens, ticket.output_tokens())


def note_session(state: GateState, ticket: Ticket, outcome: str) -> None:
    """Count a WebSocket that ended. How long it was open is nobody's latency."""
    state.metrics.ended(ticket.tier, state.tenant_label(ticket.lane), outcome, None)
    if ticket.cause is not None:
        state.blame(ticket.tier, ticket.cause)


def _in_time(state: GateState, ticket: Ticket) -> bool:
    """The objective is on the first token, so only token streams are held to it."""
    known = state.config.tiers.get(ticket.tier)
    if known is None or known.p99_ms is None:
        return True
    return ticket.first_ms - ticket.arrived_ms <= known.p99_ms
