"""The trace that a request belongs to, after W3C Trace Context: taken over, or begun."""

from __future__ import annotations

import random
import re

from resilience.gate.answer import Header

HEADER = b"traceparent"
STATE_HEADER = b"tracestate"
WORDS = frozenset({HEADER, STATE_HEADER})
_SHAPE = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NOT_ZERO = 1 << 191 | 1 << 63  # no id is all zeros; the lower bits stay as they were drawn
_PARENT = frozenset({HEADER})
_NO_TRACE, _NO_SPAN = b"0" * 32, b"0" * 16


class Span:
    """The gate's span of one request: hex digits, as they stand in logs and exemplars.

    `header` makes whoever comes next a child of this span; `stale` are the headers that came with
    the request and do not go on with it.
    """

    __slots__ = ("header", "span_id", "stale", "trace_id")

    def __init__(
        self, trace_id: str, span_id: str, flags: str = "01",
        stale: frozenset[bytes] = frozenset(),
    ) -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.header: Header = (HEADER, f"00-{trace_id}-{span_id}-{flags}".encode())
        self.stale = stale


def span_of(headers: list[Header]) -> Span:
    """Return a new span: in the caller's trace if it names exactly one, else in a new trace."""
    drawn = (random.getrandbits(192) | _NOT_ZERO).to_bytes(24, "big").hex()
    own = drawn[32:]
    for name, _ in headers:
        if name in WORDS:
            break
    else:
        return Span(drawn[:32], own)
    given = [value for name, value in headers if name == HEADER]
    parent = _parse(given[0]) if len(given) == 1 else None
    if parent is None:  # a trace that begins here has no older state
        return Span(drawn[:32], own, stale=WORDS)
    return Span(parent[0], own, parent[1], _PARENT)


def passed_on(headers: list[Header], span: Span) -> list[Header]:
    """Return the headers with the span as parent."""
    stale = span.stale
    kept = [pair for pair in headers if pair[0] not in stale] if stale else headers
    return [*kept, span.header]


def _parse(value: bytes) -> tuple[str, str] | None:
    """Return (trace id, flags), or None where the standard says to begin a new trace."""
    found = _SHAPE.fullmatch(value.strip())
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == b"ff" or (version == b"00" and more) or trace == _NO_TRACE or span == _NO_SPAN:
        return None
    return trace.decode(), flags.decode()
