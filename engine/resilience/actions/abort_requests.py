"""`abort_requests`: end the requests that fit every condition, once in a firing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from resilience.model import ImpulseSpec, Json
from resilience.policy.fragments import choice, duration, integer, template
from resilience.policy.kinds import ActionKind, Planned, param


@dataclass(frozen=True, slots=True)
class AbortRequests:
    """Parameters of `abort_requests`; at least one condition is set."""

    state: Literal["any", "running", "waiting"] | None = param(
        choice("any", "running", "waiting"), "Where they stand; `any` alone means all requests."
    )
    older_than_ms: int | None = param(
        duration(0), "Time since they arrived.", key="older_than"
    )
    priority_at_least: int | None = param(
        {"type": "integer", "minimum": -1_000_000, "maximum": 1_000_000_000},
        "vLLM's priority; the greater, the less important.",
    )
    tokens_at_least: int | None = param(integer(minimum=1), "Prompt and output so far, in tokens.")
    model: str | None = param(
        template(), "The model that they use: a name of the base model, or of a LoRA adapter. "
        "From a label that is not there: nothing is done."
    )
    limit: int = param(
        integer(1, 10_000), "Abort at most so many, the oldest first.", default=100
    )


def plan(params: AbortRequests) -> Planned:
    given: dict[str, Json] = {
        "state": params.state, "older_than_ms": params.older_than_ms,
        "priority_at_least": params.priority_at_least, "tokens_at_least": params.tokens_at_least,
        "model": params.model,
    }
    args = {key: value for key, value in given.items() if value is not None}
    if not args:
        raise ValueError(
            "needs a condition: `state`, `older_than`, `priority_at_least`, `tokens_at_least` or "
            "`model`; `state: any` means all requests"
        )
    return Planned(impulses=(ImpulseSpec("abort_requests", {**args, "limit": params.limit}),))


ABORT_REQUESTS = ActionKind(
    name="abort_requests",
    doc="End the requests that fit every condition: an impulse, done once in a firing and never "
    "undone. Their clients get what was generated so far, with finish_reason `abort`.",
    params=AbortRequests,
    plan=plan,
    example="{type: abort_requests, state: running, older_than: 2m, limit: 8}",
    holds=False,
    disruptive=True,
)
