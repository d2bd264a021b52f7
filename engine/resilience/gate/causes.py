"""Why a request did not get a good answer: one cause each, of a closed list (W19)."""

from __future__ import annotations

from collections import Counter, deque
from typing import Literal, TypeAlias, get_args

RefusalCause: TypeAlias = Literal[
    "concurrency", "rate", "tokens", "context", "queue_full", "queue_timeout", "breaker_open",
]
FailureCause: TypeAlias = Literal[
    "out_of_memory", "kv_allocation", "kv_release", "tokenizer", "engine_dead", "overloaded",
    "timeout", "stream_error", "stream_broken", "internal",
]
ClientCause: TypeAlias = Literal["client_error", "client_left", "slow_body"]
Cause: TypeAlias = RefusalCause | FailureCause | ClientCause

REFUSALS: tuple[RefusalCause, ...] = get_args(RefusalCause)
FAILURES: tuple[FailureCause, ...] = get_args(FailureCause)
CLIENTS: tuple[ClientCause, ...] = get_args(ClientCause)
CAUSES: tuple[Cause, ...] = (*REFUSALS, *FAILURES, *CLIENTS)
REMEMBERED = 1_000
TEXT_MAX = 4_096

# What servers write about their failures, most telling first; all of a row's words must be there.
_SIGNS: tuple[tuple[FailureCause, tuple[bytes, ...]], ...] = (
    ("engine_dead", (b"enginedead",)),
    ("engine_dead", (b"enginecore encountered",)),
    ("kv_allocation", (b"no free", b"block")),
    ("kv_allocation", (b"cannot get", b"free blocks")),
    ("kv_allocation", (b"not enough", b"kv")),
    ("kv_release", (b"kv", b"free")),
    ("kv_release", (b"kv", b"releas")),
    ("kv_allocation", (b"kv", b"alloc")),
    ("kv_allocation", (b"cache", b"block", b"alloc")),
    ("out_of_memory", (b"out of memory",)),
    ("out_of_memory", (b"outofmemory",)),
    ("out_of_memory", (b"memoryerror",)),
    ("tokenizer", (b"tokeniz",)),
    ("tokenizer", (b"detokeniz",)),
    ("timeout", (b"timed out",)),
    ("timeout", (b"timeout",)),
    ("overloaded", (b"queue is full",)),
    ("overloaded", (b"overload",)),
)


def failure_of(status: int, text: bytes, stream: bool = False) -> FailureCause:
    """Name the cause of a failed answer by its status (5xx) and what it says (its beginning).

    `stream`: the error came inside a stream that had begun well.
    """
    words = text[:TEXT_MAX].lower()
    for cause, signs in _SIGNS:
        if all(sign in words for sign in signs):
            return cause
    if status == 504:
        return "timeout"
    if status in (503, 529):
        return "overloaded"
    return "stream_error" if stream else "internal"


def failure_of_exception(error: BaseException, streaming: bool = False) -> FailureCause:
    """Name the cause of what the application raised; `streaming`: in the middle of a stream."""
    cause = failure_of(500, f"{type(error).__name__}: {error}".encode(errors="replace"))
    return "stream_broken" if streaming and cause == "internal" else cause


class Shares:
    """The shares of the causes among the last failed and refused requests, clients' own apart."""

    def __init__(self) -> None:
        self._last: deque[Cause] = deque(maxlen=REMEMBERED)
        self._counts: Counter[Cause] = Counter()

    def add(self, cause: Cause) -> None:
        if cause in CLIENTS:
            return
        if len(self._last) == REMEMBERED:
            self._counts[self._last[0]] -= 1
        self._last.append(cause)
        self._counts[cause] += 1

    def of(self, cause: Cause) -> float:
        """Return 0..1; 0 when nothing failed."""
        return self._counts[cause] / len(self._last) if self._last else 0.0
