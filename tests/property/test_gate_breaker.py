"""A breaker against its table in the docs, told again in the plainest way: lists and no sums."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.gate.breaker import Breaker, BreakerRule, Change, Pass
from resilience.gate.windows import SLOTS


@dataclass(eq=False)
class Request:
    """One that was let through, and when it began as a probe (None: it is none)."""

    given: Pass
    life: int
    probe_ms: int | None
    due_ms: int = 0


@dataclass
class Table:
    """What the docs say, on the side: `changes` are (from, to, when)."""

    rule: BreakerRule
    state: str = "closed"
    since_ms: int = 0
    seen_ms: int = 0
    ends: list[tuple[int, bool, float, int]] = field(default_factory=list[Any])
    bad: int = 0
    good: int = 0
    life: int = 0
    probes: list[Request] = field(default_factory=list[Request])
    changes: list[tuple[str, str, int]] = field(default_factory=list[tuple[str, str, int]])

    def go(self, to: str, at_ms: int) -> None:
        self.changes.append((self.state, to, at_ms))
        self.state, self.since_ms, self.life = to, at_ms, self.life + 1
        self.ends, self.bad, self.good, self.probes = [], 0, 0, []

    def pass_time(self, now_ms: int) -> None:
        for at_ms in range(self.seen_ms + 1, now_ms + 1):
            self.open_up(at_ms)
            if any(probe.due_ms == at_ms for probe in self.probes):
                self.go("open", at_ms)
        self.seen_ms = now_ms

    def open_up(self, at_ms: int) -> None:
        if self.state == "open" and at_ms >= self.since_ms + self.rule.open_ms:
            self.go("half_open", at_ms)

    def adopt(self, rule: BreakerRule, now_ms: int) -> None:
        """Another rule counts from now on; what was counted for another window is no sample."""
        kept = [(r.window_ms, r.samples, r.p99_ms) for r in (self.rule, rule)]
        if kept[0] != kept[1]:
            self.ends, self.bad, self.good = [], 0, 0
        self.rule = rule
        self.open_up(now_ms)

    def lets_in(self) -> bool:
        return self.state == "closed" or (
            self.state == "half_open" and len(self.probes) < self.rule.probes)

    def succeed(self, now_ms: int) -> None:
        self.good += 1
        if self.good >= self.rule.probes:
            self.go("closed", now_ms)

    def hear(self, request: Request, now_ms: int) -> None:
        if request not in self.probes or request.probe_ms is None:
            return
        if now_ms - request.probe_ms < self.rule.probe_timeout_ms:
            request.due_ms = now_ms + self.rule.probe_timeout_ms
        else:
            self.probes.remove(request)
            self.succeed(now_ms)

    def leave(self, request: Request, how: str, took_ms: float, tokens: int, now_ms: int) -> None:
        was_probe = request in self.probes
        if was_probe:
            self.probes.remove(request)
        if request.life != self.life or how == "neutral":
            return
        if self.state == "closed":
            self.ends.append((now_ms, how == "failure", took_ms, tokens))
            self.bad = self.bad + 1 if self.is_bad(now_ms) else 0
            if self.bad >= self.rule.evaluations:
                self.go("open", now_ms)
        elif was_probe and how == "failure":
            self.go("open", now_ms)
        elif was_probe:
            self.succeed(now_ms)

    def is_bad(self, now_ms: int) -> bool:
        rule, slot_ms = self.rule, self.rule.window_ms // SLOTS
        inside = [e for e in self.ends if e[0] // slot_ms > now_ms // slot_ms - SLOTS]
        failures = sum(failed for _, failed, _, _ in inside)
        if len(inside) < rule.min_requests:
            return False
        if rule.min_rate and len(inside) / (rule.window_ms / 1_000) <= rule.min_rate:
            return False
        if rule.consecutive is not None and len(self.ends) >= rule.consecutive and all(
            failed for _, failed, _, _ in self.ends[-rule.consecutive:]
        ):
            return True
        number = rule.failures is None or failures > rule.failures
        share = rule.error_rate is None or failures / len(inside) > rule.error_rate
        if (rule.failures, rule.error_rate) != (None, None) and failures and number and share:
            return True
        last = sorted(took for _, _, took, _ in self.ends[-rule.samples:])
        slow = rule.p99_ms is not None and last[math.ceil(0.99 * len(last)) - 1] > rule.p99_ms
        loaded = rule.window_tokens is None or sum(e[3] for e in inside) > rule.window_tokens
        return slow and loaded


rules = st.builds(
    BreakerRule,
    error_rate=st.none() | st.sampled_from([0.0, 0.15, 0.29, 0.5]),
    failures=st.none() | st.integers(0, 3), consecutive=st.none() | st.integers(1, 3),
    p99_ms=st.none() | st.just(100), window_tokens=st.none() | st.just(50),
    window_ms=st.sampled_from([1_000, 2_000]), samples=st.integers(1, 6),
    evaluations=st.integers(1, 3), min_requests=st.integers(1, 4),
    min_rate=st.sampled_from([0.0, 2.0]), open_ms=st.integers(100, 700), probes=st.integers(1, 3),
    probe_timeout_ms=st.integers(100, 500),
)
outcomes = st.sampled_from(["success", "failure", "failure", "neutral"])
steps = st.lists(st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0, 1, 30, 99, 100, 250, 900, 3_000])),
    st.tuples(st.just("enter")), st.tuples(st.just("enter")),
    st.tuples(st.just("adopt"), rules), st.tuples(st.just("hear"), st.integers(0, 9)),
    st.tuples(st.just("leave"), st.integers(0, 9), outcomes, st.sampled_from([1.0, 100.0, 101.0]),
              st.integers(0, 40)),
    st.tuples(st.just("leave"), st.integers(0, 9), outcomes, st.sampled_from([1.0, 100.0, 101.0]),
              st.integers(0, 40)),
), max_size=80)


@settings(max_examples=300, deadline=None)
@given(rules, steps)
def test_a_breaker_does_what_its_table_says(rule: BreakerRule, script: list[Any]) -> None:
    changes: list[Change] = []
    breaker, table, now = Breaker("all", rule, changes.append), Table(rule), 0
    inside: list[Request] = []
    for name, *given_with in script:
        if name == "wait":
            now += given_with[0]
            continue
        table.pass_time(now)
        if name == "adopt":
            breaker.adopt(given_with[0], now)
            table.adopt(given_with[0], now)
        elif name == "enter":
            allowed = breaker.enter(now)
            assert (allowed is not None) is table.lets_in()
            if allowed is not None:
                half = table.state == "half_open"
                request = Request(
                    allowed, table.life, now if half else None,
                    now + table.rule.probe_timeout_ms)
                inside.append(request)
                if half:
                    table.probes.append(request)
        elif inside:
            request = inside[given_with[0] % len(inside)]
            if name == "hear":
                breaker.hear(request.given, now)
                table.hear(request, now)
            else:
                _, how, took_ms, tokens = given_with
                inside.remove(request)
                breaker.leave(request.given, how, took_ms, tokens, now)
                table.leave(request, how, took_ms, tokens, now)
    now += 10_000
    table.pass_time(now)
    assert breaker.look(now) == table.state
    assert [(c.from_state, c.to_state, c.at_ms) for c in changes] == table.changes
