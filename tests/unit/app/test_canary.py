"""A candidate beside the active rules: same ticks, no effect, records of its own."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from resilience.app import canary as canary_module
from resilience.app.bundle_store import STORED_MAX
from resilience.app.bundles import Sources, check_sources
from resilience.app.canary import QUEUE_MAX
from resilience.app.canary_compare import compare
from resilience.app.candidates import Candidates
from resilience.app.dryrun import open_recording, run
from resilience.errors import ControlError, FindingsError
from resilience.model import canonical_json

kit = sys.modules["app_rig"]  # loaded by conftest.py
fire, sources, POLICY, T0 = kit.fire, kit.sources, kit.POLICY, kit.T0
FAST = "---" + POLICY.replace("name: queue", "name: fast").replace("LIMIT", "3").replace(
    "interval: 1s", "interval: 500ms")


def begin(rig: Any, candidate: Sources) -> Candidates:
    candidates = Candidates(rig.runtime, threads=False)
    candidates.begin(candidate)
    return candidates


def seconds(rig: Any, *waiting: float) -> None:
    for value in waiting:
        rig.second(value)
        if rig.runtime.canary is not None:
            rig.runtime.canary.work()


def test_a_candidate_decides_beside_the_active_rules_and_touches_nothing(rig: Any) -> None:
    begin(rig, sources(15))
    puts = len(rig.core.puts)
    seconds(rig, 0, 12, 12, 30)
    seen = rig.ask("GET", "canary")["canary"]
    assert (seen["changed"], seen["ticks"], seen["ticks_dropped"]) == (["queue"], 4, 0)
    assert seen["policies"] == {
        "queue": {"same": 0, "different": 0, "only_active": 1, "only_candidate": 1}}
    assert [d["verdict"] for d in seen["differences"]] == ["only_active", "only_candidate"]
    assert [c["revision"] for c in rig.ask("GET", "claims")["claims"]] == [
        check_sources(sources()).bundle.revision]
    assert all(
        c.revision == check_sources(sources()).bundle.revision
        for put in rig.core.puts[puts:] for c in put.claims
    )
    assert 'resilience_canary_ticks_total{outcome="done"} 4.0' in (
        rig.public("/metrics").body.decode())


def test_the_same_rules_with_other_words_decide_alike(rig: Any) -> None:
    begin(rig, Sources(tuple((p, b + b"# a remark\n") for p, b in sources().files)))
    seconds(rig, 0, 20, 20, 0, 20)
    seen = rig.ask("GET", "canary")["canary"]
    assert (seen["same"], seen["differ"]) == (3, 0)


def test_running_states_are_carried_into_the_candidate(rig: Any) -> None:
    fire(rig)
    begin(rig, sources(extra=FAST))
    seconds(rig, 20, 0)
    seen = rig.ask("GET", "canary")["canary"]
    assert seen["policies"]["queue"]["same"] == 1          # it resolves in both, fires in neither


def test_records_of_a_candidate_lie_apart_and_a_recording_knows_nothing_of_it(
    rig: Any, tmp_path: Path
) -> None:
    recording = tmp_path / "run.parquet"
    rig.operations.record("start", str(recording))
    begin(rig, sources(15, extra=FAST))
    seconds(rig, 0, 12, 30, 0)
    rig.operations.record("stop", None)
    state = tmp_path / "state"
    ours = [json.loads(line) for line in (state / "decisions.jsonl").read_text().splitlines()]
    theirs = (state / "canary-decisions.jsonl").read_text().splitlines()
    active = check_sources(sources()).bundle
    assert {d["revision"] for d in ours} == {active.revision}
    assert active.revision not in "".join(theirs)
    live = (state / "decisions.jsonl").read_text().splitlines()
    dry: list[str] = []
    outcome = run(active, open_recording(recording, active),
                  on_decision=lambda d: dry.append(canonical_json(d.to_json())))
    assert dry == live
    assert outcome.comparison is not None and outcome.comparison.differ == 0


def test_promoting_is_an_apply_and_ends_the_candidate(rig: Any) -> None:
    fire(rig)
    candidate = sources(extra=FAST)
    begin(rig, candidate)
    revision = check_sources(candidate).bundle.revision
    assert rig.intervals[-1] == [500, 1_000]
    wrong = rig.response("POST", "canary/promote", {"revision": "sha256:000000000000"})
    assert wrong.status == 412
    answer = rig.ask("POST", "canary/promote", {"revision": revision})
    assert (answer["applied"], answer["to"], answer["added"]) == (True, revision, ["fast"])
    assert rig.ask("GET", "policies")["policies"][1]["state"] == "firing"
    assert rig.ask("GET", "history")["events"][-1]["action"] == "promote"
    assert rig.response("GET", "canary").status == 404
    assert rig.journal.load("canary") == {} and rig.journal.load("canary_state") == {}


def test_discarding_leaves_the_active_rules_alone(rig: Any) -> None:
    before = rig.ask("GET", "bundle")
    candidate = sources(15, extra=FAST)
    candidates = begin(rig, candidate)
    assert candidates.discard()["discarded"] == check_sources(candidate).bundle.revision
    assert rig.ask("GET", "bundle") == before
    assert rig.intervals[-1] == [1_000]
    with pytest.raises(ControlError, match="no candidate runs"):
        candidates.discard()


def test_a_candidate_survives_a_restart_with_its_state(rig: Any) -> None:
    begin(rig, sources(15))
    seconds(rig, 0, 30)
    rig.runtime.canary.close()
    rig.runtime.canary = None
    Candidates(rig.runtime, threads=False).restore()
    seconds(rig, 30, 30)
    seen = rig.ask("GET", "canary")["canary"]
    assert seen["since_ms"] == T0
    assert seen["policies"]["queue"] == {
        "same": 1, "different": 0, "only_active": 0, "only_candidate": 0}


def restored(rig: Any) -> Any:
    """Return the candidate as an engine that starts finds it."""
    rig.runtime.canary.close()
    rig.runtime.canary = None
    Candidates(rig.runtime, threads=False).restore()
    return rig.runtime.canary


def test_candidates_push_no_applied_bundle_out_and_none_is_pushed_out(rig: Any) -> None:
    applied = rig.ask("GET", "status")["revision"]
    for limit in range(20, 20 + STORED_MAX):
        begin(rig, sources(limit))
    assert rig.ask("GET", "history")["kept"] == [applied]
    candidate = rig.runtime.canary.started.revision
    assert rig.runtime.parts.bundles.candidates.revisions() == [candidate]
    for limit in range(120, 120 + STORED_MAX):
        rig.ask("PUT", "bundle", sources(limit).to_json())
    assert restored(rig).started.revision == candidate and rig.said == []
    rig.ask("POST", "canary/promote", {})
    assert rig.ask("GET", "history")["kept"][0] == candidate
    assert not list(rig.runtime.parts.bundles.candidates.revisions())


def test_a_candidate_that_an_older_engine_kept_is_found(rig: Any) -> None:
    begin(rig, sources(15))
    bundles, started = rig.runtime.parts.bundles, rig.runtime.canary.started
    bundles.save(started.revision, bundles.candidates.load(started.revision))
    bundles.candidates.clear()
    assert restored(rig).started == started


def test_a_candidate_that_the_engine_no_longer_accepts_is_dropped_and_said(rig: Any) -> None:
    begin(rig, sources(15))
    revision = rig.runtime.canary.bundle.revision
    rig.runtime.canary.close()
    rig.runtime.canary = None
    kept = rig.runtime.parts.bundles.candidates
    kept.save(revision, Sources((("queue.yaml", b"kind: Nothing\n"),)))
    Candidates(rig.runtime, threads=False).restore()
    assert rig.runtime.canary is None
    assert any(s.startswith(f"the candidate {revision} was dropped") for s in rig.said)
    assert rig.journal.load("canary") == {}


def test_what_could_not_be_applied_cannot_run_in_shadow(rig: Any) -> None:
    candidates = Candidates(rig.runtime, threads=False)
    with pytest.raises(FindingsError):
        candidates.begin(Sources((("queue.yaml", b"kind: Policy\n"),)))
    with pytest.raises(ControlError, match="is the active revision"):
        candidates.begin(sources())
    assert rig.runtime.canary is None


def test_a_pause_counts_for_both(rig: Any) -> None:
    begin(rig, sources(11))
    rig.ask("POST", "policies/queue/pause", {"reason": "look"})
    seconds(rig, 0, 30, 30)
    seen = rig.ask("GET", "canary")["canary"]
    assert (seen["same"], seen["differ"]) == (1, 0)


def test_a_candidate_that_is_slow_loses_ticks_and_the_active_rules_none(rig: Any) -> None:
    begin(rig, sources(15))
    for _ in range(QUEUE_MAX + 5):
        rig.second(20)
    status = rig.ask("GET", "status")
    assert (status["canary"]["behind"], status["canary"]["ticks_dropped"]) == (QUEUE_MAX, 5)
    assert status["ticks"][0]["last_ms"] == T0 + (QUEUE_MAX + 4) * 1_000
    rig.runtime.canary.work()
    assert rig.ask("GET", "canary")["canary"]["ticks"] == QUEUE_MAX


def test_a_dry_run_of_a_candidate_starts_none(rig: Any) -> None:
    answer = rig.ask("PUT", "bundle?shadow=1&dry_run=1", sources(15).to_json())
    assert (answer["applied"], answer["shadow"], answer["changed"]) == (False, False, ["queue"])
    assert rig.runtime.canary is None


def test_with_a_thread_of_its_own_it_decides_the_same(rig: Any) -> None:
    rig.ask("PUT", "bundle?shadow=1", sources(15).to_json())
    for waiting in (0, 12, 30, 0):
        rig.second(waiting)
    canary = rig.runtime.canary
    canary.close()                                          # does what is queued first
    assert (canary.ticks, canary.dropped) == (4, 0)
    assert len(rig.journal.load("canary_decision")) == 2


def test_a_decision_that_leads_elsewhere_or_with_other_claims_differs() -> None:
    base = {"t_ms": 1, "policy": "p", "instance": "i", "to": "firing", "revision": "a", "id": "1",
            "claims_before": [], "claims_after": [{"value": 1, "revision": "a"}]}
    same = {**base, "revision": "b", "id": "2", "claims_after": [{"value": 1, "revision": "b"}]}
    other = {**same, "claims_after": [{"value": 2, "revision": "b"}]}
    assert compare([base], [same])["differ"] == 0
    assert compare([base], [other])["policies"]["p"]["different"] == 1
    assert compare([base], [{**same, "to": "pending"}])["differ"] == 2


def test_a_candidate_that_hangs_while_it_is_closed_ends_afterwards(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Candidates(rig.runtime).begin(sources(15))
    canary, begun, go_on = rig.runtime.canary, threading.Event(), threading.Event()

    def hang(*args: object, **options: object) -> Any:
        begun.set()
        assert go_on.wait(60)
        raise RuntimeError("late")

    monkeypatch.setattr(canary.engine, "tick", hang)
    monkeypatch.setattr(canary_module, "CLOSE_S", 0.01)
    canary.tick(T0, 1_000, 0, 0)
    assert begun.wait(60)
    for _ in range(QUEUE_MAX):
        canary.tick(T0, 1_000, 0, 0)
    canary.close()
    go_on.set()
    canary._thread.join(60)
    assert not canary._thread.is_alive()
