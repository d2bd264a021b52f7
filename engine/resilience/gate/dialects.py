"""What the events of an answer's stream say, in each API that streams tokens.

A chunk of a stream is one event or several whole ones. Quotes and line breaks inside generated
text are escaped, so what is looked for here stands only where the API itself says it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from resilience.gate.answer import Header

OPENED = b"data: {"
NEXT = b"\n\n"
NO_CHOICE = b'"choices":[]'
COMMENT = b":"
ABORT = b'"abort"'
# Their answers hold JSON that a client or the model wrote (metadata, tools and their input): what
# stands in it is not the server's word. They say nothing of an abort anyway.
HEARSAY = frozenset({"/v1/responses", "/v1/messages"})
_NUMBER = re.compile(rb'"sequence_number"\s*:\s*(\d{1,18})')
_ABORTED = re.compile(rb'"finish_reason"\s*:\s*"abort"')


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one API says that a token has come (`token`, once for each event), that it failed
    (`errors`, at the beginning of an event), and in which events it tells how many tokens there
    were (`totals`). Where every event carries a token but those (`all_tokens`), `token` begins a
    line; else a stream begins with some events that come before any token."""

    token: bytes
    errors: tuple[bytes, ...]
    totals: tuple[bytes, ...]
    all_tokens: bool = False

    def failed(self, chunk: bytes) -> bool:
        """Say whether one of the chunk's events is an error."""
        at, last = 0, len(chunk) - len(NEXT)
        while not chunk.startswith(self.errors, at):
            found = chunk.find(NEXT, at)
            if found < 0 or found >= last:
                return False
            at = found + len(NEXT)
        return True

    def begins(self, chunk: bytes) -> bool:
        """Say whether the first token is there, if it was not before."""
        return not chunk.startswith(COMMENT) if self.all_tokens else self.token in chunk

    def tokens(self, chunk: bytes) -> int:
        """Return how many of the chunk's events carry a token."""
        if not self.all_tokens:
            return chunk.count(self.token)
        count = chunk.startswith(self.token) + chunk.count(b"\n" + self.token)
        return count - 1 if count and self.states_usage(chunk) else count

    def states_usage(self, chunk: bytes) -> bool:
        """Say whether the chunk may state how many tokens the whole answer has."""
        return any(total in chunk for total in self.totals)


_CHOICES = Dialect(OPENED, (b'data: {"error"',), (NO_CHOICE,), all_tokens=True)
DIALECTS: Mapping[str, Dialect] = {
    "/v1/chat/completions": _CHOICES,
    "/v1/completions": _CHOICES,
    "/v1/messages": Dialect(
        b"event: content_block_delta\n", (b"event: error",),
        (b"event: message_start\n", b"event: message_delta\n")),
    "/v1/responses": Dialect(
        b".delta\ndata: {", (b"event: error", b"event: response.failed"),
        (b"event: response.completed\n", b"event: response.incomplete\n")),
}


def is_stream(headers: Iterable[Header]) -> bool:
    """Say whether an answer is a stream of events."""
    for name, value in headers:
        if value.startswith(b"text/event-stream") and name.lower() == b"content-type":
            return True
    return False


def is_aborted(chunk: bytes) -> bool:
    """Say whether a choice in it was ended by its server before it was done."""
    return ABORT in chunk and _ABORTED.search(chunk) is not None


def next_number(chunk: bytes) -> int:
    """Return the number that comes after those of a chunk's events, where an API numbers them."""
    numbers = _NUMBER.findall(chunk)
    return int(numbers[-1]) + 1 if numbers else 0
