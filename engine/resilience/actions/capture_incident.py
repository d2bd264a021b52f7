"""`capture_incident`: write an incident bundle beside the server, once in a firing."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.model import ImpulseSpec
from resilience.policy.fragments import duration
from resilience.policy.kinds import ActionKind, Planned, param


@dataclass(frozen=True, slots=True)
class CaptureIncident:
    """Parameters of `capture_incident`."""

    duration_ms: int = param(
        duration(1_000, 60_000), "How long to take a sample each 200 ms.",
        key="duration", default="1m",
    )


def plan(params: CaptureIncident) -> Planned:
    args = {"duration_ms": params.duration_ms}
    return Planned(impulses=(ImpulseSpec("capture_incident", args),))


CAPTURE_INCIDENT = ActionKind(
    name="capture_incident",
    doc="Write an incident bundle into the server's state folder: samples of processes, KV pool "
    "and scheduler each 200 ms, all metrics before and after, the newest decisions, the log's end.",
    params=CaptureIncident,
    plan=plan,
    example="{type: capture_incident, duration: 1m}",
    holds=False,
)
