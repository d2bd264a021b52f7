"""The compiled expressions of a bundle's policies, and the queries that a tick asks for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from resilience.model import Policy
from resilience.promql.truth import TriggerPlan, compile_trigger


@dataclass(frozen=True, slots=True)
class TriggerPlans:
    """What one policy asks: when to fire, when to resolve, and its checks by expression."""

    trigger: TriggerPlan
    resolve: TriggerPlan | None
    checks: Mapping[str, TriggerPlan]


def compile_policies(policies: Sequence[Policy]) -> dict[str, TriggerPlans]:
    """Return the plans of each policy by name."""
    return {
        p.name: TriggerPlans(
            compile_trigger(p.trigger.expr),
            compile_trigger(p.trigger.resolve.expr) if p.trigger.resolve else None,
            {check.expr: compile_trigger(check.expr) for _, check in p.checks()},
        )
        for p in policies
    }


def queries_of(policies: Sequence[Policy], plans: Mapping[str, TriggerPlans]) -> dict[str, None]:
    """Return each query once, in the order of the policies."""
    found: dict[str, None] = {}
    for policy in policies:
        own = plans[policy.name]
        for plan in (own.trigger, own.resolve, *own.checks.values()):
            found.update(dict.fromkeys(plan.queries if plan is not None else ()))
    return found
