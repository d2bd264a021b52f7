"""Which metrics serving stacks export, of which type, and what became of the ones they dropped.

vLLM's names are those of 0.31 to 0.33. A counter is exported with `_total`, a histogram as
`_bucket`, `_sum` and `_count`, a summary as itself (quantiles), `_sum` and `_count`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal, TypeAlias

from resilience.policy.words import nearest

MetricType: TypeAlias = Literal["gauge", "counter", "histogram", "summary"]
Part: TypeAlias = Literal["value", "bucket", "sum", "count", "created", "base"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family. `unit`: fraction (0..1), percent (0..100), seconds, milliseconds or ""."""

    name: str
    type: MetricType
    unit: str = ""
    stack: str = "vllm"


@dataclass(frozen=True, slots=True)
class Known:
    """What a series name is: its family and which part of it. `base`: named, never exported."""

    metric: Metric
    part: Part


_GAUGES = """
vllm: vllm:num_requests_running vllm:num_requests_waiting vllm:num_requests_waiting_by_reason
vllm: vllm:num_requests_kv_fetch_by_stage vllm:engine_sleep_state vllm:kv_cache_usage_perc
vllm: vllm:cache_config_info vllm:lora_requests_info vllm:mm_cache_usage_perc
gate: resilience_gate_inflight resilience_gate_waiting resilience_gate_wait_inflation
gate: resilience_gate_compliance resilience_gate_cause_share resilience_gate_adaptive_limit
gate: resilience_gate_breaker_state resilience_gate_latency_slope_ms_per_token
general: up scrape_duration_seconds scrape_samples_scraped scrape_samples_post_metric_relabeling
general: scrape_series_added process_virtual_memory_bytes process_resident_memory_bytes
general: process_start_time_seconds process_open_fds process_max_fds python_info
general: ALERTS ALERTS_FOR_STATE probe_success probe_duration_seconds probe_http_status_code
sglang: sglang:num_running_reqs sglang:num_used_tokens sglang:token_usage sglang:gen_throughput
sglang: sglang:num_queue_reqs sglang:cache_hit_rate sglang:spec_accept_length
tgi: tgi_queue_size tgi_batch_current_size tgi_batch_current_max_tokens
dcgm: DCGM_FI_DEV_GPU_UTIL DCGM_FI_DEV_FB_USED DCGM_FI_DEV_FB_FREE DCGM_FI_DEV_GPU_TEMP
dcgm: DCGM_FI_DEV_POWER_USAGE DCGM_FI_DEV_SM_CLOCK DCGM_FI_DEV_XID_ERRORS
dcgm: DCGM_FI_DEV_MEM_COPY_UTIL DCGM_FI_PROF_GR_ENGINE_ACTIVE DCGM_FI_PROF_SM_ACTIVE
dcgm: DCGM_FI_PROF_DRAM_ACTIVE DCGM_FI_PROF_PIPE_TENSOR_ACTIVE
triton: nv_gpu_utilization nv_gpu_memory_total_bytes nv_gpu_memory_used_bytes nv_gpu_power_usage
triton: nv_inference_pending_request_count nv_cpu_utilization
"""

_COUNTERS = """
vllm: vllm:corrupted_requests vllm:watermark_requests vllm:prefix_cache_queries
vllm: vllm:prefix_cache_hits vllm:external_prefix_cache_queries vllm:external_prefix_cache_hits
vllm: vllm:mm_cache_queries vllm:mm_cache_hits vllm:num_preemptions vllm:prompt_tokens
vllm: vllm:prompt_tokens_by_source vllm:prompt_tokens_cached vllm:prompt_tokens_cached_by_source
vllm: vllm:generation_tokens vllm:request_success vllm:admission_rejections
vllm: vllm:prompt_tokens_recomputed vllm:estimated_flops_per_gpu
vllm: vllm:estimated_read_bytes_per_gpu vllm:estimated_write_bytes_per_gpu
vllm: vllm:spec_decode_num_drafts vllm:spec_decode_num_draft_tokens
vllm: vllm:spec_decode_num_accepted_tokens vllm:spec_decode_num_accepted_tokens_per_pos
gate: resilience_gate_requests resilience_gate_refused resilience_gate_failed_open
gate: resilience_gate_rerouted resilience_gate_reroute_skipped service_fallback
gate: resilience_gate_causes resilience_gate_tenant_requests resilience_gate_slo_good
gate: resilience_gate_slo_requests resilience_gate_tokens resilience_gate_output_clamped
gate: resilience_gate_token_estimate_error_tokens resilience_gate_breaker_transitions
gate: resilience_gate_token_estimate_checked_tokens resilience_gate_token_latency_warnings
general: http_requests process_cpu_seconds python_gc_objects_collected
general: python_gc_objects_uncollectable python_gc_collections
sglang: sglang:prompt_tokens sglang:generation_tokens sglang:num_requests sglang:cached_tokens
sglang: sglang:num_aborted_requests
"""

_HISTOGRAMS = """
vllm: vllm:request_prompt_tokens vllm:request_generation_tokens vllm:iteration_tokens_total
vllm: vllm:request_max_num_generation_tokens vllm:request_params_n vllm:request_params_max_tokens
vllm: vllm:time_to_first_token_seconds vllm:inter_token_latency_seconds
vllm: vllm:request_time_per_output_token_seconds vllm:e2e_request_latency_seconds
vllm: vllm:request_queue_time_seconds vllm:request_inference_time_seconds
vllm: vllm:request_prefill_time_seconds vllm:request_decode_time_seconds
vllm: vllm:request_num_preemptions vllm:request_prefill_kv_computed_tokens
vllm: vllm:kv_block_lifetime_seconds vllm:kv_block_idle_before_evict_seconds
vllm: vllm:kv_block_reuse_gap_seconds
gate: resilience_gate_ttft_seconds resilience_gate_request_seconds resilience_gate_queue_seconds
gate: resilience_gate_time_per_token_seconds
general: http_request_duration_seconds http_request_duration_highr_seconds
sglang: sglang:time_to_first_token_seconds sglang:e2e_request_latency_seconds
sglang: sglang:time_per_output_token_seconds sglang:inter_token_latency_seconds
tgi: tgi_request_duration tgi_request_queue_duration tgi_request_inference_duration
tgi: tgi_request_mean_time_per_token_duration tgi_request_input_length
tgi: tgi_request_generated_tokens tgi_request_max_new_tokens tgi_batch_next_size
tgi: tgi_batch_inference_duration tgi_batch_forward_duration tgi_batch_decode_duration
"""

_SUMMARIES = "general: http_request_size_bytes http_response_size_bytes\n"

# Exported without `_total`, although they only grow.
_BARE_COUNTERS = """
tgi: tgi_request_count tgi_request_success tgi_request_failure tgi_batch_inference_count
triton: nv_inference_request_success nv_inference_request_failure nv_inference_count
triton: nv_inference_exec_count nv_inference_request_duration_us nv_inference_queue_duration_us
triton: nv_inference_compute_infer_duration_us nv_energy_consumption
dcgm: DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION
"""

_FRACTIONS = frozenset({
    "resilience_gate_compliance", "resilience_gate_cause_share",
    "vllm:kv_cache_usage_perc", "vllm:mm_cache_usage_perc", "vllm:gpu_cache_usage_perc",
    "vllm:cpu_cache_usage_perc", "vllm:gpu_prefix_cache_hit_rate", "sglang:token_usage",
    "sglang:cache_hit_rate", "nv_gpu_utilization", "nv_cpu_utilization", "up", "probe_success",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
})
_PERCENTS = frozenset({"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL"})

# Old series name -> what to write today, or why there is nothing.
RENAMED: dict[str, str] = {
    "vllm:gpu_cache_usage_perc": "`vllm:kv_cache_usage_perc`",
    "vllm:gpu_prefix_cache_queries_total": "`vllm:prefix_cache_queries_total`",
    "vllm:gpu_prefix_cache_hits_total": "`vllm:prefix_cache_hits_total`",
    "vllm:time_per_output_token_seconds": "`vllm:inter_token_latency_seconds`",
    "vllm:time_per_output_token_seconds_bucket": "`vllm:inter_token_latency_seconds_bucket`",
    "vllm:time_per_output_token_seconds_sum": "`vllm:inter_token_latency_seconds_sum`",
    "vllm:time_per_output_token_seconds_count": "`vllm:inter_token_latency_seconds_count`",
    "vllm:time_in_queue_requests_bucket": "`vllm:request_queue_time_seconds_bucket`",
    "vllm:time_in_queue_requests_sum": "`vllm:request_queue_time_seconds_sum`",
    "vllm:time_in_queue_requests_count": "`vllm:request_queue_time_seconds_count`",
    "vllm:gpu_prefix_cache_hit_rate":
        "`rate(vllm:prefix_cache_hits_total[1m]) / rate(vllm:prefix_cache_queries_total[1m])`",
    "vllm:avg_prompt_throughput_toks_per_s": "`rate(vllm:prompt_tokens_total[1m])`",
    "vllm:avg_generation_throughput_toks_per_s": "`rate(vllm:generation_tokens_total[1m])`",
}
REMOVED = frozenset({
    "vllm:num_requests_swapped", "vllm:cpu_cache_usage_perc", "vllm:cpu_prefix_cache_hit_rate",
    "vllm:spec_decode_draft_acceptance_rate", "vllm:spec_decode_efficiency", "vllm:tokens_total",
    "vllm:request_params_best_of_bucket", "vllm:model_forward_time_milliseconds_bucket",
    "vllm:model_execute_time_milliseconds_bucket",
})
_PREFIXES = ("ray_", "nim_")
_HISTOGRAM_PARTS: tuple[tuple[str, Part], ...] = (
    ("_bucket", "bucket"), ("_sum", "sum"), ("_count", "count"), ("_created", "created"),
)


@cache
def series() -> dict[str, Known]:
    """Return every series name of the catalogue; histogram bases are in it as part `base`."""
    found: dict[str, Known] = {}
    for metric in _metrics(_GAUGES, "gauge") + _metrics(_BARE_COUNTERS, "counter"):
        found[metric.name] = Known(metric, "value")
    for metric in _metrics(_COUNTERS, "counter"):
        found[f"{metric.name}_total"] = Known(metric, "value")
        found[f"{metric.name}_created"] = Known(metric, "created")
    for metric in _metrics(_HISTOGRAMS, "histogram") + _metrics(_SUMMARIES, "summary"):
        for suffix, part in _HISTOGRAM_PARTS:
            if metric.type == "histogram" or part != "bucket":
                found[metric.name + suffix] = Known(metric, part)
        found[metric.name] = Known(metric, "base" if metric.type == "histogram" else "value")
    return found


@cache
def names_of(name: str) -> frozenset[str]:
    """Return every name that the series `name` has had; just `name` if it was never renamed."""
    current = RENAMED.get(name, name).strip("`")
    return frozenset({name, current, *(old for old, new in RENAMED.items()
                                       if new == f"`{current}`")})


def _metrics(table: str, kind: MetricType) -> list[Metric]:
    made: list[Metric] = []
    for line in table.strip().splitlines():
        stack, names = line.split(": ", 1)
        made += [Metric(name, kind, _unit(name), stack) for name in names.split()]
    return made


def _unit(name: str) -> str:
    if name in _FRACTIONS:
        return "fraction"
    if name in _PERCENTS:
        return "percent"
    for unit in ("seconds", "milliseconds"):
        if name.endswith(f"_{unit}"):
            return unit
    return ""


def lookup(name: str) -> Known | None:
    """Return what `name` is; platform prefixes (Ray's, NIM's) are looked through."""
    known = series().get(name)
    if known is not None:
        return known
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            return series().get(rest) or series().get(rest.replace("_", ":", 1))
    return None


@lru_cache(maxsize=4_096)
def guess(name: str, exported: frozenset[str] | None = None) -> str | None:
    """Return the series that `name` was meant to be, of `exported` or of the catalogue."""
    options = exported if exported is not None else series().keys()
    for candidate in (
        f"{name}_total", name.removesuffix("_total"), name.replace("_", ":", 1), f"{name}_bucket"
    ):
        if candidate in options and candidate != name:
            return candidate
    return nearest(name, options, 0.75)
