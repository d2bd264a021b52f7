"""One request on its way through the gate: who it is, what it holds, what its answer has shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from resilience.gate.causes import Cause

if TYPE_CHECKING:
    from resilience.gate.answer import Header
    from resilience.gate.breaker import Breaker, Pass
    from resilience.gate.dialects import Dialect
    from resilience.gate.limits import Tally
    from resilience.gate.trace import Span

Lane: TypeAlias = tuple[str, str, str]


def covers(scope: Lane, lane: Lane) -> bool:
    """Say whether a scope, "" for any, holds the requests of a lane."""
    return all(mine in ("", theirs) for mine, theirs in zip(scope, lane, strict=True))


def axes_of(scope: Lane) -> dict[str, str]:
    """Return the axes that a scope names."""
    return {a: n for a, n in zip(("tier", "tenant", "model"), scope, strict=True) if n}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not let through. `policy` "" is the Engine document's own limit."""

    status: int
    cause: Cause
    policy: str
    reason: str
    message: str
    retry_after_ms: int = 0


class Ticket:
    """A request from its arrival to the end of its answer. `lane` is (tier, tenant, model).

    `reserved` tokens are held from admission to the end. `verdict` is called at most once, when a
    request that waited may go (None) or is refused.
    """

    # What most requests never change is a default of the class: making a ticket is on every path.
    share = 1.0
    cost = 1.0
    factor = 1.0
    size = 0                            # bytes of the body, until somebody counts its tokens
    learns = False                      # who holds it can find out more about it while it waits
    recalled = False                    # not let in: to be offered again, with what claims ask now
    patience_ms = 0                     # how long it waits in the queue at most
    enqueued_ms = 0
    waited_ms = 0                       # in the queue, before all of its attempts
    deadline_ms = 0
    prompt_tokens = 0
    asked_output = 0
    reserved = 0
    tallies: tuple[Tally, ...] = ()
    passes: tuple[tuple[Breaker, Pass], ...] = ()
    verdict: Callable[[Refusal | None], None] | None = None
    headers: tuple[Header, ...] = ()
    trace_id = ""                       # the trace that the request belongs to, if it has one
    span: Span | None = None
    status = 0
    dialect: Dialect | None = None
    aborted = False
    chunks = 0
    first_ms = 0
    last_ms = 0
    answered_ms = 0                     # the first byte of a stream, the end of any other answer
    tail = b""
    stated = b""                        # the usage in a whole answer that goes on for long after it
    actual_prompt: int | None = None
    actual_output: int | None = None
    cause: Cause | None = None
    done = False
    is_judged = True                    # by breakers and objectives
    is_probe = False                    # of a breaker that is half open
    stands_in = False                   # a template's text: an answer, but not what was promised

    def __init__(self, lane: Lane, path: str, now_ms: int, priority: int = 0) -> None:
        self.lane = lane
        self.tier = lane[0]
        self.path = path
        self.priority = priority
        self.arrived_ms = now_ms
        self.entered_ms = now_ms

    def begin(self) -> None:
        """Forget what an answer has shown, before another attempt."""
        self.status = 0
        self.dialect = None
        self.aborted = False
        self.chunks = 0
        self.first_ms = 0
        self.last_ms = 0
        self.answered_ms = 0
        self.tail = self.stated = b""
        self.actual_prompt = self.actual_output = self.cause = None
        self.done = False

    @property
    def streams(self) -> bool:
        """Say whether the answer streams tokens."""
        return self.dialect is not None

    def unstreamed(self) -> int:
        """Return the output tokens that were not counted as they came; below 0: events of a stream
        that counted although they had no token, as the first of a chat, which names its role."""
        return (self.actual_output or 0) - self.chunks

    def comparable(self, tokens: int) -> int:
        """Return tokens of this server's tokenizer in tokens of the reference, for quotas."""
        return round(tokens * self.factor)

    def output_tokens(self) -> int:
        """Return the output tokens as well as they are known."""
        return self.chunks if self.actual_output is None else self.actual_output

    def took_ms(self, now_ms: int) -> int:
        """Return how long the server took for it: to the first token of a stream, else to the end.
        What follows the first token is as long as the answer, and how long the client takes to read
        is its own: neither says anything about the server."""
        return (self.first_ms or self.answered_ms or now_ms) - self.entered_ms

    def time_per_token_ms(self) -> float | None:
        """Return the mean gap between output tokens of a stream, or None for fewer than two."""
        tokens = self.output_tokens()
        if not self.streams or tokens < 2 or self.last_ms <= self.first_ms:
            return None
        return (self.last_ms - self.first_ms) / (tokens - 1)
