"""The general plug-in: one utility of the engine core, called between two steps.

vLLM looks a utility up by name on the engine, so one attribute on its class is the whole hook.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from resilience.cores.vllm import device, engine_impulses, naps
from resilience.cores.vllm.levers import Levers
from resilience.cores.vllm.link import UTILITY
from resilience.cores.vllm.scheduler import levers_of
from resilience.desired import BadDocumentError, StaleDocumentError
from resilience.model import Json

BLOCK_BYTES = 1024 * 1024  # where the block's real size is not known


def register() -> None:
    """Add the utility to vLLM's engine, and let its processes sleep while they wait; safe to call
    in every process and more than once."""
    from vllm.v1.engine.core import EngineCore

    setattr(EngineCore, UTILITY, engine_utility)
    naps.install()


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


def _capabilities(engine: Any, levers: Levers, _payload: Json) -> Json:
    knobs = {
        name: {"grade": k.grade, "baseline": k.baseline, "capacity": k.capacity,
               "minimum": k.minimum, "fits": levers.fits(name)}
        for name, k in levers.knobs.items()
    }
    return {
        "knobs": knobs, "dropped": [*levers.dropped, *levers.lost],
        "missing": engine_impulses.missing(engine),
    }


def _put(engine: Any, levers: Levers, payload: Json) -> Json:
    checked = bool(payload.get("checked"))
    levers.put(payload["document"], payload["received_ms"], checked=checked)
    return _actual(engine, levers, payload)


def _check(_engine: Any, levers: Levers, payload: Json) -> Json:
    levers.check(payload["document"])
    return {}


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
        "lost": list(levers.lost), "seats": levers.seats.baseline,
        "holding": levers.classes.holds, "findings": levers.findings(),
        "longest_sequences": levers.memory.longest_sequences,
    }


def _state(engine: Any, levers: Levers, payload: Json) -> Json:
    """Return the pulse and the requests, for an incident bundle: the longest-running first."""
    return {
        **_pulse(engine, levers, payload),
        "requests": levers.watch.requests(), "effective": _actual(engine, levers, payload),
    }


def _allocate(engine: Any, levers: Levers, _payload: Json) -> Json:
    """Return the seconds that one block takes: from the pool, and on each worker's device."""
    taken: dict[str, float] = {}
    with suppress(Exception):           # a pool that has moved is named by the pulse
        taken["pool"] = levers.pool.time_one()
    size = levers.memory.block_bytes or BLOCK_BYTES
    workers = _ask_workers(engine, device.time_allocation, size)
    return taken | {f"worker{i}": seconds for i, seconds in enumerate(workers)}


def _reclaim(engine: Any, _levers: Levers, _payload: Json) -> Json:
    """Give back the memory that nobody uses, here and in the workers."""
    device.collect()
    _ask_workers(engine, device.reclaim)
    return {"done": True}


def _ask_workers(engine: Any, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Let each worker call `function` between two steps.

    Without a time limit, as vLLM asks for a step: it takes answers in their order, so one that came
    after a time-out would be taken for the next step's, and the engine would end. Who waits for
    this one has a limit, health sees the silence, and vLLM ends the wait with the worker.
    """
    return list(engine.model_executor.collective_rpc(function, args=args))


def _hold_own(_engine: Any, levers: Levers, payload: Json) -> Json:
    levers.hold_own(payload["policy"], payload["values"], payload["ttl_ms"], payload["reason"])
    return {"own": levers.own()}


def _impulse(engine: Any, _levers: Levers, payload: Json) -> Json:
    return engine_impulses.IMPULSES[payload["impulse"]](engine, payload["args"] or {})


_OPERATIONS: dict[str, Callable[[Any, Levers, Json], Json]] = {
    "capabilities": _capabilities, "check": _check, "put": _put, "actual": _actual,
    "impulse": _impulse, "pulse": _pulse, "state": _state, "allocate": _allocate,
    "reclaim": _reclaim, "hold_own": _hold_own,
}
