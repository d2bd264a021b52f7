"""Bundles that are applied to a live engine: swapped whole, refused whole, taken back."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from resilience.app.bundles import Sources
from resilience.app.udfs import Swap
from resilience.errors import CoreUnreachableError, FindingsError, JournalError

kit = sys.modules["app_rig"]  # loaded by conftest.py
Rig = Any
fire, sources, POLICY = kit.fire, kit.sources, kit.POLICY


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


def test_limits_are_held_against_the_memory_that_is_free_when_they_are_applied(rig: Rig) -> None:
    fire(rig)
    old, new = b"type: throttle, tier: best-effort, max_concurrency: 4", \
        b"type: cache_degrade, max_running: 100"
    capped = Sources(tuple((p, b.replace(old, new)) for p, b in sources().files))
    rig.core.fits["cache.max_running"] = 80.0       # the engine attached when there was more

    def said() -> list[str]:
        answer = rig.ask("PUT", "bundle?dry_run=1", capped.to_json())
        return [f["message"] for f in answer["findings"] if f["code"] == "knob-no-memory"]

    assert said() == ["knob `cache.max_running` at `100` needs memory that is not free: 80 fit now"]
    rig.core.fail.append(CoreUnreachableError("gone for a moment"))
    assert said() == []
    rig.core.fits.clear()
    assert said() == []


def test_a_dry_run_changes_nothing(rig: Rig) -> None:
    before = rig.ask("GET", "bundle")
    answer = rig.ask("PUT", "bundle?dry_run=1", sources(50).to_json())
    assert (answer["applied"], answer["changed"]) == (False, ["queue"])
    assert rig.ask("GET", "bundle") == before


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


def test_rollback_goes_back_and_history_tells(rig: Rig) -> None:
    first = rig.ask("GET", "bundle")["revision"]
    second = rig.ask("PUT", "bundle", sources(50).to_json())["to"]
    assert rig.ask("POST", "bundle/rollback")["to"] == first
    assert rig.ask("POST", "bundle/rollback", {"revision": second})["to"] == second
    history = rig.ask("GET", "history")
    assert [e["action"] for e in history["events"]] == ["start", "apply", "rollback", "rollback"]
    assert set(history["kept"]) == {first, second}
    assert rig.response("POST", "bundle/rollback", {"revision": "00"}).status == 404


def test_a_bundle_that_cannot_be_kept_is_refused_and_its_sandbox_ended(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    udfs = rig.runtime.parts.udfs
    monkeypatch.setattr(udfs, "prepare", lambda bundle: Swap(
        lambda: ended.append("commit"), lambda: ended.append("discard")))
    bundles = tmp_path / "state" / "bundles"
    shutil.rmtree(bundles)
    before = rig.ask("GET", "status")["revision"]
    answer = rig.response("PUT", "bundle", sources(50).to_json())
    assert answer.status == 500 and b"the bundle cannot be kept in" in answer.body
    assert ended == ["discard"] and rig.ask("GET", "status")["revision"] == before
    bundles.mkdir()
    rig.ask("PUT", "bundle", sources(50).to_json())
    assert ended == ["discard", "commit"]


def test_a_disk_that_fills_up_after_the_swap_leaves_no_half_applied_bundle(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = POLICY.replace("name: queue", "name: fast").replace("LIMIT", "9")
    made = sources(extra="---" + fast.replace("interval: 1s", "interval: 500ms"))
    append, room = rig.journal.append, [1]

    def full(batch: Any) -> None:
        if not room:
            raise JournalError("disk full")
        append(batch)
        room.pop()

    monkeypatch.setattr(rig.journal, "append", full)
    applied = rig.ask("PUT", "bundle", made.to_json())
    assert applied["to"] == rig.ask("GET", "status")["revision"]
    assert rig.intervals[-1] == [500, 1_000]
    assert rig.ask("GET", "history")["events"][-1]["revision"] == applied["to"]


def test_of_two_applies_over_the_same_revision_one_is_refused(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rig.ask("GET", "bundle")["revision"]
    check, changes = rig.operations.check, rig.runtime.changes
    statuses: list[int] = []
    entered: list[bool] = []

    def enter() -> None:
        entered.append(changes.acquire(blocking=False))
        if entered[-1]:
            changes.release()

    def watched(self: Any, made: Sources, **options: Any) -> Any:
        another = threading.Thread(target=enter)
        another.start()
        another.join()
        return check(made, **options)

    monkeypatch.setattr(type(rig.operations), "check", watched)

    def put(limit: int) -> None:
        body = sources(limit).to_json()
        statuses.append(rig.response("PUT", "bundle", body, if_match=before).status)

    threads = [threading.Thread(target=put, args=(limit,)) for limit in (50, 60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200, 412]
    assert entered and not any(entered)       # while one is checked, no other comes in


def test_nothing_is_applied_to_an_engine_that_stops(rig: Rig) -> None:
    fire(rig)
    rig.runtime.shut_down()
    answer = rig.response("PUT", "bundle", sources(50).to_json())
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (503, "stopping")
    assert rig.core.values() == {}


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
