"""A request's body: read it within bounds, take out what a client may not say, put in what we say.

Most bodies are looked at and passed on untouched: of a JSON object only the keys are read that a
client may not use. What that reader does not take is searched as bytes: inside a text a quote is
escaped, so `"priority"` stands only where it is a key or a whole value. Only a body that holds one
of the keys (or escapes that could spell one) is parsed as a whole and written again.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from msgspec import UNSET, MsgspecError, Raw, Struct, UnsetType
from msgspec.json import Decoder

from resilience.gate.answer import Header, Message

Receive: TypeAlias = Callable[[], Awaitable[Message]]

BODY_MAX = 4 * 1024 * 1024
LARGE_MAX = 64 * 1024 * 1024
LARGE_TOTAL = 256 * 1024 * 1024
OWN_WORDS = ("priority", "tier", "tenant")
_SIGN = re.compile(rb'"(?:priority|tier|tenant)"')
_MARKS = (b"\xff\xfe", b"\xfe\xff")
_ESCAPE = b"\\u00"  # ASCII by number; looked for only where there is a backslash at all
_NESTED = ("vllm_xargs", "extra_args")


class _Said(Struct, gc=False):
    """The keys of a body that are `OWN_WORDS`, or may hold some; the rest is skipped unread."""

    priority: Raw | UnsetType = UNSET
    tier: Raw | UnsetType = UNSET
    tenant: Raw | UnsetType = UNSET
    vllm_xargs: Raw | UnsetType = UNSET
    extra_args: Raw | UnsetType = UNSET


_said_in = Decoder(_Said).decode
_NOTHING = _Said()


class LargeBodies:
    """The memory for what bodies have beyond `BODY_MAX`, of all requests together."""

    def __init__(self, bytes_max: int = LARGE_TOTAL) -> None:
        self.left = bytes_max

    def take(self, size: int) -> bool:
        if size > self.left:
            return False
        self.left -= size
        return True

    def give_back(self, size: int) -> None:
        self.left += size


class BodyReader:
    """Reads a request's body up to a bound and can hand out everything it took again.

    Bodies above `BODY_MAX` are read whole while `large` has room for them.
    """

    # What most requests never change is a default of the class: making a reader is on every path.
    _borrowed = 0
    _first: tuple[Message, ...] | None = None
    _watch: asyncio.Task[Message] | None = None
    _over: asyncio.Event | None = None
    _hidden = False
    left = False
    complete = False
    size = 0

    def __init__(self, receive: Receive, large: LargeBodies | None = None) -> None:
        self._receive = receive
        self._large = LargeBodies(0) if large is None else large
        self._taken: list[Message] = []

    async def read(self) -> bytes | None:
        """Return the whole body; None when it is too large or the client has left."""
        while True:
            message = await self._receive()
            self._taken.append(message)
            if message["type"] != "http.request":
                self.left = True
                return None
            piece: bytes = message.get("body", b"")
            self.size += len(piece)
            if self.size > BODY_MAX and not self._borrow():
                return None
            if not message.get("more_body", False):
                self.complete = True
                return piece if len(self._taken) == 1 else self._whole()

    async def connect(self) -> None:
        """Take the first message of a WebSocket. Until it is accepted, only its client's leaving
        can follow."""
        self._taken.append(await self._receive())
        self.complete = True

    def _borrow(self) -> bool:
        """Ask for the memory that this body needs beyond `BODY_MAX`."""
        more = self.size - BODY_MAX - self._borrowed
        if self.size > LARGE_MAX or not self._large.take(more):
            return False
        self._borrowed += more
        return True

    def _whole(self) -> bytes:
        body = b"".join(m.get("body", b"") for m in self._taken)
        self.replace(body)  # the pieces are not kept beside it
        return body

    def replace(self, body: bytes) -> None:
        """Let `replay` give `body` instead of what came."""
        self._taken = [{"type": "http.request", "body": body, "more_body": False}]

    def watch(self) -> asyncio.Task[Message]:
        """Wait for what comes after the body: the client's leaving. `replay` hands it on."""
        if self._watch is None:
            self._watch = asyncio.ensure_future(_received(self._receive))
        return self._watch

    def close(self) -> None:
        """Stop watching and give back what was borrowed; to be called when the request is over."""
        if self._borrowed:
            self._large.give_back(self._borrowed)
            self._borrowed = 0
        if self._watch is not None:
            self._watch.cancel()

    async def replay(self) -> Message:
        """Be the `receive` of the application: first what was read, then the rest."""
        if self._taken:
            return self._taken.pop(0)
        if self._over is not None:
            return await self._until_over()
        if self._watch is not None:
            watch, self._watch = self._watch, None
            return self._noted(await watch)
        return self._noted(await self._receive())

    def _noted(self, message: Message) -> Message:
        self.left = self.left or message["type"] == "http.disconnect"
        return message

    async def has_left(self) -> bool:
        """Say whether the client has left by now, without waiting."""
        if not self.left and self.complete:
            watch = self.watch()
            await asyncio.wait({watch}, timeout=0)
            self.left = watch.done() and not watch.cancelled()
        return self.left

    async def leaves_before(self, event: asyncio.Future[Any], most_s: float) -> bool:
        """Wait for an event, but no longer than the client stays, or than so long; says whether the
        client has left. While its body has not been read nobody can see that."""
        either: set[asyncio.Future[Any]] = {event}
        if self.complete:
            either.add(self.watch())
        await asyncio.wait(either, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
        return self.complete and self.watch().done()

    # --- for requests with a budget: several attempts, each of which can be ended ---------------

    def mark(self) -> None:
        """Remember what `replay` gives from now on, for `rewind`."""
        self._over = asyncio.Event()
        if self.complete:
            self._first = tuple(self._taken)

    def rewind(self) -> bool:
        """Let `replay` begin again; False when the body was too large to be kept."""
        if self._first is None:
            return False
        self._taken, self._over = list(self._first), asyncio.Event()
        return True

    def hang_up(self) -> None:
        """Tell the application that its client has left."""
        if self._over is not None:
            self._over.set()

    def keep_running(self) -> None:
        """Do not tell the application when the client leaves."""
        self._hidden = True

    async def _until_over(self) -> Message:
        """Wait for the client's leaving or for `hang_up`, or for more of a large body."""
        assert self._over is not None
        over = asyncio.ensure_future(self._over.wait())
        watched: set[asyncio.Future[Any]] = {over}
        hidden = self._hidden and self.complete
        try:
            if not hidden:
                watched.add(self.watch())
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
        if over.done() and not over.cancelled():
            return {"type": "http.disconnect"}
        watch, self._watch = self.watch(), None
        return self._noted(watch.result())


async def _received(receive: Receive) -> Message:
    return await receive()


def parsed(body: bytes) -> dict[str, Any] | str:
    """Return the body's JSON object, or why there is none: `not_json`, `no_object`."""
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        return "not_json"
    return found if isinstance(found, dict) else "no_object"


def written(body: dict[str, Any]) -> bytes:
    """Return the bytes of a changed body."""
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")


def may_claim(body: bytes) -> bool:
    """Say whether a body could name its own priority, tier or tenant."""
    try:
        if _said_in(body) == _NOTHING:
            return False
    except (MsgspecError, RecursionError):
        pass  # the server may read more than this reader: other encodings, a number like NaN
    return (
        _SIGN.search(body) is not None
        or (b"\\" in body and _ESCAPE in body)
        or (body[1:2] != b'"' and is_wide(body))  # most begin with `{"`
    )


def is_wide(body: bytes) -> bool:
    """Say whether a JSON text is in UTF-16 or UTF-32, where no word is found as bytes; servers that
    use Python's parser read it all the same."""
    return b"\0" in body[:4] or body.startswith(_MARKS)


def strip(body: dict[str, Any]) -> bool:
    """Take a client's own priority, tier and tenant out; says whether anything was there."""
    found = False
    for part in (body, *(body.get(key) for key in _NESTED)):
        if isinstance(part, dict):
            for word in OWN_WORDS:
                found |= part.pop(word, body) is not body
    return found


def with_priority(body: bytes, priority: int) -> bytes | None:
    """Return a JSON object's bytes with `priority` as its last key, which counts of several equal
    ones; None when it is no object: then its server says so in its own words."""
    end = body.rstrip()
    if not end.endswith(b"}") or (len(body) <= BODY_MAX and not _is_object(body)):
        return None
    head = end[:-1].rstrip()
    comma = b"" if head.endswith(b"{") else b","
    return head + comma + b'"priority":%d}' % priority


def _is_object(body: bytes) -> bool:
    """Say whether a server could read the body as an object; a server may read more than the quick
    reader, and what is too deep here may not be so there."""
    try:
        _said_in(body)
        return True
    except RecursionError:
        return True
    except MsgspecError:
        pass
    try:
        return isinstance(json.loads(body), dict)
    except RecursionError:
        return True
    except ValueError:
        return False


def with_length(headers: list[Header], size: int) -> list[Header]:
    """Return the headers with the length of the new body."""
    kept = [pair for pair in headers if pair[0] not in (b"content-length", b"transfer-encoding")]
    return [*kept, (b"content-length", str(size).encode())]
