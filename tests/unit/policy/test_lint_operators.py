"""Expressions as operators write them: what is right stays quiet, what is wrong is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resilience.policy.check import CheckResult

Run = Callable[..., CheckResult]
Policy = Callable[..., str]

RIGHT = (
    # vLLM
    "max by (model_name) (vllm:kv_cache_usage_perc) > 0.9",
    "avg by (namespace, pod) (vllm:kv_cache_usage_perc) > 0.85",
    "sum by (model_name) (vllm:num_requests_waiting) > 20",
    "sum by (model_name) (vllm:num_requests_waiting) / sum by (model_name)"
    " (vllm:num_requests_running) > 1",
    "sum by (model_name) (vllm:num_requests_waiting) > 2 * sum by (model_name)"
    " (vllm:num_requests_running)",
    "histogram_quantile(0.95, sum by (le, model_name)"
    " (rate(vllm:time_to_first_token_seconds_bucket[5m]))) > 2",
    "histogram_quantile(0.99, sum by (le)"
    ' (rate(vllm:inter_token_latency_seconds_bucket{model_name="llama"}[5m]))) > 0.1',
    "histogram_quantile(0.95, sum(rate(vllm:e2e_request_latency_seconds_bucket[5m])) by (le)) > 30",
    "histogram_quantile(0.5, sum by (le)"
    " (increase(vllm:request_queue_time_seconds_bucket[10m]))) > 1",
    "sum(rate(vllm:time_to_first_token_seconds_sum[5m])) /"
    " sum(rate(vllm:time_to_first_token_seconds_count[5m])) > 1.5",
    "rate(vllm:num_preemptions_total[5m]) > 0.1",
    "increase(vllm:num_preemptions_total[10m]) > 10",
    'sum by (model_name) (rate(vllm:request_success_total{finished_reason="abort"}[5m])) > 0.5',
    'sum(rate(vllm:request_success_total{finished_reason=~"abort|length"}[5m])) /'
    " sum(rate(vllm:request_success_total[5m])) > 0.2",
    "1 - sum(rate(vllm:prefix_cache_hits_total[10m])) /"
    " sum(rate(vllm:prefix_cache_queries_total[10m])) > 0.7",
    "sum(rate(vllm:generation_tokens_total[5m])) by (model_name) < 50 and"
    " sum(vllm:num_requests_running) by (model_name) > 4",
    "rate(vllm:generation_tokens_total[2m]) == 0 and vllm:num_requests_running > 0",
    "vllm:num_requests_running > 0 unless rate(vllm:generation_tokens_total[1m]) > 0",
    "sum(rate(vllm:prompt_tokens_total[5m])) / sum(rate(vllm:generation_tokens_total[5m])) > 20",
    'absent(vllm:num_requests_running{job="vllm"}) or up{job="vllm"} == 0',
    'up{job="vllm"} == 0',
    'avg_over_time(up{job="vllm"}[5m]) < 0.9',
    'count(up{job="vllm"} == 1) < 2',
    'sum(up{job="vllm"}) < 2',
    'sum(up{job="vllm"}) / count(up{job="vllm"}) < 0.5',
    'count(up{job="vllm"} == 0) / count(up{job="vllm"}) > 0.5',
    'absent(up{job="vllm"} == 1)',
    'changes(process_start_time_seconds{job="vllm"}[15m]) > 2',
    "resets(vllm:prompt_tokens_total[15m]) > 0",
    'time() - process_start_time_seconds{job="vllm"} < 300',
    "deriv(vllm:kv_cache_usage_perc[5m]) > 0.001",
    "predict_linear(vllm:kv_cache_usage_perc[10m], 300) > 0.95",
    "delta(vllm:num_requests_waiting[5m]) > 10",
    "max_over_time(vllm:num_requests_waiting[5m]) > 50",
    "quantile_over_time(0.9, vllm:num_requests_waiting[10m]) > 20",
    "stddev(vllm:num_requests_running) > 5",
    "max(vllm:num_requests_running) - min(vllm:num_requests_running) > 20",
    "max(vllm:kv_cache_usage_perc) - avg(vllm:kv_cache_usage_perc) > 0.3",
    "topk(1, vllm:kv_cache_usage_perc) > 0.95",
    "(vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc) > 0.9",
    "vllm:num_requests_waiting > 10 and vllm:kv_cache_usage_perc > 0.9",
    "vllm:num_requests_waiting > 10 and on (model_name) vllm:kv_cache_usage_perc > 0.9",
    "vllm:kv_cache_usage_perc > on (model_name) group_left () (0.9 * max by (model_name)"
    " (vllm:kv_cache_usage_perc offset 1h))",
    'sum(rate(vllm:e2e_request_latency_seconds_bucket{le="10.0"}[5m])) /'
    " sum(rate(vllm:e2e_request_latency_seconds_count[5m])) < 0.95",
    '(1 - sum(rate(vllm:e2e_request_latency_seconds_bucket{le="10.0"}[1h])) /'
    " sum(rate(vllm:e2e_request_latency_seconds_count[1h]))) > 14.4 * 0.01",
    "histogram_quantile(0.95, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m]))) >"
    " 1.5 * histogram_quantile(0.95, sum by (le)"
    " (rate(vllm:time_to_first_token_seconds_bucket[5m] offset 1d)))",
    "sum by (pod) (rate(vllm:request_success_total[5m])) < on () group_left () (0.2 * avg(sum by"
    " (pod) (rate(vllm:request_success_total[5m]))))",
    "vllm:num_requests_waiting > 0 and vllm:num_requests_running == 0",
    "sum(vllm:num_requests_waiting + vllm:num_requests_running) > 200",
    "sum_over_time(vllm:num_requests_waiting[5m]) > 1000",
    "min_over_time(vllm:num_requests_waiting[3m]) > 5",
    "ray_vllm_num_requests_waiting > 5",
    "hour() >= 8 and on () hour() < 18 and on () sum(vllm:num_requests_waiting) > 5",
    "sum(vllm:num_requests_waiting) > 5 and on () (hour() >= 8 < 18)",
    'label_replace(vllm:num_requests_waiting, "host", "$1", "instance", "(.*):.*") > 5',
    "sum by (model_name) (vllm:num_requests_waiting) > 5 unless on () (day_of_week() == 0 or"
    " day_of_week() == 6)",
    'rate(vllm:request_success_total{finished_reason="stop"}[5m]) / ignoring (finished_reason)'
    " sum without (finished_reason) (rate(vllm:request_success_total[5m])) < 0.9",
    "avg_over_time((sum(vllm:num_requests_waiting) > bool 5)[10m:30s]) > 0.8",
    "sum(vllm:num_requests_waiting > bool 0) / count(vllm:num_requests_waiting) > 0.5",
    # SGLang
    "sglang:token_usage > 0.9",
    "sglang:num_queue_reqs > 50",
    "avg(sglang:cache_hit_rate) < 0.3",
    "histogram_quantile(0.99, sum by (le) (rate(sglang:time_to_first_token_seconds_bucket[5m])))"
    " > 3",
    "sum(rate(sglang:generation_tokens_total[1m])) < 100 and sum(sglang:num_running_reqs) > 5",
    "sglang:gen_throughput < 10 and sglang:num_running_reqs > 0",
    "rate(sglang:num_aborted_requests_total[5m]) > 0.1",
    "sum(rate(sglang:e2e_request_latency_seconds_sum[5m])) /"
    " sum(rate(sglang:e2e_request_latency_seconds_count[5m])) > 20",
    # TGI
    "tgi_queue_size > 20",
    "histogram_quantile(0.95, sum by (le) (rate(tgi_request_duration_bucket[5m]))) > 20",
    "sum without (err) (rate(tgi_request_failure[5m])) / rate(tgi_request_count[5m]) > 0.05",
    "sum(rate(tgi_request_failure[5m])) / sum(rate(tgi_request_count[5m])) > 0.05",
    "histogram_quantile(0.99, sum by (le) (rate(tgi_request_queue_duration_bucket[5m]))) > 2",
    "histogram_quantile(0.99, rate(tgi_request_mean_time_per_token_duration_bucket[5m])) > 0.2",
    "tgi_batch_current_size < 1 and tgi_queue_size > 5",
    # Triton
    "nv_inference_pending_request_count > 50",
    "sum by (model) (rate(nv_inference_request_failure[5m])) / (sum by (model)"
    " (rate(nv_inference_request_success[5m])) + sum by (model)"
    " (rate(nv_inference_request_failure[5m]))) > 0.05",
    "rate(nv_inference_queue_duration_us[5m]) / rate(nv_inference_request_success[5m]) > 50000",
    "avg by (model) (rate(nv_inference_queue_duration_us[1m]) / (1000 * (1 +"
    " rate(nv_inference_request_success[1m])))) > 100",
    "rate(nv_inference_request_duration_us[5m]) / 1e6 > 8",
    "nv_gpu_utilization > 0.95",
    "nv_gpu_memory_used_bytes / nv_gpu_memory_total_bytes > 0.95",
    "rate(nv_inference_count[5m]) / rate(nv_inference_exec_count[5m]) < 2",
    "avg_over_time(nv_gpu_utilization[10m]) < 0.1",
    # DCGM
    "DCGM_FI_DEV_GPU_UTIL > 95",
    "avg by (Hostname) (DCGM_FI_DEV_GPU_UTIL) < 5",
    "max by (gpu, Hostname) (DCGM_FI_DEV_GPU_TEMP) > 85",
    "DCGM_FI_DEV_XID_ERRORS > 0",
    "increase(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[10m]) > 100",
    "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) > 0.95",
    "DCGM_FI_DEV_FB_FREE < 1024",
    "DCGM_FI_DEV_FB_USED > 70000",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE < 0.1 and DCGM_FI_DEV_FB_USED > 1000",
    "DCGM_FI_DEV_POWER_USAGE > 650",
    "rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[5m]) > 600000",
    "delta(DCGM_FI_DEV_GPU_TEMP[5m]) > 15",
    "max by (pod) (DCGM_FI_DEV_GPU_UTIL) > 90 and on (pod) sum by (pod)"
    " (vllm:num_requests_waiting) > 5",
    "avg(DCGM_FI_PROF_PIPE_TENSOR_ACTIVE) < 0.05 and on () sum(vllm:num_requests_running) > 10",
    "sum by (Hostname) (DCGM_FI_DEV_POWER_USAGE) > 5000",
    # gate and general
    'resilience_gate_waiting{tier="core"} > 10',
    "sum by (tier) (rate(resilience_gate_refused_total[5m])) / sum by (tier)"
    " (rate(resilience_gate_requests_total[5m])) > 0.1",
    'resilience_gate_compliance{tier="core"} < 0.99',
    "histogram_quantile(0.99, sum by (le, tier) (rate(resilience_gate_ttft_seconds_bucket[5m])))"
    " > 2",
    'sum(rate(http_requests_total{status=~"5.."}[5m])) / sum(rate(http_requests_total[5m])) > 0.05',
    'sum(rate(http_requests_total{status=~"5.."}[5m])) by (handler) /'
    " sum(rate(http_requests_total[5m])) by (handler) > 0.05",
    '100 * sum(rate(http_requests_total{status=~"5.."}[5m])) /'
    " sum(rate(http_requests_total[5m])) > 5",
    "probe_success == 0",
    "probe_duration_seconds > 2",
    'process_resident_memory_bytes{job="vllm"} > 64e9',
    "process_open_fds / process_max_fds > 0.8",
    'rate(process_cpu_seconds_total{job="vllm"}[5m]) > 8',
    "scrape_duration_seconds > 2",
    'scrape_samples_scraped{job="vllm"} < 50',
    'sum(rate(http_request_duration_seconds_bucket{le="1"}[5m])) /'
    " sum(rate(http_request_duration_seconds_count[5m])) < 0.99",
)


@pytest.mark.parametrize("expr", RIGHT)
def test_what_is_right_stays_quiet(run: Run, policy: Policy, expr: str) -> None:
    findings = run(policy(expr), remote=True).findings
    assert not findings, findings


WRONG = (
    ("vllm:kv_cache_usage_perc > 85", ["unit-mismatch"]),
    ("avg(vllm:kv_cache_usage_perc) by (pod) > 90", ["unit-mismatch"]),
    ("min(vllm:kv_cache_usage_perc) < 20", ["unit-mismatch"]),
    ("vllm:kv_cache_usage_perc * 100 > 0.9", ["unit-mismatch"]),
    ("vllm:gpu_cache_usage_perc > 0.9", ["metric-renamed"]),
    ("vllm:num_requests_waiting", ["no-comparison"]),
    ("sum(vllm:num_requests_waiting) by (model_name)", ["no-comparison"]),
    (
        "histogram_quantile(0.95, vllm:time_to_first_token_seconds_bucket) > 2",
        ["counter-without-rate"],
    ),
    (
        "histogram_quantile(0.95, sum(vllm:time_to_first_token_seconds_bucket) by (le)) > 2",
        ["counter-without-rate"],
    ),
    (
        "histogram_quantile(0.95, sum(rate(vllm:time_to_first_token_seconds_bucket[5m]))) > 2",
        ["lost-le"],
    ),
    (
        "histogram_quantile(95, sum(rate(vllm:time_to_first_token_seconds_bucket[5m])) by (le))"
        " > 2",
        ["argument-range"],
    ),
    (
        "histogram_quantile(0.95, sum(rate(vllm:time_to_first_token_seconds_bucket[5m])) by"
        " (le)) > 2000",
        ["unit-mismatch"],
    ),
    (
        "histogram_quantile(0.95, rate(sum(vllm:time_to_first_token_seconds_bucket) by"
        " (le)[5m:1m])) > 2",
        ["rate-of-sum"],
    ),
    ("rate(sum(vllm:prompt_tokens_total)[5m:]) > 100", ["rate-of-sum"]),
    ("vllm:time_to_first_token_seconds > 2", ["histogram-base"]),
    ('vllm:e2e_request_latency_seconds{quantile="0.99"} > 5', ["histogram-base", "label-unknown"]),
    ("avg(vllm:time_to_first_token_seconds_sum) > 5", ["counter-without-rate"]),
    ("vllm:prompt_tokens_total > 1000", ["counter-without-rate"]),
    ("sum(vllm:request_success_total) > 100", ["counter-without-rate"]),
    ("vllm:num_preemptions > 5", ["metric-unknown"]),
    ("vllm:request_success > 5", ["metric-unknown"]),
    ("rate(vllm:kv_cache_usage_perc[5m]) > 0.1", ["rate-of-gauge"]),
    ("increase(vllm:num_requests_waiting[5m]) > 5", ["rate-of-gauge"]),
    ("irate(vllm:num_requests_running[5m]) > 5", ["rate-of-gauge"]),
    ("rate(vllm:num_preemptions_total[1s]) > 0", ["short-window"]),
    ("vllm:num_request_waiting > 5", ["metric-unknown"]),
    ("vllm:num_requests_swapped > 0", ["metric-removed"]),
    ("vllm:cpu_cache_usage_perc > 0.5", ["metric-removed"]),
    ("vllm:avg_generation_throughput_toks_per_s < 10", ["metric-renamed"]),
    ("vllm:time_per_output_token_seconds_bucket > 0", ["counter-without-rate", "metric-renamed"]),
    ('vllm:kv_cache_usage_perc{model="llama"} > 0.9', ["label-unknown"]),
    ('vllm:num_requests_waiting{finish_reason="stop"} > 1', ["label-unknown"]),
    (
        'vllm:request_success_total{finish_reason="abort"} > 1',
        ["counter-without-rate", "label-unknown"],
    ),
    ('rate(vllm:request_success_total{finished_reason="aborted"}[5m]) > 0.1', ["label-value"]),
    ('rate(vllm:request_success_total{reason="abort"}[5m]) > 0.1', ["label-unknown"]),
    ("up == 1 and up == 0", ["never-true"]),
    ("up > 1", ["never-true"]),
    ('up{job="vllm"} < 0', ["never-true"]),
    ("count(up == 0) < 1", ["never-true"]),
    ("sum(up) < 0", ["never-true"]),
    ('absent(up{job="vllm"}) == 0', ["never-true"]),
    ("absent_over_time(up[5m]) < 1", ["never-true"]),
    ("vllm:num_requests_waiting > 10 or vllm:num_requests_waiting <= 10", ["always-true"]),
    ("vllm:num_requests_waiting > 10 and vllm:num_requests_waiting < 5", ["never-true"]),
    ("vllm:num_requests_waiting != 5 or vllm:num_requests_waiting != 6", ["always-true"]),
    ("vllm:num_requests_waiting > -1", ["always-true"]),
    ("rate(vllm:prompt_tokens_total[5m]) < 0", ["never-true"]),
    ("rate(vllm:prompt_tokens_total[5m]) >= 0", ["always-true"]),
    ("vllm:num_requests_waiting > bool 10", ["bool-comparison"]),
    ("vllm:num_requests_waiting > NaN", ["never-true"]),
    ("vllm:num_requests_waiting >= Inf", ["never-true"]),
    ("vector(1)", ["constant-expr"]),
    ("1 == bool 1", ["bool-comparison", "constant-expr"]),
    ("sum(vllm:num_requests_waiting) > vllm:num_requests_running", ["join-cannot-match"]),
    ("vllm:num_requests_waiting > 5 and sum(up) > 1", ["join-cannot-match"]),
    (
        "rate(vllm:request_success_total[5m]) / rate(vllm:e2e_request_latency_seconds_count[5m])"
        " < 0.9",
        ["join-cannot-match"],
    ),
    ("rate(vllm:request_success_total[5m]) > vllm:num_requests_running", ["join-cannot-match"]),
    ("DCGM_FI_DEV_GPU_UTIL > 0.95", ["unit-mismatch"]),
    ("DCGM_FI_DEV_GPU_UTIL > 90 and vllm:num_requests_waiting > 5", ["join-cannot-match"]),
    ("DCGM_FI_PROF_SM_ACTIVE > 80", ["metric-optional", "unit-mismatch"]),
    ("DCGM_FI_DEV_FB_USED > 0.95", ["unit-mismatch"]),
    ("DCGM_FI_DEV_FB_USED / DCGM_FI_DEV_FB_TOTAL > 95", ["metric-optional", "unit-mismatch"]),
    ("sum(DCGM_FI_DEV_GPU_UTIL) > 90", ["sum-of-fractions"]),
    ("rate(DCGM_FI_DEV_GPU_UTIL[5m]) > 1", ["rate-of-gauge"]),
    (
        "avg(histogram_quantile(0.9, rate(vllm:e2e_request_latency_seconds_bucket[5m]))) > 5",
        ["avg-of-quantile"],
    ),
    (
        "quantile(0.95, avg by (pod) (rate(vllm:generation_tokens_total[5m]))) > 5",
        ["quantile-of-avg"],
    ),
    ("max(avg_over_time(vllm:kv_cache_usage_perc[5m])) > 95", ["unit-mismatch"]),
    ("tgi_request_duration > 5", ["histogram-base"]),
    ("histogram_quantile(0.95, rate(tgi_request_duration_bucket[5m])) > 5000", ["unit-mismatch"]),
    ("tgi_request_count > 100", ["counter-without-rate"]),
    ("sglang:token_usage > 90", ["unit-mismatch"]),
    ("sglang:cache_hit_rate < 30", ["unit-mismatch"]),
    ("rate(sglang:num_queue_reqs[5m]) > 1", ["rate-of-gauge"]),
    ("sglang:e2e_request_latency_seconds > 5", ["histogram-base"]),
    ("nv_gpu_utilization > 90", ["unit-mismatch"]),
    ("nv_inference_request_duration_us > 100", ["counter-without-rate"]),
    ("nv_inference_queue_duration_us / nv_inference_request_success > 0.1", ["unit-mismatch"]),
    ("nv_inference_request_success > 5", ["counter-without-rate"]),
    ("rate(nv_inference_pending_request_count[5m]) > 1", ["rate-of-gauge"]),
    ("resilience_gate_compliance < 99", ["unit-mismatch"]),
    ("resilience_gate_requests_total > 5", ["counter-without-rate"]),
    (
        "histogram_quantile(0.99, sum by (tier) (rate(resilience_gate_ttft_seconds_bucket[5m])))"
        " > 2",
        ["lost-le"],
    ),
    ("vllm:kv_cache_usage_perc >= 1.5", ["unit-mismatch"]),
    ("1 - vllm:kv_cache_usage_perc < 10", ["unit-mismatch"]),
    ("vllm:kv_cache_usage_perc / 100 > 0.9", ["unit-mismatch"]),
    ("clamp(vllm:kv_cache_usage_perc, 0, 0.5) > 0.9", ["never-true"]),
    ("topk(0, vllm:kv_cache_usage_perc) > 0.5", ["argument-range"]),
    ("count_over_time(up[5m]) < 0", ["never-true"]),
    ("hour() > 24", ["never-true"]),
    ("minute() == 60", ["never-true"]),
    ("day_of_week() == 7", ["never-true"]),
    ("month() == 0", ["never-true"]),
    (
        "rate(vllm:prompt_tokens_total[5m] offset 1h) > rate(vllm:prompt_tokens_total[5m] offset"
        " 1h)",
        ["never-true"],
    ),
    (
        "vllm:num_requests_waiting > 5 and on (instance) sum by (job) (up) > 0",
        ["join-cannot-match"],
    ),
    ("sum by (le) (vllm:num_requests_waiting) > 5", ["label-unknown"]),
    ("count(vllm:num_requests_waiting > 5) / count(vllm:num_requests_waiting) > 1", ["never-true"]),
    ("scalar(vllm:num_requests_waiting) > 5", ["promql-type"]),
    (
        "sum(rate(vllm:prefix_cache_hits_total[5m])) /"
        " sum(rate(vllm:prefix_cache_queries_total[5m])) > 1",
        ["never-true"],
    ),
    ("vllm:kv_cache_usage_perc > 0.9 and vllm:kv_cache_usage_perc > 90", ["unit-mismatch"]),
    ('http_requests_total{status=~"5.."} > 0', ["counter-without-rate"]),
    (
        'rate(http_requests_total{status=~"5.."}[5m]) / rate(http_requests_total[5m]) > 0.05',
        ["always-true"],
    ),
    ("process_resident_memory_bytes > 80", ["unit-mismatch"]),
    ("process_start_time_seconds > 300", ["unit-mismatch"]),
    ("time() > 100", ["promql-type"]),
    ("sum(rate(vllm:generation_tokens_total[5m])) by (modle_name) > 5", ["label-unknown"]),
    ("vllm:num_requests_waiting > 5 == 1", ["never-true"]),
    ("(vllm:num_requests_waiting > 5) == 1", ["never-true"]),
    ("vllm:num_requests_waiting > 5 > bool 3", ["bool-comparison"]),
)


@pytest.mark.parametrize(("expr", "codes"), WRONG)
def test_what_is_wrong_is_found(
    run: Run, policy: Policy, expr: str, codes: list[str]
) -> None:
    findings = run(policy(expr), remote=True).findings
    assert sorted({f.code for f in findings}) == codes, findings
