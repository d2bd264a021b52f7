"""`cache_degrade`: take load off the KV cache and the scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.model import ClaimSpec
from resilience.policy.fragments import boolean, integer
from resilience.policy.kinds import ActionKind, Planned, param


@dataclass(frozen=True, slots=True)
class CacheDegrade:
    """Parameters of `cache_degrade`; at least one is set."""

    prefix_enabled: bool | None = param(
        boolean(), "Whether new requests may read the prefix cache."
    )
    max_running: int | None = param(
        integer(minimum=1), "Running sequences; the excess is preempted and recomputed later."
    )
    step_tokens: int | None = param(integer(minimum=1), "Tokens scheduled in one step.")


def plan(params: CacheDegrade) -> Planned:
    wanted = (
        ("cache.prefix_enabled", params.prefix_enabled),
        ("cache.max_running", params.max_running),
        ("cache.step_tokens", params.step_tokens),
    )
    claims = tuple(ClaimSpec(knob, value) for knob, value in wanted if value is not None)
    if not claims:
        raise ValueError("needs one of `prefix_enabled`, `max_running` and `step_tokens`")
    return Planned(claims=claims)


CACHE_DEGRADE = ActionKind(
    name="cache_degrade",
    doc="Run fewer sequences, schedule fewer tokens in a step, or read no prefix cache.",
    params=CacheDegrade,
    plan=plan,
    example="{type: cache_degrade, max_running: 8, step_tokens: 512, lease: 1m}",
    disruptive=True,
    knobs=("cache.prefix_enabled", "cache.max_running", "cache.step_tokens"),
)
