"""The general plug-in: one utility of the engine core, called between two steps.

vLLM looks a utility up by name on the engine, so one attribute on its class is the whole hook.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from resilience.cores.vllm.levers import Levers
from resilience.cores.vllm.scheduler import levers_of
from resilience.knobs import BadDocumentError, StaleDocumentError
from resilience.model import Json

UTILITY = "resilience"


def register() -> None:
    """Add the utility to vLLM's engine; safe to call in every process and more than once."""
    from vllm.v1.engine.core import EngineCore

    setattr(EngineCore, UTILITY, engine_utility)


def engine_utility(engine: Any, payload: Json) -> Json:
    """Answer one call from the API server; refusals are answers, not exceptions."""
    levers = levers_of(engine.scheduler)
    try:
        return _OPERATIONS[payload["op"]](engine, levers, payload)
    except StaleDocumentError as stale:
        return {"refused": "fenced", "message": str(stale), "epoch": stale.epoch,
                "generation": stale.generation}
    except BadDocumentError as bad:
        return {"refused": "unprocessable", "message": str(bad)}


def _capabilities(_engine: Any, levers: Levers, _payload: Json) -> Json:
    knobs = {
        name: {"grade": k.grade, "baseline": k.baseline, "capacity": k.capacity,
               "minimum": k.minimum}
        for name, k in levers.knobs.items()
    }
    return {"knobs": knobs, "dropped": [*levers.dropped, *levers.lost]}


def _put(engine: Any, levers: Levers, payload: Json) -> Json:
    levers.put(payload["document"], payload["received_ms"])
    return _actual(engine, levers, payload)


def _actual(_engine: Any, levers: Levers, _payload: Json) -> Json:
    effective = {
        knob: {
            scope: {"value": e.value, "policy": e.policy, "remaining_ms": e.remaining_ms}
            for scope, e in scopes.items()
        }
        for knob, scopes in levers.effective().items()
    }
    return {"effective": effective, "dropped": list(levers.lost)}


def _pulse(_engine: Any, levers: Levers, _payload: Json) -> Json:
    return {
        **levers.watch.pulse(), "preempted": levers.preempted, "own": levers.own(),
        "lost": list(levers.lost),
    }


def _impulse(engine: Any, _levers: Levers, payload: Json) -> Json:
    return _IMPULSES[payload["impulse"]](engine.scheduler, payload["args"] or {})


def reset_prefix_cache(scheduler: Any, args: Json) -> Json:
    """Forget the prefix cache. Running sequences keep their blocks, and only new ones miss.

    With {"preempt": true} they are preempted and recomputed, so that nothing of it remains.
    """
    if args.get("preempt"):
        done = bool(scheduler.reset_prefix_cache(reset_running_requests=True))
        return {"done": done, "how": "preempted"}
    if not scheduler.running:
        done = bool(scheduler.reset_prefix_cache())
        if done:
            return {"done": True, "how": "reset"}
    pool = scheduler.kv_cache_manager.block_pool
    pool.evict_blocks({block.block_id for block in pool.blocks})
    return {"done": True, "how": "evicted"}


_OPERATIONS: dict[str, Callable[[Any, Levers, Json], Json]] = {
    "capabilities": _capabilities, "put": _put, "actual": _actual, "impulse": _impulse,
    "pulse": _pulse,
}
_IMPULSES: dict[str, Callable[[Any, Json], Json]] = {"reset_prefix_cache": reset_prefix_cache}
