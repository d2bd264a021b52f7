"""What the engine tells a recording: the inputs of a tick, in the order in which they came.

A dry run reads these events back (`steps.py`, `dryrun.py`); nothing here decides.
"""

from __future__ import annotations

from resilience.model import (
    Bundle,
    Capabilities,
    Json,
    OperatorEvent,
    QueryResult,
    UdfOutcome,
)


def operator_event(event: OperatorEvent) -> Json:
    return {
        "type": "operator",
        "kind": event.kind,
        "policy": event.policy,
        "until_ms": event.until_ms,
        "reason": event.reason,
    }


def tick_event(t_ms: int, interval_ms: int, seq: int, missed: int) -> Json:
    return {
        "type": "tick", "t_ms": t_ms, "interval_ms": interval_ms, "seq": seq, "missed": missed,
    }


def capability_event(capabilities: Capabilities) -> Json:
    return {"type": "capability", "capabilities": capabilities.to_json()}


def bundle_event(bundle: Bundle, t_ms: int) -> Json:
    return {
        "type": "bundle",
        "t_ms": t_ms,
        "revision": bundle.revision,
        "documents": [list(d) for d in bundle.documents],
        "udfs": [list(u) for u in bundle.udfs],
    }


def udf_event(outcome: UdfOutcome, t_ms: int) -> Json:
    return {
        "type": "udf",
        "t_ms": t_ms,
        "policy": outcome.policy,
        "instance": outcome.instance,
        "action": outcome.action,
        "function": outcome.function,
        "outcome": outcome.outcome,
        "result": outcome.result,
        "detail": outcome.detail,
    }


def result_json(result: QueryResult) -> Json:
    return {
        "expr": result.expr,
        "kind": result.kind,
        "samples": [[dict(s.labels), s.value] for s in result.samples],
        "ranges": [[dict(r.labels), list(r.times_ms), list(r.values)] for r in result.ranges],
        "text": result.text,
        "error": result.error,
        "warnings": list(result.warnings),
    }
