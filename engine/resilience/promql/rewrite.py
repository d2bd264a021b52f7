"""Rewriting of plans: fixing them in time."""

from __future__ import annotations

from resilience.promql.plan import (
    Aggregate,
    Binary,
    Call,
    Negate,
    Node,
    Plan,
    Selector,
    Subquery,
)


def at_time(plan: Plan, t_ms: int) -> Plan:
    """Return the plan with `@ t_ms` on every outermost selector and subquery that has no `@`.

    Evaluated at any time, it gives what `plan` gives at `t_ms`, unless it asks for the time.
    """
    if isinstance(plan, Selector):
        if plan.at is not None:
            return plan
        return Selector(
            plan.metric_name, plan.matchers, plan.range_ms, plan.offset_ms, t_ms, pos=plan.pos
        )
    if isinstance(plan, Subquery):
        at = t_ms if plan.at is None else plan.at
        return Subquery(
            plan.expr, plan.range_ms, plan.step_ms, plan.offset_ms, at, pos=plan.pos
        )
    return _rebuilt(plan, t_ms)


def _rebuilt(plan: Plan, t_ms: int) -> Node:
    if isinstance(plan, Call):
        args = tuple(at_time(a, t_ms) for a in plan.args)
        return Call(plan.function, args, plan.returns, pos=plan.pos)
    if isinstance(plan, Aggregate):
        param = None if plan.param is None else at_time(plan.param, t_ms)
        expr = at_time(plan.expr, t_ms)
        return Aggregate(plan.op, expr, param, plan.grouping, plan.without, pos=plan.pos)
    if isinstance(plan, Negate):
        return Negate(at_time(plan.expr, t_ms), pos=plan.pos)
    if isinstance(plan, Binary):
        lhs, rhs = at_time(plan.lhs, t_ms), at_time(plan.rhs, t_ms)
        return Binary(
            plan.op, lhs, rhs, plan.bool_result, plan.matching, pos=plan.pos,
            operator_pos=plan.operator_pos,
        )
    return plan
