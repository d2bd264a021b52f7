"""Units, ranges, means and shares: what numbers say of what they are compared with."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resilience.policy.check import CheckResult

Run = Callable[..., CheckResult]
Policy = Callable[..., str]
# What these metrics are is not the question here.
ASIDE = {"metric-unknown", "metric-optional"}


@pytest.mark.parametrize(
    ("expr", "codes"),
    [
        # wrong
        (
            "rate(nv_inference_request_duration_us[5m]) /"
            " rate(nv_inference_request_success[5m]) > 2",
            ["unit-mismatch"],
        ),
        (
            "sum by (model) (rate(nv_inference_queue_duration_us[5m])) / sum by (model)"
            " (rate(nv_inference_count[5m])) > 0.5",
            ["unit-mismatch"],
        ),
        ("avg(rate(nv_inference_queue_duration_us[1m])) > 5", ["unit-mismatch"]),
        ("sum(rate(nv_inference_request_duration_us[5m])) > 1", ["unit-mismatch"]),
        ('nv_inference_request_summary_us{quantile="0.99"} > 2', ["unit-mismatch"]),
        (
            "histogram_quantile(0.99, sum by (le)"
            " (rate(nv_inference_first_response_histogram_ms_bucket[5m]))) > 2",
            ["unit-mismatch"],
        ),
        (
            "rate(nv_inference_first_response_histogram_ms_sum[5m]) /"
            " rate(nv_inference_first_response_histogram_ms_count[5m]) > 0.5",
            ["unit-mismatch"],
        ),
        (
            "rate(nv_inference_request_duration_us[5m]) /"
            " rate(nv_inference_request_success[5m]) / 1000 > 0.5",
            ["unit-mismatch"],
        ),
        (
            "rate(nv_inference_request_duration_us[5m]) /"
            " rate(nv_inference_request_success[5m]) / 1e6 > 900",
            ["unit-mismatch"],
        ),
        ("DCGM_FI_DEV_GPU_UTIL < 0.1", ["unit-mismatch"]),
        ("avg by (gpu) (DCGM_FI_DEV_GPU_UTIL) > 0.95", ["unit-mismatch"]),
        ("avg_over_time(DCGM_FI_DEV_GPU_UTIL[10m]) > 0.95", ["unit-mismatch"]),
        ("DCGM_FI_DEV_GPU_UTIL / 100 > 80", ["unit-mismatch"]),
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE > 80", ["unit-mismatch"]),
        ("DCGM_FI_DEV_FB_USED > 0.9", ["unit-mismatch"]),
        ("DCGM_FI_DEV_FB_USED > 70000000000", ["unit-mismatch"]),
        (
            "histogram_fraction(0, 0.5, sum by (le)"
            " (rate(vllm:time_to_first_token_seconds_bucket[5m]))) < 95",
            ["unit-mismatch"],
        ),
        (
            'sum(rate(vllm:time_to_first_token_seconds_bucket{le="0.5"}[5m])) /'
            " sum(rate(vllm:time_to_first_token_seconds_count[5m])) < 95",
            ["unit-mismatch"],
        ),
        (
            'sum(rate(vllm:time_to_first_token_seconds_bucket{le="0.5"}[5m])) /'
            ' sum(rate(vllm:time_to_first_token_seconds_bucket{le="+Inf"}[5m])) < 95',
            ["unit-mismatch"],
        ),
        ('1 - sum(rate(x_bucket{le="0.5"}[5m])) / sum(rate(x_count[5m])) > 5', ["unit-mismatch"]),
        ("count(up == 0) / count(up) > 50", ["unit-mismatch"]),
        ('count(up{job="vllm"} == 0) / count(up) > 50', ["unit-mismatch"]),
        (
            "count(vllm:num_requests_waiting > 5) / count(vllm:num_requests_waiting) > 50",
            ["unit-mismatch"],
        ),
        ("(count(up == 0) or vector(0)) / count(up) > 50", ["unit-mismatch"]),
        ("sum(up) / count(up) < 50", ["unit-mismatch"]),
        ("sum(up == bool 0) / count(up) > 50", ["unit-mismatch"]),
        ("avg(up == bool 0) > 50", ["unit-mismatch"]),
        ("avg(up) < 50", ["unit-mismatch"]),
        ("avg_over_time(up[1h]) < 99.9", ["unit-mismatch"]),
        ("avg(vllm:kv_cache_usage_perc) > 90", ["unit-mismatch"]),
        (
            "avg by (model_name) (rate(vllm:prefix_cache_hits_total[5m]) /"
            " rate(vllm:prefix_cache_queries_total[5m])) < 50",
            ["unit-mismatch"],
        ),
        ("avg_over_time((vllm:kv_cache_usage_perc)[10m:1m]) > 90", ["unit-mismatch"]),
        ("predict_linear(vllm:kv_cache_usage_perc[10m], 600) > 90", ["unit-mismatch"]),
        ("delta(vllm:kv_cache_usage_perc[10m]) > 20", ["unit-mismatch"]),
        ("vllm:kv_cache_usage_perc - vllm:kv_cache_usage_perc offset 10m > 20", ["unit-mismatch"]),
        ("(vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc) > 90", ["unit-mismatch"]),
        (
            "vllm:kv_cache_usage_perc * on (pod) group_left (node) kube_pod_info > 90",
            ["unit-mismatch"],
        ),
        (
            "(nv_gpu_memory_total_bytes - nv_gpu_memory_used_bytes) /"
            " nv_gpu_memory_total_bytes < 10",
            ["unit-mismatch"],
        ),
        ("process_resident_memory_bytes > 16", ["unit-mismatch"]),
        ("DCGM_FI_DEV_GPU_UTIL > nv_gpu_utilization", ["join-cannot-match", "unit-mismatch"]),
        ("vllm:kv_cache_usage_perc > DCGM_FI_DEV_GPU_UTIL", ["join-cannot-match", "unit-mismatch"]),
        ("sum_over_time(vllm:kv_cache_usage_perc[5m]) > 0.9", ["sum-of-fractions"]),
        ("sum(vllm:kv_cache_usage_perc) / count(vllm:kv_cache_usage_perc) > 90", ["unit-mismatch"]),
        (
            "histogram_quantile(0.9, sum by (le)"
            " (rate(vllm:e2e_request_latency_seconds_bucket[5m]))) < 5000",
            ["unit-mismatch"],
        ),
        ("round(vllm:kv_cache_usage_perc, 0.01) > 90", ["unit-mismatch"]),
        # D10
        ("quantile(0.99, avg by (instance) (vllm:num_requests_waiting)) > 5", ["quantile-of-avg"]),
        (
            "quantile_over_time(0.99, avg(vllm:num_requests_waiting)[1h:1m]) > 5",
            ["quantile-of-avg"],
        ),
        ("histogram_quantile(0.99, avg by (le) (rate(x_bucket[5m]))) > 5", ["quantile-of-avg"]),
        (
            "histogram_quantile(0.99, avg without (instance) (rate(x_bucket[5m]))) > 5",
            ["quantile-of-avg"],
        ),
        ("histogram_quantile(0.99, max by (le) (rate(x_bucket[5m]))) > 5", ["quantile-of-avg"]),
        (
            "quantile(0.99, rate(own_latency_sum[5m]) / rate(own_latency_count[5m])) > 5",
            ["quantile-of-avg"],
        ),
        (
            "quantile_over_time(0.99, (rate(own_latency_sum[5m]) /"
            " rate(own_latency_count[5m]))[1h:1m]) > 5",
            ["quantile-of-avg"],
        ),
        ("quantile(0.9, sum by (a) (own) / count by (a) (own)) > 1", ["quantile-of-avg"]),
        ('avg(nv_inference_request_summary_us{quantile="0.99"}) > 2000000', ["avg-of-quantile"]),
        # D19
        ("up == 2", ["never-true"]),
        ("absent(up) == 0", ["never-true"]),
        ('absent(up{job="a"}) > 0', []),
        ("absent(up) < 1", ["never-true"]),
        ("up == 0 or up == 1", ["always-true"]),
        ("up == 0 and up == 1", ["never-true"]),
        ("up > 90", ["never-true"]),
        ("up < 2", ["always-true"]),
        ("up == 0.5", ["never-true"]),
        ("rate(max(vllm:num_requests_waiting)[5m:1m]) > 1", ["rate-of-gauge"]),
        ("rate(max(vllm:num_requests_waiting)[5m:]) > 1", ["rate-of-gauge"]),
        ("rate(sum(vllm:prompt_tokens_total)[5m:1m]) > 1", ["rate-of-sum"]),
        ("increase(avg_over_time(vllm:num_requests_waiting[1m])[5m:1m]) > 1", ["rate-of-gauge"]),
        ("hour() > 24", ["never-true"]),
        ("(up > bool 0) == 2", ["never-true"]),
        ("clamp_max(vllm:num_requests_waiting, 5) > 10", ["never-true"]),
        ("clamp_min(vllm:num_requests_waiting, 1) > 0", ["always-true"]),
        ("clamp(vllm:num_requests_waiting, 0, 10) > 20", ["never-true"]),
        # found by reading wrong rules
        ('vllm:num_requests_waiting{finish_reason="stop"} > 1', ["label-unknown"]),
        (
            'rate(vllm:request_success_total{finished_reason="aborted"}[5m]) > 0.1',
            ["label-value"],
        ),
        ("vllm:kv_cache_usage_perc / 100 > 0.9", ["unit-mismatch"]),
        ("DCGM_FI_DEV_GPU_UTIL * 100 > 90", ["unit-mismatch"]),
        (
            "histogram_quantile(0.9, sum by (le)"
            " (rate(vllm:e2e_request_latency_seconds_bucket[5m]))) / 1000 > 5",
            ["unit-mismatch"],
        ),
        (
            "sum(rate(vllm:prefix_cache_hits_total[5m])) /"
            " sum(rate(vllm:prefix_cache_queries_total[5m])) > 1",
            ["never-true"],
        ),
        (
            'rate(http_requests_total{status=~"5.."}[5m]) / rate(http_requests_total[5m])'
            " > 0.05",
            ["always-true"],
        ),
        (
            'rate(vllm:request_success_total{finished_reason="abort"}[5m]) /'
            " rate(vllm:request_success_total[5m]) > 0.1",
            ["always-true"],
        ),
        ("process_start_time_seconds > 300", ["unit-mismatch"]),
        # right
        ("sum(vllm:kv_cache_usage_perc) / count(vllm:kv_cache_usage_perc) > 0.9", []),
        (
            "sum by (model_name) (vllm:kv_cache_usage_perc) / count by (model_name)"
            " (vllm:kv_cache_usage_perc) > 0.9",
            [],
        ),
        ("sum(vllm:kv_cache_usage_perc) / scalar(count(vllm:kv_cache_usage_perc)) > 0.9", []),
        ("sum(vllm:kv_cache_usage_perc) / 4 > 0.9", []),
        ("sum(DCGM_FI_DEV_GPU_UTIL) / count(DCGM_FI_DEV_GPU_UTIL) > 90", []),
        ("sum_over_time(up[5m]) / count_over_time(up[5m]) < 0.9", []),
        (
            "sum_over_time(vllm:kv_cache_usage_perc[5m]) /"
            " count_over_time(vllm:kv_cache_usage_perc[5m]) > 0.9",
            [],
        ),
        ("count(up == 0) / count(up) > 0.5", []),
        ("(count(up == 0) or vector(0)) / count(up) > 0.5", []),
        ("sum(up) / count(up) < 0.5", []),
        (
            "rate(nv_inference_request_duration_us[5m]) /"
            " rate(nv_inference_request_success[5m]) > 2000000",
            [],
        ),
        (
            "rate(nv_inference_queue_duration_us[5m]) /"
            " rate(nv_inference_request_success[5m]) > 50",
            [],
        ),
        (
            "rate(nv_inference_request_duration_us[5m]) /"
            " rate(nv_inference_request_success[5m]) / 1000 > 500",
            [],
        ),
        (
            "rate(nv_inference_request_duration_us[5m]) /"
            " rate(nv_inference_request_success[5m]) / 1e6 > 2",
            [],
        ),
        ('absent(up{job="a"}) == 1', []),
        ("absent(up)", []),
        ("count(up == 0) >= 1", []),
        ("up == 0", []),
        ("up != 1", []),
        ("up < 1", []),
        ("max(up) == 0", []),
        ("max_over_time(up[5m]) < 1", []),
        ("avg_over_time(up[5m]) < 0.9", []),
        ("vllm:kv_cache_usage_perc - vllm:kv_cache_usage_perc offset 10m > 0.2", []),
        ("deriv(vllm:num_requests_waiting[5m]) > 0", []),
        ("hour() >= 8 and hour() < 18", []),
        ("DCGM_FI_DEV_GPU_UTIL < 5", []),
        ("DCGM_FI_DEV_FB_FREE < 2048", []),
        ("DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) * 100 > 90", []),
        ("process_resident_memory_bytes / 1024 / 1024 / 1024 > 16", []),
        ("predict_linear(vllm:kv_cache_usage_perc[10m], 600) > 1", []),
        ("quantile(0.9, vllm:kv_cache_usage_perc) > 0.9", []),
        ("quantile_over_time(0.95, vllm:num_requests_waiting[1h]) > 10", []),
        ("quantile(0.9, sum by (instance) (rate(vllm:generation_tokens_total[5m]))) > 10", []),
        ('rate(vllm:request_success_total{finished_reason="error"}[5m]) > 0.1', []),
        ('rate(vllm:request_success_total{finished_reason="timeout"}[5m]) > 0.1', []),
        (
            'rate(http_requests_total{status=~"5.."}[5m]) / on (handler) group_left () sum'
            " by (handler) (rate(http_requests_total[5m])) > 0.05",
            [],
        ),
        (
            'rate(http_requests_total{status="500"}[5m]) / ignoring (status) group_left ()'
            " sum without (status) (rate(http_requests_total[5m])) > 0.05",
            [],
        ),
        (
            "rate(vllm:prompt_tokens_total[5m]) / rate(vllm:prompt_tokens_total[5m] offset"
            " 1d) > 3",
            [],
        ),
        # the bounds of `clamp` come after those of a share
        ("clamp_min(vllm:kv_cache_usage_perc, 2) < 1.5", ["never-true"]),
        ("clamp_min(vllm:kv_cache_usage_perc, 2) > 1.5", ["always-true"]),
        ("clamp(vllm:kv_cache_usage_perc, 2, 3) > 1.5", ["always-true"]),
        ("clamp_min(vllm:kv_cache_usage_perc, scalar(vllm:num_requests_waiting)) > 5", []),
        ("clamp_min(vllm:kv_cache_usage_perc, 0.2) > 90", ["unit-mismatch"]),
        ("clamp_max(vllm:kv_cache_usage_perc, scalar(vllm:num_requests_waiting)) > 90",
         ["unit-mismatch"]),
        ("clamp_max(vllm:kv_cache_usage_perc, -1) < 0", ["always-true"]),
        ("clamp_min(hour(), 30) > 24", ["always-true"]),
        # a number of servers is no 1
        ("vllm:kv_cache_usage_perc * on () group_left () count(up) > 3", []),
        ("vllm:kv_cache_usage_perc * scalar(count(up)) > 3", []),
        ("vllm:kv_cache_usage_perc * scalar(sum(up)) > 3", []),
        ("vllm:kv_cache_usage_perc * scalar(count_over_time(up[5m])) > 3", []),
        ("vllm:kv_cache_usage_perc * on (instance) group_left () (up * 40) > 30", []),
        ("vllm:kv_cache_usage_perc * on () group_left () count(up) * 2 > 3", []),
        ("vllm:kv_cache_usage_perc * on (instance) group_left () max by (instance) (up) > 90",
         ["unit-mismatch"]),
        ("vllm:kv_cache_usage_perc * scalar(max_over_time(up[5m])) > 90", ["unit-mismatch"]),
        ("vllm:kv_cache_usage_perc * on (instance) group_left () (up == 1) > 90",
         ["unit-mismatch"]),
        ("time() - process_start_time_seconds < 300", []),
        ("process_start_time_seconds > time() - 300", []),
        ("process_open_fds / process_max_fds > 1", []),
        (
            "sum(rate(vllm:prefix_cache_hits_total[5m])) /"
            " sum(rate(vllm:prefix_cache_queries_total[5m])) >= 1",
            [],
        ),
    ],
)
def test_units(run: Run, policy: Policy, expr: str, codes: list[str]) -> None:
    findings = run(policy(expr), remote=True).findings
    assert sorted({f.code for f in findings} - ASIDE) == codes, findings


@pytest.mark.parametrize(
    ("expr", "hint"),
    [
        ("rate(nv_inference_request_duration_us[5m]) / rate(nv_inference_request_success[5m]) > 2",
         "did you mean `> 2000000`?"),
        ("DCGM_FI_DEV_FB_USED > 70000000000", "did you mean `> 66757`?"),
        ("DCGM_FI_DEV_GPU_UTIL < 0.1", "did you mean `< 10`?"),
        ("up == 2", "use `== 0` or `== 1`"),
        ("absent(up) == 0", "leave the comparison out, or ask for the series itself"),
        ("clamp_min(vllm:num_requests_waiting, 1) > 0",
         "use `> 1`, or a number that says when to act"),
        ("quantile(0.99, avg by (instance) (vllm:num_requests_waiting)) > 5",
         "take the quantile of the series themselves, without `avg`"),
        ("rate(max(vllm:num_requests_waiting)[5m:1m]) > 1", "use `deriv` or `delta`"),
    ],
)
def test_hints(run: Run, policy: Policy, expr: str, hint: str) -> None:
    (finding,) = run(policy(expr)).findings
    assert finding.suggestion == hint
