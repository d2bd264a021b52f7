"""Expressions that parse and still do not mean what was meant. Every rule is a warning.

A rule is a function from a View to Remarks, and a line in RULES.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from resilience.policy import (
    lint_arguments,
    lint_joins,
    lint_labels,
    lint_logic,
    lint_metrics,
    lint_series,
    lint_thresholds,
)
from resilience.policy.context import Context
from resilience.policy.lint_view import Remark, View, decides
from resilience.policy.places import value_place
from resilience.promql.plan import Plan, walk

if TYPE_CHECKING:
    from resilience.policy.expressions import Expression

RULES: tuple[Callable[[View], Iterator[Remark]], ...] = (
    lint_thresholds.no_comparison,
    lint_thresholds.kept_by_bool,
    lint_thresholds.never_or_always,
    lint_logic.contradictions,
    lint_thresholds.sums_of_fractions,
    lint_arguments.arguments,
    lint_series.histograms,
    lint_series.averages,
    lint_series.counters,
    lint_series.rates_of_sums,
    lint_series.windows,
    lint_metrics.metrics,
    lint_labels.labels,
    lint_joins.joins,
    lint_joins.joined_metrics,
    lint_joins.joined_values,
)


def run(expression: Expression, plan: Plan, context: Context) -> None:
    """Add what the rules find, each thing once, at its place in the file."""
    nodes = tuple(walk(plan))
    parents = {id(child): node for node in nodes for child in node.children}
    view = View(plan, nodes, expression.role, parents, context, expression.on_missing_metric)
    seen: set[tuple[str, str]] = set()
    for rule in RULES:
        for remark in rule(view):
            if (remark.code, remark.message) in seen:
                continue
            seen.add((remark.code, remark.message))
            place = value_place(
                expression.document, expression.place, expression.text, remark.node.pos
            )
            context.add(
                expression.document, place, remark.severity, remark.code,
                f"{expression.path}: {remark.message}", remark.suggestion,
            )


def comment_cut(expression: Expression, plan: Plan, context: Context) -> bool:
    """Warn when ` #` ended an unquoted expression that has no comparison yet."""
    place = expression.place
    if place.style != "" or not expression.document.text or decides(plan):
        return False
    rest = re.match(r"[ \t]+#[^\r\n]*", expression.document.text[place.end : place.end + 500])
    if rest is None or "resilience:" in rest.group():
        return False
    context.add(
        expression.document, place, "warning", "expr-cut",
        f"{expression.path} ends before ` #`: the rest of the line is a YAML comment, and what is "
        "left has no comparison", "quote the expression",
    )
    return True
