"""`resume`: end a pause or a drain before its time."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.model import ImpulseSpec
from resilience.policy.kinds import ActionKind, Planned


@dataclass(frozen=True, slots=True)
class Resume:
    """`resume` has no parameters."""


def plan(_params: Resume) -> Planned:
    return Planned(impulses=(ImpulseSpec("resume", {}),))


RESUME = ActionKind(
    name="resume",
    doc="Generate again and take new requests again, before a pause or a drain ends by itself.",
    params=Resume,
    plan=plan,
    example="{type: resume}",
    holds=False,
)
