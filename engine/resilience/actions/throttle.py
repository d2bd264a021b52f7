"""`throttle`: let in less, by requests or by tokens, for everybody or for some."""

from __future__ import annotations

from dataclasses import dataclass

from resilience.model import ClaimSpec, Json, labels_of
from resilience.policy.fragments import duration, integer, number, template
from resilience.policy.kinds import ActionKind, Planned, param

_LIMITS = (
    "max_concurrency", "max_requests_per_second", "max_prompt_tokens_per_second",
    "max_outstanding_tokens", "max_context_tokens", "max_output_tokens",
)
KNOBS = (*(f"throttle.{name}" for name in _LIMITS), "throttle.token_quota")


@dataclass(frozen=True, slots=True)
class Throttle:
    """Parameters of `throttle`; at least one limit is set."""

    max_concurrency: int | None = param(
        integer(minimum=1), "Requests in flight. More wait in the gate's queue, if there is one, "
        "or are answered with 429 and Retry-After.",
    )
    max_requests_per_second: float | None = param(
        number(0.001, 1_000_000), "Requests let in a second, with a second's worth of burst."
    )
    max_prompt_tokens_per_second: float | None = param(
        number(0.001, 1_000_000_000), "Prompt tokens let in a second, by the server's tokenizer."
    )
    max_outstanding_tokens: int | None = param(
        integer(minimum=1), "Prompt and output tokens reserved for the requests in flight."
    )
    max_context_tokens: int | None = param(
        integer(minimum=1), "Prompt and asked-for output of one request; larger ones are refused."
    )
    max_output_tokens: int | None = param(
        integer(minimum=1), "Output of one request; a request for more is cut to it, and says so."
    )
    window_tokens: int | None = param(
        integer(minimum=1), "Tokens, streamed ones included, that `window` could hold. Let in are "
        "80% of it, at least 50; for windows over 30s half of that, at least 10.",
    )
    window: int = param(
        duration(100, 3_600_000), "The sliding window of `window_tokens`.", default="10s"
    )
    tier: str | None = param(template(), "Only requests of this SLO tier. Default: all requests.")
    tenant: str | None = param(template(), "Only requests of this tenant. Default: all requests.")
    model: str | None = param(template(), "Only requests for this model. Default: all requests.")


def plan(params: Throttle) -> Planned:
    scope = labels_of({
        axis: value for axis, value in (
            ("tier", params.tier), ("tenant", params.tenant), ("model", params.model),
        ) if value
    })
    wanted: list[tuple[str, Json]] = [
        (f"throttle.{name}", getattr(params, name))
        for name in _LIMITS if getattr(params, name) is not None
    ]
    if params.window_tokens is not None:
        value = {"tokens": params.window_tokens, "window_ms": params.window}
        wanted.append(("throttle.token_quota", value))
    if not wanted:
        raise ValueError("needs one of " + ", ".join(f"`{n}`" for n in (*_LIMITS, "window_tokens")))
    return Planned(claims=tuple(ClaimSpec(knob, value, scope) for knob, value in wanted))


THROTTLE = ActionKind(
    name="throttle",
    doc="Limit what is let in: requests in flight or a second, prompt tokens a second, tokens "
        "outstanding or in a window, context, output; for a tier, a tenant, a model or all.",
    params=Throttle,
    plan=plan,
    example="{type: throttle, tier: best-effort, max_concurrency: 8, max_output_tokens: 512, "
            "lease: 30s}",
    knobs=KNOBS,
)
