"""Each rule finds what it should and leaves the right form alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resilience.policy.check import CheckResult

Run = Callable[..., CheckResult]
Policy = Callable[..., str]


@pytest.mark.parametrize(
    ("expr", "codes"),
    [
        ("vllm:num_requests_waiting", ["no-comparison"]),
        ("vllm:num_requests_waiting > 3", []),
        ("absent(vllm:num_requests_waiting)", []),
        ("up == 0 or vllm:num_requests_waiting", ["no-comparison"]),
        ("up == 0 and vllm:num_requests_waiting", ["join-cannot-match"]),
        ("up == 0 and on (instance) vllm:num_requests_waiting", []),
        ("sum(up == 0) by (job)", []),
        ("vllm:kv_cache_usage_perc > 90", ["unit-mismatch"]),
        ("max by (model_name) (vllm:kv_cache_usage_perc) > 90", ["unit-mismatch"]),
        ("max_over_time(vllm:kv_cache_usage_perc[5m]) >= 95", ["unit-mismatch"]),
        ("90 < vllm:kv_cache_usage_perc", ["unit-mismatch"]),
        ("vllm:kv_cache_usage_perc * 100 > 90", []),
        ("sum(vllm:kv_cache_usage_perc) > 2", ["sum-of-fractions"]),
        ("sum(up) < 2", []),
        ("avg(vllm:kv_cache_usage_perc) > 0.9", []),
        (
            "histogram_quantile(0.99, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket"
            "[1m]))) > 500", ["unit-mismatch"],
        ),
        (
            "histogram_quantile(0.99, avg by (le) (rate(vllm:time_to_first_token_seconds_bucket"
            "[1m]))) > 5", ["quantile-of-avg"],
        ),
        ("sum by (job) (up) > on (instance) up", ["join-cannot-match"]),
        ("sum by (job) (up) > on (job) up", []),
        ("sum by (instance) (up) > sum by (job) (up)", ["join-cannot-match"]),
        ("sum by (instance) (up) > ignoring (instance) sum(up)", []),
        ("sum by (instance) (up) / on (instance) count by (instance) (up) < 1", []),
        ("sum by (instance) (up) and on (instance) max by (instance, job) (up) == 0", []),
        ("up == 0 and on (instance) vllm:num_requests_running > 0", []),
        ("DCGM_FI_DEV_GPU_UTIL > 0.9", ["unit-mismatch"]),
        ("vllm:num_requests_waiting > NaN", ["never-true"]),
        ("vllm:num_requests_waiting > Inf", ["never-true"]),
        ("vllm:num_requests_waiting < Inf", ["always-true"]),
        ("vllm:num_requests_waiting > -Inf", ["always-true"]),
        ("histogram_quantile(0.9, vllm:e2e_request_latency_seconds) > 5", ["no-bucket"]),
        (
            "histogram_quantile(0.9, rate(vllm:e2e_request_latency_seconds_sum[1m])) > 5",
            ["no-bucket"],
        ),
        ("histogram_quantile(0.9, rate(vllm:e2e_request_latency_seconds_bucket[1m])) > 5", []),
        (
            "histogram_quantile(0.9, sum by (job) (rate(vllm:e2e_request_latency_seconds_bucket"
            "[1m]))) > 5", ["lost-le"],
        ),
        (
            "histogram_quantile(0.9, sum without (le) (rate(vllm:e2e_request_latency_seconds_bucket"
            "[1m]))) > 5", ["lost-le"],
        ),
        ("vllm:num_preemptions_total > 5", ["counter-without-rate"]),
        ("rate(vllm:num_preemptions_total[1m]) > 5", []),
        ("increase(vllm:num_preemptions_total[1m]) > 5", []),
        ("vllm:e2e_request_latency_seconds_sum / vllm:e2e_request_latency_seconds_count > 5", []),
        ("rate(vllm:num_requests_waiting[1m]) > 5", ["rate-of-gauge"]),
        ("deriv(vllm:num_requests_waiting[1m]) > 5", []),
        ("rate(vllm:num_preemptions_total[2s]) > 5", ["short-window"]),
        ("vllm:gpu_cache_usage_perc > 0.9", ["metric-renamed"]),
        ("(vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc) > 0.9", []),
        ("vllm:gpu_cache_usage_perc > 0.9 or on () up == 0", ["metric-renamed"]),
        ("vllm:num_requests_swapped > 0", ["metric-removed"]),
        ("vllm_num_requests_waiting > 0", ["metric-unknown"]),
        ("my_own_metric > 0", ["metric-unknown"]),
        ("rate(http_request_duration_seconds{job='api'}[5m]) > 2.0", ["histogram-base"]),
        ("ray_vllm_num_requests_waiting > 0", []),
        ("resilience_gate_inflight > 3", []),
        ("{__name__=~'vllm:.*'} > 3", []),
        # units, also after arithmetic
        ("vllm:kv_cache_usage_perc < 75", ["unit-mismatch"]),
        ("vllm:kv_cache_usage_perc < 0.75", []),
        ("vllm:kv_cache_usage_perc * 100 > 0.9", ["unit-mismatch"]),
        ("1 - vllm:kv_cache_usage_perc > 90", ["unit-mismatch"]),
        ("DCGM_FI_DEV_GPU_UTIL / 100 > 90", ["unit-mismatch"]),
        ("sum(vllm:kv_cache_usage_perc * 100) > 90", ["sum-of-fractions"]),
        ("sglang:kv_transfer_latency_ms > 0.5", ["metric-optional", "unit-mismatch"]),
        ("rate(vllm:time_to_first_token_seconds_sum[1m])"
         " / rate(vllm:time_to_first_token_seconds_count[1m]) > 500", ["unit-mismatch"]),
        ("histogram_quantile(0.9, sum by (le) (rate(vllm:e2e_request_latency_seconds_bucket[5m])))"
         " > 300", []),
        ("sum(rate(vllm:request_success_total{finished_reason='abort'}[5m]))"
         " / sum(rate(vllm:request_success_total[5m])) > 5", ["unit-mismatch"]),
        ("100 * sum(rate(vllm:request_success_total{finished_reason='abort'}[5m]))"
         " / sum(rate(vllm:request_success_total[5m])) > 5", []),
        # what the numbers decide
        ("vllm:kv_cache_usage_perc > 1", ["never-true"]),
        ("DCGM_FI_DEV_GPU_UTIL > 100", ["never-true"]),
        ("vllm:num_requests_waiting >= 0", ["always-true"]),
        ("vllm:num_requests_waiting < 0", ["never-true"]),
        ("vllm:num_requests_waiting > -1", ["always-true"]),
        ("delta(vllm:num_requests_waiting[1m]) < 0", []),
        ("count(up == 0) == 0", ["never-true"]),
        ("count(up == 0) > 0", []),
        ("vllm:num_requests_waiting > vllm:num_requests_waiting", ["never-true"]),
        ("vllm:num_requests_waiting == vllm:num_requests_waiting", []),
        ("vector(1)", ["constant-expr"]), ("vector(1) > 0", ["constant-expr"]), ("hour() > 9", []),
        # averages and sums in the wrong order
        ("avg(histogram_quantile(0.9, rate(vllm:e2e_request_latency_seconds_bucket[1m]))) > 5",
         ["avg-of-quantile"]),
        ("max(histogram_quantile(0.9, rate(vllm:e2e_request_latency_seconds_bucket[1m]))) > 5", []),
        ("quantile(0.9, rate(vllm:e2e_request_latency_seconds_sum[1m])"
         " / rate(vllm:e2e_request_latency_seconds_count[1m])) > 5", ["quantile-of-avg"]),
        ("rate(sum(vllm:prompt_tokens_total)[5m:1m]) > 5", ["rate-of-sum"]),
        ("max_over_time(sum(rate(vllm:prompt_tokens_total[1m]))[5m:1m]) > 5", []),
        ("rate(increase(vllm:prompt_tokens_total[5m])[10m:1m]) > 5", ["rate-of-gauge"]),
        ("increase(sum(rate(vllm:prompt_tokens_total[1m]))[5m:1m]) > 5", ["rate-of-gauge"]),
        ("deriv(sum(rate(vllm:prompt_tokens_total[1m]))[5m:1m]) > 5", []),
        # buckets hold each other
        ("sum(rate(vllm:time_to_first_token_seconds_bucket[5m])) > 5", ["lost-le"]),
        ("sum(rate(my_seconds_bucket[5m])) > 5", ["lost-le", "metric-unknown"]),
        ("sum(ratelimit_token_bucket) > 5", ["metric-unknown"]),
        ("sum by (model_name) (rate(vllm:request_queue_time_seconds_bucket{le!='+Inf'}[5m])) > 5",
         ["lost-le"]),
        ("avg without (le) (rate(vllm:request_queue_time_seconds_bucket[5m])) > 5", ["lost-le"]),
        ("sum(rate(vllm:request_queue_time_seconds_bucket{le='0.5'}[5m]))"
         " / sum(rate(vllm:request_queue_time_seconds_bucket[5m])) < 0.9",
         ["lost-le"]),
        ("sum(rate(vllm:request_queue_time_seconds_bucket{le='0.5'}[5m]))"
         " / sum(rate(vllm:request_queue_time_seconds_count[5m])) < 0.9", []),
        ("sum(rate(vllm:request_queue_time_seconds_bucket{le=~'1(\\\\.0)?'}[5m])) > 5", []),
        ("sum by (le) (rate(vllm:request_queue_time_seconds_bucket[5m])) > 5", []),
        ("sum without (pod) (rate(vllm:request_queue_time_seconds_bucket[5m])) > 5", []),
        ("count(rate(vllm:request_queue_time_seconds_bucket[5m])) > 500", []),
        # labels that the metric lacks
        ("vllm:num_requests_waiting{model_name=~'[[]a|b'} > 5", []),   # odd to Python only
        ("vllm:num_requests_waiting{finished_reason='stop'} > 5", ["label-unknown"]),
        ("vllm:num_requests_waiting{tier='core'} > 5", ["label-unknown"]),
        ("vllm:num_requests_waiting{modelname='a'} > 5", ["label-unknown"]),
        ("vllm:num_requests_waiting{finished_reason!='stop'} > 5", []),
        ("vllm:num_requests_waiting{finished_reason=~'.*'} > 5", []),
        ("vllm:num_requests_waiting{namespace='a', team='b'} > 5", []),
        ("sum by (finished_reason) (vllm:num_requests_waiting) > 5", ["label-unknown"]),
        ("sum by (le) (rate(vllm:e2e_request_latency_seconds_count[1m])) > 5", ["label-unknown"]),
        ("sum by (finished_reason) (rate(vllm:request_success_total[1m])) > 5", []),
        ("sum by (tier) (label_replace(vllm:num_requests_waiting, 'tier', 'a', '', '')) > 5", []),
        # joins
        ("rate(vllm:request_success_total[1m]) / vllm:num_requests_running > 5",
         ["join-cannot-match"]),
        ("rate(vllm:request_success_total[1m])"
         " / ignoring (finished_reason) group_left vllm:num_requests_running > 5", []),
        ("DCGM_FI_DEV_GPU_UTIL > 90 and vllm:num_requests_waiting > 5", ["join-cannot-match"]),
        ("DCGM_FI_DEV_GPU_UTIL > 90 and on (pod) vllm:num_requests_waiting > 5", []),
        ("DCGM_FI_DEV_GPU_UTIL > 90 or vllm:num_requests_waiting > 5", []),
        ("sum by (job) (up) == 0 or sum by (instance) (up) == 0", []),
        ("up{job='a'} == 1 and on (job) up{job='b'} == 0", ["join-cannot-match"]),
        ("up{job='a'} == 1 and ignoring (job) up{job='b'} == 0", []),
        ("sum by (a) (up * on (a, b) group_left (c) up) * on (c) up > 1", ["join-cannot-match"]),
        ("(max by (a, b) (up) * on (a, b) group_left (c) max by (a, b, c) (up)) / on (a, c)"
         " max by (a, c) (up) > 1", []),
        # joins of what is aggregated with whole series
        ("sum by (model_name) (vllm:num_requests_running) > vllm:num_requests_waiting",
         ["join-cannot-match"]),
        ("vllm:num_requests_waiting > 5 and max by (model_name) (vllm:kv_cache_usage_perc) > 0.9",
         ["join-cannot-match"]),
        ("sum(vllm:num_requests_running) / vllm:num_requests_waiting > 5", ["join-cannot-match"]),
        ("max without (instance) (up) == 0 and up == 0", ["join-cannot-match"]),
        ("max by (instance, job) (up) == 0 and up == 0", []),
        ("vllm:num_requests_waiting > 5 unless max by (job) (up) == 0", ["join-cannot-match"]),
        ("rate(vllm:request_success_total[1m]) / ignoring (finished_reason) group_left"
         " sum by (model_name) (vllm:num_requests_running) > 5", ["join-cannot-match"]),
        ("vllm:num_requests_waiting / on (model_name) group_left"
         " sum by (model_name) (vllm:num_requests_running) > 5", []),
        ("vllm:num_requests_waiting{team='a'} > 5 and on (team) sum by (job) (up) > 0",
         ["join-cannot-match"]),
        ("own_waiting > sum by (model_name) (own_running)", ["metric-unknown", "metric-unknown"]),
        ("own_waiting{tier='a'} > sum by (job) (own_running)",
         ["metric-unknown", "metric-unknown", "join-cannot-match"]),
        ("label_replace(up, 'job', '', '', '') > sum by (instance) (up)", []),
        ("vllm:num_requests_waiting > 5 and on (tier) vllm:num_requests_running > 3",
         ["label-unknown"]),
        # `bool` keeps every series
        ("vllm:num_requests_waiting > bool 5", ["bool-comparison"]),
        ("(vllm:num_requests_waiting > bool 5) == 1", []),
        ("vllm:num_requests_waiting > bool 5 and vllm:num_requests_running > 3",
         ["bool-comparison"]),
        ("vllm:num_requests_waiting > 5 or vllm:num_requests_running > bool 3",
         ["bool-comparison"]),
        ("vllm:num_requests_waiting > 5 unless vllm:num_requests_running > bool 3",
         ["bool-comparison"]),
        ("sum(vllm:num_requests_waiting > bool 5)", ["bool-comparison"]),
        ("sum(vllm:num_requests_waiting > bool 5) > 2", []),
        ("count(vllm:num_requests_waiting > bool 5) > 2", ["bool-comparison"]),
        ("(vllm:num_requests_waiting > bool 5) + (vllm:num_requests_running > bool 3) > 1", []),
        ("(vllm:num_requests_waiting > bool 5) * (vllm:num_requests_running > bool 3)",
         ["bool-comparison"]),
        # what the range of the value decides
        ("vllm:kv_cache_usage_perc <= 1", ["always-true"]),
        ("vllm:kv_cache_usage_perc >= 0", ["always-true"]),
        ("1 >= vllm:kv_cache_usage_perc", ["always-true"]),
        ("vllm:kv_cache_usage_perc < 0", ["never-true"]),
        ("vllm:kv_cache_usage_perc >= 1", []), ("vllm:kv_cache_usage_perc < 1", []),
        ("1 - vllm:kv_cache_usage_perc >= 0", ["always-true"]),
        ("1 - vllm:kv_cache_usage_perc <= 1", ["always-true"]),
        ("100 * vllm:kv_cache_usage_perc <= 100", ["always-true"]),
        ("DCGM_FI_DEV_GPU_UTIL <= 100", ["always-true"]),
        ("up <= 1", ["always-true"]), ("up != 1", []), ("up == 2", ["never-true"]),
        ("vllm:gpu_prefix_cache_hit_rate >= 0", ["metric-renamed"]),
        ("sum(rate(vllm:request_success_total{finished_reason='abort'}[5m]))"
         " / sum(rate(vllm:request_success_total[5m])) <= 1", ["always-true"]),
        ("rate(own_total[5m]) >= 0", ["metric-unknown", "always-true"]),
        ("rate(own_total[5m]) < 0", ["metric-unknown", "never-true"]),
        ("clamp_max(vllm:kv_cache_usage_perc, 0.5) <= 1", ["always-true"]),
        # percent against fraction, of what is divided
        ("rate(vllm:prefix_cache_hits_total[5m]) / rate(vllm:prefix_cache_queries_total[5m]) > 90",
         ["unit-mismatch"]),
        ("sum(rate(vllm:prefix_cache_hits_total[5m]))"
         " / sum(rate(vllm:prefix_cache_queries_total[5m])) < 50", ["unit-mismatch"]),
        ("sum(rate(vllm:prefix_cache_hits_total[5m]))"
         " / sum(rate(vllm:prefix_cache_queries_total[5m])) < 0.5", []),
        ("100 * rate(vllm:prefix_cache_hits_total[5m]) / rate(vllm:prefix_cache_queries_total[5m])"
         " < 50", []),
        ("1 - rate(vllm:prefix_cache_hits_total[5m]) / rate(vllm:prefix_cache_queries_total[5m])"
         " > 50", ["unit-mismatch"]),
        ("rate(vllm:spec_decode_num_accepted_tokens_total[5m])"
         " / rate(vllm:spec_decode_num_draft_tokens_total[5m]) < 60",
         ["metric-optional", "metric-optional", "unit-mismatch"]),
        ("DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) > 90",
         ["unit-mismatch"]),
        ("sum(DCGM_FI_DEV_FB_USED) / sum(DCGM_FI_DEV_FB_FREE + DCGM_FI_DEV_FB_USED) > 90",
         ["unit-mismatch"]),
        ("vllm:num_requests_waiting / (vllm:num_requests_waiting + vllm:num_requests_running) > 50",
         ["unit-mismatch"]),
        ("nv_gpu_memory_used_bytes / nv_gpu_memory_total_bytes > 90", ["unit-mismatch"]),
        ("process_open_fds / process_max_fds > 80", ["unit-mismatch"]),
        ("sum(rate(own_errors_total[5m])) / sum(rate(own_requests_total[5m])) > 5",
         ["metric-unknown", "metric-unknown", "unit-mismatch"]),
        ("sum(rate(vllm:generation_tokens_total[5m])) / sum(rate(vllm:request_success_total[5m]))"
         " > 90", []),
        ("vllm:num_requests_waiting / vllm:num_requests_running > 90", []),
        ("100 * sum(rate(vllm:request_success_total{finished_reason='abort'}[5m]))"
         " / sum(rate(vllm:request_success_total[5m])) > 0.5", []),
        # numbers that functions do not take
        ("histogram_quantile(99, sum by (le) (rate(vllm:e2e_request_latency_seconds_bucket[1m])))"
         " > 5", ["argument-range"]),
        ("histogram_quantile(-0.5, rate(vllm:e2e_request_latency_seconds_bucket[1m])) > 5",
         ["argument-range"]),
        ("histogram_quantile(95 / 100, rate(vllm:e2e_request_latency_seconds_bucket[1m])) > 5", []),
        ("histogram_quantile(1, rate(vllm:e2e_request_latency_seconds_bucket[1m])) > 5", []),
        ("quantile(95, vllm:num_requests_waiting) > 5", ["argument-range"]),
        ("quantile(0.95, vllm:num_requests_waiting) > 5", []),
        ("quantile_over_time(95, vllm:num_requests_waiting[5m]) > 5", ["argument-range"]),
        ("quantile(NaN, vllm:num_requests_waiting) > 5", ["argument-range"]),
        ("topk(0, vllm:num_requests_waiting) > 5", ["argument-range"]),
        ("bottomk(-1, vllm:num_requests_waiting) > 5", ["argument-range"]),
        ("topk(1, vllm:num_requests_waiting) > 5", []),
        ("clamp(vllm:num_requests_waiting, 9, 3) > 5", ["argument-range"]),
        ("clamp(vllm:num_requests_waiting, 3, 9) > 5", []),
        ("round(vllm:num_requests_waiting, 0) > 5", ["argument-range"]),
        # what comparisons say together
        ("vllm:num_requests_waiting > 5 or vllm:num_requests_waiting <= 5", ["always-true"]),
        ("vllm:num_requests_waiting > 5 or vllm:num_requests_waiting < 8", ["always-true"]),
        ("vllm:num_requests_waiting != 5 or vllm:num_requests_waiting == 5", ["always-true"]),
        ("vllm:num_requests_waiting > 5 and vllm:num_requests_waiting < 3", ["never-true"]),
        ("vllm:num_requests_waiting > 5 and 3 > vllm:num_requests_waiting", ["never-true"]),
        ("vllm:num_requests_waiting > 5 < 3", ["never-true"]),
        ("vllm:num_requests_waiting > 5 < 30", []),
        ("vllm:num_requests_waiting == 1 and vllm:num_requests_waiting == 2", ["never-true"]),
        ("vllm:num_requests_waiting > 5 unless vllm:num_requests_waiting > 3", ["never-true"]),
        ("vllm:num_requests_waiting > 3 unless vllm:num_requests_waiting > 5", []),
        ("vllm:num_requests_waiting > 5 and vllm:num_requests_running > 3"
         " and vllm:num_requests_waiting < 3", ["never-true"]),
        ("vllm:num_requests_running > 9 or vllm:num_requests_waiting > 5"
         " and vllm:num_requests_waiting < 3", ["never-true"]),
        ("vllm:num_requests_waiting > vllm:num_requests_running"
         " and vllm:num_requests_running > vllm:num_requests_waiting", ["never-true"]),
        ("vllm:kv_cache_usage_perc > 0.9 or vllm:kv_cache_usage_perc < 0.1", []),
        ("vllm:num_requests_waiting > 5 and on () vllm:num_requests_waiting < 3", []),
        ("vllm:num_requests_waiting > 5 or on (job) vllm:num_requests_waiting <= 5", []),
        ("sum(vllm:num_requests_waiting) > 5 and on () sum(vllm:num_requests_waiting) < 3",
         ["never-true"]),
        ("vllm:num_requests_waiting > 5 and vllm:num_requests_waiting offset 5m < 3", []),
        ("vllm:num_requests_waiting > 5 or absent(vllm:num_requests_waiting)", []),
        # functions of gauges over counters
        ("delta(vllm:num_preemptions_total[1m]) > 5", ["delta-of-counter"]),
        ("deriv(vllm:num_preemptions_total[1m]) > 5", ["delta-of-counter"]),
        ("idelta(vllm:num_preemptions_total[1m]) > 5", ["delta-of-counter"]),
        ("predict_linear(vllm:num_preemptions_total[1m], 60) > 5", ["delta-of-counter"]),
        ("delta(vllm:e2e_request_latency_seconds_count[1m]) > 5", ["delta-of-counter"]),
        ("delta(own_requests_total[1m]) > 5", ["metric-unknown", "delta-of-counter"]),
        ("deriv(rate(vllm:num_preemptions_total[1m])[5m:1m]) > 5", []),
        ("avg_over_time(vllm:num_preemptions_total[5m]) > 5", ["counter-without-rate"]),
        ("max_over_time(vllm:num_preemptions_total[5m])"
         " - min_over_time(vllm:num_preemptions_total[5m]) > 5", []),
        ("changes(vllm:num_preemptions_total[5m]) > 5", []),
        # one finding for one mistake
        ("histogram_quantile(0.9, sum by (le) (rate(vllm:e2e_request_latency_seconds_count[1m])))"
         " > 5", ["no-bucket"]),
        ("histogram_quantile(0.9, sum by (le) (vllm:e2e_request_latency_seconds)) > 5",
         ["no-bucket"]),
        ("histogram_quantile(0.9, sum by (le) (rate(vllm:num_preemptions_total[1m]))) > 5",
         ["no-bucket"]),
        # labels that the catalogue knows under another name
        ("vllm:num_requests_waiting{model='a'} > 5", ["label-unknown"]),
        ("sum by (model) (vllm:num_requests_waiting) > 5", ["label-unknown"]),
        ("sglang:token_usage{model='a'} > 0.5", ["label-unknown"]),
        ("DCGM_FI_DEV_GPU_UTIL{uuid='a'} > 50", ["label-unknown"]),
        ("nv_inference_pending_request_count{model='a'} > 5", []),
        ("nv_inference_pending_request_count{model_name='a'} > 5", ["label-unknown"]),
        ("ray_vllm:num_requests_waiting{model='a'} > 5", []),
        ("vllm:num_requests_waiting{model!='a'} > 5", []),
    ],
)
def test_rules(run: Run, policy: Policy, expr: str, codes: list[str]) -> None:
    findings = run(policy(expr)).findings
    assert sorted(f.code for f in findings) == sorted(codes), findings
    assert {f.severity for f in findings} <= {"warning", "info"}


def test_the_window_rule_follows_the_source(run: Run, policy: Policy) -> None:
    expr = "rate(vllm:num_preemptions_total[30s]) > 5"
    assert not run(policy(expr)).findings
    (finding,) = run(policy(expr), scrape_interval_ms=15_000).findings
    assert finding.code == "short-window"


def test_a_comment_that_cuts_an_expression(run: Run, policy: Policy) -> None:
    block = "\n    expr: up # > 1\n    on_no_data: hold"
    cut = policy().replace("{on_no_data: hold, expr: 'up == 0'}", block)
    (finding,) = run(cut).findings
    assert (finding.code, finding.line) == ("expr-cut", 6)
    whole = cut.replace("up # > 1", "up == 0 # down")
    assert not run(whole).findings


@pytest.mark.parametrize("op", ["and", "or", "unless", "+", "*"])
def test_the_longest_chains_end(run: Run, policy: Policy, op: str) -> None:
    """Each part is looked at once for each rule: twice a level would never end."""
    parts = [f"vllm:num_requests_waiting{{a='{i}'}}" for i in range(150)]
    expr = f" {op} ".join(f"{part} > 1" if op.isalpha() else part for part in parts)
    assert "no-comparison" not in {f.code for f in run(policy(expr + " > 1")).findings}
