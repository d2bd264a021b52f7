"""How a policy stands now: `get policies`, `get gate` and the second half of `explain`."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from resilience.app.state_rows import decision_row
from resilience.errors import CoreUnreachableError
from resilience.model import Claim, JournalEntry

kit = sys.modules["cli_rig"]  # loaded by conftest.py


@pytest.fixture
def whole(engine: Any) -> Any:
    """The engine with a policy that has everything, before the first sample."""
    kit.with_everything(engine)
    return engine


def feed(rig: Any, *waiting: float) -> None:
    for one in waiting:
        rig.second(one)


def explained(cli: Any, reason: str, policy: str = "full") -> str:
    """Return what `explain` tells of the newest decision of a policy with this reason."""
    found = cli("get", "decisions", "--policy", policy, "-o", "json").json()["decisions"]
    decision = [d for d in found if d["reason"] == reason][-1]
    told = cli("explain", decision["id"])
    assert (told.code, told.err) == (0, "")
    return str(told.out)


def test_a_firing_with_its_checks_belts_and_rivals(whole: Any, cli: Any) -> None:
    feed(whole, 0, 20, 20)
    told = explained(cli, "breach")
    query = "max by (model_name) (vllm:num_requests_waiting)"
    for line in (
        "Note: action 2: refused: safety: 1 disruptive actions began within the hour; "
        "safety: cache.max_running 4 is below the floor, 10 is claimed.",
        "Now it is firing, in the same firing.",
        f"  verify `{query}` is not met yet, and has until 2027-01-15 08:00:05Z; a failure rolls "
        "back.",
        f"  guard `{query} > 90`: true undoes at once, quarantine 5s.",
        "  Probes: 0 of 2, each eases the claims by 50%.",
        "  Group `capacity` is held by `full`.",
        "  Limits: cooldown 2s.",
        "  Safety belt: cache.max_running is never claimed below 10.",
        "  Safety belt: 1 of 1 disruptive actions began within the hour.",
        "  Action 2 was refused by a safety belt and waits.",
        '  throttle.max_concurrency{tier=best-effort} is claimed by `full` {model_name="m"} 4 '
        '(priority 60), `rival` {model_name="m"} 2 (priority 30); the smaller wins: `rival` with '
        "2.",
        "    `lesser` would claim 8 (priority 40) when it fires; the smaller wins.",
    ):
        assert line in told.splitlines(), told
    feed(whole, 17)
    assert f"  verify `{query}` was met 2027-01-15 08:00:03Z." in explained(cli, "breach")
    withheld = explained(cli, "breach", "lesser")
    assert "Note: group `capacity` is held by `full`." in withheld


def test_a_probe_and_the_end_say_what_came_of_verify(whole: Any, cli: Any) -> None:
    feed(whole, 0, 20, 20, 17, 5)
    told = explained(cli, "probe")
    assert "Why: a probe eased the claims for a moment" in told
    assert "1 of 2, each eases the claims by 50%, one is under way since " in told
    feed(whole, 5, 5, 0)
    assert "was met." in explained(cli, "clear")
    assert "Now it is inactive; that firing is over." in explained(cli, "breach")


def test_what_failed_and_what_is_in_quarantine(whole: Any, cli: Any) -> None:
    feed(whole, 0, 20, 20, 20, 20, 20, 20)
    told = explained(cli, "verify_failed")
    assert "Why: `verify` failed: what the actions were to achieve had not come" in told
    assert "  It is in quarantine and cannot fire until 2027-01-15 08:00:11Z." in told
    assert "  It waits: quarantine until 2027-01-15 08:00:11Z." in told
    shown = cli("get", "policies").out
    assert 'waits       full {model_name="m"}: quarantine until 2027-01-15 08:00:11Z' in shown
    body = cli("get", "policies", "full", "-o", "json").json()["policies"][0]
    (instance,) = body["instances"]
    assert instance["quarantine_until_ms"] == kit.T0 + 11_000
    assert instance["waits"][0].startswith("quarantine until ")


def test_a_guard_says_what_it_saw(whole: Any, cli: Any) -> None:
    feed(whole, 0, 20, 95)
    told = explained(cli, "guard")
    assert "Why: a guard was true: what must not be was so, at value 95." in told
    assert "> 90` is true: undone, in quarantine for 5s" in told


def test_a_lever_in_quarantine_stands_beneath_the_table(whole: Any, cli: Any) -> None:
    guard = ("guard: {expr: 'max by (model_name) (vllm:num_requests_waiting) > 90', "
             "quarantine: 1m}")
    text = kit.EVERYTHING.replace(
        "max_concurrency: 2}", f"max_concurrency: 2, {guard}}}")
    whole.operations.apply(kit.Sources((("rules.yaml", text.encode()),)), allow_missing=True)
    feed(whole, 0, 20, 95)
    (rival,) = cli("get", "policies", "rival", "-o", "json").json()["policies"]
    shut = "throttle.max_concurrency{tier=best-effort}"
    assert rival["quarantine"] == [{"lever": shut, "until_ms": kit.T0 + 62_000}]
    assert f"quarantine  rival: {shut} until 2027-01-15 08:01:02Z" in cli("get", "policies").out
    assert f"  {shut} is in quarantine until" in explained(cli, "guard", "rival")


def test_get_policies_shows_group_and_belts(whole: Any, cli: Any) -> None:
    feed(whole, 0, 20)
    shown = cli("get", "policies").out
    assert "group       Group `capacity` is held by `full`" in shown
    assert "belt        cache.max_running never below 10" in shown
    assert "belt        1 of 1 disruptive actions began within the hour" in shown
    body = cli("get", "policies", "-o", "json").json()
    assert body["belts"]["floors"]["cache.max_running"] == 10
    assert (body["belts"]["disruptive"], body["belts"]["disruptive_per_hour"]) == (1, 1)
    assert {p["name"]: p["group_holder"] for p in body["policies"]} == {
        "full": "full", "lesser": "full", "rival": None}
    off = kit.EVERYTHING.replace("safety: {", "safety: {enabled: false, ")
    whole.operations.apply(kit.Sources((("rules.yaml", off.encode()),)), allow_missing=True)
    feed(whole, 20)
    assert "belts       off" in cli("get", "policies").out


def test_series_without_an_instance_are_said_once(whole: Any, cli: Any) -> None:
    text = kit.EVERYTHING.replace("spec:\n  safety", "spec:\n  limits: {instances: 2}\n  safety", 1)
    whole.operations.apply(kit.Sources((("rules.yaml", text.encode()),)), allow_missing=True)
    feed(whole, 0, 20, 20, 20)
    said = [line for line in whole.said if "get no instance" in line]
    assert len(said) == 1 and "series of `rival` get no instance" in said[0]
    assert "there is room for 2 instances" in said[0]
    assert said[0] in cli("get", "status").out
    assert "limit       rival: 1 series have no instance" in cli("get", "policies").out
    metric = 'resilience_policy_series_without_instance{policy="rival"} 1.0'
    assert metric in whole.public("/metrics").body.decode()
    feed(whole, 0, 0)
    assert "get no instance" not in cli("get", "status").out
    assert "resilience_policy_series_without_instance{" not in \
        whole.public("/metrics").body.decode()


def test_get_gate_shows_what_breakers_did(engine: Any, cli: Any) -> None:
    missing = cli("get", "gate")
    assert (missing.code, missing.err) == (1, "error: this core has no gate\n")
    engine.runtime.parts.gate = lambda: {
        "config": {}, "in_flight": 3, "waiting": 1, "adaptive_limit": None,
        "breakers": {"tier=core": "half_open"},
        "events": [{"name": "tier=core", "from": "open", "to": "half_open", "age_ms": 2_000}],
    }
    lines = cli("get", "gate").out.splitlines()
    assert lines[:2] == ["3 in flight, 1 waiting", "breaker tier=core is half open"]
    assert lines[3].split() == ["2027-01-15", "07:59:58Z", "tier=core", "open", "half", "open"]
    assert cli("get", "gate", "-o", "json").json()["gate"]["in_flight"] == 3

    def gone() -> Any:
        raise CoreUnreachableError("cannot reach the core")

    engine.runtime.parts.gate = gone
    assert cli("get", "gate").err == "error: cannot reach the core\n"


def test_history_and_explain_tell_what_breakers_did(engine: Any, cli: Any) -> None:
    claim = Claim("fuse", "i1", "0", "breaker.rule", (("tier", "core"),), {"consecutive": 1},
                  30_000, False, 50, "sha256:1")
    now = engine.clock.now_ms()
    decision = kit.decision((), (claim,), t_ms=now - 2_000, policy="fuse")
    event = {"action": "breaker", "scope": {"tier": "core"}, "policy": "fuse", "t_ms": now - 1_000,
             "from": "open", "to": "half_open"}
    engine.journal.append([decision_row(decision), JournalEntry("breaker", "a/1", event)])
    shown = "tier=core: open -> half open"
    assert f"breaker  {shown}  by policy `fuse`" in cli("history").out
    assert f"Breaker at 07:59:59.000: {shown}." in cli("explain", decision.id).out.splitlines()


def test_a_claim_that_the_core_cannot_hold_any_more_is_not_called_outweighed(
    engine: Any, cli: Any
) -> None:
    kit.fire(engine)
    assert " rules " in cli("get", "claims").out.splitlines()[1]
    engine.core.fail = [CoreUnreachableError("no answer")] * 40
    feed(engine, *[20] * 35)
    (row,) = cli("get", "claims").out.splitlines()[1:]
    assert row.split(" = ")[1].split() == ["4", "-", "not", "in", "force", "-", "ends"]
