"""Taking a running sequence back to the waiting queue, as vLLM itself does when blocks run out.

Its output and its tokens stay; its KV is computed again when it is admitted again.
"""

from __future__ import annotations

import time
from typing import Any

YIELDS_MAX = 3
STARTABLE = ("WAITING", "PREEMPTED")  # others wait for something that no seat gives them


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


def next_in_line(scheduler: Any) -> Any | None:
    """Return the waiting request that goes next, where priorities count and it could start now."""
    paused = getattr(getattr(scheduler, "pause_state", None), "name", "UNPAUSED")
    if not scheduler.waiting or not has_priorities(scheduler) or paused != "UNPAUSED":
        return None
    first = scheduler.waiting.peek_request()
    return first if first.status.name in STARTABLE else None


def who_yields(scheduler: Any, first: Any, *, reading: bool = False) -> Any | None:
    """Return the newest of the least important running sequences that may give way to `first`, or
    None; `reading`: of those alone whose prompt is still being read. Each yields a few times only,
    so that it gets done."""
    return max(
        (r for r in scheduler.running
         if r.priority > first.priority and r.num_preemptions < YIELDS_MAX
         and (not reading or is_reading(r))),
        key=lambda r: (r.priority, r.arrival_time), default=None)


def is_reading(request: Any) -> bool:
    """Say whether a running sequence has not come to its next token yet: its prompt, or what it
    lost when it was preempted, takes more than one step."""
    return bool(getattr(request, "is_prefill_chunk", False))


def has_priorities(scheduler: Any) -> bool:
    """Say whether the scheduler goes by the priorities of requests."""
    return getattr(scheduler.policy, "value", "") == "priority"


def _victim(scheduler: Any) -> Any:
    """Choose as vLLM does: the newest, or with priorities the least important."""
    if has_priorities(scheduler):
        return max(scheduler.running, key=lambda r: (r.priority, r.arrival_time))
    return scheduler.running[-1]
