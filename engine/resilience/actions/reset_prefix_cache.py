"""`reset_prefix_cache`: forget all cached prefixes, once in a firing."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.model import ImpulseSpec
from resilience.policy.fragments import boolean
from resilience.policy.kinds import ActionKind, Planned, param


@dataclass(frozen=True, slots=True)
class ResetPrefixCache:
    """Parameters of `reset_prefix_cache`."""

    preempt: bool = param(
        boolean(),
        "Also preempt the running requests and compute them again, so that nothing remains. "
        "Without it they keep their blocks, and only new requests miss.",
        default=False,
    )


def plan(params: ResetPrefixCache) -> Planned:
    args = {"preempt": params.preempt}
    return Planned(impulses=(ImpulseSpec("reset_prefix_cache", args),))


RESET_PREFIX_CACHE = ActionKind(
    name="reset_prefix_cache",
    doc="Forget all cached prefixes: an impulse, done once in a firing and never undone.",
    params=ResetPrefixCache,
    plan=plan,
    example="{type: reset_prefix_cache, preempt: true}",
    holds=False,
    disruptive=True,
)
