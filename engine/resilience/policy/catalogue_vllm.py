"""vLLM's metrics from 0.5 to 0.33, as data: see catalogue.py for the form of a line.

Versions: the first and the last that export the metric without an option that brings hidden ones
back. Where no first version stands, the metric is as old as the table or its beginning is unknown.
"""

from __future__ import annotations

# Every series has these; `engine` came with the V1 engine.
LABELS = ("model_name", "engine")

TABLE = """
vllm:num_requests_running gauge - -
vllm:num_requests_waiting gauge - -
vllm:num_requests_waiting_by_reason gauge - reason 0.19..
vllm:num_requests_kv_fetch_by_stage gauge - stage 0.31.. ? a KV connector
vllm:engine_sleep_state gauge - sleep_state 0.12..
vllm:kv_cache_usage_perc gauge fraction - 0.9.2..
vllm:cache_config_info gauge - *
vllm:lora_requests_info gauge - =max_lora,waiting_lora_adapters,running_lora_adapters 0.6.4.. ? LoRA

vllm:gpu_cache_usage_perc gauge fraction - ..0.10 -> vllm:kv_cache_usage_perc
vllm:cpu_cache_usage_perc gauge fraction - ..0.8
vllm:num_requests_swapped gauge - - ..0.8
vllm:gpu_prefix_cache_hit_rate gauge fraction - 0.6..0.8
    -> rate(vllm:prefix_cache_hits_total[1m])
    / rate(vllm:prefix_cache_queries_total[1m])
vllm:cpu_prefix_cache_hit_rate gauge fraction - 0.6..0.8
vllm:avg_prompt_throughput_toks_per_s gauge - - ..0.8 -> rate(vllm:prompt_tokens_total[1m])
vllm:avg_generation_throughput_toks_per_s gauge - - ..0.8
    -> rate(vllm:generation_tokens_total[1m])
vllm:spec_decode_draft_acceptance_rate gauge fraction - ..0.10
    -> rate(vllm:spec_decode_num_accepted_tokens_total[1m])
    / rate(vllm:spec_decode_num_draft_tokens_total[1m])
vllm:spec_decode_efficiency gauge fraction - ..0.10

vllm:num_preemptions counter - -
vllm:prompt_tokens counter - -
vllm:generation_tokens counter - -
vllm:request_success counter - finished_reason
vllm:prefix_cache_queries counter - - 0.9.2..
vllm:prefix_cache_hits counter - - 0.9.2..
vllm:gpu_prefix_cache_queries counter - - 0.8..0.10 -> vllm:prefix_cache_queries
vllm:gpu_prefix_cache_hits counter - - 0.8..0.10 -> vllm:prefix_cache_hits
vllm:tokens counter - - 0.6.6..0.10
vllm:external_prefix_cache_queries counter - - 0.12.. ? a KV connector
vllm:external_prefix_cache_hits counter - - 0.12.. ? a KV connector
vllm:mm_cache_queries counter - - 0.12..
vllm:mm_cache_hits counter - - 0.12..
vllm:corrupted_requests counter - - 0.12.. ? `VLLM_COMPUTE_NANS_IN_LOGITS=1`
vllm:watermark_requests counter - status 0.31..
vllm:prompt_tokens_by_source counter - source 0.16..
vllm:prompt_tokens_cached counter - - 0.16..
vllm:prompt_tokens_cached_by_source counter - source 0.31..
vllm:prompt_tokens_recomputed counter - - 0.16..0.31
vllm:admission_rejections counter - =model_name,reason 0.31..
vllm:estimated_flops_per_gpu counter - - 0.14.. ? `--enable-mfu-metrics`
vllm:estimated_read_bytes_per_gpu counter bytes - 0.14.. ? `--enable-mfu-metrics`
vllm:estimated_write_bytes_per_gpu counter bytes - 0.14.. ? `--enable-mfu-metrics`
vllm:spec_decode_num_drafts counter - - 0.9.. ? speculative decoding
vllm:spec_decode_num_draft_tokens counter - - - ? speculative decoding
vllm:spec_decode_num_accepted_tokens counter - - - ? speculative decoding
vllm:spec_decode_num_accepted_tokens_per_pos counter - position 0.9.. ? speculative decoding
vllm:diffusion_num_denoising_steps counter - - 0.31.. ? a diffusion model
vllm:diffusion_num_canvas_positions counter - - 0.31.. ? a diffusion model
vllm:diffusion_num_committed_tokens counter - - 0.31.. ? a diffusion model
vllm:spec_decode_num_emitted_tokens counter - - ..0.10

vllm:time_to_first_token_seconds histogram seconds -
vllm:inter_token_latency_seconds histogram seconds - 0.10.2..
vllm:time_per_output_token_seconds histogram seconds - ..0.11
    -> vllm:inter_token_latency_seconds
vllm:request_time_per_output_token_seconds histogram seconds - 0.10..
vllm:e2e_request_latency_seconds histogram seconds -
vllm:request_queue_time_seconds histogram seconds - 0.6.5..
vllm:request_inference_time_seconds histogram seconds - 0.6.5..
vllm:request_prefill_time_seconds histogram seconds - 0.6.5..
vllm:request_decode_time_seconds histogram seconds - 0.6.5..
vllm:time_in_queue_requests histogram seconds - 0.6.4..0.8 -> vllm:request_queue_time_seconds
vllm:model_forward_time_milliseconds histogram milliseconds - 0.6.4..0.8
vllm:model_execute_time_milliseconds histogram milliseconds - 0.6.4..0.8
vllm:request_prompt_tokens histogram - -
vllm:request_generation_tokens histogram - -
vllm:iteration_tokens_total histogram - - 0.6.5..
vllm:request_max_num_generation_tokens histogram - - 0.6.5..
vllm:request_params_n histogram - -
vllm:request_params_max_tokens histogram - - 0.7..
vllm:request_params_best_of histogram - - ..0.6
vllm:request_num_preemptions histogram - - 0.31..
vllm:request_prefill_kv_computed_tokens histogram - - 0.13..
vllm:kv_block_lifetime_seconds histogram seconds - 0.13.. ? `--kv-cache-metrics`
vllm:kv_block_idle_before_evict_seconds histogram seconds - 0.13.. ? `--kv-cache-metrics`
vllm:kv_block_reuse_gap_seconds histogram seconds - 0.13.. ? `--kv-cache-metrics`

vllm:nixl_xfer_time_seconds histogram seconds - - ? the NIXL connector
vllm:nixl_post_time_seconds histogram seconds - - ? the NIXL connector
vllm:nixl_bytes_transferred histogram bytes - - ? the NIXL connector
vllm:nixl_num_descriptors histogram - - - ? the NIXL connector
vllm:nixl_num_failed_transfers counter - - - ? the NIXL connector
vllm:nixl_num_failed_notifications counter - - - ? the NIXL connector
vllm:nixl_num_kv_expired_reqs counter - - - ? the NIXL connector
vllm:nixl_num_notifications_after_expiry counter - - 0.31.. ? the NIXL connector
vllm:kv_offload_load_bytes counter bytes - 0.31.. ? KV offloading
vllm:kv_offload_load_time counter seconds - 0.31.. ? KV offloading
vllm:kv_offload_load_size histogram bytes - 0.31.. ? KV offloading
vllm:kv_offload_store_bytes counter bytes - 0.31.. ? KV offloading
vllm:kv_offload_store_time counter seconds - 0.31.. ? KV offloading
vllm:kv_offload_store_size histogram bytes - 0.31.. ? KV offloading
vllm:kv_offload_lookup_sync_delay_seconds histogram seconds - 0.31.. ? KV offloading
vllm:kv_offload_lookup_async_delay_seconds histogram seconds - 0.31.. ? KV offloading
vllm:kv_offload_allocation_failure counter - - 0.31.. ? KV offloading
vllm:kv_offload_total_bytes counter bytes transfer_type - ? KV offloading
vllm:kv_offload_total_time counter seconds transfer_type - ? KV offloading
vllm:kv_offload_size histogram bytes transfer_type - ? KV offloading
vllm:simple_kv_offload_save_outcomes counter - outcome 0.31.. ? simple KV offloading
vllm:simple_kv_offload_load_blocks counter - - 0.31.. ? simple KV offloading
vllm:simple_kv_offload_used_blocks gauge - - 0.31.. ? simple KV offloading
vllm:simple_kv_offload_pending_store_blocks gauge - - 0.31.. ? simple KV offloading
vllm:simple_kv_offload_info gauge - * 0.31.. ? simple KV offloading
vllm:mooncake_store_operation_time_seconds histogram seconds operation,status 0.31..
    ? the Mooncake store
vllm:mooncake_store_operation counter - operation,status 0.31.. ? the Mooncake store
vllm:mooncake_store_operation_keys counter - operation,status 0.31.. ? the Mooncake store
vllm:mooncake_store_operation_bytes counter bytes operation,status 0.31.. ? the Mooncake store
vllm:mooncake_store_operation_failed_keys counter - operation,status 0.31.. ? the Mooncake store
vllm:hf3fs_save_duration_seconds histogram seconds - 0.31.. ? the 3FS connector
vllm:hf3fs_load_duration_seconds histogram seconds - 0.31.. ? the 3FS connector
vllm:hf3fs_num_failed_save counter - - 0.31.. ? the 3FS connector
vllm:hf3fs_num_failed_load counter - - 0.31.. ? the 3FS connector
vllm:hisparse_cache_hits counter - - 0.31.. ? HiSparse
vllm:hisparse_cache_misses counter - - 0.31.. ? HiSparse
vllm:hisparse_host_to_device_bytes counter bytes - 0.31.. ? HiSparse
vllm:hisparse_host_cache_usage_perc gauge fraction - 0.31.. ? HiSparse
vllm:hisparse_pending_page_transfers gauge - - 0.31.. ? HiSparse
vllm:hisparse_host_block_lifetime_seconds histogram seconds - 0.31.. ? HiSparse
vllm:hisparse_host_block_idle_before_evict_seconds histogram seconds - 0.31.. ? HiSparse
vllm:hisparse_host_block_reuse_gap_seconds histogram seconds - 0.31.. ? HiSparse
vllm:websocket_connections_active gauge - = 0.31..
vllm:websocket_connections counter - = 0.31..
vllm:websocket_connection_duration_seconds histogram seconds = 0.31..
"""
