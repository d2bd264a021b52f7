"""The live engine in memory: real evaluator, journal and control API, a simulated core."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from resilience.app.bundles import check_sources
from resilience.app.dryrun import open_recording, run
from resilience.app.saved_state import UNHEARD
from resilience.errors import ControlError, CoreUnreachableError
from resilience.model import Capabilities, EngineConfig, KnobCapability, OperatorEvent

kit = sys.modules["app_rig"]  # loaded by conftest.py
Rig = Any
fire, sources, POLICY, WAITING, T0 = kit.fire, kit.sources, kit.POLICY, kit.WAITING, kit.T0


def test_a_breach_is_enforced_explained_and_undone(rig: Rig) -> None:
    fire(rig)
    assert rig.core.values() == {"throttle.max_concurrency": {"tier=best-effort": 4}}
    (claim,) = rig.ask("GET", "claims")["claims"]
    assert (claim["policy"], claim["effective"], claim["rules"]) == ("queue", 4, True)
    (fired,) = rig.ask("GET", "decisions?policy=queue")["decisions"]
    told = rig.ask("GET", f"decisions/{fired['id'][:8]}")
    assert told["decision"] == fired
    assert [e["error"] for e in told["executions"]] == [None]
    rig.second(0)
    assert rig.core.values() == {}
    assert len(rig.ask("GET", "decisions?limit=1")["decisions"]) == 1


def test_policies_and_status_say_what_is_going_on(rig: Rig) -> None:
    fire(rig)
    (policy,) = rig.ask("GET", "policies")["policies"]
    assert (policy["name"], policy["state"], policy["paused"]) == ("queue", "firing", False)
    (instance,) = policy["instances"]
    assert (instance["labels"], instance["value"]) == ({"model_name": "m"}, 20)
    status = rig.ask("GET", "status")
    assert status["version"] == 1
    assert (status["ready"], status["claims"], status["bus"]["in_sync"]) == (True, 1, True)
    assert status["ticks"] == [{"interval_ms": 1_000, "last_ms": T0 + 3_000, "missed": 0,
                                "lag_ms": 0}]


def test_an_engine_whose_core_is_silent_is_not_ready_and_says_why(rig: Rig) -> None:
    fire(rig)
    rig.core.fail = [CoreUnreachableError("no answer from the core") for _ in range(40)]
    for _ in range(35):
        rig.second(20)
    status, (claim,) = rig.ask("GET", "status"), rig.ask("GET", "claims")["claims"]
    assert (status["ready"], status["why"]) == (False, "no answer from the core")
    assert (rig.public("/-/ready").status, rig.public("/-/healthy").status) == (503, 200)
    assert (claim["effective"], claim["rules"], claim["remaining_ms"]) == (None, False, None)
    rig.core.fail = []
    for _ in range(30_000 // 8_000 + 1):  # no wait is longer than an eighth of the lease
        rig.second(20)
    assert rig.ask("GET", "status")["ready"]
    assert rig.ask("GET", "claims")["claims"][0]["rules"]


@pytest.mark.parametrize(("method", "path", "body", "words"), [
    ("PUT", "bundle?dry_run=yes", None, "`dry_run` is 1 or 0, not `yes`"),
    ("PUT", "bundle?dryrun=1", None, "unknown parameter `dryrun`; this path takes `dry_run`"),
    ("GET", "policies?limit=3", None, "unknown parameter `limit`; this path takes none"),
    ("GET", "decisions?limit=-1", None, "`limit` must be a whole number"),
    ("POST", "policies/queue/pause", {"reason": 5}, "`reason` is a text"),
    ("POST", "policies/queue/resume", {"reason": {}}, "`reason` is a text"),
    ("POST", "policies/queue/pause", {"until": 5}, "the body is an object of"),
    ("POST", "bundle/rollback", {"revision": 5}, "`revision` is a text"),
    ("POST", "recordings", {"action": 5}, "`action` is a text"),
    ("POST", "query", {"expr": "1", "time_ms": 10**30}, "`time_ms` is a time"),
    ("POST", "query", {"expr": "1", "time_ms": True}, "`time_ms` is a time"),
    ("POST", "query", {"expr": 1}, "`expr` is a PromQL expression"),
    ("POST", "query", {"expr": "up >>"}, "1:5: unexpected `>`"),
])
def test_a_strange_request_is_refused_and_nothing_happens(
    rig: Rig, method: str, path: str, body: Any, words: str
) -> None:
    before = rig.ask("GET", "bundle"), rig.ask("GET", "history")
    answer = rig.response(method, path, sources(50).to_json() if method == "PUT" else body)
    error = json.loads(answer.body)["error"]
    assert answer.status == 400
    assert words in error["message"]
    assert (rig.ask("GET", "bundle"), rig.ask("GET", "history")) == before
    assert not any(p["paused"] for p in rig.ask("GET", "policies")["policies"])


def test_a_udf_proposes_what_is_enforced_recorded_and_replayed(rig: Rig, tmp_path: Path) -> None:
    path = tmp_path / "udf.parquet"
    rig.second(0)
    rig.ask("PUT", "bundle", kit.with_udf().to_json())
    (udf,) = [u for u in rig.ask("GET", "udfs")["udfs"] if u["function"] == "halve"]
    assert udf["called_by"] == ["queue"]
    rig.ask("POST", "recordings", {"action": "start", "path": str(path)})
    rig.second(20)
    assert rig.core.values() == {"throttle.max_concurrency": {"tier=best-effort": 10}}
    rig.second(0)
    rig.ask("POST", "recordings", {"action": "stop"})
    bundle = check_sources(kit.with_udf()).bundle
    outcome = run(bundle, open_recording(path, bundle))
    assert outcome.comparison is not None
    assert (outcome.comparison.live, outcome.comparison.differ) == (2, 0)


@pytest.mark.parametrize("name", ["queue", "*"])
def test_a_pause_drops_the_claims_until_resumed(rig: Rig, name: str) -> None:
    fire(rig)
    body = rig.ask("POST", f"policies/{name}/pause", {"for_ms": 3_600_000, "reason": "drill"})
    assert body["until_ms"] == rig.clock.now_ms() + 3_600_000
    rig.second(20)
    assert rig.core.values() == {}
    assert rig.ask("GET", "policies")["policies"][0]["paused"]
    rig.ask("POST", f"policies/{name}/resume", {"reason": "over"})
    rig.second(20)
    rig.second(20)
    assert rig.core.values() == {"throttle.max_concurrency": {"tier=best-effort": 4}}


@pytest.mark.parametrize(("path", "body", "status"), [
    ("policies/nobody/pause", {"reason": "x"}, 404),
    ("policies/queue/pause", {"for_ms": -1}, 400),
    ("policies/queue/pause", {"for_ms": "1h"}, 400),
    ("policies/queue/pause", {"until": 1}, 400),
    ("query", {"expr": "rate("}, 400),
    ("query", {"expr": ""}, 400),
    ("query", {"expr": "up", "time_ms": "now"}, 400),
    ("recordings", {"action": "dance"}, 400),
])
def test_bad_requests_are_refused(rig: Rig, path: str, body: Any, status: int) -> None:
    assert rig.response("POST", path, body).status == status


def test_a_query_is_answered_from_the_engines_own_samples(rig: Rig) -> None:
    fire(rig)
    answer = rig.ask("POST", "query", {"expr": f"{WAITING} * 2"})
    assert answer["result"]["samples"] == [{"labels": {"model_name": "m"}, "value": 40.0}]


def test_an_engine_that_lost_the_core_says_so_and_takes_it_back_when_told(
    rig: Rig, clock: Any, core: Any
) -> None:
    fire(rig)
    core.table.epoch, core.table.claims = 99, ()
    for _ in range(6):
        rig.second(20)
    assert not rig.ask("GET", "status")["ready"]
    assert rig.public("/-/ready").status == 503
    assert "another engine took over" in rig.said[-1]
    assert core.values() == {}
    assert rig.ask("POST", "policies/*/resume", {"reason": "it was us"})["taken_back"] is True
    rig.second(20)
    assert core.values() == {"throttle.max_concurrency": {"tier=best-effort": 4}}


def test_health_follows_the_ticks(rig: Rig) -> None:
    fire(rig)
    assert (rig.public("/-/healthy").status, rig.public("/-/ready").status) == (200, 200)
    rig.clock.forward(60_000)
    assert rig.public("/-/healthy").status == 503
    assert b"no tick of interval 1000 ms" in rig.public("/-/healthy").body


def test_own_metrics_mirror_prometheus_rule_metrics(rig: Rig) -> None:
    fire(rig)
    rig.second(20, missed=2)
    text = rig.public("/metrics").body.decode()
    for line in (
        'resilience_policy_evaluations_total{policy="queue"} 5.0',
        'resilience_policy_iterations_missed_total{interval="1000"} 2.0',
        'resilience_policy_state{policy="queue",state="firing"} 1.0',
        'resilience_claim_active{knob="throttle.max_concurrency",policy="queue"} 1.0',
        "resilience_bus_in_sync 1.0",
        'resilience_decisions_total{policy="queue",to="firing"} 1.0',
    ):
        assert line in text.splitlines(), line
    assert "resilience_lease_remaining_seconds" in text
    assert 'resilience_policy_last_evaluation_timestamp_seconds{policy="queue"}' in text


def test_shutting_down_drops_the_claims(rig: Rig) -> None:
    fire(rig)
    rig.runtime.shut_down()
    assert rig.core.values() == {}


def test_a_restarted_engine_goes_on_where_the_first_one_died(
    rig: Rig, tmp_path: Path, core: Any, clock: Any
) -> None:
    fire(rig)
    now = clock.wall_ms
    rig.close()
    second = kit.Rig(tmp_path / "state", core, clock)
    clock.wall_ms = now
    assert core.values() != {}
    second.second(20)
    assert core.values() == {"throttle.max_concurrency": {"tier=best-effort": 4}}
    assert len(second.ask("GET", "decisions")["decisions"]) == 1
    second.second(0)
    assert core.values() == {}
    second.close()


@pytest.mark.parametrize("ticks", [0, 1])
def test_a_pause_survives_a_crash_before_its_tick_and_is_heard_once(
    rig: Rig, tmp_path: Path, core: Any, clock: Any, ticks: int
) -> None:
    fire(rig)
    rig.ask("POST", "policies/queue/pause", {"reason": "x"})
    for _ in range(ticks):
        rig.second(20)
    now = clock.wall_ms
    rig.close()
    second = kit.Rig(tmp_path / "state", core, clock)
    clock.wall_ms = now
    second.second(20)
    assert second.ask("GET", "policies")["policies"][0]["state"] == "suspended"
    assert core.values() == {} and not second.journal.load("operator_unheard")
    second.ask("POST", "policies/queue/resume", {})
    second.second(0)
    now = clock.wall_ms
    second.close()
    third = kit.Rig(tmp_path / "state", core, clock)
    clock.wall_ms = now
    third.second(0)
    assert third.ask("GET", "status")["paused"] == {}
    third.close()


def test_unknown_routes_and_decisions_are_clear(rig: Rig) -> None:
    assert rig.response("GET", "decisions/abcdef").status == 404
    with pytest.raises(ControlError, match="at most 30 days"):
        rig.operations.pause("queue", 10**12, "")


def test_an_interval_that_is_new_is_not_missed_before_its_first_tick(rig: Rig) -> None:
    for waiting in [0] * 200:
        rig.second(waiting)
    rare = POLICY.replace("name: queue", "name: rare").replace("LIMIT", "9")
    rig.operations.apply(sources(extra="---" + rare.replace("interval: 1s", "interval: 30s")))
    rig.second(0)
    assert (rig.runtime.overview.healthy(), rig.runtime.overview.ready()) == (None, None)
    for waiting in [0] * 120:
        rig.second(waiting)
    assert "no tick of interval 30000 ms" in rig.runtime.overview.healthy()


def test_a_gate_that_did_not_answer_is_told_again(rig: Rig) -> None:
    told: list[EngineConfig] = []
    fails = [CoreUnreachableError("no answer")]

    def configure(config: EngineConfig) -> None:
        if fails:
            raise fails.pop()
        told.append(config)

    rig.runtime.parts.configure = configure
    tiers = """---
apiVersion: resilience/v1
kind: Engine
metadata: {name: engine}
spec: {queue: {max_waiting: 7}}
"""
    rig.operations.apply(sources(extra=tiers))
    assert told == [] and "did not take" in rig.ask("GET", "status")["errors"]["gate"]
    rig.runtime.renew()
    assert told == []                         # not before a while
    rig.clock.forward(5_000)
    rig.runtime.renew()
    rig.runtime.renew()
    assert [c.queue.max_waiting for c in told] == [7]
    assert "gate" not in rig.ask("GET", "status")["errors"]


@pytest.mark.parametrize(("silent_for", "mute_for"), [(0, 0), (1, 0), (0, 2)])
def test_a_core_that_restarted_is_met_anew(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, silent_for: int, mute_for: int
) -> None:
    told: list[EngineConfig] = []
    rig.runtime.parts.configure = told.append
    fire(rig)
    rig.runtime.renew()
    assert told == []
    rig.core.restart()
    grown = {"throttle.max_concurrency": KnobCapability("gate", capacity=64.0)}
    mute = [CoreUnreachableError("it says nothing of itself yet")] * mute_for

    def capabilities(*, deadline_ms: int) -> Capabilities:
        if mute:
            raise mute.pop()
        return Capabilities("small", "2", grown, epoch=rig.core.table.epoch)

    monkeypatch.setattr(rig.core, "capabilities", capabilities)
    rig.core.fail = [CoreUnreachableError("it starts")] * silent_for
    for _ in range(8):
        rig.second(20)
        rig.runtime.renew()
    assert rig.core.values() == {"throttle.max_concurrency": {"tier=best-effort": 4}}
    assert len(told) == 1
    assert rig.runtime.parts.engine.capabilities.knobs == grown
    assert rig.ask("GET", "status")["core"]["version"] == "2"


def test_after_a_silence_of_the_same_core_ramps_go_by_the_same(rig: Rig) -> None:
    engine = rig.runtime.parts.engine
    engine.observe_capabilities(rig.runtime.parts.bus.capabilities)
    before = engine.capabilities
    fire(rig)
    rig.core.fail = [CoreUnreachableError("busy")]
    for _ in range(8):
        rig.second(20)
        rig.runtime.renew()
    assert not rig.core.fail and engine.capabilities is before


def test_what_is_remembered_of_the_past_is_bounded(rig: Any) -> None:
    for n in range(60):
        rig.operations.apply(sources(20 + n), allow_missing=True)
    for n in range(1_100):
        rig.operations._operate(OperatorEvent("pause", "queue", 1, f"{n}"))
        rig.clock.forward(1)
    rig.runtime.tidy()
    assert len(rig.journal.load("operator")) == 1_000
    assert len(rig.runtime.parts.bundles.revisions()) == 50
    events = rig.ask("GET", "history?limit=200")["events"]
    assert len(events) == 200 and events[-1]["reason"] == "1099"


def test_no_pause_is_pushed_out_by_later_ones(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resilience.app.engine.OPERATOR_EVENTS_MAX", 3)
    for n in range(3):
        rig.clock.forward(1)
        rig.ask("POST", "policies/queue/pause", {"reason": str(n)})
    answer = rig.response("POST", "policies/queue/resume", {"reason": "too many"})
    assert answer.status == 503 and b"wait for the next tick; try again" in answer.body
    rig.second(0)
    assert rig.journal.load(UNHEARD) == {}
    rig.ask("POST", "policies/queue/resume", {"reason": "over"})
    reasons = [e["reason"] for e in rig.ask("GET", "history")["events"][1:]]
    assert reasons == ["0", "1", "2", "over"]
