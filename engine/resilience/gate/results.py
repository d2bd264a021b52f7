"""One inference for all requests with one id: who runs, who waits for it, what is kept (W10).

Pure: it is told the time (monotonic ms). The first request with a key runs; its duplicates wait
until it ends. A good answer is kept and given to them and to later ones; after any other end, the
duplicate that has waited longest runs in its place, and the rest wait for that one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from resilience.gate.answer import Message

Key: TypeAlias = tuple[str, ...]
WAITING_MAX = 1_024
WAITING_OTHERS = 768  # of lower tiers: a flood of theirs leaves room for the first one's
RUNNING_MAX = 65_536
MESSAGE_COST = 512  # what a kept message weighs besides its bytes


Answer: TypeAlias = tuple[Message, ...]
# Called once: with the answer, or with None when the one who is called has to run itself.
Wake: TypeAlias = Callable[[Answer | None], None]


@dataclass(slots=True, eq=False)
class Run:
    """A request that runs for all with its id. `messages` None: its answer is too large to keep."""

    key: Key
    digest: bytes
    messages: list[Message] | None = field(default_factory=list[Message])
    size: int = 0
    waiting: list[Wake] = field(default_factory=list[Wake])


@dataclass(frozen=True, slots=True)
class Kept:
    """A good answer, from `ended_ms` on."""

    digest: bytes
    answer: Answer
    size: int
    ended_ms: int


class ConflictError(Exception):
    """The id was used with another request."""


class CrowdedError(Exception):
    """Too many requests with an id run or wait already."""


class Results:
    """What runs now, and kept answers; their messages weigh at most `bytes_max` together."""

    def __init__(self, keep_ms: int, bytes_max: int) -> None:
        self.keep_ms = keep_ms
        self.bytes_max = bytes_max
        self.size = 0
        self.waiting = 0
        self._running: dict[Key, Run] = {}
        self._kept: OrderedDict[Key, Kept] = OrderedDict()  # in the order of their ends

    def __len__(self) -> int:
        return len(self._running) + len(self._kept)

    def begin(self, key: Key, digest: bytes, now_ms: int) -> Run | Answer | None:
        """Say what a request has to do: run (its Run), take the answer, or `wait` (None).

        Raises ConflictError when the id belongs to a request with another digest, CrowdedError
        when there are too many.
        """
        self.forget(now_ms)
        found = self._kept.get(key) or self._running.get(key)
        if found is not None and found.digest != digest:
            raise ConflictError
        if isinstance(found, Kept):
            return found.answer
        if found is not None:
            return None
        if len(self._running) >= RUNNING_MAX:
            raise CrowdedError
        run = self._running[key] = Run(key, digest)
        return run

    def wait(self, key: Key, wake: Wake, most: int = WAITING_MAX) -> Run:
        """Let a duplicate wait for the one that runs, unless `most` wait already; returns what it
        owns if called with None."""
        if self.waiting >= most:
            raise CrowdedError
        run = self._running[key]
        run.waiting.append(wake)
        self.waiting += 1
        return run

    def leave(self, run: Run, wake: Wake) -> None:
        """Take out a duplicate that waits no longer; one that was called already is not there."""
        if wake in run.waiting:
            run.waiting.remove(wake)
            self.waiting -= 1

    def add(self, run: Run, message: Message) -> None:
        """Note one message of the answer."""
        if run.messages is None:
            return
        weight = len(message.get("body", b"")) + MESSAGE_COST
        run.messages.append(message)
        run.size += weight
        self.size += weight
        while self.size > self.bytes_max and self._kept:
            self._drop_oldest()
        if self.size > self.bytes_max:
            self._empty(run)

    def end(self, run: Run, good: bool, now_ms: int) -> None:
        """End a run, and call who waits for it."""
        if good and run.messages is not None:
            answer = tuple(run.messages)
            del self._running[run.key]
            self._kept[run.key] = Kept(run.digest, answer, run.size, now_ms)
            for wake in self._take(run, len(run.waiting)):
                wake(answer)
            return
        self._empty(run)
        if run.waiting:
            run.messages = []
            self._take(run, 1)[0](None)
        else:
            del self._running[run.key]

    def _take(self, run: Run, count: int) -> list[Wake]:
        taken, run.waiting = run.waiting[:count], run.waiting[count:]
        self.waiting -= len(taken)
        return taken

    def _empty(self, run: Run) -> None:
        self.size -= run.size
        run.size, run.messages = 0, None

    def forget(self, now_ms: int) -> None:
        """Drop what has been kept for long enough."""
        while self._kept and now_ms - next(iter(self._kept.values())).ended_ms >= self.keep_ms:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self.size -= self._kept.popitem(last=False)[1].size
