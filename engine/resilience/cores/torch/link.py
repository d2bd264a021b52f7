"""What the core's service asks the engine, answered in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from resilience.cores.link import EngineSilentError
from resilience.cores.torch.generation import PAGE, Generator, Job
from resilience.cores.torch.series import counts, usage
from resilience.desired import BadDocumentError, StaleDocumentError
from resilience.model import Json

POLL_S = 0.02
BLOCK_BYTES = 1024 * 1024
REQUESTS_SHOWN = 50


class TorchLink:
    """The engine of this process as the service sees it."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._levers = generator.levers
        self._operations: dict[str, Callable[[Json], Json]] = {
            "capabilities": self._capabilities, "put": self._put, "actual": self._actual,
            "impulse": self._impulse, "pulse": self._pulse, "state": self._state,
            "allocate": self._allocate, "reclaim": self._reclaim, "hold_own": self._hold_own,
        }

    async def call(self, payload: Json, timeout_s: float) -> Json:
        """Answer at once: what it takes is in memory. A dead thread answers nothing but claims."""
        if not self._generator.alive and payload["op"] in ("impulse", "pulse"):
            raise EngineSilentError
        try:
            return self._operations[payload["op"]](payload)
        except StaleDocumentError as stale:
            return {"refused": "fenced", "message": str(stale), "epoch": stale.epoch,
                    "generation": stale.generation}
        except BadDocumentError as bad:
            return {"refused": "unprocessable", "message": str(bad)}

    def _capabilities(self, _payload: Json) -> Json:
        knobs = {
            name: {"grade": k.grade, "baseline": k.baseline, "capacity": k.capacity,
                   "minimum": k.minimum}
            for name, k in self._levers.knobs.items()
        }
        return {"knobs": knobs, "dropped": self._levers.dropped, "missing": []}

    def _put(self, payload: Json) -> Json:
        self._levers.put(payload["document"], payload["received_ms"])
        return self._actual(payload)

    def _actual(self, _payload: Json) -> Json:
        return {
            "effective": {
                knob: {
                    scope: {"value": e.value, "policy": e.policy, "remaining_ms": e.remaining_ms}
                    for scope, e in scopes.items()
                }
                for knob, scopes in self._levers.effective().items()
            },
            "dropped": [],
        }

    def _pulse(self, _payload: Json) -> Json:
        generator, levers = self._generator, self._levers
        running, waiting = counts(generator)
        scheduler = generator.scheduler
        total = 0 if scheduler is None else scheduler.cache.num_blocks
        used = round(usage(generator) * total)
        return {
            "running": running, "waiting": waiting, "tokens": getattr(scheduler, "tokens", 0),
            "steps": getattr(scheduler, "steps", 0), "seats": generator.seats,
            "blocks": {"total": total, "used": used, "free": total - used},
            "paused": "PAUSED_ALL" if levers.paused else "UNPAUSED",
            "holding": levers.closed, "preempted": 0, "own": levers.own(), "lost": [],
            "findings": [], "longest_sequences": total * PAGE // generator.context,
            "fragmentation": {}, "residence": {},
        }

    def _state(self, payload: Json) -> Json:
        """Return the pulse and the requests, for an incident bundle: the longest-running first."""
        now_s = time.perf_counter()
        shown = list(self._generator.jobs.values())[:REQUESTS_SHOWN]
        return {
            **self._pulse(payload), "effective": self._actual(payload),
            "requests": [
                {"id": job.name, "status": "RUNNING" if job.runs else "WAITING",
                 "tokens": job.prompt + len(job.tokens), "priority": job.sampling.priority,
                 "age_s": now_s - job.arrived_s}
                for job in shown
            ],
        }

    def _allocate(self, _payload: Json) -> Json:
        """Return the seconds that allocating and writing one block's bytes takes."""
        import torch

        begun = time.perf_counter()
        torch.empty(BLOCK_BYTES, dtype=torch.uint8).fill_(0)
        return {"pool": time.perf_counter() - begun}

    def _reclaim(self, _payload: Json) -> Json:
        import gc

        gc.collect()
        return {"done": True}

    def _hold_own(self, payload: Json) -> Json:
        self._levers.hold_own(
            payload["policy"], payload["values"], payload["ttl_ms"], payload["reason"]
        )
        return {"own": self._levers.own()}

    def _impulse(self, payload: Json) -> Json:
        if payload["impulse"] == "reset_prefix_cache":
            return self._reset()
        return self._abort(payload["args"] or {})

    def _reset(self) -> Json:
        """Forget the blocks that are kept for their prefix; the scheduler does it between steps."""
        self._generator.scheduler.forget_prefixes = True
        self._generator.manager._wake_up_loop.set()
        return {"done": True, "how": "evicted"}

    def _abort(self, args: Json) -> Json:
        """End the requests that fit every condition, oldest first and at most `limit`."""
        now_s = time.perf_counter()
        fitting = [j for j in self._generator.jobs.values() if _fits(j, args, now_s)]
        for job in fitting[:args["limit"]]:
            self._generator.abort(job)
        return {"done": True, "aborted": len(fitting[:args["limit"]])}


def _fits(job: Job, args: Json, now_s: float) -> bool:
    return (
        args["state"] in ("any", "running" if job.runs else "waiting")
        and (now_s - job.arrived_s) * 1000 >= args["older_than_ms"]
        and job.sampling.priority >= args["priority_at_least"]
        and job.prompt + len(job.tokens) >= args["tokens_at_least"]
        and args["model"] in ("", None)     # this server has one model, under all of its names
    )


class TorchGeneration:
    """Pause and resume between two steps; what runs keeps its cache."""

    def __init__(
        self, generator: Generator, sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep
    ) -> None:
        self._generator = generator
        self._sleep = sleep

    async def pause(self, mode: str) -> None:
        """`keep` stops at once, `wait` when what runs has finished, `abort` ends it first."""
        levers = self._generator.levers
        levers.closed = True
        if mode == "abort":
            for job in list(self._generator.jobs.values()):
                self._generator.abort(job)
        while mode == "wait" and self._generator.alive and counts(self._generator)[0]:
            await self._sleep(POLL_S)
        levers.paused = True

    async def resume(self) -> None:
        levers = self._generator.levers
        levers.paused = levers.closed = False
        self._generator.manager._wake_up_loop.set()
