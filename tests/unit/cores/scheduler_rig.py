"""vLLM's real scheduler without a model: a counting stand-in gives the tokens.

At position p of a request it gives the token 1000 + p. So a lost, repeated or reordered token shows
in what the request received. Both of vLLM's modes run: one step at a time, and asynchronous with
two steps in flight.
"""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from resilience.cores.vllm.levers import Levers
from resilience.cores.vllm.scheduler import levers_of, make_scheduler, scheduler_class
from resilience.model import Json

BLOCK = 16
BLOCKS = 200
MAX_RUNNING = 8
BUDGET = 256
FIRST_TOKEN = 1000


class ManualClock:
    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        return self.now


class Rig:
    """A scheduler, the counting model, and what each request has received."""

    def __init__(self, folder: Path, *, asynchronous: bool, policy: str = "fcfs",
                 caching: bool = True, ours: bool = True) -> None:
        self.config = vllm_config(folder, policy, caching)
        self.config.scheduler_config.async_scheduling = asynchronous
        self.depth = 2 if asynchronous else 1
        self.clock = ManualClock()
        self.scheduler = self._build(ours, asynchronous)
        self.received: dict[str, list[int]] = {}
        self.steps: deque[tuple[Any, Any]] = deque()
        self.widths: list[int] = []
        self.generation = 0
        self.queries = self.hits = 0
        self.aborted: list[str] = []

    def _build(self, ours: bool, asynchronous: bool) -> Any:
        arguments = scheduler_arguments(self.config)
        if not ours:
            from vllm.v1.core.sched.async_scheduler import AsyncScheduler
            from vllm.v1.core.sched.scheduler import Scheduler

            return (AsyncScheduler if asynchronous else Scheduler)(self.config, **arguments)
        scheduler: Any = make_scheduler(self.config, **arguments)
        assert scheduler_class(asynchronous) in type(scheduler).__mro__
        scheduler.resilience_levers = Levers(scheduler, subclassed=True, clock_ms=self.clock)
        return scheduler

    @property
    def engine(self) -> Any:
        """Return what the plug-in sees of vLLM's engine; `aborted` are the ends that it told."""
        return SimpleNamespace(
            scheduler=self.scheduler,
            _send_abort_outputs=lambda ended: self.aborted.extend(r.request_id for r in ended),
        )

    @property
    def levers(self) -> Levers:
        return levers_of(self.scheduler)

    def hold(self, ttl_ms: int = 60_000, **values: Json) -> None:
        """Hold claims on `cache.<name>`."""
        self.generation += 1
        claims = [
            {"knob": f"cache.{name}", "scope": {}, "value": value, "ttl_ms": ttl_ms,
             "keep": False, "policy": "p", "reason": "", "priority": 1}
            for name, value in values.items()
        ]
        body = {"version": 1, "epoch": 1, "generation": self.generation, "claims": claims}
        self.levers.put(body, self.clock())

    def add(self, name: str, prompt: int, outputs: int, *, salt: int = 0, priority: int = 0,
            arrival: float = 0.0, stream: bool = False, cache_salt: str | None = None) -> None:
        from vllm.sampling_params import RequestOutputKind, SamplingParams
        from vllm.v1.request import Request

        self.received[name] = []
        self.scheduler.add_request(Request(
            request_id=name, prompt_token_ids=[salt + i for i in range(prompt)],
            sampling_params=SamplingParams(
                max_tokens=outputs, ignore_eos=True,
                output_kind=RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY,
            ),
            cache_salt=cache_salt,
            pooling_params=None, priority=priority, arrival_time=arrival,
            block_hasher=block_hasher(),
        ))

    def step(self) -> None:
        """Schedule one step, and return the oldest one in flight when the pipeline is full."""
        output = self.scheduler.schedule()
        self.widths.append(len(output.num_scheduled_tokens))
        self.steps.append((output, self._model(output)))
        while len(self.steps) >= self.depth:
            self._finish_one()

    def _finish_one(self) -> None:
        for group in self.scheduler.update_from_output(*self.steps.popleft()).values():
            self._count(group.scheduler_stats)
            for item in group.outputs:
                self.received[item.request_id] += item.new_token_ids

    def _count(self, stats: Any) -> None:
        if stats is not None and stats.prefix_cache_stats is not None:
            self.queries += stats.prefix_cache_stats.queries
            self.hits += stats.prefix_cache_stats.hits

    def _model(self, output: Any) -> Any:
        from vllm.v1.outputs import ModelRunnerOutput

        names = list(output.num_scheduled_tokens)
        requests = [self.scheduler.requests[name] for name in names]
        tokens = [
            [] if r.is_prefill_chunk else [FIRST_TOKEN + r.num_computed_tokens] for r in requests
        ]
        return ModelRunnerOutput(
            req_ids=names, req_id_to_index={n: i for i, n in enumerate(names)},
            sampled_token_ids=tokens,
        )

    def run(self, steps_max: int = 5_000) -> None:
        """Step until everything is done."""
        for _ in range(steps_max):
            if not self.scheduler.has_unfinished_requests():
                break
            self.step()
        while self.steps:
            self._finish_one()
        assert not self.scheduler.has_unfinished_requests()

    def check_tokens(self, name: str, prompt: int, outputs: int) -> None:
        first = FIRST_TOKEN + prompt
        assert self.received[name] == list(range(first, first + outputs)), name

    def running(self) -> list[str]:
        """Return who runs, oldest first."""
        return [request.request_id for request in self.scheduler.running]

    def blocks_of(self, name: str) -> list[int]:
        """Return the ids of the KV blocks that a request holds."""
        return list(self.scheduler.kv_cache_manager.get_block_ids(name)[0])

    def free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def vllm_config(folder: Path, policy: Any, caching: bool) -> Any:
    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        ModelConfig,
        SchedulerConfig,
        VllmConfig,
    )

    model = ModelConfig(
        model=str(folder), skip_tokenizer_init=True, dtype="bfloat16", max_model_len=2048
    )
    scheduler = SchedulerConfig(
        max_num_seqs=MAX_RUNNING, max_num_batched_tokens=BUDGET, max_model_len=2048,
        enable_chunked_prefill=True, is_encoder_decoder=False, policy=policy,
    )
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=caching)
    config = VllmConfig(
        model_config=model, scheduler_config=scheduler, cache_config=cache,
        device_config=DeviceConfig("cpu"),
    )
    config.cache_config.enable_prefix_caching = caching
    config.cache_config.num_gpu_blocks = BLOCKS
    return config


def scheduler_arguments(config: Any) -> dict[str, Any]:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    spec = FullAttentionSpec(
        block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    kv = KVCacheConfig(
        num_blocks=BLOCKS, kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    return {
        "kv_cache_config": kv, "structured_output_manager": StructuredOutputManager(config),
        "block_size": BLOCK, "log_stats": True,
    }


def block_hasher() -> Any:
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    init_none_hash(sha256)
    return get_request_block_hasher(BLOCK, sha256)


def write_model(folder: Path) -> Path:
    """Write a model's configuration: it is all that the scheduler reads of a model."""
    body = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
        "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1,
        "num_key_value_heads": 1, "vocab_size": 5000, "max_position_embeddings": 2048,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(body), encoding="utf-8")
    return folder
