"""`cache_degrade`: take load off the KV cache and the scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from resilience.model import ClaimSpec
from resilience.policy.fragments import boolean, choice, integer
from resilience.policy.kinds import ActionKind, Planned, param


@dataclass(frozen=True, slots=True)
class CacheDegrade:
    """Parameters of `cache_degrade`; at least one knob is set."""

    prefix_enabled: bool | None = param(
        boolean(), "Whether new requests may read the prefix cache."
    )
    max_running: int | None = param(
        integer(minimum=1), "Running sequences; `excess` says what becomes of those beyond it."
    )
    excess: Literal["preempt", "drain"] = param(
        choice("preempt", "drain"),
        "With `max_running`: preempt the excess at the next step and recompute it later, or admit "
        "nobody until enough have finished.", default="preempt",
    )
    step_tokens: int | None = param(integer(minimum=1), "Tokens scheduled in one step.")
    kv_blocks: int | None = param(
        integer(minimum=1),
        "Usable KV blocks. The others are taken out of the pool at the next step; what does not "
        "fit is preempted and recomputed later.",
    )
    kv_blocks_soft: int | None = param(
        integer(minimum=1),
        "KV blocks that admission may fill beside what runs; running sequences still grow.",
    )
    batching: Literal["dynamic", "static"] | None = param(
        choice("dynamic", "static"),
        "`static` admits only when nothing runs, so that a batch is never joined.",
    )
    mode: Literal["batch", "hybrid", "stream"] | None = param(
        choice("batch", "hybrid", "stream"),
        "Whose requests are admitted. `batch`: first come, first served; `hybrid`: those that do "
        "not stream take at most 70 % of the seats and KV blocks; `stream`: only those that do.",
    )


def plan(params: CacheDegrade) -> Planned:
    running = "cache.admit_running" if params.excess == "drain" else "cache.max_running"
    wanted = (
        ("cache.prefix_enabled", params.prefix_enabled), (running, params.max_running),
        ("cache.step_tokens", params.step_tokens), ("cache.kv_blocks", params.kv_blocks),
        ("cache.kv_blocks_soft", params.kv_blocks_soft), ("cache.batching", params.batching),
        ("cache.mode", params.mode),
    )
    claims = tuple(ClaimSpec(knob, value) for knob, value in wanted if value is not None)
    if not claims:
        raise ValueError(f"needs one of {', '.join(f'`{k}`' for k in SETTING)}")
    if params.excess == "drain" and params.max_running is None:
        raise ValueError("`excess` says how `max_running` is reached and means nothing without it")
    return Planned(claims=claims)


SETTING = (
    "prefix_enabled", "max_running", "step_tokens", "kv_blocks", "kv_blocks_soft", "batching",
    "mode",
)
CACHE_DEGRADE = ActionKind(
    name="cache_degrade",
    doc="Run fewer sequences, schedule fewer tokens in a step, use fewer KV blocks, batch "
    "statically, admit one class of requests first, or read no prefix cache.",
    params=CacheDegrade,
    plan=plan,
    example="{type: cache_degrade, max_running: 8, excess: drain, step_tokens: 512, lease: 1m}",
    disruptive=True,
    knobs=(
        "cache.prefix_enabled", "cache.max_running", "cache.admit_running", "cache.step_tokens",
        "cache.kv_blocks", "cache.kv_blocks_soft", "cache.batching", "cache.mode",
    ),
)
