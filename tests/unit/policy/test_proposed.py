"""What a UDF proposes passes the same checks as what YAML says."""

from __future__ import annotations

from typing import Any

import pytest

from resilience import registry
from resilience.model import Action, ClaimSpec
from resilience.policy.check import proposed_actions
from resilience.policy.proposals import PROPOSED_MAX

CALL = Action("1", "udf_call", lease_ms=12_000, on_core_loss="keep", message="because")


def propose(result: Any) -> tuple[Action, ...]:
    return proposed_actions(result, CALL, registry.catalogue("actions"))


@pytest.mark.parametrize("result", [None, {}, {"actions": []}, {"actions": None, "state": 1}])
def test_nothing(result: Any) -> None:
    assert propose(result) == ()


def test_keys_and_what_is_inherited() -> None:
    first, second = propose({"actions": [
        {"type": "throttle", "max_concurrency": 8, "tier": "core"},
        {"type": "cache_degrade", "max_running": 4, "lease": "5s", "on_core_loss": "baseline"},
    ]})
    assert (first.key, second.key) == ("1.0", "1.1")
    assert first.claims == (ClaimSpec("throttle.max_concurrency", 8, (("tier", "core"),)),)
    assert (first.lease_ms, first.on_core_loss, first.message) == (12_000, "keep", "because")
    assert (second.lease_ms, second.on_core_loss) == (5_000, "baseline")


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ([], "a UDF returns a mapping, got a list"),
        ("x", "a UDF returns a mapping, got string `x`"),
        ({"actions": {}}, "`actions` must be a list, got a mapping"),
        ({"actions": ["x"]}, "actions[0] must be a mapping"),
        ({"actions": [{}]}, "actions[0] needs `type`"),
        ({"actions": [{"type": []}]}, "actions[0] needs `type`"),
        ({"actions": [{"type": "shed"}]}, "unknown action type `shed`"),
        ({"actions": [{"type": "throttle"}]}, "needs one of `max_concurrency`"),
        ({"actions": [{"type": "throttle", "max_concurrency": 0}]}, "must be >= 1 (got 0)"),
        ({"actions": [{"type": "throttle", "max_concurrency": True}]}, "got boolean true"),
        ({"actions": [{"type": "throttle", "max_concurrency": 1, "x": 1}]}, "unknown parameter"),
        ({"actions": [{"type": "throttle", "max_concurrency": 1, "lease": "9h"}]}, "at most `1h`"),
        ({"actions": [{"type": "throttle", "max_concurrency": 1, "tier": "{{ x }}"}]}, "template"),
        ({"actions": [{"type": "cache_degrade"}]}, "needs one of"),
        ({"actions": [{"type": "udf_call", "function": "f"}]}, "cannot propose another"),
        ({"actions": [{"type": "metric_emit", "name": "x", "value": float("inf")}]}, "finite"),
        ({"actions": [{"type": "reset_prefix_cache"}] * (PROPOSED_MAX + 1)}, "the limit is"),
    ],
)
def test_refused(result: Any, reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        propose(result)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
