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
NO_CHOICE = b'"choices":[]'
COMMENT = b":"
USAGE = b'_tokens"'
ABORT = b'"abort"'
_NUMBER = re.compile(rb'"sequence_number"\s*:\s*(\d{1,18})')
_ABORTED = re.compile(rb'"finish_reason"\s*:\s*"abort"')


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one API says that a token has come (`token`, once for each event), that it failed
    (`errors`, at the beginning of a chunk), and which of its token events carries none but the
    usage (`bare`). Where that is another kind of event (None), a stream begins with some that come
    before any token."""

    token: bytes
    errors: tuple[bytes, ...]
    bare: bytes | None = None

    def failed(self, chunk: bytes) -> bool:
        return chunk.startswith(self.errors)

    def begins(self, chunk: bytes) -> bool:
        """Say whether the first token is there, if it was not before."""
        return self.token in chunk if self.bare is None else not chunk.startswith(COMMENT)

    def tokens(self, chunk: bytes) -> int:
        """Return how many of the chunk's events carry a token."""
        count = chunk.count(self.token)
        return count - 1 if count and self.bare is not None and self.bare in chunk else count

    def states_usage(self, chunk: bytes) -> bool:
        """Say whether the chunk may state how many tokens the whole answer has."""
        return (USAGE if self.bare is None else self.bare) in chunk


_CHOICES = Dialect(OPENED, (b'data: {"error"',), NO_CHOICE)
DIALECTS: Mapping[str, Dialect] = {
    "/v1/chat/completions": _CHOICES,
    "/v1/completions": _CHOICES,
    "/v1/messages": Dialect(b"event: content_block_delta\n", (b"event: error",)),
    "/v1/responses": Dialect(b".delta\ndata: {", (b"event: error", b"event: response.failed")),
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
