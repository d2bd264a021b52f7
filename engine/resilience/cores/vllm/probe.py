"""Which levers this vLLM offers, found by looking and not by version number.

The scheduler's interface is not public. Each lever names what it needs; when one of these has moved
the lever is dropped, with the reason, and the others stay.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from resilience.model import Json, KnobCapability

MAX_RUNNING = "cache.max_running"
STEP_TOKENS = "cache.step_tokens"
PREFIX = "cache.prefix_enabled"
SCHEDULER_KNOBS = (PREFIX, MAX_RUNNING, STEP_TOKENS)


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
    if not subclassed:
        raise _Missing("the scheduler is not this package's; start with its `--scheduler-cls`")
    _needs_parameters(scheduler, "_get_local_prefix_cache_hit", ("request",))
    manager = getattr(scheduler, "kv_cache_manager", None)
    if not getattr(manager, "enable_caching", False):
        raise _Missing("the server runs without prefix caching")
    if not hasattr(manager, "empty_kv_cache_blocks"):
        raise _Missing("`kv_cache_manager.empty_kv_cache_blocks` has moved")
    return KnobCapability("subclass", baseline=True)


_LOOKS: dict[str, Callable[[Any, bool], KnobCapability]] = {
    PREFIX: _look_at_prefix, MAX_RUNNING: _look_at_running, STEP_TOKENS: _look_at_tokens,
}


def _whole(thing: Any, name: str) -> int:
    value = getattr(thing, name, 0)
    return value if isinstance(value, int) else 0


def _needs_attribute(thing: Any, name: str, kind: type) -> Any:
    value = getattr(thing, name, None)
    if not isinstance(value, kind):
        raise _Missing(f"attribute `{name}` of the scheduler has moved")
    return value


def _needs_parameters(thing: Any, name: str, wanted: tuple[str, ...]) -> None:
    method = _original(thing, name)
    if method is None:
        raise _Missing(f"method `{name}` of the scheduler has moved")
    have = inspect.signature(method).parameters
    for parameter in wanted:
        if parameter not in have:
            raise _Missing(f"method `{name}` of the scheduler has lost `{parameter}`")


def _original(thing: Any, name: str) -> Any:
    """Return vLLM's own method, below an override of this package."""
    for base in type(thing).__mro__:
        if name in vars(base) and not base.__module__.startswith("resilience."):
            return vars(base)[name]
    return None
