"""Write down the private parts of vLLM that the levers stand on: `python -m tools.vllm_signatures`.

Reads vLLM's source without importing it, from each FOLDER given (a folder that holds `vllm/`), and
prints JSON: version -> part -> its parameters, or the attributes that a class sets on itself. The
test of versions keeps the result as data, so that versions that are not installed are covered too.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Sequence
from pathlib import Path

Signatures = dict[str, list[str]]
METHODS = {
    "v1/core/sched/scheduler.py": ("Scheduler", (
        "schedule", "add_request", "finish_requests", "get_request_counts", "make_stats",
        "reset_prefix_cache", "_preempt_request", "_get_local_prefix_cache_hit",
        "_handle_blocked_waiting_request", "_request_blocks_can_be_freed",
    )),
    "v1/core/kv_cache_manager.py": ("KVCacheManager", ("allocate_slots", "get_block_ids")),
    "v1/core/block_pool.py": ("BlockPool", (
        "get_new_blocks", "free_blocks", "get_num_free_blocks", "evict_blocks",
    )),
    "v1/engine/core.py": ("EngineCoreProc", ("_send_abort_outputs",)),
    "v1/engine/async_llm.py": ("AsyncLLM", ("pause_generation", "resume_generation")),
    "v1/engine/core_client.py": ("AsyncMPClient", (
        "call_utility_async", "call_utility_all_async", "_call_utility_async",
    )),
    "v1/executor/abstract.py": ("Executor", ("collective_rpc",)),
    "plugins/endpoint_plugins/interface.py": ("EndpointPlugin", ("attach_router", "init_state")),
}
ATTRIBUTES = {
    "Scheduler": (
        "max_num_active_reqs", "max_num_scheduled_tokens", "running", "waiting", "max_model_len",
        "kv_cache_config", "kv_cache_manager", "block_size", "scheduler_config", "requests",
    ),
    "KVCacheManager": (
        "watermark_blocks", "enable_caching", "empty_kv_cache_blocks", "block_pool",
    ),
    "BlockPool": ("num_gpu_blocks", "blocks"),
}


def main(folders: Sequence[str]) -> int:
    """Print the signatures of every folder; 2 when none is given."""
    if not folders:
        print("vllm_signatures: error: name a folder that holds `vllm/`", file=sys.stderr)
        return 2
    found = {version(Path(folder)): signatures(Path(folder)) for folder in folders}
    print(json.dumps(found, indent=1, sort_keys=True))
    return 0


def version(folder: Path) -> str:
    """Return the version of the vLLM in `folder`, without a local part."""
    text = (folder / "vllm" / "_version.py").read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = {t.id for t in node.targets if isinstance(t, ast.Name)}
            if "__version__" in names or "version" in names:
                return str(node.value.value).partition("+")[0]
    raise ValueError(f"`{folder}/vllm/_version.py` names no version")


def signatures(folder: Path) -> Signatures:
    """Return what is there of METHODS and ATTRIBUTES; what has moved is absent."""
    found: Signatures = {}
    for file, (owner, names) in METHODS.items():
        tree = ast.parse((folder / "vllm" / file).read_text(encoding="utf-8"))
        node = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == owner)
        for item in node.body:
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name in names:
                found[f"{owner}.{item.name}"] = _parameters(item)
        own = _own_attributes(node) & set(ATTRIBUTES.get(owner, ()))
        if own:
            found[owner] = sorted(own)
    return found


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [argument.arg for argument in every][1:]


def _own_attributes(owner: ast.ClassDef) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(owner):
        targets = node.targets if isinstance(node, ast.Assign) else (
            [node.target] if isinstance(node, ast.AnnAssign) else [])
        found |= {
            t.attr for t in targets
            if isinstance(t, ast.Attribute) and isinstance(t.value, ast.Name)
            and t.value.id == "self"
        }
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
