"""What the catalogue, a version and a real server decide about the names in an expression."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resilience.policy import catalogue
from resilience.policy.check import CheckResult

Run = Callable[..., CheckResult]
Policy = Callable[..., str]


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("vllm_num_requests_waiting", "vllm:num_requests_waiting"),
        ("vllm:num_preemptions", "vllm:num_preemptions_total"),
        ("vllm:num_requests_waitin", "vllm:num_requests_waiting"),
        ("vllm:time_to_first_token_second_bucket", "vllm:time_to_first_token_seconds_bucket"),
        ("nothing_like_it_at_all", None),
    ],
)
def test_guess(name: str, suggestion: str | None) -> None:
    assert catalogue.guess(name) == suggestion


def test_a_target_decides_over_the_catalogue(run: Run, policy: Policy) -> None:
    names = {"my_metric", "vllm:kv_cache_usage_perc"}
    assert not run(policy("my_metric > 1"), metric_names=names).findings
    (old,) = run(policy("vllm:gpu_cache_usage_perc > 0.9"), metric_names=names).findings
    assert (old.severity, old.code) == ("warning", "metric-missing")
    assert old.suggestion == "use `vllm:kv_cache_usage_perc`"
    (gone,) = run(policy("vllm:num_requests_waiting > 9"), metric_names=names).findings
    assert "not exported by the target" in gone.message


@pytest.mark.parametrize(
    ("target", "expr", "code", "hint"),
    [
        ("vllm@0.8", "vllm:gpu_cache_usage_perc > 0.9", None, None),
        ("vllm@0.8", "vllm:kv_cache_usage_perc > 0.9", "metric-too-new",
         "use `vllm:gpu_cache_usage_perc`"),
        ("vllm@0.10", "vllm:gpu_cache_usage_perc > 0.9", None, None),
        ("vllm@0.11", "vllm:gpu_cache_usage_perc > 0.9", "metric-renamed",
         "use `vllm:kv_cache_usage_perc`"),
        ("vllm@0.11", "histogram_quantile(0.9, rate(vllm:time_per_output_token_seconds_bucket[1m]))"
         " > 1", None, None),
        ("vllm@0.12", "histogram_quantile(0.9, rate(vllm:time_per_output_token_seconds_bucket[1m]))"
         " > 1", "metric-renamed", "use `vllm:inter_token_latency_seconds_bucket`"),
        ("vllm@0.8", "vllm:num_requests_swapped > 0", None, None),
        ("vllm@0.9", "vllm:num_requests_swapped > 0", "metric-removed", None),
        ("vllm", "sglang:token_usage > 0.9", "metric-foreign", None),
        ("sglang", "sglang:token_usage > 0.9", None, None),
        ("vllm@0.32", "DCGM_FI_DEV_GPU_UTIL > 90", None, None),
        ("vllm", "num_requests_waiting > 3", "metric-unknown",
         "use `vllm:num_requests_waiting`; only NIM leaves the prefix out"),
        ("vllm@0.8", "(vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc) > 0.9", None, None),
        ("vllm", "vllm:num_requests_waiting{model='a'} > 3", "label-unknown",
         "did you mean `model_name`?"),
    ],
)
def test_the_version_of_the_server(
    run: Run, policy: Policy, target: str, expr: str, code: str | None, hint: str | None
) -> None:
    findings = run(policy(expr), target=catalogue.target_of(target)).findings
    assert [(f.code, f.suggestion) for f in findings] == ([(code, hint)] if code else [])


def test_labels_of_a_target_decide_over_the_catalogue(run: Run, policy: Policy) -> None:
    names = {"vllm:num_requests_waiting"}
    labels = {"vllm:num_requests_waiting": frozenset({"job", "instance", "tier"})}
    assert not run(policy("vllm:num_requests_waiting{tier='a'} > 1"), metric_names=names,
                   metric_labels=labels).findings
    (finding,) = run(policy("sum by (pod) (vllm:num_requests_waiting) > 1"), metric_names=names,
                     metric_labels=labels).findings
    assert finding.code == "label-unknown"
    assert finding.suggestion == "it has `instance`, `job` and `tier`"


def test_other_names_are_looked_for_a_limited_number_of_times(
    run: Run, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    from resilience.policy import context

    monkeypatch.setattr(context, "GUESSES_MAX", 3)
    exprs = " or ".join(f"vllm:num_requests_waitin{i} > 1" for i in range(5))
    findings = run(policy(exprs)).findings
    assert [f.suggestion is not None for f in findings] == [True, True, True, False, False]


def test_a_live_target_makes_it_an_error_unless_the_policy_says_warn(
    run: Run, policy: Policy
) -> None:
    expr = "vllm:num_requests_waiting > 9"
    strict = run(policy(expr), metric_names={"up"}, require_metrics=True)
    assert [f.severity for f in strict.findings] == ["error"]
    assert strict.bundle is None
    lenient = run(policy(expr, spec="  on_missing_metric: warn\n"), metric_names={"up"},
                  require_metrics=True)
    assert [f.severity for f in lenient.findings] == ["warning"]
