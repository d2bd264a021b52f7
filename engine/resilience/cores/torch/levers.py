"""The levers of this core: live claims, and what the scheduler reads of them at each step.

Claims arrive on the event loop, the scheduler reads in the generation thread: a lock guards the
table, and what the scheduler reads is one frozen object.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
from resilience.desired import BadDocumentError, ClaimTable, parse_desired
from resilience.knobs import LiveClaim, fold
from resilience.model import Effective, Json, KnobCapability

LACKING: Mapping[str, str] = {
    KV_BLOCKS: "the pool of transformers' continuous batching cannot be made smaller while it runs",
    KV_SOFT: "transformers' continuous batching fixes the share that it keeps free at start",
    MODE: "this core has one mode: requests join the batch by priority",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What rules the next steps. `max_running` rests sequences at once, `admit_running` lets the
    number fall as sequences finish."""

    max_running: int
    admit_running: int
    step_tokens: int
    prefix: bool = True
    static: bool = False


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Levers:
    """The claims on the scheduler. `paused` keeps every sequence where it is; `closed` admits no
    new one."""

    def __init__(
        self, seats: int, step_tokens: int, *, prefix: bool,
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._base = Settings(seats, seats, step_tokens)
        self._settings = self._base
        self._expires_ms = math.inf
        self.table = ClaimTable()
        self.paused = False
        self.closed = False
        self.knobs = _knobs(seats, step_tokens, prefix)
        self.dropped = [{"knob": k, "reason": why} for k, why in LACKING.items()]
        if not prefix:
            why = "this model's cache does not share blocks"
            self.dropped.append({"knob": PREFIX, "reason": why})

    def settings(self) -> Settings:
        """Return what rules now; a lease that has ended no longer does."""
        if self._clock_ms() >= self._expires_ms:
            with self._lock:
                self._fold()
        return self._settings

    def put(self, body: Json, received_ms: int) -> None:
        """Take a desired document; raises BadDocumentError or StaleDocumentError unchanged."""
        now = self._clock_ms()
        with self._lock:
            for claim in parse_desired(body, now)[2]:
                why = self.why_not(claim)
                if why:
                    raise BadDocumentError(why)
            self.table.put(body, min(now, received_ms))
            self._fold()

    def why_not(self, claim: LiveClaim) -> str | None:
        """Return why a claim would stop all progress, or None."""
        capability = self.knobs.get(claim.knob)
        if capability is None or capability.minimum is None or claim.value >= capability.minimum:
            return None
        return (
            f"knob `{claim.knob}` at `{claim.value}` would stop all progress on this server; "
            f"the least it takes is {capability.minimum:g}"
        )

    def hold_own(self, policy: str, values: dict[str, Json], ttl_ms: int, reason: str) -> None:
        """Hold claims of the core on itself for `ttl_ms`; a repeat renews them, {} ends them."""
        ends_ms = self._clock_ms() + ttl_ms
        claims = [
            LiveClaim(knob, (), value, policy, 0, ends_ms, reason=reason)
            for knob, value in values.items() if knob in self.knobs
        ]
        with self._lock:
            self.table.hold(policy, claims)
            self._fold()

    def own(self) -> list[Json]:
        """Return what the core holds on itself, as JSON."""
        now = self._clock_ms()
        with self._lock:
            return [
                {"knob": c.knob, "value": c.value, "policy": c.policy, "reason": c.reason,
                 "remaining_ms": c.deadline_ms - now}
                for c in self.table.own_live(now)
            ]

    def effective(self) -> dict[str, dict[str, Effective]]:
        """Return what the document's claims rule now."""
        with self._lock:
            found = self.table.effective(self._clock_ms())
        return {k: v for k, v in found.items() if k in self.knobs}

    def _fold(self) -> None:
        live = self.table.live(self._clock_ms())
        self._expires_ms = min((c.deadline_ms for c in live if not c.keep), default=math.inf)
        values = {name: scopes[""].value for name, scopes in fold(live).items() if "" in scopes}
        base = self._base
        self._settings = Settings(
            min(base.max_running, values.get(MAX_RUNNING, base.max_running)),
            min(base.admit_running, values.get(ADMIT_RUNNING, base.admit_running)),
            min(base.step_tokens, values.get(STEP_TOKENS, base.step_tokens)),
            values.get(PREFIX) is not False, values.get(BATCHING) == "static",
        )


def _knobs(seats: int, step_tokens: int, prefix: bool) -> dict[str, KnobCapability]:
    found = {
        MAX_RUNNING: KnobCapability("subclass", seats, float(seats), 1.0),
        ADMIT_RUNNING: KnobCapability("subclass", seats, float(seats), 1.0),
        STEP_TOKENS: KnobCapability("subclass", step_tokens, float(step_tokens), 1.0),
        BATCHING: KnobCapability("subclass", "dynamic"),
    }
    if prefix:
        found[PREFIX] = KnobCapability("subclass", baseline=True)
    return found
