"""Taking a running sequence back to the waiting queue, as vLLM itself does when blocks run out.

Its output and its tokens stay; its KV is computed again when it is admitted again.
"""

from __future__ import annotations

import time
from typing import Any


def preempt_one(scheduler: Any, victim: Any = None) -> bool:
    """Preempt `victim`, or the sequence that vLLM would choose; False when its blocks cannot be
    freed now.

    Raises what vLLM raises, with the sequence back among the running ones.
    """
    victim = _victim(scheduler) if victim is None else victim
    freeable = getattr(scheduler, "_request_blocks_can_be_freed", None)
    if freeable is not None and not freeable(victim):
        return False  # a transfer still reads its blocks: let it drain by finishing
    scheduler.running.remove(victim)
    try:
        scheduler._preempt_request(victim, time.monotonic(), drop_stale_output=True)
    except Exception:
        if victim.status.name == "RUNNING":
            scheduler.running.append(victim)
        raise
    return True


def has_priorities(scheduler: Any) -> bool:
    """Say whether the scheduler goes by the priorities of requests."""
    return getattr(scheduler.policy, "value", "") == "priority"


def _victim(scheduler: Any) -> Any:
    """Choose as vLLM does: the newest, or with priorities the least important."""
    if has_priorities(scheduler):
        return max(scheduler.running, key=lambda r: (r.priority, r.arrival_time))
    return scheduler.running[-1]
