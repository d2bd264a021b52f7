"""The gate's configuration: what it takes, what it refuses, and where it comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from resilience.gate.config import GateConfig, core_settings, is_within, load_config
from resilience.model import EngineConfig, Tier, TierSource

GOOD: dict[str, Any] = {
    "tiers": {"core": None, "best-effort": 4}, "header": "X-Tier", "trusted_peers": ["10.0.0.0/8"],
    "default": "best-effort", "service": "vllm",
}


def test_it_survives_the_way_to_the_server() -> None:
    config = GateConfig.from_json(GOOD)
    assert config.header == "x-tier"
    assert GateConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_it_is_taken_from_the_engines_document() -> None:
    engine = EngineConfig(
        tiers=(Tier("gold", max_concurrency=3), Tier("rest")),
        tier_source=TierSource("x-gold", ("192.168.0.0/16",), "rest"), job="llm",
    )
    config = GateConfig.from_engine(engine)
    assert config.tiers == {"gold": 3, "rest": None}
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
        ({"tiers": {"best-effort": -1}}, "whole number as its cap"),
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
