"""`notify`: keep an alert firing at a receiver while the policy fires."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.knobs import NOTIFY_PREFIX
from resilience.model import ClaimSpec
from resilience.policy.fragments import NAME_PATTERN, string
from resilience.policy.kinds import ActionKind, Planned, param


@dataclass(frozen=True, slots=True)
class Notify:
    """Parameters of `notify`."""

    to: str = param(
        string(NAME_PATTERN, "name", 63),
        "Receiver, as the `receivers` of `kind: Engine` name it; `log` is the engine's own log.",
        required=True,
    )
    severity: str = param(
        string(longest=100), "Label `severity` of the alert.", default="warning"
    )


def plan(params: Notify) -> Planned:
    return Planned(
        claims=(ClaimSpec(f"{NOTIFY_PREFIX}{params.to}", {"severity": params.severity}),)
    )


NOTIFY = ActionKind(
    name="notify",
    doc="Tell a receiver, Alertmanager or a webhook, when the policy fires and when it is over.",
    params=Notify,
    plan=plan,
    example="{type: notify, to: log, severity: critical}",
    knobs=("notify.<receiver>",),
)
