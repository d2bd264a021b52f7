"""Expressions that parse and still do not mean what was meant. Every rule is a warning.

A rule is a function from a View to Remarks, and a line in RULES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from resilience.policy import (
    lint_arguments,
    lint_joins,
    lint_labels,
    lint_logic,
    lint_matchers,
    lint_metrics,
    lint_retention,
    lint_scales,
    lint_series,
    lint_thresholds,
)
from resilience.policy.context import Context
from resilience.policy.lint_view import Remark, Role, View
from resilience.policy.places import value_place
from resilience.promql.plan import Node, Plan, walk

if TYPE_CHECKING:
    from resilience.policy.expressions import Expression

KEPT_MAX = 2_048
RULES: tuple[Callable[[View], Iterator[Remark]], ...] = (
    lint_thresholds.no_comparison,
    lint_thresholds.kept_by_bool,
    lint_thresholds.never_or_always,
    lint_logic.contradictions,
    lint_scales.units_together,
    lint_scales.scaled_twice,
    lint_scales.sums_of_fractions,
    lint_arguments.arguments,
    lint_series.histograms,
    lint_series.sums_of_buckets,
    lint_series.averages,
    lint_series.counters,
    lint_series.differences,
    lint_series.rates_of_gauges,
    lint_series.rates_of_sums,
    lint_series.windows,
    lint_retention.retention,
    lint_metrics.metrics,
    lint_labels.labels,
    lint_matchers.values,
    lint_joins.joins,
    lint_joins.absences,
    lint_joins.joined_metrics,
    lint_joins.joined_several,
    lint_joins.joined_values,
)


def run(expression: Expression, plan: Plan, context: Context) -> None:
    """Add what the rules find, each thing once, at its place in the file."""
    for remark in _remarks(expression, plan, context):
        place = value_place(
            expression.document, expression.place, expression.text, remark.node.pos
        )
        context.add(
            expression.document, place, remark.severity, remark.code,
            f"{expression.path}: {remark.message}", remark.suggestion,
        )


def _remarks(expression: Expression, plan: Plan, context: Context) -> Iterable[Remark]:
    """Return what there is to say; of an expression that many documents have, it is found once."""
    derived = expression.path == expression.document.expression
    key = (expression.text, expression.role, expression.on_missing_metric, derived)
    found = context.remarks.get(key)
    if found is None:
        if len(context.remarks) >= KEPT_MAX:
            context.remarks.clear()
        view = _view(plan, expression.role, context, expression.on_missing_metric, derived)
        first: dict[tuple[str, str], Remark] = {}
        for rule in RULES:
            for remark in rule(view):
                first.setdefault((remark.code, remark.message), remark)
        found = context.remarks[key] = tuple(first.values())
    return found


def _view(plan: Plan, role: Role, context: Context, on_missing_metric: str, derived: bool) -> View:
    nodes = tuple(walk(plan))
    by_kind: dict[type[Node], list[Any]] = {}
    for node in nodes:
        by_kind.setdefault(type(node), []).append(node)
    parents = {id(child): node for node in nodes for child in node.children}
    return View(plan, nodes, by_kind, role, parents, context, on_missing_metric, derived)
