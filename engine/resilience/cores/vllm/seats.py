"""How many sequences run, and who may join them: seats, static batching, and classes of requests.

vLLM reads its limit of running sequences when it admits, so that setting it before a step is all
that draining and static batching need. Cutting at once preempts, and so does making room for a more
important request.
"""

from __future__ import annotations

from typing import Any

from resilience.cores.vllm.preempt import next_in_line, preempt_one, who_yields

BATCH_SHARE = 0.7
ATTRIBUTE = "max_num_active_reqs"
# Before somebody is preempted and computed again a seat may fall free by itself: with answers of a
# few dozen tokens one does in some steps. Steps on a CPU take long, so the wait ends by time too.
PATIENCE_STEPS = 8
PATIENCE_MS = 500


class Seats:
    """The limit of running sequences: `at_once` preempts the excess, `drain` lets it finish.

    `static` admits only while nothing runs. None and False are the baseline.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.baseline = getattr(scheduler, ATTRIBUTE, 0)
        self.at_once: int | None = None
        self.drain: int | None = None
        self.static = False
        self._waited_steps = 0
        self._waits_since_ms = 0

    @property
    def limit(self) -> int:
        """Return how many sequences may run, static batching left aside."""
        wanted = (self.at_once, self.drain)
        return min([self.baseline, *(w for w in wanted if w is not None)])

    def write(self) -> None:
        """Give the limit to vLLM. While a static batch runs nobody may join it."""
        limit = self.limit
        if self.static:
            limit = min(limit, len(self._scheduler.running) or limit)
        setattr(self._scheduler, ATTRIBUTE, limit)

    def cut(self) -> int:
        """Preempt what runs beyond `at_once`; returns how many were preempted."""
        cut = 0
        while self.at_once is not None and len(self._scheduler.running) > self.at_once:
            if not preempt_one(self._scheduler):
                break
            cut += 1
        return cut

    def give_way(self, now_ms: int) -> bool:
        """Let the least important sequence go back to waiting when all seats are taken and a more
        important request has waited for one: vLLM itself does so for blocks only. Says whether one
        did.

        The first of those that wait has patience, the others have waited with it; then one gives
        way a step, and each sequence three times at most, so that it gets done.
        """
        scheduler = self._scheduler
        first = next_in_line(scheduler)
        least = None if first is None else who_yields(scheduler, first)
        if least is None:
            self.forget_who_waits()
            return False
        if not self._waited_steps:
            self._waits_since_ms = now_ms
        self._waited_steps += 1
        if len(scheduler.running) != self.limit or not self._is_patience_over(now_ms):
            return False
        return preempt_one(scheduler, least)

    def forget_who_waits(self) -> None:
        """Let the next more important request that waits have all the patience."""
        self._waited_steps = 0

    def _is_patience_over(self, now_ms: int) -> bool:
        return (self._waited_steps > PATIENCE_STEPS
                or now_ms - self._waits_since_ms >= PATIENCE_MS)


class Classes:
    """Admission by what a client waits for: tokens as they come (`stream`), or the whole answer.

    What has been admitted once goes on, also after it was preempted.
    """

    def __init__(self, scheduler: Any, seats: Seats) -> None:
        self._scheduler = scheduler
        self._seats = seats
        self.mode = "batch"
        self.holds = False
        self._seen = self._others = self._tokens = 0

    def begin(self) -> None:
        """Start a step: nobody is held yet, and what runs is to be counted again."""
        self.holds = False
        self._seen = self._others = self._tokens = 0

    def admits(self, request: Any) -> bool:
        """Say whether the mode lets a waiting request in now."""
        if self.mode == "batch" or streams(request) or _was_admitted(request):
            return True
        allowed = self.mode == "hybrid" and self._has_room(request)
        self.holds = self.holds or not allowed
        return allowed

    def _has_room(self, request: Any) -> bool:
        """Say whether one more request that does not stream stays within its share.

        One is always let in, so that a prompt beyond the share is not left for ever.
        """
        self._count()
        if not self._others:
            return True
        seats = max(1, int(self._seats.limit * BATCH_SHARE))
        pool = self._scheduler.kv_cache_manager.block_pool
        room = (pool.num_gpu_blocks - 1) * self._scheduler.block_size * BATCH_SHARE
        return self._others < seats and self._tokens + request.num_tokens <= room

    def _count(self) -> None:
        """Count what runs; within a step the list only grows at its end."""
        running = self._scheduler.running
        for request in running[self._seen:]:
            if not streams(request):
                self._others += 1
                self._tokens += request.num_tokens
        self._seen = len(running)


def streams(request: Any) -> bool:
    """Say whether the client of a request reads its tokens as they come."""
    kind = getattr(getattr(request, "sampling_params", None), "output_kind", None)
    return getattr(kind, "name", "") == "DELTA"


def _was_admitted(request: Any) -> bool:
    return bool(request.num_preemptions or request.num_computed_tokens)
