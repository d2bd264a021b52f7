"""What a limit counts, while lanes come and go by the thousand."""

from __future__ import annotations

from typing import Any

import pytest

from resilience.gate.admission import Admission
from resilience.gate.limiter import LimiterRule
from resilience.gate.limits import (
    CONCURRENCY,
    CONTEXT,
    LANES_MAX,
    OUTSTANDING,
    PROMPT_RATE,
    QUOTA,
    REQUEST_RATE,
    Limit,
)
from resilience.gate.snapshot import LimiterClaim, Snapshot
from resilience.gate.ticket import Lane, Refusal, Ticket
from resilience.gate.windows import Window


def test_a_limit_counts_on_when_idle_scopes_are_forgotten() -> None:
    admission = Admission()
    limit = Limit(CONCURRENCY, ("core", "", "m"), 1, "p", "r")
    admission.adopt(Snapshot(limits=(limit,), models=frozenset({"m"})), 0)

    def passed_by(tenant: str) -> Ticket | None:
        ticket = Ticket(("core", tenant, "m"), "/v1/completions", 0)
        return ticket if admission.offer(ticket, 0) is None else None

    for number in range(LANES_MAX + 2):
        ticket = passed_by(str(number))
        assert ticket is not None
        admission.leave(ticket, "success", 1, 0)
    last = str(LANES_MAX)  # whose limit was looked up just before
    first = passed_by(last)
    assert first is not None and passed_by(last) is None
    admission.adopt(Snapshot(limits=(limit,), models=frozenset({"m"})), 0)
    assert passed_by(last) is None
    admission.leave(first, "success", 1, 0)
    assert passed_by(last) is not None


ZERO = Limit(CONCURRENCY, ("", "", ""), 0, "drain", "r")
NONE = Limit(OUTSTANDING, ("", "", ""), 0, "none", "r")
SHORT = Limit(CONTEXT, ("", "", ""), 40, "short", "r")
ONE = Limit(CONCURRENCY, ("core", "", ""), 1, "one", "r")


def one_waits(admission: Admission) -> tuple[Ticket, list[Refusal | None]]:
    """Let one request in and another, of 50 tokens, wait; return the first, and its verdicts."""
    admission.configure(8, None)
    admission.adopt(Snapshot(limits=(ONE,)), 0)
    first, second = (Ticket(("core", "a", ""), "/v1/completions", 0) for _ in range(2))
    verdicts: list[Refusal | None] = []
    second.prompt_tokens, second.verdict = 50, verdicts.append
    assert admission.offer(first, 0, 5_000) is None
    assert admission.offer(second, 0, 5_000) is None and second.deadline_ms
    return first, verdicts


@pytest.mark.parametrize("limit", [ZERO, NONE, SHORT])
@pytest.mark.parametrize("beside", [(), (ONE,)])
def test_who_waits_is_told_at_once_when_waiting_has_become_useless(
    limit: Limit, beside: tuple[Limit, ...]
) -> None:
    admission = Admission()
    first, verdicts = one_waits(admission)
    admission.adopt(Snapshot(limits=(*beside, limit)), 10)
    assert [v and (v.cause, v.policy) for v in verdicts] == [(limit.cause, limit.policy)]
    assert not len(admission.queue)
    admission.leave(first, "success", 1, 20)
    assert admission.usage.total == 0


@pytest.mark.parametrize("limit", [ZERO, NONE, SHORT])
def test_nobody_waits_for_a_limit_beside_one_that_no_waiting_helps_against(limit: Limit) -> None:
    admission = Admission()
    one_waits(admission)
    admission.adopt(Snapshot(limits=(ONE, limit)), 10)
    third = Ticket(("core", "a", ""), "/v1/completions", 0)
    third.prompt_tokens = 50
    refusal = admission.offer(third, 10, 5_000)
    assert refusal is not None and refusal.policy == limit.policy


def test_who_waits_goes_on_waiting_for_a_limit_that_is_none_for_it() -> None:
    admission = Admission()
    first, verdicts = one_waits(admission)
    other = Limit(CONCURRENCY, ("best-effort", "", ""), 0, "p", "r")
    admission.adopt(Snapshot(limits=(ONE, other)), 10)
    assert not verdicts
    admission.leave(first, "success", 1, 20)
    assert verdicts == [None]


def test_who_may_not_go_makes_nobody_else_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    admission = Admission()
    admission.configure(1_000, 10_000)
    admission.adopt(Snapshot(limits=(Limit(CONCURRENCY, ("", "", ""), 1, "p", "why"),)), 0)
    polls: list[int] = []
    whole = admission.poll

    def poll(now_ms: int) -> None:
        polls.append(now_ms)
        whole(now_ms)

    monkeypatch.setattr(admission, "poll", poll)
    tickets = [Ticket(("core", f"tenant-{n}", ""), "/v1/completions", n) for n in range(100)]
    assert [admission.offer(ticket, n, 1_000) for n, ticket in enumerate(tickets)] == [None] * 100
    assert len(admission.queue) == 99 and polls == []
    late = Ticket(("core", "late", ""), "/v1/completions", 1_050)
    assert admission.offer(late, 1_050, 1_000) is None
    assert len(admission.queue) == 50, "but those whose time is over leave"


@pytest.mark.parametrize("scope", [("", "", ""), ("core", "", "")])
@pytest.mark.parametrize("model", ["", "m"])
def test_a_limit_of_a_model_makes_no_request_count_twice(scope: Lane, model: str) -> None:
    """A request of another model is in the lane of all models, which two masks lead to."""
    admission = Admission()
    two, of_model = Limit(CONCURRENCY, scope, 2, "p", "r"), Limit(
        CONCURRENCY, (scope[0], "", "m"), 9, "p", "r")
    admission.adopt(Snapshot(limits=(two, of_model), models=frozenset({"m"})), 0)
    tickets = [Ticket(("core", "a", model), "/v1/completions", 0) for _ in range(3)]
    tickets[0].reserved = 7
    assert [admission.offer(ticket, 0) is None for ticket in tickets] == [True, True, False]
    tally = admission.usage.tally(scope)
    assert (tally.requests, tally.tokens) == (2, 7)
    for ticket in tickets:
        admission.leave(ticket, "success", 1, 0)
    assert (tally.requests, tally.tokens) == (0, 0)


def let_in_under_a_quota(path: str, prompt: int, now_ms: int) -> tuple[Admission, Window, Ticket]:
    """Let a request in under a quota of a window of 2 s."""
    limit = Limit(QUOTA, ("", "", ""), {"tokens": 1_000, "window_ms": 2_000}, "p", "r")
    admission = Admission()
    admission.adopt(Snapshot(limits=(limit,), needs_tokens=True), 0)
    ticket = Ticket(("core", "a", ""), path, now_ms)
    ticket.prompt_tokens = ticket.reserved = prompt
    assert admission.offer(ticket, now_ms) is None
    return admission, admission._meters._windows[limit.kind, limit.scope], ticket


@pytest.mark.parametrize(("took_ms", "left"), [(500, 10), (5_000, 0)])
def test_a_window_takes_nothing_back_that_has_left_it(took_ms: int, left: int) -> None:
    """A long request's estimate has aged out by its end: the window is empty then, not in debt."""
    admission, window, ticket = let_in_under_a_quota("/v1/embeddings", 300, 10)
    ticket.actual_prompt, ticket.actual_output = 10, 0
    admission.leave(ticket, "success", 1, 10 + took_ms)
    assert window.totals(10 + took_ms)[0] == left


def test_what_was_estimated_too_high_leaves_no_debt_when_it_ages_out() -> None:
    """A window in debt would let in more than it may hold."""
    admission, window, ticket = let_in_under_a_quota("/v1/embeddings", 300, 10)
    ticket.actual_prompt, ticket.actual_output = 10, 0
    admission.leave(ticket, "success", 1, 1_900)
    assert (window.totals(1_900)[0], window.totals(2_100)[0]) == (10, 0)


@pytest.mark.parametrize(("began_ms", "left"), [(900, 12), (10, 14)])
def test_events_without_a_token_are_taken_out_of_the_window_that_holds_them(
    began_ms: int, left: int
) -> None:
    """A chat's stream of two tokens has four events: one names the role, one the end."""
    admission, window, ticket = let_in_under_a_quota("/v1/chat/completions", 10, 900)
    ticket.first_ms, ticket.chunks = began_ms, 4
    admission.stream(ticket, 4, 1_000)
    ticket.actual_prompt, ticket.actual_output = 10, 2
    admission.leave(ticket, "success", 1, 2_300)
    assert window.totals(2_300)[0] == left


@pytest.mark.parametrize(("kind", "value", "after_ms"), [
    (REQUEST_RATE, 0.01, 100_001), (PROMPT_RATE, 1.0, 61_001),
    (QUOTA, {"tokens": 200, "window_ms": 3_600_000}, 3_600_000),
])
@pytest.mark.parametrize("patience_ms", [0, 5_000])
def test_who_is_refused_is_told_when_time_will_let_it_pass(
    kind: str, value: Any, after_ms: int, patience_ms: int
) -> None:
    limit, admission = Limit(kind, ("", "", ""), value, "p", "r"), Admission()
    admission.configure(2, 1_000)
    admission.adopt(Snapshot(limits=(limit,), needs_tokens=True), 0)
    answers: list[Refusal | None] = []
    for _ in range(2):
        ticket = Ticket(("core", "a", ""), "/v1/completions", 0)
        ticket.prompt_tokens = ticket.reserved = 61
        ticket.verdict = answers.append
        answers.append(admission.offer(ticket, 0, patience_ms))
    admission.poll(patience_ms)
    refusal = answers[-1]
    assert refusal is not None and refusal.status == 429
    assert after_ms * 0.9 - patience_ms <= refusal.retry_after_ms <= after_ms


def test_tiers_of_equal_importance_share_the_adaptive_limit() -> None:
    """Where the server lets core overtake, only the first tiers' own count against it, together."""
    admission = Admission()
    admission.overtakes, admission.start_limit = True, 4.0
    admission.rank({"core": 0, "live": 0, "batch": 10})
    admission.adopt(Snapshot(limiter=LimiterClaim(LimiterRule(queue_time_ms=1), "p", "r")), 0)
    refused = [
        admission.offer(Ticket((tier, "a", ""), "/v1/completions", 0), 0)
        for tier in ("core", "live") for _ in range(4)]
    assert [refusal is None for refusal in refused] == [True] * 4 + [False] * 4
