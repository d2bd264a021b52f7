"""Is this core alive? Judged by tokens that advance while requests run, not by an HTTP answer.

Pure: it is told what was seen and when. Times are monotonic milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from resilience.model import Json

Status = Literal["dead", "stuck", "blind", "degraded", "well"]
# A load balancer takes a server out on 503 and leaves it in on 200.
CODES: dict[Status, int] = {"dead": 503, "stuck": 503, "blind": 503, "degraded": 200, "well": 200}

STUCK_MS = 15_000
BLIND_MS = 5_000
SLOW_S = 0.085
SLOW_TIMES = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """The worst that is true of the core, and every reason for it."""

    status: Status
    reasons: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        return CODES[self.status]


@dataclass(slots=True)
class Vitals:
    """What was seen of one engine process since `started_ms`."""

    started_ms: int
    pulse: Json = None
    allocation_s: dict[str, float] = field(default_factory=dict)
    slow_in_a_row: int = 0
    short_of_memory: str | None = None
    draining: bool = False
    oom_kills: int = 0
    # By rung, the state of the second engine that the server runs for it and why.
    second: dict[str, tuple[str, str]] = field(default_factory=dict)
    _answered_ms: int | None = None
    _advanced_ms: int | None = None
    _tokens: int = -1

    def on_pulse(self, pulse: Json, now_ms: int) -> None:
        """Take in an answer of the engine process."""
        if pulse["tokens"] != self._tokens or not _has_work(pulse):
            self._advanced_ms = now_ms
        self._tokens = pulse["tokens"]
        self._answered_ms = now_ms
        self.pulse = pulse

    def on_allocation(self, seconds: dict[str, float]) -> bool:
        """Take in how long one block took, by place; True when it was too slow twice in a row."""
        self.allocation_s = seconds
        slow = any(taken > SLOW_S for taken in seconds.values())
        self.slow_in_a_row = self.slow_in_a_row + 1 if slow else 0
        return self.slow_in_a_row >= SLOW_TIMES

    def verdict(self, now_ms: int, *, dead: bool, in_flight: int) -> Verdict:
        """Judge the core. `in_flight` are the requests that the API server waits for."""
        if dead:
            return Verdict("dead", ("the engine process has ended",))
        stuck = self._stuck(now_ms, in_flight)
        if stuck:
            return Verdict("stuck", (stuck,))
        silent_ms = self._silent_ms(now_ms)
        if silent_ms >= BLIND_MS:
            return Verdict("blind", (f"the engine process has not answered for {silent_ms} ms",))
        reasons = tuple(self._complaints())
        return Verdict("degraded" if reasons else "well", reasons)

    def _silent_ms(self, now_ms: int) -> int:
        return now_ms - (self.started_ms if self._answered_ms is None else self._answered_ms)

    def _stuck(self, now_ms: int, in_flight: int) -> str | None:
        silent_ms = self._silent_ms(now_ms)
        if in_flight and silent_ms >= STUCK_MS:
            return f"{in_flight} requests wait and the engine has not answered for {silent_ms} ms"
        if self._advanced_ms is None or silent_ms >= BLIND_MS:
            return None
        still_ms = now_ms - self._advanced_ms
        if still_ms < STUCK_MS:
            return None
        running, waiting = self.pulse["running"], self.pulse["waiting"]
        return f"no token for {still_ms} ms while {running} requests run and {waiting} wait"

    def _complaints(self) -> list[str]:
        pulse = self.pulse or {}
        found = [f"the core holds `{c['knob']}` at `{c['value']}`: {c['reason']}"
                 for c in pulse.get("own", ())]
        found += [f"lever `{entry['knob']}` was lost: {entry['reason']}"
                  for entry in pulse.get("lost", ())]
        found += pulse.get("findings", ())
        if self.slow_in_a_row:
            worst = max(self.allocation_s.values())
            found.append(f"allocating one block took {worst * 1000:.0f} ms")
        if self.short_of_memory:
            found.append(self.short_of_memory)
        found += [f"the engine of rung `{rung}` is {state}: {reason}"
                  for rung, (state, reason) in self.second.items() if reason]
        if pulse.get("paused", "UNPAUSED") != "UNPAUSED":
            found.append("generation is paused")
        if self.draining:
            found.append("the server is draining and takes no new requests")
        return found


def _has_work(pulse: Json) -> bool:
    """Say whether tokens ought to advance: not while paused, idle, or held back on purpose."""
    if pulse.get("paused", "UNPAUSED") != "UNPAUSED":
        return False
    return bool(pulse["running"] or (pulse["waiting"] and not pulse.get("holding")))
