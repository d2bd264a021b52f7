"""A live engine's recording, replayed: the dry run decides the same."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resilience.app.bundles import Sources, check_sources
from resilience.app.dryrun import open_recording, run

kit = sys.modules["app_rig"]  # loaded by conftest.py
Rig = Any
fire, sources, POLICY, WAITING, T0 = kit.fire, kit.sources, kit.POLICY, kit.WAITING, kit.T0


@pytest.fixture
def recorded(rig: Rig, tmp_path: Path) -> Callable[[Callable[[Rig], None]], Path]:
    def record(live: Callable[[Rig], None]) -> Path:
        path = tmp_path / "run.parquet"
        for waiting in (0, 0, 0):  # before the recording begins
            rig.second(waiting)
        assert rig.ask("POST", "recordings", {"action": "start", "path": str(path)})["recording"]
        live(rig)
        rig.ask("POST", "recordings", {"action": "stop"})
        return path

    return record


def busy(rig: Rig) -> None:
    for waiting in (0, 20, 20, 5, 20, 0, 0, 30, 0):
        rig.second(waiting)


def test_a_dry_run_over_a_live_recording_decides_the_same(recorded: Any) -> None:
    path = recorded(busy)
    bundle = check_sources(sources()).bundle
    outcome = run(bundle, open_recording(path, bundle))
    assert outcome.decisions == 4
    assert outcome.comparison is not None
    assert (outcome.comparison.live, outcome.comparison.differ) == (4, 0)


def test_operator_events_and_swaps_are_replayed(recorded: Any) -> None:
    def live(rig: Rig) -> None:
        busy(rig)
        rig.second(20)
        rig.ask("POST", "policies/queue/pause", {"for_ms": 2_000, "reason": "drill"})
        for _ in range(4):
            rig.second(20)
        rig.ask("PUT", "bundle", sources(15).to_json())
        for _ in range(3):
            rig.second(12)
        rig.second(0)

    path = recorded(live)
    for limit in (10, 15):
        bundle = check_sources(sources(limit)).bundle
        outcome = run(bundle, open_recording(path, bundle))
        assert outcome.comparison is not None
        assert outcome.comparison.differ == 0
        assert outcome.decisions == outcome.comparison.live >= 6


def test_a_clock_set_back_in_a_recording_is_replayed(recorded: Any) -> None:
    def live(rig: Rig) -> None:
        busy(rig)                                  # its samples are those of a breach, at the end
        for waiting in (20, 20, 20):
            rig.second(waiting)
        rig.clock.wall_ms -= 6_000
        for waiting in (1, 1, 1, 1, 1, 1, 1, 1, 20):
            rig.second(waiting)

    path = recorded(live)
    bundle = check_sources(sources()).bundle
    recording = open_recording(path, bundle)
    seam = next(e for e in recording.events if e["type"] == "clock_set_back")
    outcome = run(bundle, recording)
    assert outcome.comparison is not None
    assert (outcome.comparison.differ, outcome.decisions) == (0, outcome.comparison.live)
    told = [e["decision"] for e in recording.events if e["type"] == "decision"]
    assert [d["reason"] for d in told if d["t_ms"] == seam["t_ms"]] == ["clear"], \
        "the first tick after the clock was set back sees the new samples, not those of then"


def test_every_recorded_event_fits_its_schema(tmp_path: Path, core: Any, clock: Any) -> None:
    from jsonschema import Draft202012Validator

    from resilience.policy.contract_schemas import contract_schemas
    from resilience.sources.recording import read

    rig = kit.Rig(tmp_path / "state", core, clock, record_results=True)
    path = tmp_path / "all.parquet"
    rig.second(0)
    rig.ask("POST", "recordings", {"action": "start", "path": str(path)})
    busy(rig)
    rig.runtime.parts.engine.observe_capabilities(core.capabilities(deadline_ms=1_000))
    rig.ask("PUT", "bundle", kit.with_udf().to_json())
    rig.second(20)
    rig.ask("POST", "policies/queue/pause", {"for_ms": 2_000, "reason": "drill"})
    rig.second(float("inf"))
    rig.clock.wall_ms -= 5_000
    rig.second(0)
    rig.ask("POST", "recordings", {"action": "stop"})
    rig.close()
    events = read(path).events
    assert {e["type"] for e in events} == {
        "tick", "operator", "query", "udf", "capability", "bundle", "state", "decision",
        "clock_set_back",
    }
    judge = Draft202012Validator(contract_schemas()["event"])
    assert [(e, list(judge.iter_errors(e))) for e in events if not judge.is_valid(e)] == []
    assert not any(judge.is_valid({**e, "surprise": 1}) for e in events)


def test_recorded_answers_of_a_server_are_replayed_without_samples(
    tmp_path: Path, core: Any, clock: Any
) -> None:
    from resilience.sources.recording import read, write
    from resilience.sources.store import MemoryStore

    rig = kit.Rig(tmp_path / "state", core, clock, record_results=True)
    full, bare = tmp_path / "full.parquet", tmp_path / "bare.parquet"
    rig.ask("POST", "recordings", {"action": "start", "path": str(full)})
    busy(rig)
    rig.ask("POST", "recordings", {"action": "stop"})
    rig.close()
    recording = read(full)
    write(bare, MemoryStore(), recording.events, recording.meta)
    bundle = check_sources(sources()).bundle
    outcome = run(bundle, open_recording(bare, bundle))
    assert outcome.comparison is not None
    assert (outcome.comparison.live, outcome.comparison.differ) == (4, 0)


def test_other_rules_are_evaluated_but_not_compared(recorded: Any) -> None:
    path = recorded(busy)
    bundle = check_sources(sources(25)).bundle
    outcome = run(bundle, open_recording(path, bundle))
    assert outcome.comparison is None
    assert outcome.policies["queue"]["firings"] == 1


def test_one_sample_across_the_threshold_makes_a_difference(
    recorded: Any, tmp_path: Path
) -> None:
    from resilience.sources.recording import read, write

    path = recorded(busy)
    original = read(path)
    for group in original.store.groups():
        for row, labels in enumerate(group.labels):
            if dict(labels)["__name__"] == WAITING:
                group.values[row, list(group.values[row]).index(30)] = 9
    changed = tmp_path / "changed.parquet"
    write(changed, original.store, original.events, original.meta)
    bundle = check_sources(sources()).bundle
    outcome = run(bundle, open_recording(changed, bundle))
    assert outcome.comparison is not None
    assert outcome.comparison.differ > 0
    assert outcome.comparison.shown[0]["only_in"] == "live"


def test_a_recording_without_ticks_is_evaluated_on_the_grid(
    recorded: Any, tmp_path: Path
) -> None:
    from dataclasses import replace

    from resilience.sources.recording import read, write

    original = read(recorded(busy))
    bare = tmp_path / "bare.parquet"
    write(bare, original.store, (), replace(original.meta, start_ms=0, end_ms=0))
    bundle = check_sources(sources()).bundle
    outcome = run(bundle, open_recording(bare, bundle))
    assert outcome.comparison is None
    assert outcome.ticks >= 9
    assert outcome.policies["queue"]["firings"] == 2


def test_an_interval_that_the_recording_lacks_gets_its_grid(recorded: Any) -> None:
    path = recorded(busy)
    slow = Sources(tuple(
        (p, b.replace(b"interval: 1s", b"interval: 2s")) for p, b in sources().files
    ))
    bundle = check_sources(slow).bundle
    outcome = run(bundle, open_recording(path, bundle))
    assert outcome.decisions > 0
    assert outcome.comparison is None


@pytest.mark.parametrize("value", [float("inf"), float("-inf")])
def test_an_infinite_value_survives_a_restart_and_a_replay(
    tmp_path: Path, core: Any, clock: Any, value: float
) -> None:
    """A ratio over nothing is infinite; JSON has no such number."""
    rig = kit.Rig(tmp_path / "state", core, clock)
    turned = Sources(tuple(
        (p, b.replace(b"> 10", b"> 10 or max by (model_name) (vllm:num_requests_waiting) < -10")
         .replace(b"name: queue}", b"name: queue, annotations: {summary: 'at {{ $value }}'}}"))
        for p, b in sources().files
    ))
    rig.operations.apply(turned)
    path = tmp_path / "run.parquet"
    rig.second(0)
    rig.second(value)
    rig.runtime.parts.engine.restore()
    rig.ask("POST", "recordings", {"action": "start", "path": str(path)})
    for waiting in (value, 20, 0):
        rig.second(waiting)
    rig.ask("POST", "recordings", {"action": "stop"})
    fired, *_ = rig.ask("GET", "decisions")["decisions"]
    assert float(fired["value"]) == value
    assert fired["claims_after"][0]["reason"] == f"at {'+' if value > 0 else '-'}Inf"
    rig.close()
    bundle = check_sources(turned).bundle
    outcome = run(bundle, open_recording(path, bundle))
    assert outcome.comparison is not None
    assert outcome.comparison.live >= 1
    assert outcome.comparison.differ == 0


def test_two_recordings_at_once_are_refused(rig: Rig, tmp_path: Path) -> None:
    rig.ask("POST", "recordings", {"action": "start", "path": str(tmp_path / "a.parquet")})
    answer = rig.response(
        "POST", "recordings", {"action": "start", "path": str(tmp_path / "b.parquet")}
    )
    assert answer.status == 409
    (tmp_path / "c.parquet").write_text("")
    rig.ask("POST", "recordings", {"action": "stop"})
    with pytest.raises(Exception, match="exists already"):
        rig.operations.record("start", str(tmp_path / "c.parquet"))
    assert rig.operations.record("stop", None) == {"recording": False, "path": None}


def test_joining_a_recording_holds_up_neither_scrapes_nor_ticks(rig: Rig, tmp_path: Path) -> None:
    rig.operations.record("start", str(tmp_path / "run.parquet"))
    rig.second(0)
    writer = rig.recorder._writer
    joined = writer.close

    def close(path: Path) -> Any:
        rig.second(20)                        # would wait for ever for a lock that is held
        return joined(path)

    writer.close = close
    assert rig.operations.record("stop", None)["path"] == str(tmp_path / "run.parquet")
