"""The bound on refused requests, by hand, and what it says when it knows too little."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from resilience.report.history import Holding
from resilience.report.shed import (
    ALL_OF_A_TIER,
    BURSTS,
    NO_REACTION,
    ONE_SERVER,
    TOGETHER,
    UNKNOWN,
    Load,
    estimates,
    total,
)

STEP_MS = 1_000


def _held(value: int, start: int, end: int, *, policy: str = "p", shadow: bool = False,
          tier: str = "best-effort", knob: str = "throttle.max_concurrency") -> Holding:
    return Holding(policy, "i", "0", knob, (("tier", tier),), value, 50,
                   start * STEP_MS, end * STEP_MS, shadow)


def _load(in_flight: float, arrived: float, *, tier: str | None = None, servers: int = 1) -> Load:
    times = np.arange(10, dtype=np.int64) * STEP_MS
    flight, came = np.full(10, float(in_flight)), np.full(10, float(arrived))
    return Load(times, flight, came, STEP_MS, tier, servers)


def test_half_of_the_flight_is_half_of_the_requests() -> None:
    (found,) = estimates([_held(5, 2, 6)], [_load(10, 3)], [])
    assert (found.limited_ms, found.arrived, found.refused_max) == (4_000, 12, 6)
    assert found.caveats == (ALL_OF_A_TIER, NO_REACTION)


def test_a_limit_above_the_flight_refuses_nobody() -> None:
    (found,) = estimates([_held(16, 0, 10)], [_load(10, 3)], [])
    assert (found.arrived, found.refused_max) == (30, 0)


def test_the_smaller_of_two_limits_counts() -> None:
    found = estimates([_held(5, 0, 10), _held(1, 0, 5, policy="q")], [_load(10, 10)], [])
    assert [s.refused_max for s in found] == [70]


def test_a_tier_that_the_gate_measured_is_its_own_bound() -> None:
    loads = [_load(10, 3, tier="best-effort"), _load(100, 30)]
    own, other = estimates([_held(5, 0, 10), _held(50, 0, 10, tier="elastic")], loads, [])
    assert (own.exact_tier, own.arrived, own.refused_max) == (True, 30, 15)
    assert ALL_OF_A_TIER not in own.caveats
    assert (other.exact_tier, other.arrived, other.refused_max) == (False, 300, 150)


def test_a_limit_counts_on_each_server() -> None:
    (found,) = estimates([_held(5, 0, 10)], [_load(10, 3, servers=2)], [])
    assert found.refused_max == 0
    assert ONE_SERVER in found.caveats


def test_time_without_samples_is_named_and_not_counted() -> None:
    load = _load(10, 3)
    load.in_flight[4:6] = np.nan
    (found,) = estimates([_held(5, 0, 10)], [load], [])
    assert (found.arrived, found.unknown_ms) == (24, 2_000)


def test_without_metrics_there_is_no_estimate() -> None:
    (found,) = estimates([_held(5, 0, 10)], [], ["vllm:num_requests_running"])
    assert (found.refused_max, found.why) == (
        None, "the recording has no `vllm:num_requests_running`")


def test_a_shadow_policy_is_told_what_it_would_have_refused_in_enforce() -> None:
    (found,) = estimates([_held(5, 0, 10, shadow=True)], [_load(10, 3)], [])
    assert (found.shadow, found.limited_ms, found.refused_max) == (("p",), 10_000, 15)


def test_beside_policies_in_force_shadow_ones_count_together_with_them() -> None:
    real, both = estimates(
        [_held(5, 0, 10), _held(2, 0, 5, policy="q", shadow=True)], [_load(10, 10)], [])
    assert (real.shadow, real.refused_max) == ((), 50)
    assert (both.shadow, both.refused_max) == (("q",), 65)


def test_requests_a_second_are_compared_with_arrivals() -> None:
    knob = "throttle.max_requests_per_second"
    (found,) = estimates([_held(2, 0, 10, knob=knob)], [_load(10, 8)], [])
    assert (found.knob, found.refused_max) == (knob, 60)
    assert BURSTS in found.caveats


@pytest.mark.parametrize(("tokens", "refused"), [(None, None), (400.0, 15), (100.0, 0)])
def test_prompt_tokens_a_second_are_compared_with_those_that_were_read(
    tokens: float | None, refused: int | None
) -> None:
    load = _load(10, 3)
    if tokens is not None:
        load = replace(load, prompt_tokens=np.full(10, tokens))
    held = _held(200, 0, 10, knob="throttle.max_prompt_tokens_per_second")
    (found,) = estimates([held], [_load(10, 3, tier="best-effort"), load], [])
    assert found.refused_max == refused
    assert (found.why is None) is (refused is not None)


@pytest.mark.parametrize("knob", sorted(UNKNOWN))
def test_what_no_metric_tells_is_said_and_not_guessed(knob: str) -> None:
    (found,) = estimates([_held(2, 0, 10, knob=knob)], [_load(10, 8)], [])
    assert (found.refused_max, found.why) == (None, UNKNOWN[knob])


def test_limits_of_several_knobs_at_once_are_not_to_be_added() -> None:
    held = [_held(5, 0, 10), _held(2, 0, 10, knob="throttle.max_requests_per_second")]
    assert all(TOGETHER in s.caveats for s in estimates(held, [_load(10, 8)], []))
    held = [_held(5, 0, 10), _held(2, 0, 10, tier="elastic")]
    assert all(TOGETHER not in s.caveats for s in estimates(held, [_load(10, 8)], []))


def test_what_limits_of_several_tiers_might_refuse_adds_up() -> None:
    held = [_held(5, 0, 5), _held(5, 5, 10, tier="elastic")]      # one after the other
    bounds = estimates(held, [_load(10, 10)], [])
    assert [shed.refused_max for shed in bounds] == [25, 25] and total(bounds) == 50
    held = [_held(5, 0, 10), _held(2, 0, 10, tier="elastic"), _held(1, 0, 10, tier="core")]
    loads = [_load(10, 3, tier="best-effort"), _load(10, 3, tier="elastic"), _load(20, 6)]
    assert total(estimates(held[:2], loads, [])) == 15 + 24
    assert total(estimates(held, [], ["x"])) is None
    assert total([]) == 0
