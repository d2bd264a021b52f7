"""A circuit breaker as arithmetic: it is told the time and what happened, and does nothing itself.

Closed: requests pass and their ends are judged over a sliding window. Open: nothing passes until
`open_ms` are over. Half-open: at most `probes` requests are under way at once; that many successes
close it, one failure opens it again. A probe of which nothing has come for `probe_timeout_ms` has
failed, and one whose stream goes on after that time has succeeded: half-open always ends, and long
answers do not keep it from closing. A neutral end (the client's own fault, a client that left, a
refusal by us) says nothing about the server: it is not counted, and gives a probe's place back.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

from resilience.gate.windows import Window

State: TypeAlias = Literal["closed", "open", "half_open"]
Outcome: TypeAlias = Literal["success", "failure", "neutral"]
STATES: tuple[State, ...] = ("closed", "open", "half_open")


@dataclass(frozen=True, slots=True)
class BreakerRule:
    """When a breaker opens and how it comes back. None: not judged. Thresholds are exclusive.

    It opens when the sample is large enough (`min_requests` in the window, and more than `min_rate`
    requests a second) and, for `evaluations` ends of requests in a row, one of these holds:
    the share of failures is above `error_rate` (and their number above `failures`, if that is
    set); `consecutive` failures came in a row; the 99th percentile of the last `samples` durations
    (of a stream: to its first token) is above `p99_ms` (and, if set, the window holds more than
    `window_tokens` tokens).
    """

    error_rate: float | None = None
    failures: int | None = None
    consecutive: int | None = None
    p99_ms: int | None = None
    window_tokens: int | None = None
    window_ms: int = 60_000
    samples: int = 100
    evaluations: int = 1
    min_requests: int = 1
    min_rate: float = 0.0
    open_ms: int = 30_000
    probes: int = 3
    probe_timeout_ms: int = 30_000

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> BreakerRule:
        """Build from the value of the knob, which has been checked."""
        return cls(**{f.name: body[f.name] for f in fields(cls)})


@dataclass(frozen=True, slots=True)
class Change:
    """A change of state: the event that operators see."""

    name: str
    from_state: State
    to_state: State
    at_ms: int


@dataclass(frozen=True, slots=True)
class Pass:
    """Leave to go through. `generation` is the breaker's state it belongs to; `probe` numbers it
    when it is one."""

    generation: int
    probe: int | None = None


@dataclass(slots=True)
class _Probe:
    """A probe under way. At `due_ms` it has failed, unless more of its answer comes before."""

    begun_ms: int
    due_ms: int


class Breaker:
    """One breaker. All times are the caller's monotonic milliseconds."""

    def __init__(
        self, name: str, rule: BreakerRule, changed: Callable[[Change], None] = lambda _: None
    ) -> None:
        self.name = name
        self.rule = rule
        self.state: State = "closed"
        self._changed = changed
        self._generation = 0
        self._pass = Pass(0)  # for all who go through while it is closed
        self._since_ms = 0
        self._ruled_ms = 0
        self._probes: dict[int, _Probe] = {}
        self._probes_begun = 0
        self._forget(rule)

    def _forget(self, rule: BreakerRule) -> None:
        self._window = Window(rule.window_ms)
        self._slow: deque[bool] = deque(maxlen=rule.samples)
        self._slow_count = 0
        self._in_a_row = 0
        self._bad_evaluations = 0
        self._successes = 0

    def adopt(self, rule: BreakerRule, now_ms: int) -> None:
        """Follow another rule from now on, in the state it is in."""
        if rule == self.rule:
            return
        self.look(now_ms)
        self._ruled_ms = now_ms
        kept = ("window_ms", "samples", "p99_ms")
        if any(getattr(rule, name) != getattr(self.rule, name) for name in kept):
            self._forget(rule)
        self.rule = rule

    def retire(self, now_ms: int) -> None:
        """Close for good: the requests that it let through end without being judged."""
        if self.look(now_ms) != "closed":
            self._go("closed", now_ms)
        self._outdate()

    def allows(self, now_ms: int) -> bool:
        """Say whether a request would pass now; changes nothing but what time has changed."""
        if self.state == "closed":
            return True
        self.look(now_ms)
        return self.state == "half_open" and len(self._probes) < self.rule.probes

    def look(self, now_ms: int) -> State:
        """Return the state that a request would meet now. What time has changed since anybody
        looked has changed when it was due: nobody is refused for want of others that had asked."""
        while True:
            opens_ms = max(self._since_ms + self.rule.open_ms, self._ruled_ms)
            if self.state == "open" and opens_ms <= now_ms:
                self._go("half_open", opens_ms)
            elif self._probes and (due_ms := self._first_due_ms()) <= now_ms:
                self._go("open", due_ms)
            else:
                return self.state

    def enter(self, now_ms: int) -> Pass | None:
        """Let a request through, as a probe when the breaker is half open; None: it may not."""
        if self.state == "closed":
            return self._pass
        if not self.allows(now_ms):
            return None
        self._probes_begun += 1
        self._probes[self._probes_begun] = _Probe(now_ms, now_ms + self.rule.probe_timeout_ms)
        return Pass(self._generation, self._probes_begun)

    def hear(self, given: Pass, now_ms: int) -> None:
        """Note that more of a stream has come, which `enter` let through."""
        if self.state != "closed":
            self.look(now_ms)
        probe = None if given.probe is None else self._probes.get(given.probe)
        if probe is None or given.probe is None:
            return
        if now_ms - probe.begun_ms < self.rule.probe_timeout_ms:
            probe.due_ms = now_ms + self.rule.probe_timeout_ms
            return
        del self._probes[given.probe]  # its end, which may be far away, says nothing more
        self._judge_probe("success", now_ms)

    def leave(
        self, given: Pass, outcome: Outcome, duration_ms: float, tokens: int, now_ms: int
    ) -> None:
        """Judge the end of a request that `enter` let through, once."""
        if self.state != "closed":
            self.look(now_ms)
        probe = given.probe is not None and self._probes.pop(given.probe, None) is not None
        if given.generation != self._generation or outcome == "neutral":
            return  # it began before the last change of state, or says nothing about the server
        if self.state == "closed":
            self._count(outcome, duration_ms, tokens, now_ms)
            if self._is_bad(now_ms):
                self._go("open", now_ms)
        elif probe:
            self._judge_probe(outcome, now_ms)

    def retry_after_ms(self, now_ms: int) -> int:
        """Return after how long a refused client should come back."""
        if self.state == "open":
            return max(0, self._since_ms + self.rule.open_ms - now_ms)
        return self.rule.open_ms

    def _first_due_ms(self) -> int:
        return min(probe.due_ms for probe in self._probes.values())

    def _judge_probe(self, outcome: Outcome, now_ms: int) -> None:
        if outcome == "failure":
            self._go("open", now_ms)
            return
        self._successes += 1
        if self._successes >= self.rule.probes:
            self._go("closed", now_ms)

    def _count(self, outcome: Outcome, duration_ms: float, tokens: int, now_ms: int) -> None:
        failed = outcome == "failure"
        self._window.add(now_ms, 1, int(failed), tokens)
        self._in_a_row = self._in_a_row + 1 if failed else 0
        if self.rule.p99_ms is not None:
            self._note_duration(duration_ms > self.rule.p99_ms)

    def _note_duration(self, slow: bool) -> None:
        if len(self._slow) == self.rule.samples:
            self._slow_count -= self._slow[0]
        self._slow.append(slow)
        self._slow_count += slow

    def _is_bad(self, now_ms: int) -> bool:
        requests, failures, tokens, _ = self._window.totals(now_ms)
        bad = self._is_sample(requests) and (
            self._too_many_failures(requests, failures) or self._too_slow(tokens)
        )
        self._bad_evaluations = self._bad_evaluations + 1 if bad else 0
        return self._bad_evaluations >= self.rule.evaluations

    def _is_sample(self, requests: int) -> bool:
        rule = self.rule
        return requests >= rule.min_requests and (
            rule.min_rate == 0 or requests * 1000 / rule.window_ms > rule.min_rate
        )

    def _too_many_failures(self, requests: int, failures: int) -> bool:
        rule = self.rule
        if rule.consecutive is not None and self._in_a_row >= rule.consecutive:
            return True
        if rule.error_rate is None and rule.failures is None:
            return False
        # Divided, not multiplied: 29 of 100 are not above 29 %, but 0.29 * 100 is below 29.
        return failures > (rule.failures or 0) and failures / requests > (rule.error_rate or 0.0)

    def _too_slow(self, tokens: int) -> bool:
        """The 99th percentile by nearest rank is too slow when more are than may lie above it."""
        if not self._slow_count:
            return False
        rule, seen = self.rule, len(self._slow)
        if rule.p99_ms is None or self._slow_count <= seen - math.ceil(0.99 * seen):
            return False
        return rule.window_tokens is None or tokens > rule.window_tokens

    def _outdate(self) -> None:
        """Judge nobody any more who has gone through so far."""
        self._generation += 1
        self._pass = Pass(self._generation)

    def _go(self, to: State, now_ms: int) -> None:
        change = Change(self.name, self.state, to, now_ms)
        self.state, self._since_ms = to, now_ms
        self._outdate()
        self._probes.clear()
        self._forget(self.rule)
        self._changed(change)
