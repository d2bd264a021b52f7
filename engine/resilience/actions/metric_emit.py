"""`metric_emit`: export a gauge while the policy fires."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.model import ClaimSpec
from resilience.policy.fragments import METRIC_PATTERN, number, string
from resilience.policy.kinds import ActionKind, Planned, param

RESERVED = "resilience_"


@dataclass(frozen=True, slots=True)
class MetricEmit:
    """Parameters of `metric_emit`."""

    name: str = param(
        string(METRIC_PATTERN, "metric name", 200), "Name of the gauge.", required=True
    )
    value: float = param(number(), "Its value while the claim lives.", default=1.0)


def plan(params: MetricEmit) -> Planned:
    if params.name.startswith(RESERVED):
        raise ValueError(f"metric names that begin with `{RESERVED}` belong to the engine itself")
    return Planned(claims=(ClaimSpec(f"metric.{params.name}", params.value),))


METRIC_EMIT = ActionKind(
    name="metric_emit",
    doc="Export a gauge from the engine; the series ends with the claim.",
    params=MetricEmit,
    plan=plan,
    example="{type: metric_emit, name: ft_strategy_active, value: 1}",
    knobs=("metric.<name>",),
)
