"""The bound on refused requests, by hand, and what it says when it knows too little."""

from __future__ import annotations

import numpy as np
import pytest

from resilience.report.history import Holding
from resilience.report.shed import ALL_OF_A_TIER, NO_REACTION, ONE_SERVER, Load, estimates

STEP_MS = 1_000


def _held(value: int, start: int, end: int, *, policy: str = "p", shadow: bool = False,
          tier: str = "best-effort") -> Holding:
    return Holding(policy, "i", "0", "throttle.max_concurrency", (("tier", tier),), value, 50,
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


@pytest.mark.parametrize("shadow", [False, True])
def test_without_metrics_there_is_no_estimate_and_shadow_sheds_nothing(shadow: bool) -> None:
    found = estimates([_held(5, 0, 10, shadow=shadow)], [], ["vllm:num_requests_running"])
    if shadow:
        assert found == []
    else:
        assert (found[0].refused_max, found[0].why) == (
            None, "the recording has no `vllm:num_requests_running`")
