"""schemas/ is what the registries say, and the documents of the product fit it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from resilience import registry
from resilience.cli.schema import text_of
from resilience.model import (
    Actual,
    Capabilities,
    Claim,
    Decision,
    Desired,
    Effective,
    Execution,
    Finding,
    Impulse,
    KnobCapability,
    QueryInput,
    Reason,
    State,
    Truth,
    canonical_json,
    labels_of,
)
from resilience.policy import contract_schemas
from resilience.policy.contract_schemas import all_schemas
from resilience.policy.contract_terms import TERMS
from resilience.shipped import shipped

SCHEMAS: dict[str, Any] = all_schemas(registry.catalogue("kinds"), registry.catalogue("actions"))
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "policy"
RULES = shipped("rules")

CLAIM = Claim(
    policy="queue-growth", instance="0123456789abcdef", action="0",
    knob="throttle.max_concurrency", scope=labels_of({"tier": "best-effort"}), value=4,
    ttl_ms=15_000, keep=False, priority=60, revision="sha256:0123456789ab", reason="queue grows",
)
DECISION = Decision(
    t_ms=1_764_430_000_000, revision="sha256:0123456789ab", policy="queue-growth",
    spec_hash="0123456789abcdef", instance="0123456789abcdef",
    labels=labels_of({"model_name": "m"}), value=12.0, truth=Truth.TRUE, reason=Reason.BREACH,
    from_state=State.PENDING, to_state=State.FIRING,
    clocks=(("firing_since_ms", 1_764_430_000_000), ("resolve_since_ms", None)),
    claims_after=(CLAIM,), actions=("0",),
    impulses=(Impulse("queue-growth", "0123456789abcdef", 1, "1", "reset_prefix_cache"),),
    inputs=(QueryInput("vllm:num_requests_waiting", 12.0, 1_764_429_999_500),),
    udf=({"function": "f", "outcome": "ok", "result": {}},),
)
DOCUMENTS: dict[str, Any] = {
    "claim": CLAIM.to_json(),
    "decision": DECISION.to_json(),
    "desired": Desired(3, 7, (CLAIM,)).to_json(),
    "actual": Actual(
        3, 7, {"throttle.max_concurrency": {"tier=best-effort": Effective(4, "queue-growth", 900)}}
    ).to_json(),
    "capabilities": Capabilities(
        "vllm", "0.32.0", {"cache.max_running": KnobCapability("subclass", None, 32, 1)},
        ("reset_prefix_cache",), ("m",),
    ).to_json(),
    "execution": Execution("0123456789abcdef", 1_764_430_000_000, 3, 7, 1).to_json(),
    "impulse": DECISION.impulses[0].to_json(),
    "finding": {
        field: getattr(Finding("a.yaml", 1, 2, "error", "required", "x is required"), field)
        for field in Finding.__dataclass_fields__
    },
    "recording": {
        "version": 1, "source": "scrape", "source_version": "", "scrape_interval_ms": 1_000,
        "lookback_ms": 300_000, "raw": True, "start_ms": 0, "end_ms": 1, "revision": None,
    },
    "event": {"type": "tick", "t_ms": 1, "interval_ms": 1_000, "seq": 4, "missed": 0},
    "check": {"version": 1, "files": 1, "policies": 1, "findings": []},
    "test-run": {
        "version": 1, "files": 1, "tests": 1, "passed": 0, "failed": 1, "findings": [],
        "results": [{
            "file": "p.test.yaml", "line": 4, "name": "it fires", "outcome": "failed",
            "failures": [{
                "line": 9, "column": 9, "at_ms": 30_000, "policy": "p", "labels": {},
                "field": "state", "message": "at 30s: p: state differs", "expected": ["firing"],
                "got": ["pending (reason pending_for)"], "history": [],
            }],
        }],
        "coverage": {
            "percent": 50.0, "covered": 1, "parts": 2, "policies": [
                {"policy": "p", "file": "p.yaml", "line": 1, "parts": ["fires", "undo"],
                 "missing": ["undo"]},
            ],
        },
    },
    "udf-run": {"version": 1, "outcome": "ok", "result": {}, "log": "", "duration_ms": 1.5},
    "error": {"error": {"code": "refused", "message": "no", "findings": []}},
}


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_the_file_is_current(name: str) -> None:
    file = shipped("schemas") / f"{name}.json"
    assert file.read_text(encoding="utf-8") == text_of(SCHEMAS[name]), (
        "run: python cli.py schema --write schemas"
    )


def test_there_is_no_other_file() -> None:
    names = {item.name for item in shipped("schemas").iterdir()}
    assert names == {f"{name}.json" for name in SCHEMAS}


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_it_is_a_schema(name: str) -> None:
    Draft202012Validator.check_schema(SCHEMAS[name])


def problems(name: str, document: Any) -> list[str]:
    return [e.message for e in Draft202012Validator(SCHEMAS[name]).iter_errors(document)]


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_a_document_of_the_product_fits(name: str) -> None:
    assert problems(name, DOCUMENTS[name]) == []


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_the_document_is_the_golden_one(name: str) -> None:
    text = json.dumps(DOCUMENTS[name], indent=2, ensure_ascii=False, sort_keys=True) + "\n"
    assert (GOLDEN / f"{name}.json").read_text(encoding="utf-8") == text


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_unknown_and_missing_fields_are_refused(name: str) -> None:
    document = DOCUMENTS[name]
    assert problems(name, {**document, "surprise": 1})
    for field in document:
        assert problems(name, {k: v for k, v in document.items() if k != field}), field


@pytest.mark.parametrize("value", [1, 1.5, None, float("inf"), float("-inf")])
def test_a_decision_says_every_value_that_a_trigger_can_have(value: float | None) -> None:
    document = json.loads(canonical_json(replace(DECISION, value=value).to_json()))
    assert problems("decision", document) == []


def test_every_contract_has_a_document() -> None:
    assert set(DOCUMENTS) == set(SCHEMAS) - {"policy", "engine", "slo", "test"}


@pytest.mark.parametrize(
    "item", [i for i in RULES.iterdir() if i.name.endswith(".yaml")],
    ids=lambda item: item.name,
)
def test_shipped_rules_fit_the_schema_that_editors_use(item: Any) -> None:
    for document in yaml.safe_load_all(item.read_text(encoding="utf-8")):
        kind = document.get("kind", "Policy").lower()
        kind = "test" if item.name.endswith(".test.yaml") else kind
        assert problems(kind, document) == []


def undescribed(node: Any, path: str = "") -> Iterator[str]:
    """Yield the properties that say nothing. A condition (`if`) only asks, so it needs no words."""
    if isinstance(node, list):
        for number, item in enumerate(node):
            yield from undescribed(item, f"{path}/{number}")
    if isinstance(node, dict):
        for name, fragment in node.get("properties", {}).items():
            if not str(fragment.get("description", "")).strip() and "$ref" not in fragment:
                yield f"{path}/{name}"
            yield from undescribed(fragment, f"{path}/{name}")
        for key, below in node.items():
            if key not in ("if", "properties", "examples", "default", "enum", "const"):
                yield from undescribed(below, f"{path}/{key}")


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_property_says_what_it_is(name: str) -> None:
    written = json.loads((shipped("schemas") / f"{name}.json").read_text(encoding="utf-8"))
    assert list(undescribed(written)) == []


def test_every_term_is_used() -> None:
    source = Path(contract_schemas.__file__).read_text(encoding="utf-8")
    assert [term for term in TERMS if f'"{term}":' not in source] == []
