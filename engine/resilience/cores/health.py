"""Is this core alive? Judged by tokens that advance while requests run, not by an HTTP answer.

Pure: it is told what was seen and when. Times are monotonic milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

from resilience.model import HealthSettings, Json

Status = Literal["dead", "stuck", "blind", "degraded", "well"]
# A load balancer takes a server out on 503 and leaves it in on 200.
CODES: dict[Status, int] = {"dead": 503, "stuck": 503, "blind": 503, "degraded": 200, "well": 200}


def health_from(settings: Mapping[str, Json]) -> HealthSettings:
    """Return what the launcher's settings say; raises ValueError with a one-line reason."""
    given = settings.get("health")
    if given is None:
        return HealthSettings()
    names = {f.name for f in fields(HealthSettings)}
    if not isinstance(given, Mapping) or set(given) != names:
        raise ValueError("`health` of the core's settings has " + ", ".join(sorted(names)))
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"`health` of the core's settings takes no `{value}` as its {name}")
    return HealthSettings(**given)


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
    settings: HealthSettings = HealthSettings()
    pulse: Json = None
    allocation_s: dict[str, float] = field(default_factory=dict)
    slow_in_a_row: int = 0
    short_of_memory: str | None = None
    draining: bool = False
    oom_kills: int = 0
    # By rung, the state of the second engine that the server runs for it and why.
    second: dict[str, tuple[str, str]] = field(default_factory=dict)
    _answered_ms: int | None = None
    # By engine process: one, or one for each that data parallelism runs.
    _advanced_ms: dict[int, int] = field(default_factory=dict)
    _tokens: dict[int, int] = field(default_factory=dict)

    def on_pulse(self, pulse: Json, now_ms: int) -> None:
        """Take in an answer of the engine process."""
        for number, engine in enumerate(pulse.get("engines", (pulse,))):
            if engine["tokens"] != self._tokens.get(number) or not _has_work(engine):
                self._advanced_ms[number] = now_ms
            self._tokens[number] = engine["tokens"]
        self._answered_ms = now_ms
        self.pulse = pulse

    def on_allocation(self, seconds: dict[str, float]) -> bool:
        """Take in how long one block took, by place; True when too many in a row were slow."""
        self.allocation_s = seconds
        slow = any(taken * 1000 > self.settings.slow_ms for taken in seconds.values())
        self.slow_in_a_row = self.slow_in_a_row + 1 if slow else 0
        return self.slow_in_a_row >= self.settings.times

    def verdict(self, now_ms: int, *, dead: bool, in_flight: int) -> Verdict:
        """Judge the core. `in_flight` are the requests that the API server waits for."""
        if dead:
            return Verdict("dead", ("the engine process has ended",))
        stuck = self._stuck(now_ms, in_flight)
        if stuck:
            return Verdict("stuck", (stuck,))
        silent_ms = self._silent_ms(now_ms)
        if silent_ms >= self.settings.blind_ms:
            return Verdict("blind", (f"the engine process has not answered for {silent_ms} ms",))
        reasons = tuple(self._complaints())
        return Verdict("degraded" if reasons else "well", reasons)

    def _silent_ms(self, now_ms: int) -> int:
        return now_ms - (self.started_ms if self._answered_ms is None else self._answered_ms)

    def _stuck(self, now_ms: int, in_flight: int) -> str | None:
        silent_ms = self._silent_ms(now_ms)
        if in_flight and silent_ms >= self.settings.stuck_ms:
            return f"{in_flight} requests wait and the engine has not answered for {silent_ms} ms"
        if not self._advanced_ms or silent_ms >= self.settings.blind_ms:
            return None
        number = min(self._advanced_ms, key=lambda n: self._advanced_ms[n])
        still_ms = now_ms - self._advanced_ms[number]
        if still_ms < self.settings.stuck_ms:
            return None
        engines = self.pulse.get("engines", (self.pulse,))
        running, waiting = engines[number]["running"], engines[number]["waiting"]
        which = f" in engine process {number} of {len(engines)}" if len(engines) > 1 else ""
        return f"no token for {still_ms} ms{which} while {running} requests run and {waiting} wait"

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
