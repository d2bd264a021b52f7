"""One suite over every registered kind of action: schema, documentation, example, plan."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from resilience import knobs, registry
from resilience.policy.check import check
from resilience.policy.kinds import ActionKind

KINDS: dict[str, ActionKind[Any]] = registry.catalogue("actions")
POLICY = """\
apiVersion: resilience/v1
kind: Policy
metadata: {{name: example, annotations: {{runbook_url: docs/runbooks.md}}}}
spec:
  trigger: {{expr: up == 0, on_no_data: hold, resolve: {{expr: up == 1}}}}
  actions: [{example}]
"""
UDFS = {"udfs/fallback.py": "def fallback_to_cache(ctx):\n    return {}\n"}


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> ActionKind[Any]:
    return KINDS[request.param]


def test_the_name_is_the_key(kind: ActionKind[Any]) -> None:
    assert KINDS[kind.name] is kind
    assert kind.name.isidentifier() and kind.name.islower()


def test_parameters_are_a_frozen_dataclass(kind: ActionKind[Any]) -> None:
    assert dataclasses.is_dataclass(kind.params)
    options: Any = vars(kind.params)["__dataclass_params__"]
    assert options.frozen
    assert kind.params.__doc__


def test_the_schema_is_a_schema_and_every_parameter_is_described(kind: ActionKind[Any]) -> None:
    schema = kind.schema()
    Draft202012Validator.check_schema(schema)
    assert schema["additionalProperties"] is False
    for name, fragment in schema["properties"].items():
        assert fragment.get("description"), name
    assert kind.doc.endswith(".")


def test_the_example_loads_without_a_remark(kind: ActionKind[Any]) -> None:
    result = check([("p.yaml", POLICY.format(example=kind.example))], UDFS, KINDS)
    assert result.findings == ()
    (action,) = result.policies[0].actions
    assert action.type == kind.name
    assert action.claims or action.impulses or action.udf


def test_the_example_fits_the_schema(kind: ActionKind[Any]) -> None:
    example = yaml.safe_load(kind.example)
    assert not list(Draft202012Validator(kind.schema()).iter_errors(example))


def test_a_plan_asks_for_knobs_that_exist(kind: ActionKind[Any]) -> None:
    planned = kind.plan(kind.build(yaml.safe_load(kind.example)))
    for claim in planned.claims:
        definition = knobs.knob(claim.knob)
        assert definition is not None
        assert definition.check(claim.value, dict(claim.scope)) is None
        assert definition.name in kind.knobs
    assert kind.holds or not planned.claims


@pytest.mark.parametrize("extra", ["unknown: 1", "lease: 5", "on_core_loss: never", "message: ''"])
def test_nothing_is_accepted_and_ignored(kind: ActionKind[Any], extra: str) -> None:
    example = kind.example.removesuffix("}") + f", {extra}}}"
    result = check([("p.yaml", POLICY.format(example=example))], UDFS, KINDS)
    assert result.bundle is None
    assert {f.line for f in result.errors} == {6}


def test_every_knob_has_an_action() -> None:
    claimed = {name for kind in KINDS.values() for name in kind.knobs}
    assert claimed == {knob.name for knob in (*knobs.KNOBS, knobs.METRIC_KNOB, knobs.NOTIFY_KNOB)}
