"""Limits that change: what is counted goes on, and a refusal names the policy that asks now."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from resilience.gate.admission import Admission
from resilience.gate.breaker import BreakerRule
from resilience.gate.limiter import LimiterRule, Signals
from resilience.gate.limits import (
    CONCURRENCY,
    OUTPUT,
    OUTSTANDING,
    PROMPT_RATE,
    QUOTA,
    REQUEST_RATE,
    Limit,
)
from resilience.gate.snapshot import LimiterClaim, Snapshot
from resilience.gate.ticket import Lane, Refusal, Ticket

EVERYBODY: Lane = ("", "", "")
WELL = Signals(queue_time_ms=5.0)


def holding(*limits: Limit, queue_max: int = 0) -> Admission:
    admission = Admission()
    admission.configure(queue_max, None)
    admission.adopt(Snapshot(limits=limits), 0)
    return admission


def limiting(rule: LimiterRule, start: float, policy: str = "p") -> Admission:
    admission = Admission()
    admission.start_limit = admission.seats = start
    admission.adopt(Snapshot(limiter=LimiterClaim(rule, policy, "r")), 0)
    return admission


def asked(tokens: int = 0, tier: str = "core", tenant: str = "a", priority: int = 0) -> Ticket:
    ticket = Ticket((tier, tenant, ""), "/v1/completions", 0, priority)
    ticket.prompt_tokens = ticket.reserved = tokens
    return ticket


# --- the adaptive limit ---------------------------------------------------------------------------

RULE = LimiterRule(queue_time_ms=100, increase=0.1, minimum=1, maximum=12)


@pytest.mark.parametrize(("stay", "growths"), [(True, 3), (False, 1)])
def test_the_limit_grows_while_it_is_used_and_not_for_who_has_gone(
    stay: bool, growths: int
) -> None:
    """Four fill it and stay, though nobody new comes; or they go at once."""
    admission = limiting(RULE, 4.0)
    tickets = [asked() for _ in range(4)]
    assert [admission.offer(ticket, 0) for ticket in tickets] == [None] * 4
    for ticket in () if stay else tickets:
        admission.leave(ticket, "success", 1, 0)
    for _ in range(3):
        admission.adapt(WELL, 0)
    assert admission.limit == pytest.approx(4 * 1.1**growths)


@pytest.mark.parametrize(("start", "limit"), [(100.0, 12.0), (0.0, 1.0), (5.0, 5.0)])
def test_it_starts_within_its_bounds(start: float, limit: float) -> None:
    assert limiting(RULE, start).limit == limit


@pytest.mark.parametrize("tier", ["core", "best-effort"])
def test_a_refusal_names_the_policy_that_claims_the_limit_now(tier: str) -> None:
    """Another one took it over, with the same number: the document's own before, say."""
    rule = LimiterRule(queue_time_ms=100, minimum=2, maximum=2, headroom=0.5)
    admission = limiting(rule, 2.0, policy="")
    priority = 0 if tier == "core" else 20
    for _ in range(2):
        admission.offer(asked(tier=tier, priority=priority), 0)
    refusals = [admission.offer(asked(tier=tier, priority=priority), 0)]
    admission.adopt(Snapshot(limiter=LimiterClaim(rule, "ramp", "why")), 0)
    refusals.append(admission.offer(asked(tier=tier, priority=priority), 0))
    assert [r and (r.policy, r.reason) for r in refusals] == [("", "r"), ("ramp", "why")]


# --- counted limits -------------------------------------------------------------------------------


def test_the_first_limit_of_a_tenant_counts_what_runs() -> None:
    admission = holding()
    first = asked()
    assert admission.offer(first, 0) is None
    admission.adopt(Snapshot(limits=(Limit(CONCURRENCY, ("", "a", ""), 1, "p", "r"),)), 0)
    assert admission.offer(asked(), 0) is not None
    assert admission.offer(asked(tenant="b"), 0) is None
    admission.leave(first, "success", 1, 0)
    assert admission.offer(asked(), 0) is None


@pytest.mark.parametrize("limit", [
    Limit(OUTSTANDING, EVERYBODY, 50, "p", "r"),
    Limit(QUOTA, EVERYBODY, {"tokens": 100, "window_ms": 2_000}, "p", "r"),
    Limit(PROMPT_RATE, EVERYBODY, 50, "p", "r"),
])
def test_what_is_larger_than_a_limit_on_tokens_passes_alone(limit: Limit) -> None:
    admission = holding(limit)
    large = asked(500)
    assert admission.offer(large, 0) is None
    assert admission.offer(asked(1), 0) is not None
    admission.leave(large, "success", 1, 0)
    assert admission.offer(asked(500), 100_000) is None, "nothing is counted any more"


def test_of_two_limits_on_output_the_smaller_holds() -> None:
    wide = Limit(OUTPUT, EVERYBODY, 20, "p", "r")
    narrow = Limit(OUTPUT, ("core", "", ""), 7, "p", "r")
    for limits in ((wide, narrow), (narrow, wide)):
        assert holding(*limits).output_cap(("core", "a", "")) is narrow
        assert holding(*limits).output_cap(("elastic", "a", "")) is wide


@pytest.mark.parametrize(("then_ms", "passes"), [(2_000, False), (3_000, True)])
def test_a_claim_that_is_renewed_counts_on_and_another_window_begins_anew(
    then_ms: int, passes: bool
) -> None:
    def quota(window_ms: int) -> Limit:
        return Limit(QUOTA, EVERYBODY, {"tokens": 100, "window_ms": window_ms}, "p", "r")

    admission = holding(quota(2_000))
    assert admission.offer(asked(80), 0) is None
    admission.adopt(Snapshot(limits=(quota(then_ms),)), 0)
    assert (admission.offer(asked(80), 0) is None) is passes


def test_who_waits_for_a_quota_goes_when_enough_has_left_the_window() -> None:
    limit = Limit(QUOTA, EVERYBODY, {"tokens": 100, "window_ms": 2_000}, "p", "r")
    admission = holding(limit, queue_max=4)
    for now_ms in (0, 1_000):
        assert admission.offer(asked(40), now_ms) is None
    waiting = asked(40)
    verdicts: list[Refusal | None] = []
    waiting.verdict = verdicts.append
    assert admission.offer(waiting, 1_500, 60_000) is None
    assert admission.next_ms() == 2_000 and not verdicts
    admission.poll(2_000)
    assert verdicts == [None]


@pytest.mark.parametrize("kind", [REQUEST_RATE, PROMPT_RATE])
def test_a_smaller_rate_leaves_a_second_of_itself(kind: str) -> None:
    admission = holding(Limit(kind, EVERYBODY, 10.0, "p", "r"))
    admission.adopt(Snapshot(limits=(Limit(kind, EVERYBODY, 2.0, "p", "r"),)), 0)
    assert [admission.offer(asked(1), 0) is None for _ in range(3)] == [True, True, False]


def test_who_leaves_the_queue_makes_way_for_who_needs_less() -> None:
    """Its turn came first, and what it asked for was not there yet."""
    admission = holding(Limit(PROMPT_RATE, EVERYBODY, 100.0, "p", "r"), queue_max=8)
    assert admission.offer(asked(80), 0) is None
    large, small = asked(100), asked(10)
    verdicts: list[Refusal | None] = []
    small.verdict = verdicts.append
    for waiting in (large, small):
        assert admission.offer(waiting, 0, 60_000) is None and waiting.deadline_ms
    assert admission.abandon(large, 0)
    assert verdicts == [None] and not len(admission.queue)


def test_a_refusal_by_an_open_breaker_says_when_it_lets_probes_in(bench: Any, claim: Any) -> None:
    bench.hold(claim("breaker.rule", asdict(BreakerRule(failures=0, open_ms=30_000)),
                     ttl_ms=100_000))
    bench.send(gate=bench.answering(b"", status=500))
    for passed_ms in (0, 20_000):
        bench.clock.now += passed_ms
        refused = bench.send()
        left_s = 30 - passed_ms // 1_000
        assert refused.status == 503 and left_s <= int(refused.headers["retry-after"]) <= left_s + 4
