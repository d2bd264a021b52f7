"""Rewriting of plans: fixing them in time."""

from __future__ import annotations

from collections.abc import Callable

from resilience.promql.plan import (
    Aggregate,
    At,
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
    def fixed(at: At) -> At:
        return t_ms if at is None else at

    if isinstance(plan, Subquery):
        return _subquery(plan, plan.expr, fixed(plan.at))
    return _rebuilt(plan, fixed, lambda part: at_time(part, t_ms))


def within(plan: Plan, start_ms: int, end_ms: int) -> Plan:
    """Return the plan with times for every `@ start()` and `@ end()`: those of a range.

    Evaluated step by step, it gives what `plan` gives over the range.
    """
    def fixed(at: At) -> At:
        return start_ms if at == "start" else end_ms if at == "end" else at

    if isinstance(plan, Subquery):
        return _subquery(plan, within(plan.expr, start_ms, end_ms), fixed(plan.at))
    return _rebuilt(plan, fixed, lambda part: within(part, start_ms, end_ms))


def _subquery(plan: Subquery, expr: Plan, at: At) -> Plan:
    return Subquery(expr, plan.range_ms, plan.step_ms, plan.offset_ms, at, pos=plan.pos)


def _rebuilt(plan: Plan, fixed: Callable[[At], At], inner: Callable[[Plan], Plan]) -> Node:
    """Return `plan` with `fixed` for the time of a selector, and `inner` for each part."""
    if isinstance(plan, Selector):
        return Selector(
            plan.metric_name, plan.matchers, plan.range_ms, plan.offset_ms, fixed(plan.at),
            pos=plan.pos,
        )
    if isinstance(plan, Call):
        args = tuple(inner(a) for a in plan.args)
        return Call(plan.function, args, plan.returns, pos=plan.pos)
    if isinstance(plan, Aggregate):
        param = None if plan.param is None else inner(plan.param)
        expr = inner(plan.expr)
        return Aggregate(plan.op, expr, param, plan.grouping, plan.without, pos=plan.pos)
    if isinstance(plan, Negate):
        return Negate(inner(plan.expr), pos=plan.pos)
    if isinstance(plan, Binary):
        return Binary(
            plan.op, inner(plan.lhs), inner(plan.rhs), plan.bool_result, plan.matching,
            pos=plan.pos, operator_pos=plan.operator_pos,
        )
    return plan
