"""The live engine in memory: real evaluator, journal and control API, a simulated core."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from resilience.app.bundles import Sources, check_sources
from resilience.app.dryrun import open_recording, run
from resilience.errors import ControlError, FindingsError
from resilience.model import OperatorEvent

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


def test_an_apply_swaps_everything_and_an_unchanged_policy_goes_on(rig: Rig) -> None:
    fire(rig)
    before = rig.ask("GET", "bundle")["revision"]
    extra = POLICY.replace("name: queue", "name: other").replace("LIMIT", "99")
    extra = extra.replace("interval: 1s", "interval: 5s")
    answer = rig.ask("PUT", "bundle", sources(extra="---" + extra).to_json(), if_match=before)
    assert (answer["applied"], answer["added"], answer["unchanged"]) == (True, ["other"], ["queue"])
    assert rig.intervals[-1] == [1_000, 5_000]
    assert rig.ask("GET", "policies")["policies"][1]["state"] == "firing"
    assert rig.core.values() == {"throttle.max_concurrency": {"tier=best-effort": 4}}


def test_a_removed_policy_gives_up_its_claims_at_once(rig: Rig) -> None:
    fire(rig)
    renamed = Sources(tuple((p, b.replace(b"queue", b"other")) for p, b in sources().files))
    rig.ask("PUT", "bundle", renamed.to_json())
    assert rig.core.values() == {}


def test_a_dry_run_changes_nothing(rig: Rig) -> None:
    before = rig.ask("GET", "bundle")
    answer = rig.ask("PUT", "bundle?dry_run=1", sources(50).to_json())
    assert (answer["applied"], answer["changed"]) == (False, ["queue"])
    assert rig.ask("GET", "bundle") == before


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


@pytest.mark.parametrize(("body", "headers", "status", "code"), [
    (sources(50).to_json(), {"if_match": "sha256:000000000000"}, 412, "conflict"),
    ({"documents": [["a.yaml", "kind: Policy\nspec: {}\n"]]}, {}, 422, "findings"),
    ({"documents": []}, {}, 422, "findings"),
    ({"documents": 7}, {}, 400, "bad_request"),
])
def test_a_bad_bundle_never_replaces_a_good_one(
    rig: Rig, body: Any, headers: dict[str, str], status: int, code: str
) -> None:
    fire(rig)
    before = rig.ask("GET", "bundle")
    answer = rig.response("PUT", "bundle", body, **headers)
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (status, code)
    assert rig.ask("GET", "bundle") == before
    assert rig.core.values() != {}


def test_a_metric_that_the_target_lacks_is_an_error_unless_allowed(rig: Rig) -> None:
    fire(rig)
    blind = Sources(tuple(
        (p, b.replace(b"num_requests_waiting", b"kv_cache_usage_perc")) for p, b in sources().files
    ))
    with pytest.raises(FindingsError, match="kv_cache_usage_perc"):
        rig.operations.apply(blind)
    assert rig.operations.apply(blind, allow_missing=True)["applied"]


def test_a_lever_that_the_core_lacks_is_refused_with_the_reason(rig: Rig) -> None:
    wrong = Sources(tuple(
        (p, b.replace(b"{type: throttle, tier: best-effort, max_concurrency: 4, lease: 30s}",
                      b"{type: fallback_model, to: small}"))
        for p, b in sources().files
    ))
    with pytest.raises(FindingsError, match=r"route\.model"):
        rig.operations.apply(wrong)


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


def test_rollback_goes_back_and_history_tells(rig: Rig) -> None:
    first = rig.ask("GET", "bundle")["revision"]
    second = rig.ask("PUT", "bundle", sources(50).to_json())["to"]
    assert rig.ask("POST", "bundle/rollback")["to"] == first
    assert rig.ask("POST", "bundle/rollback", {"revision": second})["to"] == second
    history = rig.ask("GET", "history")
    assert [e["action"] for e in history["events"]] == ["start", "apply", "rollback", "rollback"]
    assert set(history["kept"]) == {first, second}
    assert rig.response("POST", "bundle/rollback", {"revision": "00"}).status == 404


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
    rig.ask("POST", "policies/*/resume", {"reason": "it was us"})
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


def test_unknown_routes_and_decisions_are_clear(rig: Rig) -> None:
    assert rig.response("GET", "decisions/abcdef").status == 404
    with pytest.raises(ControlError, match="a pause lasts at most"):
        rig.operations.pause("queue", 10**12, "")


def test_other_actions_for_the_same_trigger_take_over_without_firing_again(rig: Any) -> None:
    fire(rig)
    firing = rig.ask("GET", "policies")["policies"][0]["instances"][0]
    other = Sources(tuple(
        (p, b.replace(b"max_concurrency: 4", b"max_concurrency: 2")) for p, b in sources().files
    ))
    rig.operations.apply(other)
    rig.second(20)
    assert rig.core.values() == {"throttle.max_concurrency": {"tier=best-effort": 2}}
    after = rig.ask("GET", "policies")["policies"][0]["instances"][0]
    assert (after["state"], after["since_ms"]) == ("firing", firing["since_ms"])
    fired = [d for d in rig.ask("GET", "decisions")["decisions"] if d["from"] != d["to"]]
    assert [d["to"] for d in fired] == ["firing"]


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
