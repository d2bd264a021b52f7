"""The KV pool under claims: blocks taken out of it, and blocks that admission leaves free.

A paged pool has no order: any free block serves any request. So a smaller pool is simply one from
which blocks were taken, as if a request held them.
"""

from __future__ import annotations

import time
from typing import Any

from resilience.cores.vllm.preempt import preempt_one


class KvPool:
    """vLLM's block pool with two limits in usable blocks: `hard` and `soft`; None is all of it."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        manager = getattr(scheduler, "kv_cache_manager", None)
        self._pool: Any = getattr(manager, "block_pool", None)
        self._watermark = getattr(manager, "watermark_blocks", 0)
        self.total = getattr(self._pool, "num_gpu_blocks", 1) - 1
        self.hard: int | None = None
        self.soft: int | None = None
        self._held: list[Any] = []

    @property
    def held(self) -> int:
        """Return how many blocks are taken out of the pool."""
        return len(self._held)

    @property
    def usable(self) -> int:
        return self.total - len(self._held)

    @property
    def used(self) -> int:
        """Return how many blocks requests hold now."""
        return int(self.usable - self._pool.get_num_free_blocks())

    def usage(self) -> float:
        """Return the used share of the usable blocks, 0 to 1."""
        return self.used / self.usable if self.usable else 1.0

    def give_back(self) -> None:
        """Return to the pool what a wider `hard` limit no longer takes out."""
        excess = len(self._held) - self._wanted()
        if excess > 0:
            self._pool.free_blocks(self._held[-excess:])
            del self._held[-excess:]

    def write_watermark(self) -> None:
        """Tell admission to leave free what the soft limit does not let it fill."""
        manager = self._scheduler.kv_cache_manager
        left = 0 if self.soft is None else self.usable - self.soft
        manager.watermark_blocks = max(self._watermark, left)

    def take_out(self) -> int:
        """Take blocks out up to the hard limit; returns how many sequences were preempted for it.

        What cannot be freed at once is taken at a later step.
        """
        preempted = self._take()
        if self.soft is not None:
            self.write_watermark()
        return preempted

    def _take(self) -> int:
        preempted = 0
        while (short := self._wanted() - len(self._held)) > 0:
            free = min(short, self._pool.get_num_free_blocks())
            if free:
                self._held += self._pool.get_new_blocks(free)
            elif not self._scheduler.running or not preempt_one(self._scheduler):
                break
            else:
                preempted += 1
        return preempted

    def release(self) -> None:
        """Return all that was taken out; the limit stands and takes it again at the next step."""
        if self._held:
            self._pool.free_blocks(self._held)
            self._held = []

    def time_one(self) -> float:
        """Return the seconds that taking one block and giving it back takes; 0 when none is free.

        The block is the one that a request would get next, so at most the oldest cached one goes.
        """
        begun = time.perf_counter()
        if self._pool.get_num_free_blocks():
            self._pool.free_blocks(self._pool.get_new_blocks(1))
        return time.perf_counter() - begun

    def _wanted(self) -> int:
        return 0 if self.hard is None else max(0, self.total - self.hard)
