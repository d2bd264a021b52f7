"""Which levers this vLLM offers, found by looking and not by version number.

The scheduler's interface is not public. Each lever names what it needs; when one of these has moved
the lever is dropped, with the reason, and the others stay.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from resilience.cores.scheduler_knobs import (
    ADMIT_RUNNING,
    BATCHING,
    KV_BLOCKS,
    KV_SOFT,
    MAX_RUNNING,
    MODE,
    PREFIX,
    STEP_TOKENS,
)
from resilience.model import Json, KnobCapability


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found: knob -> capability, and what was dropped with the reason."""

    knobs: Mapping[str, KnobCapability]
    dropped: tuple[Json, ...]


class _Missing(Exception):
    """A lever's ground is not there; the text says which."""


def probe(scheduler: Any, *, subclassed: bool) -> Probe:
    """Look at a live scheduler. `subclassed`: it is ours, so overrides are in force."""
    knobs: dict[str, KnobCapability] = {}
    dropped: list[Json] = []
    for name, look in _LOOKS.items():
        try:
            knobs[name] = look(scheduler, subclassed)
        except _Missing as missing:
            dropped.append({"knob": name, "reason": str(missing)})
        except Exception as error:
            dropped.append({"knob": name, "reason": f"looking for it failed: {error}"})
    return Probe(knobs, tuple(dropped))


def can_preempt(scheduler: Any) -> bool:
    """Say whether running sequences can be cut at once, and not only by finishing."""
    try:
        _needs_parameters(scheduler, "_preempt_request", ("request", "timestamp"))
        _needs_parameters(scheduler, "_preempt_request", ("drop_stale_output",))
        _needs_attribute(scheduler, "running", list)
    except _Missing:
        return False
    return True


def _look_at_running(scheduler: Any, subclassed: bool) -> KnobCapability:
    limit = _needs_attribute(scheduler, "max_num_active_reqs", int)
    at_once = subclassed and can_preempt(scheduler)
    return KnobCapability(
        "subclass" if at_once else "attribute", baseline=limit, capacity=float(limit), minimum=1.0
    )


def _look_at_admission(scheduler: Any, _subclassed: bool) -> KnobCapability:
    limit = _needs_attribute(scheduler, "max_num_active_reqs", int)
    return KnobCapability("attribute", baseline=limit, capacity=float(limit), minimum=1.0)


def _look_at_batching(scheduler: Any, _subclassed: bool) -> KnobCapability:
    """Static batching needs no more than the limit of running sequences, set step by step."""
    _needs_attribute(scheduler, "max_num_active_reqs", int)
    _needs_attribute(scheduler, "running", list)
    return KnobCapability("attribute", baseline="dynamic")


def _look_at_mode(scheduler: Any, subclassed: bool) -> KnobCapability:
    _needs_ours(subclassed)
    _needs_parameters(scheduler, "_handle_blocked_waiting_request", ("request",))
    _needs_attribute(scheduler, "running", list)
    return KnobCapability("subclass", baseline="batch")


def _look_at_blocks(scheduler: Any, subclassed: bool) -> KnobCapability:
    _needs_ours(subclassed)
    if not can_preempt(scheduler):
        raise _Missing("the scheduler's way to preempt has moved")
    total = pool_blocks(scheduler)
    pool = scheduler.kv_cache_manager.block_pool
    _needs_parameters(pool, "get_new_blocks", ("num_blocks",))
    _needs_parameters(pool, "free_blocks", ("ordered_blocks",))
    _needs_parameters(pool, "get_num_free_blocks", ())
    least = min(total, progress_blocks(scheduler))
    return KnobCapability(
        "subclass", baseline=total, capacity=float(total), minimum=float(least)
    )


def _look_at_watermark(scheduler: Any, _subclassed: bool) -> KnobCapability:
    """vLLM leaves its watermark out while nothing runs, so any value lets one sequence in."""
    total = pool_blocks(scheduler)
    manager = scheduler.kv_cache_manager
    _needs_attribute(manager, "watermark_blocks", int)
    _needs_parameters(manager, "allocate_slots", ("has_scheduled_reqs",))
    return KnobCapability("attribute", baseline=total, capacity=float(total), minimum=1.0)


def pool_blocks(scheduler: Any) -> int:
    """Return the blocks of the KV pool that requests can use: all but vLLM's null block."""
    pool = getattr(getattr(scheduler, "kv_cache_manager", None), "block_pool", None)
    total = getattr(pool, "num_gpu_blocks", None)
    if not isinstance(total, int):
        raise _Missing("attribute `num_gpu_blocks` of the block pool has moved")
    return total - 1


def progress_blocks(scheduler: Any) -> int:
    """Return how many blocks the longest request of this server may need."""
    length = _whole(scheduler, "max_model_len")
    groups = getattr(getattr(scheduler, "kv_cache_config", None), "kv_cache_groups", ())
    sizes = [_whole(group.kv_cache_spec, "block_size") for group in groups]
    if not sizes or not all(sizes) or not length:
        raise _Missing("the KV cache's groups have moved, so the longest request has no size")
    return sum(-(-length // size) for size in sizes)


def _look_at_tokens(scheduler: Any, _subclassed: bool) -> KnobCapability:
    budget = _needs_attribute(scheduler, "max_num_scheduled_tokens", int)
    return KnobCapability(
        "attribute", baseline=budget, capacity=float(budget),
        minimum=float(min(budget, progress_tokens(scheduler))),
    )


def progress_tokens(scheduler: Any) -> int:
    """Return the smallest step budget with which every request still gets on.

    Without chunked prefill a prompt needs one step for itself; speculative decoding needs its
    drafts and their token in one step; aligned hybrid models schedule whole blocks.
    """
    config = getattr(scheduler, "scheduler_config", None)
    ahead = ("num_spec_tokens", "num_prefill_lookahead")
    needs = [1 + _whole(scheduler, name) for name in ahead]
    if not getattr(config, "enable_chunked_prefill", True):
        needs.append(_whole(scheduler, "max_model_len"))
    if getattr(scheduler, "need_mamba_block_aligned_split", False):
        needs.append(_whole(scheduler, "block_size"))
    return max(needs)


def _look_at_prefix(scheduler: Any, subclassed: bool) -> KnobCapability:
    _needs_ours(subclassed)
    _needs_parameters(scheduler, "_get_local_prefix_cache_hit", ("request",))
    manager = getattr(scheduler, "kv_cache_manager", None)
    if not getattr(manager, "enable_caching", False):
        raise _Missing("the server runs without prefix caching")
    if not hasattr(manager, "empty_kv_cache_blocks"):
        raise _Missing("`kv_cache_manager.empty_kv_cache_blocks` has moved")
    return KnobCapability("subclass", baseline=True)


_LOOKS: dict[str, Callable[[Any, bool], KnobCapability]] = {
    PREFIX: _look_at_prefix, MAX_RUNNING: _look_at_running, ADMIT_RUNNING: _look_at_admission,
    STEP_TOKENS: _look_at_tokens, KV_BLOCKS: _look_at_blocks, KV_SOFT: _look_at_watermark,
    BATCHING: _look_at_batching, MODE: _look_at_mode,
}


def _needs_ours(subclassed: bool) -> None:
    if not subclassed:
        raise _Missing("the scheduler is not this package's; start with its `--scheduler-cls`")


def _whole(thing: Any, name: str) -> int:
    value = getattr(thing, name, 0)
    return value if isinstance(value, int) else 0


def _needs_attribute(thing: Any, name: str, kind: type) -> Any:
    value = getattr(thing, name, None)
    if not isinstance(value, kind):
        raise _Missing(f"attribute `{name}` of the {_called(thing)} has moved")
    return value


def _needs_parameters(thing: Any, name: str, wanted: tuple[str, ...]) -> None:
    method = _original(thing, name)
    if method is None:
        raise _Missing(f"method `{name}` of the {_called(thing)} has moved")
    have = inspect.signature(method).parameters
    for parameter in wanted:
        if parameter not in have:
            raise _Missing(f"method `{name}` of the {_called(thing)} has lost `{parameter}`")


def _called(thing: Any) -> str:
    name = type(thing).__name__
    return {"BlockPool": "block pool", "KVCacheManager": "KV cache"}.get(name, "scheduler")


def _original(thing: Any, name: str) -> Any:
    """Return vLLM's own method, below an override of this package."""
    if not callable(getattr(thing, name, None)):
        return None
    for base in type(thing).__mro__:
        if name in vars(base) and not base.__module__.startswith("resilience."):
            return vars(base)[name]
    return None
