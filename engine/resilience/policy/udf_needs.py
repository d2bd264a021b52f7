"""The UDF calls that a tick requires, before their queries are answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from resilience.model import Json, Policy, QueryResult, UdfCall, UdfOutcome, UdfSpec
from resilience.policy.claims import active_actions
from resilience.policy.state import Instance
from resilience.policy.udf_values import ambiguous, in_json, metric_value


@dataclass(frozen=True, slots=True)
class UdfNeed:
    """A UDF call that this tick requires; `call()` completes it once its queries are answered."""

    policy: str
    instance: str
    action: str
    spec: UdfSpec
    base: Json

    @property
    def queries(self) -> tuple[str, ...]:
        return tuple(expr for _, expr in self.spec.metrics)

    def refused(self, results: Mapping[str, QueryResult]) -> UdfOutcome | None:
        """Return the outcome of a call that cannot be made with these answers, or None."""
        why = ambiguous(self.spec, results)
        if why is None:
            return None
        return UdfOutcome(
            self.policy, self.instance, self.action, self.spec.function, "RUNTIME_DENIED",
            detail=why,
        )

    def call(self, results: Mapping[str, QueryResult]) -> UdfCall:
        metrics = {
            name: in_json(metric_value(results.get(expr))) for name, expr in self.spec.metrics
        }
        return UdfCall(
            self.policy,
            self.instance,
            self.action,
            self.spec.function,
            self.spec.timeout_ms,
            {**self.base, "metrics": metrics},
        )


def needs_of(policy: Policy, name: str, instance: Instance, now_ms: int) -> Iterator[UdfNeed]:
    """Yield a call for each `udf_call` in force."""
    previous = dict(instance.previous)
    for action in active_actions(policy, instance):
        if action.udf is None:
            continue
        base = {
            "policy": policy.name,
            "labels": dict(instance.labels),
            "value": in_json(instance.value),
            "now": now_ms / 1000,
            "params": action.udf.params,
            "claims": [
                {"knob": c.knob, "scope": dict(c.scope), "value": c.value} for c in instance.claims
            ],
            "previous": previous.get(action.key),
        }
        yield UdfNeed(policy.name, name, action.key, action.udf, base)
