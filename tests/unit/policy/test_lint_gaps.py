"""What can be told of numbers, labels and conditions that name one thing twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resilience.policy.catalogue import target_of
from resilience.policy.check import CheckResult

Run = Callable[..., CheckResult]
Policy = Callable[..., str]
W = "vllm:num_requests_waiting"
TOKENS = "vllm:prompt_tokens_total"


@pytest.mark.parametrize(
    ("expr", "codes"),
    [
        (f"-{W} > 5", ["never-true"]),
        # what is absent has no series to join
        (f"absent({W}) and {W} > 5", ["never-true"]),
        (f"{W} > 5 and on () absent({W}) == 1", ["never-true"]),
        (f"sum(absent({W})) * on () count({W}) > 0", ["never-true"]),
        (f"absent({W}) and on () (sum({W}) > 3 unless on () up == 0)", ["never-true"]),
        (f"absent({W}) and on () up == 1", []),
        (f"absent({W}) and on () max_over_time({W}[5m]) > 5", []),
        (f"absent({W} > 5) and on () {W} > 1", []),
        (f"{W} > 5 unless on () absent({W})", []),
        (f"absent({W}) or {W} > 5", []),
        (f"(absent({W}) or on () vector(0)) < 1 and on () {W} > 5", []),
        (f"-{W} > -5", []),
        (f"-{W} <= 0", ["always-true"]),
        ("-vllm:kv_cache_usage_perc > -0.5", []),
        ("-vllm:kv_cache_usage_perc < -2", ["never-true"]),
        (f"{W} / 0 > 3", ["argument-range"]),
        (f"{W} % 0 > 3", ["argument-range"]),
        (f"{W} / (1 - 1) > 3", ["argument-range"]),
        (f"{W} / 2 > 3", []),
        (f"count({W}) > 0", ["always-true"]),
        (f"0 < count({W})", ["always-true"]),
        (f"count(rate({TOKENS}[1m])) >= 1", ["always-true"]),
        (f"count({W} == 0) > 0", []),
        (f"count({W}) > 1", []),
        (f"{W} > 5 and on () count({W}) > 0", []),
        (f'{W}{{model_name="a",model_name="b"}} > 3', ["never-true"]),
        (f'{W}{{model_name="a",model_name!="a"}} > 3', ["never-true"]),
        (f'{W}{{model_name="a",model_name="a"}} > 3', []),
        (f'{W}{{model_name="a",model_name!="b"}} > 3', []),
        (f"{TOKENS} - {TOKENS} offset 5m > 100", ["delta-of-counter"]),
        (f"sum({TOKENS}) - sum({TOKENS} offset 5m) > 100", ["delta-of-counter"]),
        ("kube_pod_restarts_total - kube_pod_restarts_total offset 5m > 1", ["metric-unknown"]),
        (f"{W} - {W} offset 5m > 100", []),
        (f"rate({TOKENS}[1m]) - rate({TOKENS}[1m] offset 5m) > 100", []),
        (f"bottomk(1, {W}) >= 0", ["always-true"]),
        (f"topk(3, {W}) < 0", ["never-true"]),
        (f"bottomk(1, {W}) > 0", []),
        (f"resets({W}[5m]) > 3", ["rate-of-gauge"]),
        (f"resets({TOKENS}[5m]) > 0", []),
        (f"{W} > 5 and rate({TOKENS}[1m])", ["no-comparison"]),
        (f"{W} > 5 and on () sum(rate({TOKENS}[1m]))", ["no-comparison"]),
        (f"{W} > 5 unless rate({TOKENS}[1m])", ["no-comparison"]),
        (f"{W} > 5 unless rate({TOKENS}[1m]) > 0", []),
        (f"{W} > 5 and rate({TOKENS}[1m] offset 5m)", []),
        (f"rate({TOKENS}[1m]) and {W} > 5", []),
        (f"{W} > 5 and {W} offset 5m", []),
    ],
)
def test_expressions(run: Run, policy: Policy, expr: str, codes: list[str]) -> None:
    findings = run(policy(expr)).findings
    assert sorted({f.code for f in findings}) == codes, findings


@pytest.mark.parametrize(
    ("trigger", "guard", "wrong"),
    [
        (f"{W} > 20", f"{W} > 10", True),
        (f"{W} > 20", f"10 < {W}", True),
        (f"{W} > 20", f"{W} >= 20", True),
        (f"{W} >= 20", f"{W} > 20", False),
        (f"{W} > 20", f"{W} > 30", False),
        (f"{W} > 20", f"{W} < 30", False),
        (f"{W} < 2", f"{W} < 5", True),
        (f"{W} > 20 and vllm:num_requests_running > 3", f"{W} > 10", True),
        (f"{W} > 20 or vllm:num_requests_running > 3", f"{W} > 10", False),
        (f"{W} > 20", "vllm:num_requests_running > 3", False),
    ],
)
def test_a_guard_that_the_trigger_implies(
    run: Run, policy: Policy, trigger: str, guard: str, wrong: bool
) -> None:
    found = run(policy(trigger, spec=f"  guard: {{expr: '{guard}'}}\n")).findings
    assert ("contradiction" in {f.code for f in found}) == wrong, found


def test_a_verify_may_ask_for_less_than_the_trigger(run: Run, policy: Policy) -> None:
    verify = "  verify: {within: 2m, expr: 'vllm:num_requests_running > 0'}\n"
    assert not run(policy(f"{W} > 20 and vllm:num_requests_running > 0", spec=verify)).errors


@pytest.mark.parametrize("other", [f"{W}  >  20.0", f"20 < {W}", f"({W}) > 20"])
def test_one_trigger_has_many_spellings(run: Run, policy: Policy, other: str) -> None:
    one = policy(f"{W} > 20", name="a")
    two = policy(other, "[{type: throttle, max_concurrency: 4}]", name="b")
    assert "conflicting-claims" in {f.code for f in run({"a.yaml": one, "b.yaml": two}).findings}


@pytest.mark.parametrize(
    ("url", "codes"),
    [
        ("not a url", ["no-runbook"]),
        ("todo", ["no-runbook"]),
        ("https://example.org/runbook", []),
        ("docs/runbooks.md#kv", []),
        ("https://example.org/{{ $labels.model_name }}", []),
    ],
)
def test_a_runbook_is_an_address(run: Run, policy: Policy, url: str, codes: list[str]) -> None:
    text = policy(f"{W} > 20", "[{type: fallback_model, to: s, lease: 30s}]").replace(
        "{name: p}", f"{{name: p, annotations: {{runbook_url: '{url}'}}}}")
    assert [f.code for f in run(text).findings if f.code == "no-runbook"] == codes


def test_a_foreign_metric_is_only_foreign(run: Run, policy: Policy) -> None:
    text = policy("vllm:gpu_cache_usage_perc > 0.9")
    found = run(text, target=target_of("sglang")).findings
    assert [f.code for f in found] == ["metric-foreign"]


TTFT = "vllm:time_to_first_token_seconds_bucket"
FINISHED = "vllm:request_success_total"


@pytest.mark.parametrize(
    ("matcher", "said"),
    [
        # a pattern where texts are compared
        ('model_name="llama.*"', "pattern needs `=~`"),
        ('model_name!="a|b"', "pattern needs `!~`"),
        ('model_name="meta-llama/Llama-3.1-8B"', None),
        ('model_name="a.b"', None),
        ('model_name="a*"', None),
        # a glob where a regular expression stands
        ('model_name=~"llama*"', "write `llama.*`"),
        ('model_name!~"llama-*"', "write `llama-.*`"),
        ('model_name=~"llama.*"', None),
        ('model_name=~"a(bc)*"', None),
        ('model_name=~"[a-z]*"', None),
        ('model_name=~".*"', None),
        # a dashboard's variable
        ('model_name="$model"', "`$model` in `model_name`"),
        ('model_name=~"${model:regex}"', "dashboard"),
        ('model_name="[[model]]"', "dashboard"),
        ('model_name="{{ .Values.model }}"', "variable of a template"),
        ('model_name=~"$__all"', "dashboard"),
        ('model_name=~"(a|b)$"', None),
        ('model_name=~"[[:alpha:]]+"', None),
        ('model_name="price$"', None),
    ],
)
def test_values_that_no_series_has(
    run: Run, policy: Policy, matcher: str, said: str | None
) -> None:
    _one(run(policy(f"{W}{{{matcher}}} > 5")), "label-value", said)


@pytest.mark.parametrize(
    ("expr", "said"),
    [
        (f'rate({TTFT}{{le="1"}}[1m]) > 5', 'write `le="1.0"`'),
        (f'rate({TTFT}{{le="1.0"}}[1m]) > 5', None),
        (f'rate({TTFT}{{le="0.5"}}[1m]) > 5', None),
        (f'rate({TTFT}{{le="+Inf"}}[1m]) > 5', None),
        (f'rate({TTFT}{{le="500ms"}}[1m]) > 5', "write a number of seconds"),
        (f'rate({TTFT}{{le=~"1([.]0)?"}}[1m]) > 5', None),
        (f'rate({FINISHED}{{finished_reason="new"}}[1m]) > 5', None),
        (f'rate({FINISHED}{{finished_reason="aborted"}}[1m]) > 5', "did you mean `abort`?"),
        (f'rate({FINISHED}{{finished_reason="repetition"}}[1m]) > 5', None),
        (f'rate({FINISHED}{{finished_reason!="timeout"}}[1m]) > 5', None),
        ('rate(http_requests_total{status=~"5*"}[1m]) > 5', "write `5.*`"),
        ('rate(http_requests_total{status=~"5.."}[1m]) > 5', None),
    ],
)
def test_bounds_reasons_and_states(
    run: Run, policy: Policy, expr: str, said: str | None
) -> None:
    _one(run(policy(expr)), "label-value", said)


def _one(result: CheckResult, code: str, said: str | None) -> None:
    """One finding that says this, or none."""
    texts = [f"{f.code}: {f.message}; {f.suggestion}" for f in result.findings]
    assert len(texts) == (said is not None), texts
    assert all(t.startswith(code) and (said or "") in t for t in texts), texts
