"""`udf_call`: ask a Python function which actions to take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from resilience.model import Json, OnError, UdfSpec
from resilience.policy.fragments import (
    FUNCTION_PATTERN,
    LABEL_PATTERN,
    choice,
    duration,
    expression,
    mapping,
    string,
)
from resilience.policy.kinds import ActionKind, Planned, param

METRICS_MAX = 16


@dataclass(frozen=True, slots=True)
class UdfCallParams:
    """Parameters of `udf_call`."""

    function: str = param(
        string(FUNCTION_PATTERN, "function", 100),
        "Function at module level in exactly one file of the UDF folder.", required=True,
    )
    timeout_ms: int = param(
        duration(10, 30_000), "Wall-clock limit of one call.", key="timeout", default="3s"
    )
    metrics: Mapping[str, str] | None = param(
        mapping(expression(), LABEL_PATTERN, METRICS_MAX),
        "Named queries, run with the tick: `ctx[\"metrics\"][NAME]` is a number for one series, "
        "a list of numbers for a range query, None for no series.",
    )
    params: Json = param(
        {"type": "object", "maxProperties": 50}, "Constants for the function: `ctx[\"params\"]`."
    )
    on_error: OnError = param(
        choice("skip", "escalate", "hold"),
        "When the function fails: propose nothing, go on to the next escalation, or hold what it "
        "proposed before.", default="skip",
    )


def plan(params: UdfCallParams) -> Planned:
    metrics = tuple(sorted((params.metrics or {}).items()))
    return Planned(
        udf=UdfSpec(
            params.function, params.timeout_ms, metrics, params.params, params.on_error
        )
    )


UDF_CALL = ActionKind(
    name="udf_call",
    doc="Call a sandboxed Python function; the actions that it proposes are checked like those "
    "written in YAML, and take this action's `lease` and `on_core_loss` unless they say otherwise.",
    params=UdfCallParams,
    plan=plan,
    example="{type: udf_call, function: fallback_to_cache, timeout: 3s,"
    " metrics: {kv_usage: 'max(vllm:kv_cache_usage_perc)'}}",
)
