"""The impulses that the engine process carries out, between two steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from resilience.model import Json


def reset_prefix_cache(engine: Any, args: Json) -> Json:
    """Forget the prefix cache. Running sequences keep their blocks, and only new ones miss.

    With {"preempt": true} they are preempted and recomputed, so that nothing of it remains.
    """
    scheduler = engine.scheduler
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


def abort_requests(engine: Any, args: Json) -> Json:
    """End the requests that fit every condition, oldest first and at most `limit`.

    Their clients get what was generated so far, with finish_reason `abort`. `model` is the name
    of an adapter, None for the base model and empty for any.
    """
    from vllm.v1.request import RequestStatus

    now_s = time.time()
    requests = sorted(engine.scheduler.requests.values(), key=lambda r: r.arrival_time)
    fitting = [r.request_id for r in requests if _fits(r, args, now_s)][:args["limit"]]
    aborted = engine.scheduler.finish_requests(fitting, RequestStatus.FINISHED_ABORTED)
    engine._send_abort_outputs(aborted)
    return {"done": True, "aborted": len(aborted)}


def _fits(request: Any, args: Json, now_s: float) -> bool:
    runs = request.status.name == "RUNNING"
    lora = getattr(getattr(request, "lora_request", None), "name", None)
    return (
        args["state"] in ("any", "running" if runs else "waiting")
        and (now_s - request.arrival_time) * 1000 >= args["older_than_ms"]
        and request.priority >= args["priority_at_least"]
        and request.num_tokens >= args["tokens_at_least"]
        and args["model"] in ("", lora)
    )


IMPULSES: dict[str, Callable[[Any, Json], Json]] = {
    "reset_prefix_cache": reset_prefix_cache, "abort_requests": abort_requests,
}


_NEEDS = {
    "abort_requests": (("engine", "_send_abort_outputs"), ("scheduler", "finish_requests")),
    "reset_prefix_cache": (("scheduler", "reset_prefix_cache"), ("block pool", "evict_blocks")),
}


def missing(engine: Any) -> list[Json]:
    """Return the impulses that this server cannot do, each with the reason."""
    scheduler = getattr(engine, "scheduler", None)
    manager = getattr(scheduler, "kv_cache_manager", None)
    owners = {"engine": engine, "scheduler": scheduler,
              "block pool": getattr(manager, "block_pool", None)}
    found: list[Json] = []
    for impulse, needs in _NEEDS.items():
        gone = [n for n in needs if not callable(getattr(owners[n[0]], n[1], None))]
        reason = "method `{1}` of the {0} has moved".format(*gone[0]) if gone else ""
        if impulse == "reset_prefix_cache" and not getattr(manager, "enable_caching", True):
            reason = "the server runs without prefix caching"
        if reason:
            found.append({"impulse": impulse, "reason": reason})
    return found
