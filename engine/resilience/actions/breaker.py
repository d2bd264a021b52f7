"""`breaker`: arm a circuit breaker in the gate."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from resilience.model import ClaimSpec, labels_of
from resilience.policy.fragments import duration, integer, number, share, template
from resilience.policy.kinds import ActionKind, Planned, param

_OPENERS = ("error_rate", "failures", "consecutive", "p99")


@dataclass(frozen=True, slots=True)
class BreakerParams:
    """Parameters of `breaker`; at least one of the reasons to open is set."""

    error_rate: float | None = param(
        share(), "Share of failures in the window above which it opens."
    )
    failures: int | None = param(
        integer(), "Number of failures in the window above which it opens; with `error_rate`, both."
    )
    consecutive: int | None = param(integer(minimum=1), "Failures in a row at which it opens.")
    p99: int | None = param(
        duration(1, 3_600_000), "99th percentile of the last `samples` durations, of streams to "
        "the first token, above which it opens; with `window_tokens`, only under such a load of "
        "tokens.",
    )
    window_tokens: int | None = param(
        integer(minimum=1), "Tokens in the window above which `p99` is judged."
    )
    window: int = param(duration(1_000, 3_600_000), "The sliding window.", default="60s")
    samples: int = param(integer(1, 10_000), "Durations that `p99` looks at.", default=100)
    evaluations: int = param(
        integer(1, 1_000), "Ends of requests in a row that must find it so.", default=1
    )
    min_requests: int = param(
        integer(minimum=1), "Requests in the window below which nothing is judged.", default=20
    )
    min_rate: float = param(
        number(0, 1_000_000), "Requests a second in the window that must be exceeded to judge.",
        default=0.0,
    )
    open_for: int = param(
        duration(100, 3_600_000), "How long it stays open before it probes.", default="30s"
    )
    probes: int = param(
        integer(1, 1_000), "Requests at once while half open; as many successes close it.",
        default=3,
    )
    probe_timeout: int = param(
        duration(100, 3_600_000),
        "A probe of which nothing comes for so long has failed; one that still streams then has "
        "succeeded.", default="30s"
    )
    tier: str | None = param(template(), "Only requests of this SLO tier. Default: all requests.")
    tenant: str | None = param(template(), "Only requests of this tenant. Default: all requests.")
    model: str | None = param(template(), "Only requests for this model. Default: all requests.")


def plan(params: BreakerParams) -> Planned:
    given = asdict(params)
    if all(given[name] is None for name in _OPENERS):
        raise ValueError("needs one of " + ", ".join(f"`{name}`" for name in _OPENERS))
    if params.window_tokens is not None and params.p99 is None:
        raise ValueError("`window_tokens` says when `p99` is judged, and `p99` is not set")
    axes = {axis: given.pop(axis) for axis in ("tier", "tenant", "model")}
    value = {
        {"p99": "p99_ms", "window": "window_ms", "open_for": "open_ms",
         "probe_timeout": "probe_timeout_ms"}.get(name, name): part
        for name, part in given.items()
    }
    scope = labels_of({axis: name for axis, name in axes.items() if name})
    return Planned(claims=(ClaimSpec("breaker.rule", value, scope),))


BREAKER = ActionKind(
    name="breaker",
    doc="Arm a circuit breaker: when requests fail or are slow, new ones get 503 at once, until "
        "probes succeed. What was refused, and what clients did wrong, never counts.",
    params=BreakerParams,
    plan=plan,
    example="{type: breaker, error_rate: 15%, p99: 8s, evaluations: 5, open_for: 30s, lease: 30s}",
    disruptive=True,
    knobs=("breaker.rule",),
)
