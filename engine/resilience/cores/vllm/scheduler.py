"""The scheduler's levers, applied between two steps and undone by their leases.

`Levers` drives any vLLM scheduler through attributes; the subclass that `make_scheduler` builds
adds what attributes cannot do. An exception inside `schedule()` would end the whole server, so each
lever fails open: it is logged, counted, reset to its baseline and not used again.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

from resilience.cores.vllm.probe import (
    MAX_RUNNING,
    PREFIX,
    STEP_TOKENS,
    can_preempt,
    probe,
)
from resilience.knobs import ClaimTable, LiveClaim, fold
from resilience.model import Effective, Json

logger = logging.getLogger("vllm.resilience")

ATTRIBUTES = {MAX_RUNNING: "max_num_active_reqs", STEP_TOKENS: "max_num_scheduled_tokens"}
LOST_MAX = 16


def monotonic_ms() -> int:
    """Return the machine's monotonic clock in ms; both server processes read the same."""
    return time.monotonic_ns() // 1_000_000


class Levers:
    """The live claims on one scheduler and what they set there.

    All methods run in the engine's own thread, between two steps or at the start of one.
    """

    def __init__(
        self, scheduler: Any, *, subclassed: bool, clock_ms: Callable[[], int] = monotonic_ms
    ) -> None:
        found = probe(scheduler, subclassed=subclassed)
        self._scheduler = scheduler
        self._clock_ms = clock_ms
        self._preempts = subclassed and can_preempt(scheduler)
        self.knobs = dict(found.knobs)
        self.dropped: list[Json] = list(found.dropped)
        self.lost: list[Json] = []
        self.table = ClaimTable()
        self.prefix_hidden = False
        self.preempted = 0
        self._cap: int | None = None
        self._expires_ms: float = math.inf

    def put(self, body: Json, received_ms: int) -> None:
        """Take a desired document that the API server received at `received_ms`.

        Raises BadDocumentError or StaleDocumentError; then nothing has changed. A document that
        waited behind a long step has used up that part of its leases.
        """
        now = self._clock_ms()
        self.table.put(body, min(now, received_ms))
        self._apply(now)

    def effective(self) -> dict[str, dict[str, Effective]]:
        """Return what the claims rule now, without the levers that were lost."""
        now = self._clock_ms()
        self._keep_leases(now)
        return {k: v for k, v in self.table.effective(now).items() if k in self.knobs}

    def before_step(self) -> None:
        """End leases and cut what runs beyond the cap. Never raises."""
        self._keep_leases(self._clock_ms())
        cap = self._cap
        if cap is None or not self._preempts or len(self._scheduler.running) <= cap:
            return
        try:
            self._preempt_to(cap)
        except Exception as error:
            self._stop_preempting(f"preempting failed: {error}")

    def on_request(self) -> None:
        """End leases when a request arrives: an idle scheduler takes no steps. Never raises."""
        self._keep_leases(self._clock_ms())

    def hide_prefix(self, found: Any) -> Any:
        """Turn a prefix look-up into a miss of the same shape while the claim lives."""
        if not self.prefix_hidden:
            return found
        try:
            return self._as_miss(found)
        except Exception as error:
            self._lose(PREFIX, f"hiding the prefix cache failed: {error}")
            return found

    def _keep_leases(self, now: int) -> None:
        if now >= self._expires_ms:
            self._apply(now)

    def _apply(self, now: int) -> None:
        live = self.table.live(now)
        self._expires_ms = min((c.deadline_ms for c in live if not c.keep), default=math.inf)
        folded = fold(live)
        for name in tuple(self.knobs):
            claim = folded.get(name, {}).get("")
            try:
                self._set(name, claim)
            except Exception as error:
                self._lose(name, f"setting it failed: {error}")

    def _set(self, name: str, claim: LiveClaim | None) -> None:
        if name == PREFIX:
            self.prefix_hidden = claim is not None and claim.value is False
            return
        baseline = self.knobs[name].baseline
        value = baseline if claim is None else min(claim.value, baseline)
        setattr(self._scheduler, ATTRIBUTES[name], value)
        if name == MAX_RUNNING:
            self._cap = None if claim is None else value

    def _lose(self, name: str, why: str) -> None:
        """Give up a lever that failed: back to its baseline, and say so from now on."""
        self._report(name, why)
        capability = self.knobs.pop(name, None)
        if name == PREFIX:
            self.prefix_hidden = False
        elif capability is not None:
            with suppress(Exception):
                setattr(self._scheduler, ATTRIBUTES[name], capability.baseline)
        if name == MAX_RUNNING:
            self._cap = None

    def _stop_preempting(self, why: str) -> None:
        """Keep the cap as an attribute: what runs too much drains by finishing."""
        self._preempts = False
        self._report(MAX_RUNNING, why)
        capability = self.knobs.get(MAX_RUNNING)
        if capability is not None:
            self.knobs[MAX_RUNNING] = replace(capability, grade="attribute")

    def _report(self, name: str, why: str) -> None:
        logger.exception("resilience: lever %s failed: %s", name, why)
        self.lost.append({"knob": name, "reason": why, "lost": True})
        del self.lost[:-LOST_MAX]

    def _as_miss(self, found: tuple[Any, ...]) -> tuple[Any, ...]:
        """Blocks become none, counts 0, flags False: the tuple's length differs by version."""
        empty = self._scheduler.kv_cache_manager.empty_kv_cache_blocks
        rest = (False if isinstance(part, bool) else 0 for part in found[1:])
        return (empty, *rest)

    def _preempt_to(self, cap: int) -> None:
        scheduler = self._scheduler
        now_s = time.monotonic()
        for _ in range(len(scheduler.running) - cap):
            victim = self._victim()
            freeable = getattr(scheduler, "_request_blocks_can_be_freed", None)
            if freeable is not None and not freeable(victim):
                return  # a transfer still reads its blocks: let it drain by finishing
            scheduler.running.remove(victim)
            try:
                scheduler._preempt_request(victim, now_s, drop_stale_output=True)
            except Exception:
                if victim.status.name == "RUNNING":
                    scheduler.running.append(victim)
                raise
            self.preempted += 1

    def _victim(self) -> Any:
        """Choose as vLLM does: the newest, or with priorities the least important."""
        running = self._scheduler.running
        if getattr(self._scheduler.policy, "value", "") == "priority":
            return max(running, key=lambda r: (r.priority, r.arrival_time))
        return running[-1]


def levers_of(scheduler: Any) -> Levers:
    """Return the levers of a scheduler, also of one that is not this package's.

    A foreign scheduler gets the attribute levers, and its `schedule` and `add_request` are wrapped
    in place so that leases end there too.
    """
    found = getattr(scheduler, "resilience_levers", None)
    if isinstance(found, Levers):
        return found
    levers = Levers(scheduler, subclassed=False)
    scheduler.resilience_levers = levers
    _wrap(scheduler, "schedule", levers.before_step)
    _wrap(scheduler, "add_request", levers.on_request)
    return levers


def _wrap(scheduler: Any, name: str, first: Callable[[], None]) -> None:
    original = getattr(scheduler, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        first()
        return original(*args, **kwargs)

    setattr(scheduler, name, wrapped)


@cache
def scheduler_class(asynchronous: bool) -> type:
    """Build the subclass of vLLM's scheduler for the mode in which the engine runs."""
    if asynchronous:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler as Base
    else:
        from vllm.v1.core.sched.scheduler import Scheduler as Base

    class ResilienceScheduler(Base):  # type: ignore[misc]
        """vLLM's scheduler with levers; without claims it does what its base does."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.resilience_levers = Levers(self, subclassed=True)

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            self.resilience_levers.before_step()
            return super().schedule(*args, **kwargs)

        def add_request(self, *args: Any, **kwargs: Any) -> Any:
            self.resilience_levers.on_request()
            return super().add_request(*args, **kwargs)

        def _get_local_prefix_cache_hit(self, *args: Any, **kwargs: Any) -> Any:
            found = super()._get_local_prefix_cache_hit(*args, **kwargs)
            return self.resilience_levers.hide_prefix(found)

    return ResilienceScheduler


def make_scheduler(vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
    """Be the value of `--scheduler-cls`: called like the class, it picks the right base."""
    asynchronous = bool(vllm_config.scheduler_config.async_scheduling)
    return scheduler_class(asynchronous)(vllm_config, *args, **kwargs)
