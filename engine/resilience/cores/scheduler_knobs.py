"""The knobs that a scheduler enforces, whichever core it belongs to."""

from __future__ import annotations

MAX_RUNNING = "cache.max_running"
ADMIT_RUNNING = "cache.admit_running"
STEP_TOKENS = "cache.step_tokens"
PREFIX = "cache.prefix_enabled"
KV_BLOCKS = "cache.kv_blocks"
KV_SOFT = "cache.kv_blocks_soft"
BATCHING = "cache.batching"
MODE = "cache.mode"
SCHEDULER_KNOBS = (
    PREFIX, MAX_RUNNING, ADMIT_RUNNING, STEP_TOKENS, KV_BLOCKS, KV_SOFT, BATCHING, MODE,
)
