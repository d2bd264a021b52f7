"""One request on its way through the gate: who it is, what it holds, what its answer has shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from resilience.gate.causes import Cause, RefusalCause

if TYPE_CHECKING:
    from resilience.gate.answer import Header, Message
    from resilience.gate.breaker import Breaker, Pass

Lane: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not let through. `policy` "" is the Engine document's own limit."""

    status: int
    cause: RefusalCause
    policy: str
    reason: str
    message: str
    retry_after_ms: int = 0


class Ticket:
    """A request from its arrival to the end of its answer. `lane` is (tier, tenant, model).

    `reserved` tokens are held from admission to the end. `verdict` is called at most once, when a
    request that waited may go (None) or is refused.
    """

    __slots__ = (
        "actual_output", "actual_prompt", "arrived_ms", "asked_output", "cause", "chunks",
        "cost", "deadline_ms", "done", "enqueued_ms", "entered_ms", "factor", "first_ms", "headers",
        "held",
        "lane", "last_ms", "passes", "path", "priority", "prompt_tokens", "reserved", "scopes",
        "share", "status", "streams", "tail", "verdict",
    )

    def __init__(self, lane: Lane, path: str, now_ms: int, priority: int = 0) -> None:
        self.lane = lane
        self.path = path
        self.priority = priority
        self.share = 1.0
        self.cost = 1.0
        self.factor = 1.0
        self.arrived_ms = now_ms
        self.enqueued_ms = 0
        self.deadline_ms = 0
        self.entered_ms = now_ms
        self.prompt_tokens = 0
        self.asked_output = 0
        self.reserved = 0
        self.scopes: tuple[Lane, ...] = ()
        self.passes: tuple[tuple[Breaker, Pass], ...] = ()
        self.verdict: Callable[[Refusal | None], None] | None = None
        self.headers: tuple[Header, ...] = ()
        self.held: Message | None = None
        self.status = 0
        self.streams = False
        self.chunks = 0
        self.first_ms = 0
        self.last_ms = 0
        self.tail = b""
        self.actual_prompt: int | None = None
        self.actual_output: int | None = None
        self.cause: Cause | None = None
        self.done = False

    @property
    def tier(self) -> str:
        return self.lane[0]

    def unstreamed(self) -> int:
        """Return the output tokens that were not counted as they came."""
        return max(0, (self.actual_output or 0) - self.chunks)

    def comparable(self, tokens: int) -> int:
        """Return tokens of this server's tokenizer in tokens of the reference, for quotas."""
        return round(tokens * self.factor)

    def output_tokens(self) -> int:
        """Return the output tokens as well as they are known."""
        return self.chunks if self.actual_output is None else self.actual_output

    def time_per_token_ms(self) -> float | None:
        """Return the mean gap between output tokens of a stream, or None for fewer than two."""
        tokens = self.output_tokens()
        if not self.streams or tokens < 2 or self.last_ms <= self.first_ms:
            return None
        return (self.last_ms - self.first_ms) / (tokens - 1)
