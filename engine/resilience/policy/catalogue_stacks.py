"""Metrics of everything but vLLM, as data: see catalogue.py for the form of a line."""

from __future__ import annotations

SGLANG_LABELS = (
    "model_name", "engine_type", "tp_rank", "pp_rank", "dp_rank", "moe_ep_rank", "priority",
)
SGLANG = """
sglang:num_running_reqs gauge - -
sglang:num_queue_reqs gauge - -
sglang:num_used_tokens gauge - -
sglang:token_usage gauge fraction -
sglang:swa_token_usage gauge fraction -
sglang:pending_prealloc_token_usage gauge fraction -
sglang:full_token_usage gauge fraction -
sglang:mamba_usage gauge fraction -
sglang:max_total_num_tokens gauge - -
sglang:gen_throughput gauge - -
sglang:cache_hit_rate gauge fraction -
sglang:utilization gauge - -
sglang:num_grammar_queue_reqs gauge - -
sglang:num_running_reqs_offline_batch gauge - -
sglang:num_retracted_reqs gauge - -
sglang:num_paused_reqs gauge - -
sglang:avg_request_queue_latency gauge seconds - ..0.4
    -> sglang:queue_time_seconds
sglang:spec_accept_length gauge - - - ? speculative decoding
sglang:spec_accept_rate gauge fraction - - ? speculative decoding
sglang:num_prefill_prealloc_queue_reqs gauge - - - ? disaggregated prefill
sglang:num_prefill_inflight_queue_reqs gauge - - - ? disaggregated prefill
sglang:num_decode_prealloc_queue_reqs gauge - - - ? disaggregated prefill
sglang:num_decode_transfer_queue_reqs gauge - - - ? disaggregated prefill
sglang:kv_transfer_speed_gb_s gauge - - - ? disaggregated prefill
sglang:kv_transfer_latency_ms gauge milliseconds - - ? disaggregated prefill
sglang:max_running_requests_under_SLO gauge - -
sglang:engine_startup_time gauge seconds -
sglang:engine_load_weights_time gauge seconds -
sglang:is_cuda_graph gauge - -
sglang:prompt_tokens counter - -
sglang:generation_tokens counter - -
sglang:cached_tokens counter - cache_source
sglang:realtime_tokens counter - mode
sglang:num_requests counter - -
sglang:num_so_requests counter - -
sglang:num_aborted_requests counter - -
sglang:num_bootstrap_failed_reqs counter - -
sglang:num_transfer_failed_reqs counter - -
sglang:num_grammar_cache_hit counter - -
sglang:num_grammar_aborted counter - -
sglang:num_grammar counter - -
sglang:time_to_first_token_seconds histogram seconds -
sglang:inter_token_latency_seconds histogram seconds - 0.4..
sglang:time_per_output_token_seconds histogram seconds -
sglang:e2e_request_latency_seconds histogram seconds -
sglang:queue_time_seconds histogram seconds -
sglang:per_stage_req_latency_seconds histogram seconds stage
sglang:grammar_compilation_time_seconds histogram seconds -
sglang:prompt_tokens_histogram histogram - -
sglang:generation_tokens_histogram histogram - -
sglang:func_latency_seconds histogram seconds =name
"""

TRITON_LABELS = ("model", "version")
TRITON = """
nv_inference_request_success bare_counter - -
nv_inference_request_failure bare_counter - reason
nv_inference_count bare_counter - -
nv_inference_exec_count bare_counter - -
nv_inference_pending_request_count gauge - -
nv_inference_request_duration_us bare_counter microseconds -
nv_inference_queue_duration_us bare_counter microseconds -
nv_inference_compute_input_duration_us bare_counter microseconds -
nv_inference_compute_infer_duration_us bare_counter microseconds -
nv_inference_compute_output_duration_us bare_counter microseconds -
nv_inference_first_response_histogram_ms histogram milliseconds -
nv_inference_request_summary_us summary microseconds - - ? `--metrics-config summary_latencies=true`
nv_inference_queue_summary_us summary microseconds - - ? `--metrics-config summary_latencies=true`
nv_inference_compute_input_summary_us summary microseconds - -
    ? `--metrics-config summary_latencies=true`
nv_inference_compute_infer_summary_us summary microseconds - -
    ? `--metrics-config summary_latencies=true`
nv_inference_compute_output_summary_us summary microseconds - -
    ? `--metrics-config summary_latencies=true`
nv_cache_num_hits_per_model bare_counter - - - ? a response cache
nv_cache_num_misses_per_model bare_counter - - - ? a response cache
nv_cache_hit_duration_per_model bare_counter microseconds - - ? a response cache
nv_cache_miss_duration_per_model bare_counter microseconds - - ? a response cache
nv_gpu_utilization gauge fraction =gpu_uuid
nv_gpu_memory_total_bytes gauge bytes =gpu_uuid
nv_gpu_memory_used_bytes gauge bytes =gpu_uuid
nv_gpu_power_usage gauge - =gpu_uuid
nv_gpu_power_limit gauge - =gpu_uuid
nv_energy_consumption bare_counter - =gpu_uuid
nv_cpu_utilization gauge fraction =
nv_cpu_memory_total_bytes gauge bytes =
nv_cpu_memory_used_bytes gauge bytes =
nv_pinned_memory_pool_total_bytes gauge bytes =
nv_pinned_memory_pool_used_bytes gauge bytes =
nv_trt_llm_request_metrics gauge - request_type
nv_trt_llm_runtime_memory_metrics gauge - memory_type
nv_trt_llm_kv_cache_block_metrics gauge - kv_cache_block_type
nv_trt_llm_inflight_batcher_metrics gauge - inflight_batcher_specific_metric
nv_trt_llm_general_metrics gauge - general_type
nv_llm_input_token_len histogram - - - ? TensorRT-LLM
nv_llm_output_token_len histogram - - - ? TensorRT-LLM
"""

TGI_LABELS = ()
TGI = """
tgi_queue_size gauge - -
tgi_batch_current_size gauge - -
tgi_batch_current_max_tokens gauge - -
tgi_request_count bare_counter - -
tgi_request_success bare_counter - -
tgi_request_failure bare_counter - err
tgi_batch_inference_count bare_counter - method
tgi_batch_inference_success bare_counter - method
tgi_batch_inference_failure bare_counter - method
tgi_batch_concat bare_counter - reason
tgi_request_duration histogram seconds -
tgi_request_queue_duration histogram seconds -
tgi_request_inference_duration histogram seconds -
tgi_request_validation_duration histogram seconds -
tgi_request_mean_time_per_token_duration histogram seconds -
tgi_request_input_length histogram - -
tgi_request_generated_tokens histogram - -
tgi_request_max_new_tokens histogram - -
tgi_request_skipped_tokens histogram - -
tgi_batch_next_size histogram - -
tgi_batch_inference_duration histogram seconds method
tgi_batch_forward_duration histogram seconds method
tgi_batch_decode_duration histogram seconds method
tgi_batch_filter_duration histogram seconds method
tgi_batch_concat_duration histogram seconds reason
"""

DCGM_LABELS = (
    "gpu", "UUID", "device", "modelName", "Hostname", "pci_bus_id", "DCGM_FI_DRIVER_VERSION",
    "container", "namespace", "pod", "GPU_I_ID", "GPU_I_PROFILE", "err_code", "err_msg",
)
DCGM = """
DCGM_FI_DEV_GPU_UTIL gauge percent -
DCGM_FI_DEV_MEM_COPY_UTIL gauge percent -
DCGM_FI_DEV_ENC_UTIL gauge percent -
DCGM_FI_DEV_DEC_UTIL gauge percent -
DCGM_FI_DEV_FB_USED gauge mebibytes -
DCGM_FI_DEV_FB_FREE gauge mebibytes -
DCGM_FI_DEV_FB_RESERVED gauge mebibytes -
DCGM_FI_DEV_FB_TOTAL gauge mebibytes - - ! a line in the exporter's counters file
DCGM_FI_DEV_FB_USED_PERCENT gauge fraction - - ! a line in the exporter's counters file
DCGM_FI_DEV_GPU_TEMP gauge - -
DCGM_FI_DEV_MEMORY_TEMP gauge - -
DCGM_FI_DEV_POWER_USAGE gauge - -
DCGM_FI_DEV_SM_CLOCK gauge - -
DCGM_FI_DEV_MEM_CLOCK gauge - -
DCGM_FI_DEV_XID_ERRORS gauge - -
DCGM_FI_DEV_VGPU_LICENSE_STATUS gauge - -
DCGM_FI_DEV_ROW_REMAP_FAILURE gauge - -
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION bare_counter - -
DCGM_FI_DEV_PCIE_REPLAY_COUNTER bare_counter - -
DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL bare_counter - -
DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS bare_counter - -
DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS bare_counter - -
DCGM_FI_DEV_ECC_SBE_VOL_TOTAL bare_counter - - - ! a line in the exporter's counters file
DCGM_FI_DEV_ECC_DBE_VOL_TOTAL bare_counter - - - ! a line in the exporter's counters file
DCGM_FI_DEV_ECC_SBE_AGG_TOTAL bare_counter - - - ! a line in the exporter's counters file
DCGM_FI_DEV_ECC_DBE_AGG_TOTAL bare_counter - - - ! a line in the exporter's counters file
DCGM_FI_DEV_RETIRED_SBE bare_counter - - - ! a line in the exporter's counters file
DCGM_FI_DEV_RETIRED_DBE bare_counter - - - ! a line in the exporter's counters file
DCGM_FI_DEV_POWER_VIOLATION bare_counter - - - ! a line in the exporter's counters file
DCGM_FI_DEV_THERMAL_VIOLATION bare_counter - - - ! a line in the exporter's counters file
DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL bare_counter - - -
    ! a line in the exporter's counters file
DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL bare_counter - - -
    ! a line in the exporter's counters file
DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge fraction -
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE gauge fraction -
DCGM_FI_PROF_DRAM_ACTIVE gauge fraction -
DCGM_FI_PROF_SM_ACTIVE gauge fraction - - ! a line in the exporter's counters file
DCGM_FI_PROF_SM_OCCUPANCY gauge fraction - - ! a line in the exporter's counters file
DCGM_FI_PROF_PCIE_TX_BYTES gauge bytes -
DCGM_FI_PROF_PCIE_RX_BYTES gauge bytes -
"""

GATE_LABELS = ()
GATE = """
resilience_gate_inflight gauge - tier
resilience_gate_waiting gauge - tier
resilience_gate_wait_inflation gauge - tier
resilience_gate_attempts counter - tier
resilience_gate_duplicates counter - tier,result
resilience_gate_amplification gauge - tier
resilience_gate_compliance gauge fraction tier
resilience_gate_cause_share gauge fraction cause
resilience_gate_adaptive_limit gauge - -
resilience_gate_breaker_state gauge - name,state
resilience_gate_latency_slope_ms_per_token gauge - -
resilience_gate_requests counter - tier,outcome
resilience_gate_refused counter - tier,policy
resilience_gate_causes counter - tier,cause
resilience_gate_tenant_requests counter - tenant,outcome
resilience_gate_failed_open counter - stage
resilience_gate_rerouted counter - tier,model,policy
resilience_gate_reroute_skipped counter - reason
resilience_gate_slo_good counter - tier
resilience_gate_slo_requests counter - tier
resilience_gate_tokens counter - tier,kind
resilience_gate_output_clamped counter - tier,policy
resilience_gate_token_estimate_error_tokens counter - tier
resilience_gate_token_estimate_checked_tokens counter - tier
resilience_gate_token_latency_warnings counter - -
resilience_gate_breaker_transitions counter - name,from,to
resilience_gate_ttft_seconds histogram seconds tier
resilience_gate_request_seconds histogram seconds tier
resilience_gate_queue_seconds histogram seconds tier
resilience_gate_time_per_token_seconds histogram seconds tier
service_fallback counter - service,method,reason
resilience_gate_rungs counter - rung,outcome
resilience_core_health gauge fraction status
resilience_core_second_engine gauge fraction rung,state
resilience_core_allocation_seconds gauge seconds place
resilience_core_memory_bytes gauge bytes state
resilience_core_own_claims gauge - -
resilience_core_seats gauge - -
resilience_core_longest_sequences gauge - -
resilience_core_kv_blocks gauge - state
resilience_core_kv_fragmentation_ratio gauge fraction length
resilience_core_oom_kills counter - -
resilience_core_steps counter - -
resilience_core_scheduled_tokens counter - -
resilience_core_preempted counter - -
resilience_core_kv_residence_seconds histogram seconds length
"""

GENERAL_LABELS = ()
GENERAL = """
up gauge fraction *
scrape_duration_seconds gauge seconds *
scrape_samples_scraped gauge - *
scrape_samples_post_metric_relabeling gauge - *
scrape_series_added gauge - *
ALERTS gauge - *
ALERTS_FOR_STATE gauge - *
probe_success gauge fraction *
probe_duration_seconds gauge seconds *
probe_http_status_code gauge - *
process_cpu_seconds counter seconds -
process_virtual_memory_bytes gauge bytes -
process_resident_memory_bytes gauge bytes -
process_start_time_seconds gauge epoch -
process_open_fds gauge - -
process_max_fds gauge - -
python_info gauge - *
python_gc_objects_collected counter - generation
python_gc_objects_uncollectable counter - generation
python_gc_collections counter - generation
http_requests counter - *
http_request_duration_seconds histogram seconds *
http_request_duration_highr_seconds histogram seconds *
http_request_size_bytes summary bytes *
http_response_size_bytes summary bytes *
"""
