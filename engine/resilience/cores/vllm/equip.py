"""What the gate gets from this server: tokenizer, scheduler's ways, the limiter's signals."""

from __future__ import annotations

import asyncio
from typing import Any

from resilience.cores.signals import SignalReader, feed
from resilience.cores.tokens import server_tokenizer
from resilience.gate.identity import PRIORITY_HEADER as PRIORITY_NAME
from resilience.gate.state import GateState


def equip(state: GateState, engine_client: Any) -> asyncio.Task[None]:
    """Give the gate this server's tokenizer, its scheduler's ways, and the limiter's signals."""
    from prometheus_client import REGISTRY

    config = engine_client.vllm_config
    scheduler = config.scheduler_config
    state.counter = server_tokenizer(engine_client)
    state.by_priority = str(getattr(scheduler.policy, "value", scheduler.policy)) == "priority"
    state.priority_header = _reads_priority_header()
    state.start_with(seats(config))
    return asyncio.ensure_future(feed(state, SignalReader(REGISTRY)))


def _reads_priority_header() -> bool:
    """Say whether this vLLM takes a request's priority from a header; else the body has to say it.
    """
    try:
        from vllm.entrypoints.generate.base.serving import PRIORITY_HEADER
    except ImportError:
        return False
    return str(PRIORITY_HEADER).lower().encode() == PRIORITY_NAME


def seats(config: Any) -> int:
    """Return how many sequences run at once in all engine processes; each has its own seats."""
    engines = getattr(getattr(config, "parallel_config", None), "data_parallel_size", 1)
    return int(config.scheduler_config.max_num_seqs) * max(1, int(engines))


def kv_tokens(cache: Any) -> int | None:
    """Return how many tokens the KV pool holds, if the engine has said so."""
    blocks, size = getattr(cache, "num_gpu_blocks", None), getattr(cache, "block_size", None)
    return blocks * size if isinstance(blocks, int) and isinstance(size, int) else None
