"""The scheduler's levers on vLLM's real scheduler, without a model.

A counting stand-in for the model gives, at position p of a request, the token 1000 + p. So a lost,
repeated or reordered token shows in what the request received. Both of vLLM's modes run: one step
at a time, and asynchronous with two steps in flight.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resilience.cores.vllm.plugin import engine_utility, reset_prefix_cache
from resilience.cores.vllm.scheduler import Levers, levers_of, make_scheduler, scheduler_class
from resilience.model import Json

# vLLM's import is full of other people's deprecations.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

BLOCK = 16
BLOCKS = 200
MAX_RUNNING = 8
BUDGET = 256
FIRST_TOKEN = 1000


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration is all that the scheduler reads of a model."""
    pytest.importorskip("vllm", reason="needs vLLM", exc_type=ImportError)
    folder = tmp_path_factory.mktemp("config")
    body = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
        "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1,
        "num_key_value_heads": 1, "vocab_size": 5000, "max_position_embeddings": 2048,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(body), encoding="utf-8")
    return folder


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
            arrival: float = 0.0) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        self.received[name] = []
        self.scheduler.add_request(Request(
            request_id=name, prompt_token_ids=[salt + i for i in range(prompt)],
            sampling_params=SamplingParams(max_tokens=outputs, ignore_eos=True),
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


MakeRig = Callable[..., Rig]


@pytest.fixture
def make_rig(model_folder: Path) -> MakeRig:
    def make(asynchronous: bool = False, **kwargs: Any) -> Rig:
        return Rig(model_folder, asynchronous=asynchronous, **kwargs)

    return make


both_modes = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@both_modes
def test_running_sequences_are_cut_in_one_step_and_finish_whole(
    make_rig: MakeRig, asynchronous: bool
) -> None:
    rig = make_rig(asynchronous)
    for i in range(MAX_RUNNING):
        rig.add(f"r{i}", 20, 60, salt=100 * i)
    for _ in range(10):
        rig.step()
    assert rig.widths[-1] == MAX_RUNNING
    rig.hold(max_running=2)
    rig.step()
    assert rig.widths[-1] == 2 and len(rig.scheduler.running) == 2
    assert rig.levers.preempted == MAX_RUNNING - 2
    assert [r.request_id for r in rig.scheduler.running] == ["r0", "r1"]
    rig.hold()
    for _ in range(rig.depth + 1):
        rig.step()
    assert len(rig.scheduler.running) == MAX_RUNNING
    rig.run()
    for i in range(MAX_RUNNING):
        rig.check_tokens(f"r{i}", 20, 60)
    assert rig.free_blocks() == BLOCKS - 1


@both_modes
def test_the_step_budget_cuts_a_long_prompt(make_rig: MakeRig, asynchronous: bool) -> None:
    rig = make_rig(asynchronous)
    rig.hold(step_tokens=50)
    rig.add("long", 220, 5)
    sizes: list[int] = []
    for _ in range(5):
        output = rig.scheduler.schedule()
        sizes.append(output.total_num_scheduled_tokens)
        rig.steps.append((output, rig._model(output)))
        rig._finish_one()
    assert sizes == [50, 50, 50, 50, 20]
    rig.hold()
    assert rig.scheduler.max_num_scheduled_tokens == BUDGET
    rig.run()
    rig.check_tokens("long", 220, 5)


@both_modes
def test_the_prefix_cache_misses_but_still_counts(make_rig: MakeRig, asynchronous: bool) -> None:
    rig = make_rig(asynchronous)
    hits: list[int] = []
    for name, values in (("a", {}), ("b", {}), ("c", {"prefix_enabled": False}), ("d", {})):
        rig.hold(**values)
        before = rig.hits
        rig.add(name, 100, 3)
        rig.run()
        hits.append(rig.hits - before)
        rig.check_tokens(name, 100, 3)
    assert hits == [0, 96, 0, 96] and rig.queries == 400


def test_leases_end_while_stepping_and_when_a_request_arrives(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.hold(ttl_ms=100, max_running=1, step_tokens=32, prefix_enabled=False)
    rig.add("a", 20, 50)
    rig.add("b", 20, 50, salt=500)
    rig.step()
    assert len(rig.scheduler.running) == 1
    rig.clock.now += 100
    rig.step()
    assert len(rig.scheduler.running) == 2
    assert rig.scheduler.max_num_scheduled_tokens == BUDGET and not rig.levers.prefix_hidden
    rig.run()
    rig.hold(ttl_ms=100, max_running=1)
    rig.clock.now += 100
    assert rig.scheduler.max_num_active_reqs == 1  # an idle scheduler takes no steps
    rig.add("c", 20, 1)
    assert rig.scheduler.max_num_active_reqs == MAX_RUNNING


def test_with_priorities_the_least_important_is_cut(make_rig: MakeRig) -> None:
    rig = make_rig(policy="priority")
    for i, priority in enumerate((5, 0, 9, 1)):
        rig.add(f"p{priority}", 20, 30, salt=100 * i, priority=priority, arrival=float(i))
    rig.step()
    rig.hold(max_running=2)
    rig.step()
    assert sorted(r.request_id for r in rig.scheduler.running) == ["p0", "p1"]
    rig.hold()
    rig.run()
    for priority in (5, 0, 9, 1):
        rig.check_tokens(f"p{priority}", 20, 30)


@both_modes
@pytest.mark.parametrize("seed", range(4))
def test_limits_that_flip_all_the_time_lose_nothing(
    make_rig: MakeRig, asynchronous: bool, seed: int
) -> None:
    chance = random.Random(seed)
    rig = make_rig(asynchronous)
    sizes: dict[str, tuple[int, int]] = {}
    for i in range(24):
        sizes[f"r{i}"] = (chance.randint(1, 150), chance.randint(1, 60))
        rig.add(f"r{i}", *sizes[f"r{i}"], salt=chance.choice((0, 200 * i)))
    for step in range(5_000):
        if not rig.scheduler.has_unfinished_requests():
            break
        if step % 3 == 0:
            flip(rig, chance)
        rig.step()
    rig.run()
    for name, (prompt, outputs) in sizes.items():
        rig.check_tokens(name, prompt, outputs)
    assert rig.levers.preempted > 0 and rig.levers.lost == []
    assert rig.free_blocks() == BLOCKS - 1


def flip(rig: Rig, chance: random.Random) -> None:
    values: dict[str, Json] = {}
    if chance.random() < 0.7:
        values["max_running"] = chance.randint(1, MAX_RUNNING)
    if chance.random() < 0.5:
        values["step_tokens"] = chance.choice((16, 64, BUDGET))
    if chance.random() < 0.5:
        values["prefix_enabled"] = False
    rig.hold(**values)
    if chance.random() < 0.1:
        reset_prefix_cache(rig.scheduler, {"preempt": chance.random() < 0.5})


def test_the_cache_is_forgotten_with_and_without_preempting(make_rig: MakeRig) -> None:
    rig = make_rig()

    def hits_of(name: str) -> int:
        before = rig.hits
        rig.add(name, 100, 40)
        rig.step()
        return rig.hits - before

    assert [hits_of("a"), hits_of("b")] == [0, 96]
    assert reset_prefix_cache(rig.scheduler, {}) == {"done": True, "how": "evicted"}
    assert hits_of("c") == 0 and rig.levers.preempted == 0
    assert reset_prefix_cache(rig.scheduler, {"preempt": True})["how"] == "preempted"
    rig.run()
    assert reset_prefix_cache(rig.scheduler, {})["how"] == "reset"
    for name in "abc":
        rig.check_tokens(name, 100, 40)


@both_modes
def test_a_foreign_scheduler_has_the_attribute_levers(
    make_rig: MakeRig, asynchronous: bool
) -> None:
    rig = make_rig(asynchronous, ours=False)
    levers = rig.levers
    assert {k: c.grade for k, c in levers.knobs.items()} == {
        "cache.max_running": "attribute", "cache.step_tokens": "attribute",
    }
    assert "not this package's" in levers.dropped[0]["reason"]
    levers._clock_ms = rig.clock
    for i in range(4):
        rig.add(f"r{i}", 20, 20 + 10 * i, salt=100 * i)
    for _ in range(3):
        rig.step()
    rig.hold(ttl_ms=500, max_running=1)
    rig.step()
    assert len(rig.scheduler.running) == 4  # what runs drains by finishing
    rig.clock.now += 500
    rig.step()
    assert rig.scheduler.max_num_active_reqs == MAX_RUNNING
    rig.run()
    for i in range(4):
        rig.check_tokens(f"r{i}", 20, 20 + 10 * i)


def test_a_lever_that_fails_is_reset_and_the_server_goes_on(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    for i in range(4):
        rig.add(f"r{i}", 20, 30, salt=100 * i)
    rig.step()

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("moved")

    monkeypatch.setattr(rig.scheduler, "_preempt_request", broken)
    monkeypatch.setattr(rig.levers, "_as_miss", broken)
    rig.hold(max_running=2, prefix_enabled=False)
    rig.step()
    assert len(rig.scheduler.running) == 4
    assert rig.levers.knobs["cache.max_running"].grade == "attribute"
    rig.hold(prefix_enabled=False)
    rig.add("new", 20, 30)
    rig.step()
    assert "cache.prefix_enabled" not in rig.levers.knobs and not rig.levers.prefix_hidden
    assert [entry["knob"] for entry in rig.levers.lost] == [
        "cache.max_running", "cache.prefix_enabled",
    ]
    monkeypatch.undo()
    rig.run()
    for i in range(4):
        rig.check_tokens(f"r{i}", 20, 30)
    assert rig.free_blocks() == BLOCKS - 1


def test_without_prefix_caching_that_lever_is_dropped(make_rig: MakeRig) -> None:
    rig = make_rig(caching=False)
    assert "cache.prefix_enabled" not in rig.levers.knobs
    assert rig.levers.dropped == [
        {"knob": "cache.prefix_enabled", "reason": "the server runs without prefix caching"}
    ]


def test_the_engines_utility_answers_every_operation(make_rig: MakeRig) -> None:
    rig = make_rig()
    engine = type("Engine", (), {"scheduler": rig.scheduler})()
    found = engine_utility(engine, {"op": "capabilities"})
    assert found["knobs"]["cache.step_tokens"]["baseline"] == BUDGET
    claims = [{
        "knob": "cache.max_running", "scope": {}, "value": 3, "ttl_ms": 1_000, "keep": False,
        "policy": "p", "reason": "", "priority": 1,
    }]
    document = {"version": 1, "epoch": 2, "generation": 1, "claims": claims}
    put = {"op": "put", "document": document, "received_ms": rig.clock()}
    assert engine_utility(engine, put)["effective"]["cache.max_running"][""]["value"] == 3
    old = {**put, "document": {**document, "epoch": 1}}
    assert engine_utility(engine, old)["refused"] == "fenced"
    bad = {**put, "document": {**document, "claims": [{}]}}
    assert engine_utility(engine, bad)["refused"] == "unprocessable"
    assert engine_utility(engine, {"op": "actual"})["effective"]["cache.max_running"][""] == {
        "value": 3, "policy": "p", "remaining_ms": 1_000,
    }


def test_a_document_that_waited_has_used_up_part_of_its_lease(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.hold(ttl_ms=1_000, max_running=2)
    received = rig.clock.now
    rig.clock.now += 800
    body = {
        "version": 1, "epoch": 1, "generation": 9, "claims": [{
            "knob": "cache.max_running", "scope": {}, "value": 2, "ttl_ms": 1_000, "keep": False,
            "policy": "p", "reason": "", "priority": 1,
        }],
    }
    rig.levers.put(body, received)
    assert rig.levers.effective()["cache.max_running"][""].remaining_ms == 200
