"""Who gets the tokens of a step: the more important first, also while prompts are being read.

vLLM gives a step's tokens to what runs, in the order in which it was started, and the rest to who
waits. So a prompt that takes several steps, once begun, is read to its end before a more important
request gets a token, whether that one waits or runs behind it.
"""

from __future__ import annotations

from typing import Any

from resilience.cores.vllm.preempt import (
    has_priorities,
    is_reading,
    next_in_line,
    preempt_one,
    who_yields,
)


def put_in_order(scheduler: Any) -> None:
    """While some prompt is being read, let the more important running sequences go first.

    Where every running sequence needs one token all of them get it, in any order.
    """
    running = scheduler.running
    if has_priorities(scheduler) and any(map(is_reading, running)):
        running.sort(key=_priority)


def make_room(scheduler: Any) -> int:
    """Let prompts that are less important than the next in line be read later, as far as it needs
    their tokens in this step; returns how many sequences went back to waiting."""
    first = next_in_line(scheduler)
    if first is None or not any(map(is_reading, scheduler.running)):
        return 0
    budget: int = scheduler.max_num_scheduled_tokens
    over = sum(_needs(scheduler, r) for r in (*scheduler.running, first)) - budget
    gone = 0
    while over > 0 and (least := who_yields(scheduler, first, reading=True)) is not None:
        needed = _needs(scheduler, least)
        if not preempt_one(scheduler, least):
            break
        over -= needed
        gone += 1
    return gone


def _priority(request: Any) -> int:
    return int(request.priority)


def _needs(scheduler: Any, request: Any) -> int:
    """Return the tokens that a sequence would take of a step, at least one."""
    left: int = max(1, request.num_tokens - request.num_computed_tokens)
    most: int = getattr(scheduler.scheduler_config, "long_prefill_token_threshold", 0)
    return min(left, most) if most else left
