"""What the engine process sees of itself: progress, and how the KV pool is used.

Two figures need a definition in a paged pool. *Residence*: from the step in which a sequence gets
its first blocks to the step after its end; a preempted one starts again when it comes back.
*Fragmentation*: the share of the token slots in blocks that sequences hold and that hold no token.
Any free block serves any request, so nothing is lost between blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from resilience.cores.exposition import RESIDENCE_S
from resilience.cores.vllm.pool import KvPool
from resilience.model import Json

logger = logging.getLogger("vllm.resilience")

LENGTHS = (512, 2048, 8192)
TRACKED_MAX = 8192
BLOCKS = ("total", "used", "held", "free")


def length_label(tokens: int) -> str:
    """Return the class of a sequence by its tokens: `512`, `2048`, `8192` or `+Inf`."""
    return next((str(limit) for limit in LENGTHS if tokens <= limit), "+Inf")


LABELS = tuple(length_label(n) for n in (*LENGTHS, LENGTHS[-1] + 1))


class Residence:
    """A histogram of seconds for one class of length."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(RESIDENCE_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        index = next((i for i, le in enumerate(RESIDENCE_S) if seconds <= le), len(RESIDENCE_S))
        self.counts[index] += 1
        self.sum_s += seconds


class EngineWatch:
    """Counters of one scheduler. Nothing here raises, and it is never asked by a step."""

    def __init__(self, scheduler: Any, pool: KvPool) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self._since: dict[str, tuple[int, Any]] = {}
        self._failed = False
        self.residence = {label: Residence() for label in LABELS}
        self.steps = 0
        self.tokens = 0
        self.peak_blocks = 0
        self.findings: dict[str, str] = {}

    def on_step(self, output: Any, now_ms: int) -> None:
        """Take in what one step scheduled and which sequences ended before it."""
        if self._failed:
            return
        try:
            self._count(output, now_ms)
        except Exception as error:
            self._failed = True  # its figures stand still from now on
            self._since.clear()
            self._note("steps", error)

    def _count(self, output: Any, now_ms: int) -> None:
        self.steps += 1
        self.tokens += output.total_num_scheduled_tokens
        for name in output.finished_req_ids:
            begun = self._since.pop(name, None)
            if begun is not None:
                length = length_label(begun[1].num_tokens)
                self.residence[length].add((now_ms - begun[0]) / 1000)
        for name in _admitted(output):
            self._since[name] = (now_ms, self._scheduler.requests[name])
            if len(self._since) > TRACKED_MAX:
                self._since.pop(next(iter(self._since)))

    def pulse(self) -> Json:
        """Return all figures as JSON. Counters only grow; the rest is as it is now.

        What has moved in this vLLM is 0 and named in `findings`.
        """
        return {
            **self._look("requests", self._counts, {"running": 0, "waiting": 0}),
            "steps": self.steps, "tokens": self.tokens,
            "paused": getattr(getattr(self._scheduler, "pause_state", None), "name", "UNPAUSED"),
            "watching": not self._failed,
            "blocks": self._look("blocks", self._blocks, dict.fromkeys(BLOCKS, 0)),
            "fragmentation": self._look(
                "fragmentation", self._fragmentation, dict.fromkeys(LABELS, 0.0)
            ),
            "residence": {
                label: {"counts": r.counts, "sum_s": r.sum_s}
                for label, r in self.residence.items()
            },
        }

    def _look(self, what: str, look: Callable[[], Json], nothing: Json) -> Json:
        try:
            return look()
        except Exception as error:
            self._note(what, error)
            return nothing

    def _note(self, what: str, error: Exception) -> None:
        if what not in self.findings:
            logger.error("resilience: watching %s failed", what, exc_info=error)
            self.findings[what] = f"the core cannot see its {what}: vLLM's scheduler has moved"

    def _counts(self) -> Json:
        running, waiting = self._scheduler.get_request_counts()
        return {"running": running, "waiting": waiting}

    def _blocks(self) -> Json:
        used = self._pool.used
        self.peak_blocks = max(self.peak_blocks, used)
        found = (self._pool.total, used, self._pool.held, self._pool.usable - used)
        return dict(zip(BLOCKS, found, strict=True))

    def requests(self, most: int = 50) -> list[Json]:
        """Return the requests in the scheduler, oldest first, as an incident bundle shows them."""
        known = sorted(self._scheduler.requests.values(), key=lambda r: r.arrival_time)
        return [
            {"id": r.request_id, "status": r.status.name, "tokens": r.num_tokens,
             "computed": r.num_computed_tokens, "preemptions": r.num_preemptions,
             "priority": r.priority, "arrival_s": r.arrival_time}
            for r in known[:most]
        ]

    def _fragmentation(self) -> dict[str, float]:
        """Return the empty share of the held slots, 0 to 1, by class of length; idle is 0."""
        slots, filled = dict.fromkeys(LABELS, 0), dict.fromkeys(LABELS, 0)
        for request in list(self._scheduler.running):
            label = length_label(request.num_tokens)
            for blocks, size in self._blocks_of(request.request_id):
                slots[label] += blocks * size
                filled[label] += min(request.num_computed_tokens, blocks * size)
        return {
            label: 1.0 - filled[label] / slots[label] if slots[label] else 0.0
            for label in LABELS
        }

    def _blocks_of(self, name: str) -> Iterator[tuple[int, int]]:
        """Yield (blocks, tokens of one block) of a sequence, for each group of layers."""
        groups = self._scheduler.kv_cache_config.kv_cache_groups
        held = self._scheduler.kv_cache_manager.get_block_ids(name)
        for ids, group in zip(held, groups, strict=True):
            yield len(ids), group.kv_cache_spec.block_size


def _admitted(output: Any) -> Iterator[str]:
    for fresh in output.scheduled_new_reqs:
        yield fresh.req_id
    yield from output.scheduled_cached_reqs.resumed_req_ids
