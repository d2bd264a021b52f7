"""`adaptive_limit`: let the gate find how many requests may be in flight."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.model import ClaimSpec
from resilience.policy.fragments import duration, integer, share
from resilience.policy.kinds import ActionKind, Planned, param


@dataclass(frozen=True, slots=True)
class AdaptiveLimit:
    """Parameters of `adaptive_limit`; at least one target is set."""

    queue_time: int | None = param(
        duration(1, 600_000), "Mean wait inside the server above which the limit shrinks."
    )
    time_per_token: int | None = param(
        duration(1, 600_000), "Mean gap between output tokens above which it shrinks."
    )
    kv_usage: float | None = param(
        share(), "Share of the KV cache in use above which it shrinks."
    )
    increase: float = param(share(), "How much it grows in a second while used.", default=0.15)
    decrease: float = param(share(), "How much it shrinks in a second.", default=0.1)
    minimum: int = param(integer(1, 1_000_000), "The least that runs.", key="min", default=1)
    maximum: int = param(integer(1, 1_000_000), "The most that runs.", key="max", default=1_000)
    headroom: float | None = param(share(), "Share of it that only the first tier may take.")


def plan(params: AdaptiveLimit) -> Planned:
    targets = {
        "queue_time_ms": params.queue_time, "time_per_token_ms": params.time_per_token,
        "kv_usage": params.kv_usage,
    }
    if all(target is None for target in targets.values()):
        raise ValueError("needs one of `queue_time`, `time_per_token` and `kv_usage`")
    if params.minimum > params.maximum:
        raise ValueError(f"`min` is {params.minimum}, above `max`, which is {params.maximum}")
    for name, given in (("decrease", params.decrease), ("headroom", params.headroom or 0)):
        if given > 0.9:
            raise ValueError(f"`{name}` is at most 90%")
    value = {
        **targets, "increase": params.increase, "decrease": params.decrease,
        "minimum": params.minimum, "maximum": params.maximum, "headroom": params.headroom,
    }
    return Planned(claims=(ClaimSpec("limiter.rule", value),))


ADAPTIVE_LIMIT = ActionKind(
    name="adaptive_limit",
    doc="Limit the requests in flight to what the server handles well, by its queue time, time per "
        "token and KV use. The others wait in the gate, important ones first.",
    params=AdaptiveLimit,
    plan=plan,
    example="{type: adaptive_limit, queue_time: 500ms, kv_usage: 95%, increase: 15%, max: 64}",
    knobs=("limiter.rule",),
)
