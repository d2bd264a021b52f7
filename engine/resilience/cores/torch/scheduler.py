"""The scheduler that transformers' continuous batching runs with in this core.

It changes who may be in the next batch; how a batch is filled stays transformers' own. The class is
made on demand, because its base comes with torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from resilience.cores.torch.levers import Levers

NAME = "resilience"
NOTHING: tuple[list[Any], bool, int, int] = ([], False, 0, 0)


def register(levers: Levers, priority: Callable[[str], int]) -> str:
    """Let transformers know the scheduler; returns the name to choose it by."""
    from transformers.generation.continuous_batching.scheduler import (
        SCHEDULER_MAPPING,
        FIFOScheduler,
    )

    class LeverScheduler(FIFOScheduler):  # type: ignore[misc]
        """First the running sequences, then the waiting ones by priority, as the levers allow."""

        steps = 0
        tokens = 0
        forget_prefixes = False

        def schedule_batch(self, token_budget: int, cache_budget: int) -> Any:
            if self.forget_prefixes:
                self.forget_prefixes = False
                self.cache.evict_cached_blocks()
            if levers.paused:
                return NOTHING
            now = levers.settings()
            removed: set[str] = set()
            found, failed, fast, queries, reads = self._process_candidates(
                _candidates(self, levers, priority), min(token_budget, now.step_tokens),
                cache_budget, removed,
            )
            self._cleanup_waiting_queue(removed)
            self.steps += 1
            self.tokens += queries
            return (None, fast, 0, 0) if not found and failed else (found, fast, queries, reads)

        def _infer_request_tokens(
            self, state: Any, request_ids_to_remove_from_waiting: set[str]
        ) -> Any:
            if levers.settings().prefix or state.tokens_to_process:
                return super()._infer_request_tokens(state, request_ids_to_remove_from_waiting)
            return state.remaining_prefill_tokens

    SCHEDULER_MAPPING[NAME] = LeverScheduler
    return NAME


def _candidates(scheduler: Any, levers: Levers, priority: Callable[[str], int]) -> list[Any]:
    """Return who may be in the next batch, the oldest running sequences first."""
    now = levers.settings()
    running = list(scheduler.active_requests.values())[:now.max_running]
    running.sort(key=lambda state: bool(state.remaining_prefill_tokens))
    room = min(now.max_running, now.admit_running) - len(scheduler.active_requests)
    if levers.closed or (now.static and scheduler.active_requests):
        room = 0
    waiting = scheduler._get_waiting_candidates() if room > 0 else []
    waiting.sort(key=lambda state: priority(state.request_id))
    return running + waiting[:room]
