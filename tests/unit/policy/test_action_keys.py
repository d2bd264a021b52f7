from __future__ import annotations

import pytest

from resilience.model import Json
from resilience.policy.action_build import action_lists, stage_of, stage_prefix


@pytest.mark.parametrize(("key", "stage"), [
    ("0", None), ("12", None), ("", None), ("e0.0", 0), ("e1.3", 1), ("e10.0", 10), ("e", None),
])
def test_a_key_tells_its_stage(key: str, stage: int | None) -> None:
    assert stage_of(key) == stage


def test_the_keys_of_a_stage_lead_back_to_it() -> None:
    spec: dict[str, Json] = {"actions": [], "escalation": [{"actions": []}, {"actions": []}]}
    prefixes = [prefix for _, prefix, _ in action_lists(spec)]
    assert prefixes == ["", stage_prefix(0), stage_prefix(1)]
    assert [stage_of(f"{prefix}0") for prefix in prefixes] == [None, 0, 1]
