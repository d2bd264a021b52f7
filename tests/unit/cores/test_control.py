"""The core's HTTP face and document logic, over the real client, in one process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from resilience.cores.health import Verdict
from resilience.errors import (
    CoreError,
    CoreFencedError,
    CoreRefusedError,
    CoreUnauthorizedError,
    CoreUnreachableError,
)
from resilience.gate.breaker import BreakerRule
from resilience.model import Claim, Desired, EngineConfig, Rung, Tier, TierSource

MakeClaim = Callable[..., Claim]
THROTTLE = "throttle.max_concurrency"


def put(core: Any, *claims: Claim, epoch: int = 1, generation: int = 1) -> Any:
    return core.put_desired(Desired(epoch, generation, claims), deadline_ms=1_000)


def test_both_processes_take_their_part_of_a_document(rig: Any, claim: MakeClaim) -> None:
    core = rig.core()
    actual = put(
        core, claim(THROTTLE, 4, tier="core"), claim("cache.max_running", 2),
        claim("cache.step_tokens", 64), claim("cache.prefix_enabled", False),
    )
    assert {k: {s: e.value for s, e in v.items()} for k, v in actual.effective.items()} == {
        THROTTLE: {"tier=core": 4}, "cache.max_running": {"": 2}, "cache.step_tokens": {"": 64},
        "cache.prefix_enabled": {"": False},
    }
    assert rig.scheduler.max_num_active_reqs == 2
    assert rig.scheduler.max_num_scheduled_tokens == 64
    assert rig.levers.prefix_hidden
    assert rig.state.snapshot().limits[0].value == 4
    put(core, generation=2)
    assert rig.scheduler.max_num_active_reqs == 8
    assert rig.scheduler.max_num_scheduled_tokens == 2048
    assert not rig.levers.prefix_hidden and not rig.state.snapshot().limits


def test_a_claim_above_the_baseline_changes_nothing(rig: Any, claim: MakeClaim) -> None:
    actual = put(rig.core(), claim("cache.max_running", 500))
    assert actual.effective["cache.max_running"][""].value == 500
    assert rig.scheduler.max_num_active_reqs == 8


def test_leases_end_in_both_processes(rig: Any, claim: MakeClaim) -> None:
    core = rig.core()
    put(
        core, claim(THROTTLE, 4, ttl_ms=100), claim("cache.max_running", 2, ttl_ms=100),
        claim("cache.max_running", 3, ttl_ms=900, policy="q"),
    )
    rig.clock.now += 100
    effective = core.actual(deadline_ms=1_000).effective
    assert list(effective) == ["cache.max_running"]
    assert effective["cache.max_running"][""].policy == "q"
    assert rig.scheduler.max_num_active_reqs == 3
    rig.clock.now += 800
    rig.levers.on_request()
    assert rig.scheduler.max_num_active_reqs == 8


def test_a_gate_only_document_does_not_wait_for_the_engine(rig: Any, claim: MakeClaim) -> None:
    rig.link.silent = True
    actual = put(rig.core(), claim(THROTTLE, 1))
    assert actual.effective[THROTTLE][""].value == 1 and rig.link.calls == []


def test_a_stalled_engine_does_not_keep_the_gate_open(rig: Any, claim: MakeClaim) -> None:
    core = rig.core()
    core.capabilities(deadline_ms=1_000)
    rig.link.silent = True
    actual = put(core, claim(THROTTLE, 1), claim("cache.max_running", 2))
    assert actual.effective[THROTTLE][""].value == 1
    assert "cache.max_running" not in actual.effective
    assert actual.dropped[0]["knob"] == "cache.max_running"
    rig.link.silent = False
    again = put(core, claim(THROTTLE, 1), claim("cache.max_running", 2), generation=2)
    assert again.effective["cache.max_running"][""].value == 2 and again.dropped == ()


@pytest.mark.parametrize(
    ("deadline_ms", "engine_s"), [(1_000, 0.5), (60_000, 2.0), (3_000, 1.5)]
)
def test_the_engine_gets_half_of_the_callers_time(
    rig: Any, claim: MakeClaim, deadline_ms: int, engine_s: float
) -> None:
    desired = Desired(1, 1, (claim("cache.max_running", 2),))
    rig.core().put_desired(desired, deadline_ms=deadline_ms)
    assert set(rig.link.timeouts_s) == {engine_s}


def test_a_silent_engine_is_not_reachable_for_capabilities(rig: Any) -> None:
    core = rig.core()
    rig.link.silent = True
    with pytest.raises(CoreUnreachableError, match="does not answer"):
        core.capabilities(deadline_ms=1_000)
    rig.link.silent = False
    assert core.capabilities(deadline_ms=1_000).core == "vllm"
    rig.link.silent = True
    assert core.capabilities(deadline_ms=1_000).core == "vllm"  # known from before


def test_a_newer_engine_that_comes_meanwhile_fences_the_older(rig: Any, claim: MakeClaim) -> None:
    core, passed_on = rig.core(), rig.link.call

    async def overtaken(payload: Any, timeout_s: float) -> Any:
        answer = await passed_on(payload, timeout_s)
        if payload["op"] == "put":
            rig.state.table.epoch = 7
        return answer

    rig.link.call = overtaken
    with pytest.raises(CoreFencedError) as caught:
        put(core, claim("cache.max_running", 3), epoch=2)
    assert caught.value.epoch == 7


def test_an_older_document_is_fenced_and_an_equal_one_repeats(rig: Any, claim: MakeClaim) -> None:
    core = rig.core()
    put(core, claim(THROTTLE, 3), epoch=2, generation=5)
    for epoch, generation in ((1, 99), (2, 4)):
        with pytest.raises(CoreFencedError) as caught:
            put(core, epoch=epoch, generation=generation)
        assert (caught.value.epoch, caught.value.generation) == (2, 5)
    assert put(core, claim(THROTTLE, 3), epoch=2, generation=5).generation == 5


@pytest.mark.parametrize(
    ("knob", "value", "scope", "message"),
    [
        ("cache.max_running", 0, {}, "takes 1 to"), ("cache.max_running", 2.5, {}, "whole number"),
        (THROTTLE, 1, {"tier": "gold"}, "tier `gold` is not one of `core`"),
        (THROTTLE, 1, {"tenant": "a"}, "tenant `a` is not one of `other`"),
        (THROTTLE, 1, {"colour": "a"}, "no scope `colour`"),
        ("route.model", {"to": "big", "share": 1}, {}, "`big` is not served here; served are"),
        ("route.model", {"to": "small", "share": 0}, {}, "share"),
        ("made.up", 1, {}, "knob `made.up` is not known"),
    ],
)
def test_one_bad_claim_refuses_the_whole_document(
    rig: Any, claim: MakeClaim, knob: str, value: Any, scope: dict[str, str], message: str
) -> None:
    core = rig.core()
    put(core, claim(THROTTLE, 7))
    with pytest.raises(CoreRefusedError, match=message):
        put(core, claim(THROTTLE, 1), claim(knob, value, **scope), generation=2)
    actual = core.actual(deadline_ms=1_000)
    assert actual.generation == 1 and actual.effective[THROTTLE][""].value == 7


def test_a_route_may_lead_to_a_rung(rig: Any, claim: MakeClaim) -> None:
    core = rig.core()
    config = EngineConfig(ladder=(Rung("sorry", "template", text="later"),))
    core.configure_gate(config, deadline_ms=1_000)
    for generation, to in enumerate(("sorry", "ladder", "small"), 1):
        put(core, claim("route.model", {"to": to, "share": 1}), generation=generation)
    with pytest.raises(CoreRefusedError, match="`happy` is not served here"):
        put(core, claim("route.model", {"to": "happy", "share": 1}), generation=9)


def test_a_budget_that_would_stop_all_progress_is_refused(rig: Any, claim: MakeClaim) -> None:
    rig.levers.knobs["cache.step_tokens"] = type(rig.levers.knobs["cache.step_tokens"])(
        "attribute", 2048, 2048.0, 600.0
    )
    with pytest.raises(CoreRefusedError, match="the least it takes is 600"):
        put(rig.core(), claim("cache.step_tokens", 599))


def test_the_engines_own_metric_claims_are_read_back(rig: Any, claim: MakeClaim) -> None:
    actual = put(rig.core(), claim("metric.ft_strategy_active", 1.0))
    assert actual.effective["metric.ft_strategy_active"][""].value == 1.0


def test_without_the_gate_its_knobs_are_refused(
    rig: Any, claim: MakeClaim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESILIENCE_GATE", "off")
    core = rig.core()
    found = core.capabilities(deadline_ms=1_000)
    assert THROTTLE not in found.knobs
    assert {"knob": THROTTLE, "reason": "RESILIENCE_GATE=off"} in found.dropped
    with pytest.raises(CoreRefusedError, match="RESILIENCE_GATE=off"):
        put(core, claim(THROTTLE, 1))


def test_a_lever_that_was_never_there_is_refused(rig: Any, claim: MakeClaim) -> None:
    del rig.levers.knobs["cache.prefix_enabled"]
    reason = {"knob": "cache.prefix_enabled", "reason": "the server runs without prefix caching"}
    rig.levers.dropped.append(reason)
    with pytest.raises(CoreRefusedError, match="not available on this server: the server runs"):
        put(rig.core(), claim("cache.prefix_enabled", False))


def test_a_lever_lost_on_the_way_does_not_take_the_others_along(
    rig: Any, claim: MakeClaim
) -> None:
    core = rig.core()
    core.capabilities(deadline_ms=1_000)
    rig.levers._lose("cache.prefix_enabled", "it broke")
    actual = put(core, claim("cache.prefix_enabled", False), claim("cache.max_running", 2))
    assert list(actual.effective) == ["cache.max_running"]
    assert actual.dropped[0]["reason"] == "it broke"
    assert "cache.prefix_enabled" not in core.capabilities(deadline_ms=1_000).knobs
    assert put(core, claim("cache.prefix_enabled", False), generation=2).effective == {}


def test_a_wrong_token_or_a_stranger_is_refused(rig: Any) -> None:
    with pytest.raises(CoreUnauthorizedError, match="token"):
        rig.core(token="wrong").actual(deadline_ms=1_000)
    with pytest.raises(CoreUnauthorizedError, match="own machine"):
        rig.core(peer="10.0.0.9").actual(deadline_ms=1_000)
    for header in ("x-forwarded-for", "forwarded", "x-real-ip"):
        answer = rig.http().get("/v1/actual", headers={header: "127.0.0.1"})
        assert answer.status_code == 403 and "proxy" in answer.json()["error"]["message"]
    health = rig.http(peer="10.0.0.9").get("/health").json()
    assert health == {"status": "well", "reasons": [], "released": False}
    rig.verdict = Verdict("stuck")
    for method in ("GET", "HEAD"):
        asked = rig.http(peer="10.0.0.9").request(method, "/health", headers={"authorization": ""})
        assert asked.status_code == 503


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("GET", "/v1/nothing", b"", 404), ("GET", "/", b"", 404),
        ("DELETE", "/v1/desired", b"", 405), ("POST", "/v1/actual", b"", 405),
        ("GET", "/v1/impulses/k", b"", 405), ("POST", "/v1/impulses/a/b", b"", 404),
        ("POST", "/v1/impulses/" + "k" * 129, b"", 404),
        ("PUT", "/v1/desired", b"{", 422), ("PUT", "/v1/desired", b"[" * 50_000, 422),
        ("PUT", "/v1/desired", b"{}", 422), ("PUT", "/v1/desired", b"\xff", 422),
        ("PUT", "/v1/desired", b" " * (1024 * 1024 + 1), 413),
        ("POST", "/v1/impulses/k", b"[]", 422),
        ("POST", "/v1/impulses/k", b'{"impulse": 1, "args": {}, "epoch": 1}', 422),
        ("POST", "/v1/impulses/k", b'{"impulse": "x", "args": 1, "epoch": 1}', 422),
    ],
)
def test_errors_are_json_with_code_and_message(
    rig: Any, method: str, path: str, content: bytes, status: int
) -> None:
    answer = rig.http().request(method, path, content=content)
    assert answer.status_code == status
    assert set(answer.json()["error"]) >= {"code", "message"}


@pytest.mark.parametrize(
    ("key", "bad"), [("value", float("nan")), ("policy", "\ud800"), ("reason", "a\udfff")]
)
@pytest.mark.parametrize("plain", [True, False])
def test_numbers_that_json_lacks_and_halves_of_characters_are_refused(
    rig: Any, key: str, bad: Any, plain: bool
) -> None:
    """Half a character in a label would break every scrape of the server."""
    claim = {
        "knob": "throttle.max_concurrency", "scope": {}, "value": 1, "ttl_ms": 1, "keep": False,
        "policy": "p", "reason": "", "priority": 1, key: bad,
    }
    document = {"version": 1, "epoch": 1, "generation": 1, "claims": [claim]}
    body = json.dumps(document, ensure_ascii=plain).encode("utf-8", "surrogatepass")
    assert rig.http().put("/v1/desired", content=body).status_code == 422


def test_before_the_engine_is_up_only_health_answers(rig: Any) -> None:
    service, rig.service = rig.service, None
    assert rig.http().get("/health").status_code == 503
    assert not rig.core().is_healthy(deadline_ms=1_000)
    with pytest.raises(CoreUnreachableError, match="starting"):
        rig.core().actual(deadline_ms=1_000)
    rig.service = service
    assert rig.core().is_healthy(deadline_ms=1_000)
    rig.verdict = Verdict("dead")
    assert not rig.core().is_healthy(deadline_ms=1_000)


def test_the_gate_takes_another_configuration(rig: Any, claim: MakeClaim) -> None:
    core = rig.core()
    config = EngineConfig(
        tiers=(Tier("gold"), Tier("rest")), tier_source=TierSource("x-gold", (), "rest")
    )
    core.configure_gate(config, deadline_ms=1_000)
    put(core, claim(THROTTLE, 1, tier="gold"))
    with pytest.raises(CoreRefusedError, match="tier `core`"):
        put(core, claim(THROTTLE, 1, tier="core"), generation=2)
    assert rig.http().put("/v1/gate", content=b"{}").status_code == 422


def test_what_breakers_did_is_told_with_numbers(rig: Any, claim: MakeClaim) -> None:
    core, rule = rig.core(), asdict(BreakerRule(consecutive=1, open_ms=500))
    put(core, claim("breaker.rule", rule, policy="fuse", tier="core"))
    (breaker, _), = rig.state.admission.breakers.of(("core", "", ""))
    breaker.leave(breaker.enter(rig.clock()), "failure", 1.0, 0, rig.clock())
    rig.clock.now += 400
    told = core.breakers(deadline_ms=1_000)
    assert told["breakers"] == {"tier=core": "open"}
    assert told["events"] == [{
        "number": 1, "name": "tier=core", "scope": {"tier": "core"}, "from": "closed",
        "to": "open", "policy": "fuse", "age_ms": 400,
    }]
    put(core, generation=2)
    rig.clock.now += 50
    gone = core.breakers(deadline_ms=1_000)
    assert gone["breakers"] == {} and gone["life"] == told["life"]
    last = gone["events"][-1]
    assert (last["number"], last["from"], last["to"], last["age_ms"]) == (2, "open", "closed", 50)
    assert core.gate(deadline_ms=1_000)["events"] == gone["events"]


def test_what_breaks_inside_is_an_answer_too(rig: Any) -> None:
    def broken(payload: Any, timeout_s: float) -> Any:
        raise RuntimeError("lost the engine")

    rig.link.call = broken
    with pytest.raises(CoreError, match="lost the engine"):
        rig.core().capabilities(deadline_ms=1_000)
