"""The scheduler's levers: live claims, what they set, and how each fails open.

`Levers` drives any vLLM scheduler through attributes; the subclass of `scheduler.py` adds what
attributes cannot do. An exception inside `schedule()` would end the whole server, so a lever that
fails is logged, reported, reset to its baseline and not used again.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from resilience.cores.memory import Memory
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
from resilience.cores.vllm.pool import KvPool
from resilience.cores.vllm.probe import probe
from resilience.cores.vllm.seats import Classes, Seats
from resilience.cores.vllm.step_order import make_room, put_in_order
from resilience.cores.vllm.watch import EngineWatch
from resilience.desired import BadDocumentError, ClaimTable, parse_desired
from resilience.knobs import LiveClaim, fold
from resilience.model import Effective, Json

logger = logging.getLogger("vllm.resilience")

LOST_MAX = 16
HELD_NAP_S = 0.005


def monotonic_ms() -> int:
    """Return the machine's monotonic clock in ms; both server processes read the same."""
    return time.monotonic_ns() // 1_000_000


class Levers:
    """The live claims on one scheduler and what they set there.

    All methods run in the engine's own thread, between two steps or at the start or end of one.
    """

    def __init__(
        self, scheduler: Any, *, subclassed: bool, clock_ms: Callable[[], int] = monotonic_ms
    ) -> None:
        found = probe(scheduler, subclassed=subclassed)
        self._scheduler = scheduler
        self._clock_ms = clock_ms
        at_once = found.knobs.get(MAX_RUNNING)
        self._preempts = at_once is not None and at_once.grade == "subclass"
        self._idle = True
        self._expires_ms: float = math.inf
        self._tokens = getattr(scheduler, "max_num_scheduled_tokens", 0)
        self.knobs = dict(found.knobs)
        self.dropped: list[Json] = list(found.dropped)
        self.lost: list[Json] = []
        self.table = ClaimTable()
        self.seats = Seats(scheduler)
        self.classes = Classes(scheduler, self.seats)
        self.pool = KvPool(scheduler)
        self.memory = Memory.of(scheduler, self.pool.total)
        self.watch = EngineWatch(scheduler, self.pool)
        self.prefix_hidden = False
        self.preempted = 0
        self._setters: dict[str, Callable[[Json], None]] = {
            PREFIX: self._set_prefix, MAX_RUNNING: self._set_at_once,
            ADMIT_RUNNING: self._set_drain, STEP_TOKENS: self._set_tokens,
            KV_BLOCKS: self._set_hard, KV_SOFT: self._set_soft,
            BATCHING: self._set_batching, MODE: self._set_mode,
        }

    @classmethod
    def of(cls, scheduler: Any, *, subclassed: bool) -> Levers:
        """Return the levers of any scheduler: one that cannot even be looked at has none."""
        try:
            return cls(scheduler, subclassed=subclassed)
        except Exception as error:
            logger.exception("resilience: this vLLM's scheduler has no levers")
            none = cls(object(), subclassed=False)
            none.dropped = [
                {**entry, "reason": f"the scheduler cannot be read: {error}"}
                for entry in none.dropped
            ]
            return none

    # --- documents ---------------------------------------------------------------------------

    def check(self, body: Json) -> None:
        """Raise BadDocumentError for a document that this scheduler would refuse."""
        for claim in parse_desired(body, self._clock_ms())[2]:
            why = self.why_not(claim)
            if why:
                raise BadDocumentError(why)

    def put(self, body: Json, received_ms: int, *, checked: bool = False) -> None:
        """Take a desired document that the API server received at `received_ms`.

        Raises BadDocumentError or StaleDocumentError; then nothing has changed. A document that
        waited behind a long step has used up that part of its leases. One that was `checked` a
        moment ago is taken as it is: every other engine process takes it too.
        """
        if not checked:
            self.check(body)
        now = self._clock_ms()
        self.table.put(body, min(now, received_ms))
        self._apply(now)

    def why_not(self, claim: LiveClaim) -> str | None:
        """Return why a claim would stop all progress or asks for memory that is not there."""
        capability = self.knobs.get(claim.knob)
        if capability is None:
            return None
        if capability.minimum is not None and claim.value < capability.minimum:
            return (
                f"knob `{claim.knob}` at `{claim.value}` would stop all progress on this server; "
                f"the least it takes is {capability.minimum:g}"
            )
        if claim.knob == KV_BLOCKS:
            return self.memory.why_not(min(claim.value, self.pool.total), self.watch.peak_blocks)
        return None

    def fits(self, name: str) -> float | None:
        """Return the most of a knob that there is memory for now; None: nothing limits it."""
        if name != KV_BLOCKS:
            return None
        most = self.memory.room(self.watch.peak_blocks)
        return None if most is None else float(min(most, self.pool.total))

    def hold_own(self, policy: str, values: dict[str, Json], ttl_ms: int, reason: str) -> None:
        """Hold claims of the core on itself, for `ttl_ms`; a repeat renews them, {} ends them."""
        now = self._clock_ms()
        claims = [
            LiveClaim(knob, (), value, policy, 0, now + ttl_ms, reason=reason)
            for knob, value in values.items() if knob in self.knobs
        ]
        self.table.hold(policy, [c for c in claims if self.why_not(c) is None])
        self._apply(now)

    def own(self) -> list[Json]:
        """Return what the core holds on itself, as JSON."""
        now = self._clock_ms()
        return [
            {"knob": c.knob, "value": c.value, "policy": c.policy, "reason": c.reason,
             "remaining_ms": c.deadline_ms - now}
            for c in self.table.own_live(now)
        ]

    def effective(self) -> dict[str, dict[str, Effective]]:
        """Return what the document's claims rule now, without the levers that were lost."""
        now = self._clock_ms()
        self._keep_leases(now)
        return {k: v for k, v in self.table.effective(now).items() if k in self.knobs}

    def findings(self) -> list[str]:
        """Return what of this server's limits does not fit the memory that is really free."""
        found = self.memory.findings(self.watch.peak_blocks, self.memory.look())
        return [*found, *self.watch.findings.values()]

    # --- the scheduler's hooks: none of them raises ----------------------------------------------

    def before_step(self) -> None:
        """End leases, make room for a more important request, take blocks out and cut what runs
        beyond the cap."""
        now = self._clock_ms()
        self._keep_leases(now)
        if self._preempts:
            self._give_way(now)
        if self._idle:
            return
        self.classes.begin()
        self._cut()
        self._guard(KV_BLOCKS, self._take_out)
        if BATCHING in self.knobs:
            self._guard(BATCHING, self.seats.write)

    def after_step(self, output: Any) -> None:
        """Count what was scheduled; rest a moment when all that waits is held back.

        vLLM would step a thousand times a second for requests that no step may admit.
        """
        self.watch.on_step(output, self._clock_ms())
        if self.classes.holds and not self._scheduler.running:
            time.sleep(HELD_NAP_S)

    def on_request(self) -> None:
        """End leases when a request arrives: an idle scheduler takes no steps."""
        self._keep_leases(self._clock_ms())

    def admits(self, request: Any) -> bool:
        """Say whether the mode lets a waiting request in; when that fails, it is let in."""
        try:
            return self.classes.admits(request)
        except Exception as error:
            self._lose(MODE, f"judging a request failed: {error}")
            return True

    def hide_prefix(self, found: Any) -> Any:
        """Turn a prefix look-up into a miss of the same shape while the claim lives."""
        if not self.prefix_hidden:
            return found
        try:
            return self._as_miss(found)
        except Exception as error:
            self._lose(PREFIX, f"hiding the prefix cache failed: {error}")
            return found

    def let_go(self) -> None:
        """Give back what is taken out of the pool, because vLLM resets only a whole one."""
        self._guard(KV_BLOCKS, self.pool.release)

    def corrected(self, stats: Any) -> Any:
        """Report KV usage as the used share of the usable blocks; those taken out are not used."""
        if self.pool.held and stats is not None:
            with suppress(Exception):
                stats.kv_cache_usage = self.pool.usage()
        return stats

    # --- applying ------------------------------------------------------------------------------

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
                self._setters[name](None if claim is None else claim.value)
            except Exception as error:
                self._lose(name, f"setting it failed: {error}")
        self._idle = not folded
        if self._idle:
            self.classes.begin()

    def _set_prefix(self, value: Json) -> None:
        self.prefix_hidden = value is False

    def _set_at_once(self, value: Json) -> None:
        self.seats.at_once = value
        self.seats.write()

    def _set_drain(self, value: Json) -> None:
        self.seats.drain = value
        self.seats.write()

    def _set_batching(self, value: Json) -> None:
        self.seats.static = value == "static"
        self.seats.write()

    def _set_tokens(self, value: Json) -> None:
        wanted = self._tokens if value is None else min(value, self._tokens)
        self._scheduler.max_num_scheduled_tokens = wanted

    def _set_hard(self, value: Json) -> None:
        self.pool.hard = value
        self.pool.give_back()
        if KV_SOFT in self.knobs:
            self.pool.write_watermark()

    def _set_soft(self, value: Json) -> None:
        self.pool.soft = value
        self.pool.write_watermark()

    def _set_mode(self, value: Json) -> None:
        self.classes.mode = value or "batch"

    def _cut(self) -> None:
        if not self._preempts:
            return
        try:
            self.preempted += self.seats.cut()
        except Exception as error:
            self._stop_preempting(f"preempting failed: {error}")

    def _give_way(self, now: int) -> None:
        if self.classes.mode != "batch" or self.seats.static:
            self.seats.forget_who_waits()
            return
        scheduler = self._scheduler
        try:
            put_in_order(scheduler)
            # Beyond the limit, which a drain approaches slowly, nobody could start instead.
            if len(scheduler.running) <= self.seats.limit:
                self.preempted += make_room(scheduler)
            self.preempted += self.seats.give_way(now)
        except Exception as error:
            self._stop_preempting(f"making room failed: {error}")

    def _take_out(self) -> None:
        self.preempted += self.pool.take_out()

    def _guard(self, name: str, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            self._lose(name, f"applying it failed: {error}")

    def _lose(self, name: str, why: str) -> None:
        """Give up a lever that failed: back to its baseline, and say so from now on."""
        self._report(name, why)
        if self.knobs.pop(name, None) is None:
            return
        with suppress(Exception):
            self._setters[name](None)

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
