"""`resilience test --coverage`: what counts as looked at."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Suite = Callable[..., Result]


def test_coverage(suite: Suite) -> None:
    few = "- {at: 30s, state: firing}"
    result = suite(few, "--coverage", "--min-coverage", "60", sandbox=False)
    assert result.return_value == 4
    assert "1/5      escalation[0], recovery, undo, on_no_data: hold" in result.stdout
    assert "coverage 20 % is below the 60 % asked for" in result.stderr
    assert suite(few, "--min-coverage", "20", sandbox=False).return_value == 0


@pytest.mark.parametrize(
    ("rule", "values", "at", "state"),
    [("hold", "9x5 stale", "40s", "held"), ("resolve", "9x5 stale", "35s", "recovering"),
     ("fire", "stale", "40s", "firing")],
)
def test_each_no_data_rule_can_be_covered(
    folder: Path, suite: Suite, rule: str, values: str, at: str, state: str
) -> None:
    path = folder / "rules" / "queue.yaml"
    path.write_text(path.read_text().replace("on_no_data: hold", f"on_no_data: {rule}"))
    text = (
        "interval: 5s\ntests:\n  - name: t\n    input_series:\n"
        f"      - {{series: 'vllm:num_requests_waiting', values: {values}}}\n    expect:\n"
    )
    result = suite(f"- {{at: {at}, state: {state}}}", "-o", "json", text=text)
    assert result.return_value == 0, result.stdout
    (policy,) = json.loads(result.stdout)["coverage"]["policies"]
    assert f"on_no_data: {rule}" not in policy["missing"]


CHECKED = """
apiVersion: resilience/v1
kind: Policy
metadata: {name: queue}
spec:
  interval: 5s
  trigger:
    expr: vllm:num_requests_waiting > 4
    on_no_data: hold
    resolve: {expr: vllm:num_requests_waiting < 1}
  actions:
    - type: throttle
      tier: best-effort
      max_concurrency: 4
      guard: {expr: vllm:num_requests_waiting > 40}
  verify: {expr: vllm:num_requests_waiting, improves: down, within: 10s, quarantine: 20s}
  guard: {expr: vllm:num_requests_waiting > 80}
  probe: {after: 10s, share: 50%, for: 5s}
"""
# At 5s it fires; each of these is looked at in a test of its own.
LIVES = {
    "verify: met": ("0 9 6 6", "- {at: 15s, state: firing}"),
    "verify: failed": ("0 9x9", "- {at: 20s, state: pending}"),
    "guard": ("0 9 90 90", "- {at: 15s, state: pending}"),
    "actions[0].guard": ("0 9 50 50", "- {at: 10s, state: firing, claims: []}"),
    "probe": ("0 9 3 3 3 3", "- {at: 15s, state: recovering, reason: probe}"),
}


@pytest.mark.parametrize("part", LIVES)
def test_checks_and_probes_are_parts_that_a_test_has_to_look_at(
    folder: Path, suite: Suite, part: str
) -> None:
    (folder / "rules" / "queue.yaml").write_text(CHECKED)
    values, expectation = LIVES[part]
    text = (
        "interval: 5s\ntests:\n  - name: t\n    input_series:\n"
        f"      - {{series: 'vllm:num_requests_waiting', values: {values}}}\n    expect:\n"
    )
    before = suite("- {at: 0s, state: inactive}", "-o", "json", text=text)
    (policy,) = json.loads(before.stdout)["coverage"]["policies"]
    assert policy["missing"] == policy["parts"] and set(LIVES) < set(policy["parts"])
    result = suite(expectation, "-o", "json", text=text)
    assert result.return_value == 0, result.stdout
    (policy,) = json.loads(result.stdout)["coverage"]["policies"]
    assert part not in policy["missing"]
    assert set(LIVES) & set(policy["missing"]) >= set(LIVES) - {part, "verify: met"}
    assert "recovery" not in policy["parts"]
