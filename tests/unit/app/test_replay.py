"""Any kept decision is made again offline, byte for byte."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from resilience import __version__
from resilience.app import inputs as inputs_module
from resilience.app.bundle_store import BundleStore
from resilience.app.bundles import Sources
from resilience.app.dryrun import open_recording, run
from resilience.app.frozen_json import from_json, pack
from resilience.app.replay import replay
from resilience.cli.replay import told
from resilience.errors import ControlError
from resilience.model import (
    Action,
    Observations,
    OperatorEvent,
    QueryInput,
    QueryResult,
    Reason,
    Sample,
    SeriesTruth,
    TriggerObservation,
    Truth,
    UdfOutcome,
    canonical_json,
    labels_of,
)
from resilience.policy.decide import decide

kit = sys.modules["app_rig"]  # loaded by conftest.py
sources, POLICY, WAITING = kit.sources, kit.POLICY, kit.WAITING
UDF = """
def halve(ctx):
    return {"actions": [{"type": "throttle", "tier": "best-effort",
                         "max_concurrency": int(ctx["metrics"]["w"]) // 2}]}
"""
CALL = (b"{type: udf_call, function: halve, timeout: 3s, "
        b"metrics: {w: 'max(vllm:num_requests_waiting)'}}")


def replayed(rig: Any, decision_id: str, **more: Any) -> Any:
    return replay(decision_id, rig.journal, rig.runtime.parts.bundles, **more)


def decisions(rig: Any) -> list[Any]:
    found: list[Any] = rig.ask("GET", "decisions?limit=1000")["decisions"]
    return found


def test_every_decision_of_a_run_is_the_same_again(rig: Any) -> None:
    other = "---" + POLICY.replace("name: queue", "name: calm").replace("LIMIT", "90")
    rig.operations.apply(sources(extra=other))
    for waiting in (0, 20, 99, 99, 0, 20, 20, 0):
        rig.second(waiting)
    rig.ask("POST", "policies/queue/pause", {"reason": "look"})
    rig.second(20)
    rig.ask("POST", "policies/queue/resume", {})
    rig.second(20)
    rig.second(20)
    rig.operations.apply(sources(30))                     # ends `calm`, and `queue` by its trigger
    found = decisions(rig)
    assert {d["reason"] for d in found} >= {"breach", "clear", "operator", "revision"}
    for decision in found:
        again = replayed(rig, decision["id"])
        assert (again.same, again.code_changed) == (True, False), again
        assert canonical_json(again.recomputed) == canonical_json(decision)


def test_what_a_udf_returned_is_kept_and_not_called_again(rig: Any) -> None:
    yaml = tuple((p, b.replace(
        b"{type: throttle, tier: best-effort, max_concurrency: 4, lease: 30s}", CALL
    )) for p, b in sources().files)
    rig.operations.apply(Sources(yaml, ((("udfs/halve.py", UDF),),)))
    for waiting in (0, 20, 16, 0):
        rig.second(waiting)
    found = decisions(rig)
    assert [c["value"] for d in found for c in d["claims_after"]] == [10, 8]
    assert all(replayed(rig, d["id"][:8]).same for d in found)


def test_it_says_what_changed_since(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.fire(rig)
    (fired,) = decisions(rig)
    assert replayed(rig, fired["id"]).policy == "same"
    assert replayed(rig, fired["id"], now=sources(11)).policy == "changed"
    gone = Sources(tuple((p, b.replace(b"name: queue", b"name: q")) for p, b in sources().files))
    assert replayed(rig, fired["id"], now=gone).policy == "removed"
    rig.operations.apply(sources(15))
    again = replayed(rig, fired["id"])
    assert (again.same, again.policy) == (True, "changed")
    assert f"code: the same ({__version__})" in told(again.to_json())
    monkeypatch.setattr("resilience.app.replay.code_digest", lambda: "another")
    again = replayed(rig, fired["id"])
    assert again.code_changed
    assert f"code: changed since (both {__version__}, by other files)" in told(again.to_json())
    monkeypatch.setattr("resilience.app.replay.__version__", "9.0")
    assert f"code: changed since ({__version__} then, 9.0 now)" in told(
        replayed(rig, fired["id"]).to_json())


def test_changed_inputs_or_records_show(rig: Any) -> None:
    kit.fire(rig)
    (fired,) = decisions(rig)
    from resilience.model import JournalEntry

    rig.journal.append([JournalEntry("decision", fired["id"], {**fired, "value": 7})])
    again = replayed(rig, fired["id"])
    assert (again.same, again.differences) == (False, ("value",))


def test_only_policies_that_matter_are_kept(rig: Any) -> None:
    others = "".join(
        "---" + POLICY.replace("name: queue", f"name: q{n}").replace("LIMIT", "900")
        for n in range(50)
    )
    rig.operations.apply(sources(extra=others))
    kit.fire(rig)
    (row,) = rig.journal.load("inputs").values()
    assert inputs_module.TickInputs.of_row(row).policies == ("queue",)


def test_a_full_house_is_as_full_again(rig: Any) -> None:
    """`limits.instances`: the room that others took is part of what a decision was made from."""
    waiting = POLICY.replace("name: queue", "name: patient").replace("LIMIT", "10").replace(
        "on_no_data: hold", "for: 1h\n    on_no_data: hold")
    house = """
apiVersion: resilience/v1
kind: Engine
metadata: {name: engine}
spec: {limits: {instances: 4}}
"""
    rig.operations.apply(sources(15, extra=f"---{waiting}---{house}"))
    rig.labels = tuple(labels_of({"__name__": WAITING, "model_name": m}) for m in "abc")
    for value in (12, 12, 20):      # three of `patient` wait, so `queue` has room for one of three
        rig.second(value)
    fired = [d for d in decisions(rig) if d["policy"] == "queue"]
    assert len(fired) == 1
    again = replayed(rig, fired[0]["id"])
    assert again.same, again
    row = max(rig.journal.load("inputs").values(), key=lambda r: r["t_ms"])
    kept = inputs_module.TickInputs.of_row(row)
    assert (kept.state.left_away, "patient" in kept.state.instances) == (3, False)
    _, made = decide(
        rig.runtime.parts.engine.bundle.policies, kept.state, kept.observations, kept.t_ms,
        kept.revision, rig.runtime.parts.engine.bundle,
    )
    assert [d.id for d in made if d.policy == "queue"] == [fired[0]["id"]]


def test_what_is_too_large_is_counted_and_the_tick_goes_on(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs_module, "PACKED_MAX", 10)
    kit.fire(rig)
    (fired,) = decisions(rig)
    assert rig.ask("GET", "status")["inputs_dropped"] == 1
    with pytest.raises(ControlError, match="are not kept"):
        replayed(rig, fired["id"])


def test_a_decision_that_nobody_knows(rig: Any) -> None:
    with pytest.raises(ControlError, match="no decision `abcd`"):
        replayed(rig, "abcd")


def test_observations_of_every_shape_come_back() -> None:
    observed = TriggerObservation(
        (SeriesTruth((("a", "b"),), Truth.UNKNOWN, Reason.IDLE, float("nan")),),
        Reason.BLIND_STALE, "why", (QueryInput("q", [[{"a": "b"}, 1.5]], 7),),
    )
    whole = Observations(
        {"p": observed}, {"p": observed},
        {"q": QueryResult("q", "vector", (Sample((("x", "y"),), float("inf")),))},
        {("p", "i", "0"): UdfOutcome("p", "i", "0", "f", "ok", {"a": [1]},
                                     actions=(Action("0.0", "throttle"),))},
        {"k": 3.0}, (OperatorEvent("pause", None, 5, "r"),),
    )
    body = json.loads(canonical_json(pack(Observations, whole)))
    again = from_json(Observations, body)
    assert canonical_json(pack(Observations, again)) == canonical_json(body)
    assert again.udfs == whole.udfs and again.operator == whole.operator
    with pytest.raises(ValueError, match="this is no Observations"):
        from_json(Observations, {"triggers": []})


def test_the_command_needs_no_engine(rig: Any, tmp_path: Path) -> None:
    kit.fire(rig)
    (fired,) = decisions(rig)
    assert BundleStore(tmp_path / "state" / "bundles").revisions()
    from click.testing import CliRunner

    from resilience.cli.replay import command

    done = CliRunner().invoke(
        command, [fired["id"], "--state", str(tmp_path / "state")], standalone_mode=False)
    assert done.return_value == 0
    assert "the same decision, byte for byte" in done.output
    assert "policy: the same" in done.output


def test_verify_guard_probe_group_and_belts_are_the_same_again_and_in_a_dry_run(
    rig: Any, tmp_path: Path
) -> None:
    kit.with_everything(rig)
    path = tmp_path / "run.parquet"
    rig.operations.record("start", str(path))
    for waiting in kit.WAITINGS:
        rig.second(waiting)
    rig.operations.record("stop", None)
    bundle = rig.runtime.parts.engine.bundle
    live = [d for d in decisions(rig) if d["revision"] == bundle.revision]
    notes = " ".join(d["note"] or "" for d in live)
    assert {d["reason"] for d in live} >= {"verify_failed", "guard", "probe", "superseded"}
    for said in ("was met", "failed for 4s", "guard `", "is held by `full`", "is below the floor",
                 "refused: safety: 1 disruptive", "cooldown until", "quarantine until"):
        assert said in notes, said
    for decision in live:
        assert canonical_json(replayed(rig, decision["id"]).recomputed) == canonical_json(decision)
    dry: list[Any] = []
    outcome = run(bundle, open_recording(path, bundle), on_decision=dry.append)
    assert outcome.comparison is not None and outcome.comparison.differ == 0
    assert [canonical_json(d.to_json()) for d in dry] == [canonical_json(d) for d in live]
