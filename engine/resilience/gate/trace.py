"""The trace that a request belongs to, after W3C Trace Context: taken over, or begun."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from resilience.gate.answer import Header

HEADER = b"traceparent"
_SHAPE = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE, _NO_SPAN = b"0" * 32, b"0" * 16


@dataclass(frozen=True, slots=True)
class Span:
    """The gate's span of one request: hex digits, as they stand in logs and exemplars."""

    trace_id: str
    span_id: str
    flags: str = "01"

    def header(self) -> Header:
        """Return the header that makes whoever comes next a child of this span."""
        return HEADER, f"00-{self.trace_id}-{self.span_id}-{self.flags}".encode()


def span_of(headers: list[Header]) -> Span:
    """Return a new span: in the caller's trace if it names exactly one, else in a new trace."""
    given = [value for name, value in headers if name == HEADER]
    parent = _parse(given[0]) if len(given) == 1 else None
    own = f"{random.getrandbits(64) or 1:016x}"
    if parent is None:
        return Span(f"{random.getrandbits(128) or 1:032x}", own)
    return Span(parent[0], own, parent[1])


def passed_on(headers: list[Header], span: Span) -> list[Header]:
    """Return the headers with the span as parent. A trace that begins here has no older state."""
    new = all(name != HEADER or span.trace_id.encode() not in value for name, value in headers)
    gone = (HEADER, b"tracestate") if new else (HEADER,)
    return [*(pair for pair in headers if pair[0] not in gone), span.header()]


def _parse(value: bytes) -> tuple[str, str] | None:
    """Return (trace id, flags), or None where the standard says to begin a new trace."""
    found = _SHAPE.fullmatch(value.strip())
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == b"ff" or (version == b"00" and more) or trace == _NO_TRACE or span == _NO_SPAN:
        return None
    return trace.decode(), flags.decode()
