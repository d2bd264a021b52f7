"""The gate's configuration: what it takes, what it refuses, and where it comes from."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from resilience.gate.config import GateConfig, GateTier, core_settings, is_within, load_config
from resilience.model import (
    BudgetSettings,
    EngineConfig,
    LimiterSettings,
    Rung,
    Tier,
    TierSource,
)

TIER: dict[str, Any] = {
    "max_concurrency": None, "priority": 0, "queue_timeout_ms": 5_000, "success": 0.99,
    "p99_ms": 100, "deadline_ms": None,
}
TENANT: dict[str, Any] = {
    "key_sha256": ["0" * 64], "tier": "core", "share": 2.0, "max_concurrency": 4,
    "max_outstanding_tokens": None,
}
LIMITER: dict[str, Any] = {
    "queue_time_ms": 500, "time_per_token_ms": None, "kv_usage": 0.95, "increase": 0.15,
    "decrease": 0.1, "minimum": 1, "maximum": 64, "headroom": None,
}
BUDGET = asdict(BudgetSettings())
GOOD: dict[str, Any] = {
    "tiers": {"core": TIER, "best-effort": {**TIER, "max_concurrency": 4, "priority": 20}},
    "header": "X-Tier", "tenant_header": "X-Tenant", "trusted_peers": ["10.0.0.0/8"],
    "default": "best-effort", "service": "vllm", "tenants": {"acme": TENANT},
    "queue": {"max_waiting": 10, "ageing_ms": 0}, "limiter": LIMITER, "budget": None,
    "ladder": [asdict(Rung("sorry", "template", text="later"))],
}


def test_it_survives_the_way_to_the_server() -> None:
    config = GateConfig.from_json(GOOD)
    assert (config.header, config.tenant_header) == ("x-tier", "x-tenant")
    assert config.tenants["acme"].key_sha256 == ("0" * 64,) and config.ageing_ms is None
    assert config.limiter is not None and config.limiter.maximum == 64
    assert GateConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_it_is_taken_from_the_engines_document() -> None:
    engine = EngineConfig(
        tiers=(Tier("gold", max_concurrency=3), Tier("rest")),
        tier_source=TierSource("x-gold", ("192.168.0.0/16",), "rest"), job="llm",
    )
    config = GateConfig.from_engine(engine)
    assert config.tiers == {
        "gold": GateTier(3, 0), "rest": GateTier(None, 10),
    }
    assert (config.header, config.default, config.service) == ("x-gold", "rest", "llm")


def test_any_name_of_a_job_that_prometheus_takes_is_fine() -> None:
    job = 'jöb "a"'
    config = GateConfig.from_engine(EngineConfig(job=job))
    assert GateConfig.from_json(json.loads(json.dumps(config.to_json()))).service == job


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"service": ""}, "`service` of the gate's configuration is a text"),
        ({"service": None}, "`service` of the gate's configuration is a text"),
        ({"default": "gold"}, "default tier `gold` is none of"),
        ({"trusted_peers": ["10.0.0.0/99"]}, "`10.0.0.0/99` is not a network"),
        ({"trusted_peers": "all"}, "list of networks"), ({"tiers": {}}, "1 to 64 tiers"),
        ({"tiers": {"best-effort": {**TIER, "max_concurrency": -1}}}, "whole number as its max_c"),
        ({"tiers": {"best-effort": 3}}, "tier `best-effort` has deadline_ms, max_concurrency"),
        ({"tiers": []}, "a map by name"), ({"tenant_header": "a b"}, "plain ASCII"),
        ({"tenants": {"a": {**TENANT, "key_sha256": ["secret"]}}}, "64 hex digits"),
        ({"tenants": {"a": {**TENANT, "tier": "gold"}}}, "tier `gold`, which is not defined"),
        ({"tenants": {"a": {**TENANT, "share": 0}}}, "share above 0"),
        ({"queue": {"max_waiting": -1, "ageing_ms": 0}}, "takes no `-1`"),
        ({"queue": {}}, "ageing_ms, max_waiting"),
        ({"limiter": {**LIMITER, "increase": 2}}, "`increase` is from"),
        ({"limiter": {}}, "takes a map of"),
        ({"budget": {}}, "names a `request_id_header`"),
        ({"budget": {"request_id_header": "x"}}, "`budget` has"),
        ({"budget": {**BUDGET, "attempts": 4}}, "takes 1 to 3 attempts, not `4`"),
        ({"budget": {**BUDGET, "backoff_ms": -1}}, "not `-1`"),
        ({"header": ""}, "plain ASCII"), ({"header": "x-é"}, "plain ASCII"), ({"more": 1}, "has"),
    ],
)
def test_nonsense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GateConfig.from_json({**GOOD, **change})


def test_addresses_lie_in_networks() -> None:
    assert is_within("10.1.1.1", ("10.0.0.0/8",))
    assert is_within("::ffff:10.1.1.1", ("10.0.0.0/8",))
    assert not is_within("11.1.1.1", ("10.0.0.0/8", "::/0"))
    assert not is_within("", ("0.0.0.0/0",))


def test_the_launchers_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "core.json"
    monkeypatch.setenv("RESILIENCE_CORE_CONFIG", str(path))
    with pytest.raises(ValueError, match="cannot read"):
        core_settings()
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match="version 1"):
        core_settings()
    path.write_text(json.dumps({"version": 1, "gate": GOOD}), encoding="utf-8")
    assert load_config() == GateConfig.from_json(GOOD)


def test_without_a_launcher_the_defaults_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RESILIENCE_CORE_CONFIG", raising=False)
    assert load_config() == GateConfig.from_engine(EngineConfig())


def test_a_claimed_limiter_keeps_the_documents_headroom(
    new_bench: Any, claim: Any
) -> None:
    own = LimiterSettings(headroom=0.25)
    bench = new_bench(GateConfig.from_engine(EngineConfig(limiter=own)))
    value = {"queue_time_ms": 100, "time_per_token_ms": None, "kv_usage": None, "increase": 0.15,
             "decrease": 0.1, "minimum": 1, "maximum": 9, "headroom": None}
    for said, kept in ((None, 0.25), (0.5, 0.5)):
        bench.hold(claim("limiter.rule", {**value, "headroom": said}))
        limiter = bench.state.snapshot().limiter
        assert limiter is not None and limiter.rule.headroom == kept
