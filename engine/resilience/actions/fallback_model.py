"""`fallback_model`: send new requests to another served model, or down the ladder."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.model import ClaimSpec, labels_of
from resilience.policy import fragments
from resilience.policy.kinds import ActionKind, Planned, param


@dataclass(frozen=True, slots=True)
class FallbackModel:
    """Parameters of `fallback_model`."""

    to: str = param(
        fragments.template(), "Name of a rung of the Engine document's ladder; `ladder`: the first "
        "rung that is available and fits; else the name under which another model is served.",
        required=True,
    )
    share: float = param(
        fragments.share(), "Share of new requests that goes there, `0.25` or `25%`.", default=1.0
    )
    tier: str | None = param(
        fragments.template(), "Only requests of this SLO tier. Default: all requests."
    )


def plan(params: FallbackModel) -> Planned:
    value = {"to": params.to, "share": params.share}
    return Planned(
        claims=(ClaimSpec("route.model", value, labels_of({"tier": params.tier or ""})),)
    )


FALLBACK_MODEL = ActionKind(
    name="fallback_model",
    doc="Route new requests to another served model or a rung of the ladder; requests under way "
    "stay where they are.",
    params=FallbackModel,
    plan=plan,
    example="{type: fallback_model, to: small, share: 50%, tier: best-effort, lease: 30s}",
    disruptive=True,
    knobs=("route.model",),
)
