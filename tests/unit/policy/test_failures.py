"""What fails while it is evaluated is shown at its place in the policy's file."""

from __future__ import annotations

import pytest

from resilience.model import Bundle
from resilience.policy import failures
from resilience.policy.check import check
from resilience.policy.document import parse_documents
from resilience.policy.failures import in_file
from resilience.registry import catalogue

FULL = """\
# a comment
apiVersion: resilience/v1
kind: Policy
metadata: {name: p}
spec:
  trigger:
    expr: %s
    on_no_data: hold
  actions: [{type: throttle, tier: best-effort, max_concurrency: 8, lease: 30s}]
"""
COMPACT = """\
on_alert: p
trigger_if: up + on () up > 1
actions: [{type: throttle, tier: best-effort, max_concurrency: 8}]
"""


def bundle_of(text: str) -> Bundle:
    bundle = check([("rules/p.yaml", text)], {}, catalogue("actions")).bundle
    assert bundle is not None
    return bundle


@pytest.mark.parametrize(
    ("text", "detail", "place"),
    [
        (FULL % "up + on () up > 1", "1:4: many", "rules/p.yaml:7:14: many"),
        (FULL % "'up{a=\"it''s\"} + on () up > 1'", '1:14: many', "rules/p.yaml:7:26: many"),
        (FULL % "|\n      up +\n      on () up > 1", "1:4: many", "rules/p.yaml:8:10: many"),
        (FULL % "|\n      up\n      + on () up > 1", "2:1: many", "rules/p.yaml:9:7: many"),
        (COMPACT, "1:4: many", "rules/p.yaml:2:16: many"),
        (FULL % "up > 1", "the server is away", "the server is away"),
    ],
)
def test_a_place_in_the_expression_becomes_one_in_the_file(
    text: str, detail: str, place: str
) -> None:
    bundle = bundle_of(text)
    assert in_file(detail, bundle.policies[0], bundle) == place


def test_a_policy_that_nobody_wrote_keeps_the_place_in_the_expression() -> None:
    bundle = bundle_of(FULL % "up > 1")
    without = Bundle(bundle.revision, bundle.policies)
    assert in_file("1:1: many", bundle.policies[0], without) == "1:1: many"
    other = Bundle(bundle.revision, bundle.policies, documents=(("rules/p.yaml", COMPACT),))
    assert in_file("1:1: many", bundle.policies[0], other) == "1:1: many"


def test_a_file_whose_policies_all_fail_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked on the request path, for each policy that fails."""
    text = "---\n".join(COMPACT.replace("on_alert: p", f"on_alert: p{i}") for i in range(300))
    bundle = bundle_of(text)
    parsed: list[str] = []

    def parse(files: list[tuple[str, str]]) -> object:
        parsed.extend(file for file, _ in files)
        return parse_documents(files)

    monkeypatch.setattr(failures, "parse_documents", parse)
    places = [in_file("1:4: many", policy, bundle) for policy in bundle.policies]
    assert parsed == ["rules/p.yaml"]
    assert sorted(places) == sorted(f"rules/p.yaml:{2 + 4 * i}:16: many" for i in range(300))
