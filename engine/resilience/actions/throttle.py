"""`throttle`: let only so many requests run at once."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.model import ClaimSpec, labels_of
from resilience.policy.fragments import integer, template
from resilience.policy.kinds import ActionKind, Planned, param


@dataclass(frozen=True, slots=True)
class Throttle:
    """Parameters of `throttle`."""

    max_concurrency: int = param(
        integer(minimum=1), "Requests in flight; more are answered with 429 and Retry-After.",
        required=True,
    )
    tier: str | None = param(template(), "Only requests of this SLO tier. Default: all requests.")


def plan(params: Throttle) -> Planned:
    scope = labels_of({"tier": params.tier or ""})
    return Planned(
        claims=(ClaimSpec("throttle.max_concurrency", params.max_concurrency, scope),)
    )


THROTTLE = ActionKind(
    name="throttle",
    doc="Limit the requests in flight, for one tier or for the whole server.",
    params=Throttle,
    plan=plan,
    example="{type: throttle, tier: best-effort, max_concurrency: 8, lease: 30s}",
    knobs=("throttle.max_concurrency",),
)
