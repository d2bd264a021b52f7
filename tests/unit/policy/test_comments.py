"""Comments that swallow a part of an expression, and comments that silence a warning inside one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resilience.policy.check import CheckResult

Run = Callable[..., CheckResult]
CUT = ("expr-cut", 7)


def document(expr: str, above: str = "    # why") -> str:
    return (
        f"apiVersion: resilience/v1\nkind: Policy\nmetadata: {{name: p}}\nspec:\n  trigger:\n"
        f"{above}\n    expr: {expr}\n    on_no_data: hold\n"
        "  actions: [{type: throttle, max_concurrency: 8}]\n"
    )


@pytest.mark.parametrize(
    ("expr", "found"),
    [
        (">-\n      vllm:num_requests_waiting  # queue\n      > 5", [("expr-cut", 8, 34)]),
        (">\n      vllm:num_requests_waiting\n      > 5  # queue\n      and on () up == 1",
         [("expr-cut", 9, 12)]),
        ('"vllm:num_requests_waiting # queue\n      > 5"', [("expr-cut", 7, 38)]),
        ("'vllm:num_requests_waiting # queue\n      > 5'", [("expr-cut", 7, 38)]),
        ("vllm:num_requests_waiting#queue\n      > 5", [("expr-cut", 7, 36)]),
        (">-\n      sum(vllm:num_requests_waiting  # queue\n      ) > 5",
         [("promql-syntax", 8, 10), ("expr-cut", 8, 38)]),
        # nothing is swallowed
        ("|\n      vllm:num_requests_waiting  # queue\n      > 5", []),
        (">-\n      vllm:num_requests_waiting\n      > 5  # queue", []),
        (">-\n      vllm:num_requests_waiting > 5  # queue\n      # of all requests", []),
        (">-\n      vllm:num_requests_waiting  # queue\n\n      > 5", []),
        (">-\n      vllm:num_requests_waiting{model_name=\"#1\"}\n      > 5", []),
        ("'vllm:num_requests_waiting{model_name=\"it''s #1\"}\n      > 5'", []),
        ('"vllm:num_requests_waiting # queue\\n > 5"', []),
        ("'up == 0 # down'", []),
    ],
)
def test_what_a_comment_swallows(
    run: Run, expr: str, found: list[tuple[str, int, int]]
) -> None:
    findings = run(document(expr)).findings
    assert [(f.code, f.line, f.column) for f in findings] == found, findings


IGNORE = "# resilience: ignore metric-unknown until 2030-01-01: our own"


@pytest.mark.parametrize(
    "text",
    [
        document(">-\n      up == 0 or\n      own_metric > 5", f"    {IGNORE}"),
        document(f">-  {IGNORE}\n      up == 0 or\n      own_metric > 5"),
        document(f"|  {IGNORE}\n      up == 0 or\n      own_metric > 5"),
        document(f"{IGNORE}\n      'up == 0 or\n      own_metric > 5'"),
        document("'up == 0 or\n      own_metric > 5'", f"    {IGNORE}"),
        document("up == 0 or\n      own_metric > 5", f"    {IGNORE}"),
        document(f"|\n      up == 0 or\n      own_metric > 5  {IGNORE}"),
    ],
)
def test_a_warning_inside_a_text_of_several_lines_is_silenced_at_its_key(
    run: Run, text: str
) -> None:
    assert [f.code for f in run(text.replace(IGNORE, "#")).findings] == ["metric-unknown"]
    assert not run(text).findings


def test_a_comment_silences_its_own_text_only(run: Run) -> None:
    text = document(">-\n      up == 0 or\n      own_metric > 5\n    resolve:\n"
                    "      expr: >-\n        up == 1 and\n        own_metric < 5", f"    {IGNORE}")
    assert [(f.code, f.line) for f in run(text).findings] == [("metric-unknown", 13)]


def test_the_counters_of_an_objective_are_looked_at_too(run: Run) -> None:
    text = """apiVersion: resilience/v1
kind: SLO
metadata: {name: s, annotations: {runbook_url: "https://x"}}
spec:
  objective: 99.9%
  window: 30d
  tier: core
  load: {rate: {min: 0.2}}
  exclusions: [{type: warm_start, for: 2m}]
  indicator:
    ratio:
      bad: >-
        resilience_gate_requests_total{outcome="error"}  # what failed
        offset 5m
      total: 'resilience_gate_requests_total{outcome=~"ok|error"}'
  alerts: {fast: {actions: [{type: throttle, tier: elastic, max_concurrency: 4, lease: 1m}]}}
"""
    found = [(f.code, f.line, f.column) for f in run(text).findings if f.severity != "info"]
    assert found == [("expr-cut", 13, 58)]
    assert not [f for f in run(text.replace("  # what failed", "")).findings
                if f.severity == "warning"]
