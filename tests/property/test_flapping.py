"""Whatever the input does, a shipped policy switches on at most once in its dwell time.

The dwell time is what must pass without a gap before a firing ends: `resolve.for`, or
`keep_firing_for` where nothing resolves.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from resilience.app import dryrun
from resilience.app.bundles import check_sources, read_sources
from resilience.model import Bundle, Decision, Policy, State, labels_of
from resilience.sources.recording import read
from resilience.sources.recording_format import RecordingMeta
from resilience.sources.recording_write import write_file
from resilience.sources.series import Series, group_series

ROOT = Path(__file__).resolve().parents[2]
START_MS = 1_764_430_000_000
WHERE = {"model_name": "m", "engine": "0"}
# policy -> metric -> (value when all is well, value in the incident)
SWITCHED = {
    "kv-pressure": {"vllm:kv_cache_usage_perc": (0.5, 0.95)},
    "queue-growth": {"vllm:num_requests_waiting": (0.0, 40.0),
                     "vllm:num_requests_running": (8.0, 8.0)},
    "dead-engine": {"vllm:num_requests_waiting": (0.0, 7.0),
                    "vllm:num_requests_running": (8.0, 0.0)},
    "orphaned-kv": {"vllm:kv_cache_usage_perc": (0.5, 0.95),
                    "vllm:num_requests_running": (0.0, 0.0)},
    "core-ttft-burn": {"resilience_gate_ttft_seconds_bucket": (2.0, 0.0),
                       "resilience_gate_ttft_seconds_count": (2.0, 2.0)},
    "preemption-storm": {"vllm:num_preemptions_total": (0.0, 5.0)},
}
waves = st.lists(st.tuples(st.integers(1, 45), st.booleans()), min_size=4, max_size=16)


@cache
def shipped_rules() -> Bundle:
    return check_sources(read_sources(ROOT / "rules")).bundle


def only(name: str) -> tuple[Bundle, Policy]:
    bundle = shipped_rules()
    policy = next(p for p in bundle.policies if p.name == name)
    return Bundle(bundle.revision, (policy,), bundle.config), policy


def course(metric: str, pair: tuple[float, float], bad: list[bool]) -> NDArray[np.float64]:
    values = np.array([pair[b] for b in bad])
    is_counter = metric.endswith(("_total", "_bucket", "_count"))
    return np.cumsum(values) if is_counter else values


def labels(metric: str) -> dict[str, str]:
    gate = {"tier": "core", "instance": "i", **({"le": "1.0"} if "bucket" in metric else {})}
    return {"__name__": metric, **(gate if metric.startswith("resilience_gate") else WHERE)}


@pytest.mark.parametrize("name", sorted(SWITCHED))
@settings(max_examples=12)
@given(segments=waves)
def test_it_switches_at_most_once_in_its_dwell_time(
    tmp_path_factory: pytest.TempPathFactory, name: str, segments: list[tuple[int, bool]],
) -> None:
    alone, policy = only(name)
    bad = [state for seconds, state in segments for _ in range(seconds)]
    times = START_MS + 1_000 * np.arange(len(bad), dtype=np.int64)
    series = [Series(labels_of(labels(m)), times, course(m, pair, bad))
              for m, pair in SWITCHED[name].items()]
    path = tmp_path_factory.mktemp("flapping") / "waves.parquet"
    write_file(path, group_series(series), [], RecordingMeta(
        "made", scrape_interval_ms=1_000, start_ms=int(times[0]), end_ms=int(times[-1])))
    decisions: list[Decision] = []
    dryrun.run(alone, read(path), on_decision=decisions.append)
    began = [d.t_ms for d in decisions
             if d.to_state is State.FIRING and d.from_state is not State.FIRING
             and d.from_state is not State.HELD]
    dwell_ms = policy.trigger.resolve.for_ms if policy.trigger.resolve else \
        policy.trigger.keep_firing_for_ms
    assert dwell_ms >= 5_000
    assert all(b - a >= dwell_ms for a, b in zip(began, began[1:], strict=False)), began
