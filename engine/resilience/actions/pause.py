"""`pause`: stop generating for a while, once in a firing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from resilience.model import ImpulseSpec
from resilience.policy.fragments import choice, duration
from resilience.policy.kinds import ActionKind, Planned, param


@dataclass(frozen=True, slots=True)
class Pause:
    """Parameters of `pause`."""

    mode: Literal["keep", "wait", "abort"] = param(
        choice("keep", "wait", "abort"),
        "What becomes of the requests under way: kept where they are, left to finish, or aborted "
        "with what they have. New ones queue in any case.", default="keep",
    )
    for_ms: int = param(
        duration(1_000, 600_000), "The server resumes by itself after this time.",
        key="for", default="30s",
    )


def plan(params: Pause) -> Planned:
    args = {"mode": params.mode, "for_ms": params.for_ms}
    return Planned(impulses=(ImpulseSpec("pause", args),))


PAUSE = ActionKind(
    name="pause",
    doc="Stop generating for a while: an impulse, done once in a firing. It ends by itself, and "
    "sooner with `resume`.",
    params=Pause,
    plan=plan,
    example="{type: pause, mode: wait, for: 30s}",
    holds=False,
    disruptive=True,
)
