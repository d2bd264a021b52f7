"""Windows and buckets: what they count, and when they let go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from resilience.gate.limiter import (
    LimiterRule,
    Signals,
    allowed,
    allowed_others,
    is_overloaded,
    next_limit,
)
from resilience.gate.tokens import LatencySlope, quota
from resilience.gate.windows import Bucket, Window


def test_a_window_forgets_slot_by_slot() -> None:
    window = Window(10_000)
    window.add(0, 1, 2, 3, 4)
    window.add(5_000, 10)
    assert window.totals(9_499) == (11, 2, 3, 4)
    assert window.totals(10_000) == (10, 0, 0, 0)
    assert window.totals(15_000) == (0, 0, 0, 0)


def test_a_window_says_when_enough_is_gone() -> None:
    window = Window(10_000)
    window.add(100, 5)
    window.add(3_000, 5)
    assert window.frees_at_ms(4_000, 5) == 10_000
    assert window.frees_at_ms(4_000, 6) == 13_000
    assert window.totals(10_000) == (5, 0, 0, 0)


def test_a_correction_ages_out_with_what_it_corrects() -> None:
    window = Window(10_000)
    window.add(100, 50)
    window.correct(100, -30, 9_000)
    assert (window.totals(9_000)[0], window.totals(10_000)[0]) == (20, 0)
    window.correct(100, -30, 10_000)
    assert window.totals(10_000)[0] == 0


def test_a_bucket_holds_the_rate() -> None:
    bucket = Bucket(2.0, 0)
    assert bucket.has(1, 0)
    bucket.take(2, 0)
    assert not bucket.has(1, 0) and bucket.ready_ms(1, 0) == 501
    assert bucket.has(1, 501)


def test_what_is_larger_than_the_burst_passes_when_full_and_is_paid_for() -> None:
    bucket = Bucket(100.0, 0)
    bucket.take(1_000, 0)
    assert not bucket.has(1, 8_999)
    assert bucket.has(1, 9_010)
    bucket.give_back(500, 0, 9_010)
    assert bucket.has(100, 9_010)


def test_nothing_is_given_back_once_the_bucket_has_been_full() -> None:
    """It would have held no more if less had been taken, and nobody may save up beyond the burst.
    """
    bucket = Bucket(100.0, 0)
    bucket.take(100, 0)
    assert bucket.has(100, 5_000)
    bucket.take(100, 5_000)
    bucket.give_back(80, 0, 5_010)
    assert not bucket.has(80, 5_010)
    bucket.give_back(80, 5_000, 5_010)
    assert bucket.has(80, 5_010)
    bucket.give_back(-80, 0, 5_010)
    assert not bucket.has(80, 5_010)


def test_another_rate_holds_from_now_on_and_for_what_was_saved() -> None:
    bucket = Bucket(10.0, 0)
    bucket.take(10, 0)
    bucket.tune(2.0, 300)  # three were saved, and two are a second's worth now
    assert bucket.has(2, 300)
    bucket.take(2, 300)
    assert bucket.ready_ms(1, 300) == 801
    bucket.tune(10.0, 800)
    assert bucket.has(1, 800) and not bucket.has(2, 800) and bucket.has(2, 900)


def test_a_slow_rate_still_lets_one_pass() -> None:
    bucket = Bucket(0.1, 0)
    bucket.take(1, 0)
    assert not bucket.has(1, 9_000) and bucket.has(1, 10_001)


def test_a_rate_of_nothing_is_never_ready() -> None:
    bucket = Bucket(0.0, 0)
    assert not bucket.has(1, 0) and bucket.ready_ms(1, 0) is None


@pytest.mark.parametrize(
    ("tokens", "window_ms", "allowed_tokens"),
    [(1_000, 10_000, 800), (1_000, 30_000, 800), (1_000, 30_001, 400), (10, 10_000, 50),
     (10, 60_000, 10), (101, 60_000, 40)],
)
def test_the_quota_follows_the_window(tokens: int, window_ms: int, allowed_tokens: int) -> None:
    assert quota(tokens, window_ms) == allowed_tokens


RULE = LimiterRule(queue_time_ms=200, time_per_token_ms=50, kv_usage=0.9, minimum=2, maximum=100)


@pytest.mark.parametrize(
    ("signals", "overloaded"),
    [
        (Signals(), False), (Signals(200, 50, 0.9), False), (Signals(queue_time_ms=201), True),
        (Signals(time_per_token_ms=51), True), (Signals(kv_usage=0.91), True),
    ],
)
def test_one_missed_target_is_overload(signals: Signals, overloaded: bool) -> None:
    assert is_overloaded(RULE, signals) is overloaded


def test_the_limit_grows_by_fifteen_percent_while_it_is_used() -> None:
    assert next_limit(40, RULE, Signals(), peak=30) == pytest.approx(46)
    assert next_limit(40, RULE, Signals(), peak=29) == 40
    assert next_limit(40, RULE, Signals(queue_time_ms=900), peak=40) == pytest.approx(36)


def test_it_is_clamped_last_and_rounded_down() -> None:
    assert next_limit(99, RULE, Signals(), peak=99) == 100
    assert next_limit(2, RULE, Signals(kv_usage=1.0), peak=2) == 2
    assert [allowed(x) for x in (1.0, 1.999, 7.9999999999)] == [1, 1, 8]


@pytest.mark.parametrize(("limit", "headroom", "others"), [
    (16.0, None, 16), (16.0, 0.05, 15), (16.0, 0.1, 14), (40.0, 0.1, 18), (40.0, None, 40),
    (1.0, 0.5, 1),
])
def test_what_is_left_to_lower_tiers_is_never_nothing(
    limit: float, headroom: float | None, others: int
) -> None:
    """Of twenty seats and this limit."""
    assert allowed_others(limit, 20, replace(RULE, headroom=headroom)) == others


def test_a_small_limit_gets_off_the_ground() -> None:
    limit = 1.0
    for _ in range(30):
        limit = next_limit(limit, RULE, Signals(), peak=allowed(limit))
    assert limit > 10


def test_it_settles_where_the_server_is_well() -> None:
    """A server that queues beyond 16: the limit ends near it from above and from below."""
    for start in (2.0, 100.0):
        limit, seen = start, []
        for _ in range(120):
            inside = allowed(limit)
            waits_ms = max(0, inside - 16) * 100.0
            limit = next_limit(limit, RULE, Signals(queue_time_ms=waits_ms), inside)
            seen.append(limit)
        assert all(13 <= x <= 22 for x in seen[60:])


def test_growth_of_latency_with_tokens_is_seen_at_once() -> None:
    slope = LatencySlope(10_000)
    calm = [slope.add(n * 100, n * 100, 100 + n) for n in range(20)]
    assert not any(calm) and slope.at(1_900) == pytest.approx(0.01)
    steep = LatencySlope(10_000)
    warned = [steep.add(n * 100, n * 100, 100 + 40 * n) for n in range(20)]
    assert warned[7:] == [True] * 13 and steep.at(1_900) == pytest.approx(0.4)
    assert steep.at(11_199) == pytest.approx(0.4), "of eight, the newest"
    assert steep.at(11_200) == 0.0
