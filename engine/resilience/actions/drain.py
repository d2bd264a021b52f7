"""`drain`: take no new requests for a while and let those under way finish."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.model import ImpulseSpec
from resilience.policy.fragments import duration
from resilience.policy.kinds import ActionKind, Planned, param


@dataclass(frozen=True, slots=True)
class Drain:
    """Parameters of `drain`."""

    for_ms: int = param(
        duration(1_000, 600_000), "New requests are taken again after this time.",
        key="for", default="30s",
    )
    abort_after_ms: int = param(
        duration(0, 600_000),
        "Requests that still run after this time are aborted; `0`: they may finish.",
        key="abort_after", default=0,
    )


def plan(params: Drain) -> Planned:
    if params.abort_after_ms >= params.for_ms:
        raise ValueError("`abort_after` is shorter than `for`: later there is no drain any more")
    args = {"for_ms": params.for_ms, "abort_after_ms": params.abort_after_ms}
    return Planned(impulses=(ImpulseSpec("drain", args),))


DRAIN = ActionKind(
    name="drain",
    doc="Refuse new requests for a while and let those under way finish: an impulse, done once in "
    "a firing. The health page answers 503 meanwhile, so that a load balancer looks elsewhere.",
    params=Drain,
    plan=plan,
    example="{type: drain, for: 1m, abort_after: 45s}",
    holds=False,
    disruptive=True,
)
