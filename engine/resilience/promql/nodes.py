"""One function for each kind of node: children's values in, the node's value out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from resilience.arrays import np
from resilience.promql import aggregate, binary, ranking, streaming
from resilience.promql.calls import CALLS
from resilience.promql.plan import (
    Aggregate,
    Binary,
    Call,
    Negate,
    Node,
    Number,
    Selector,
    String,
)
from resilience.promql.vector import Grid, Scalar, Text, Value, Vec, unique, unnamed

if TYPE_CHECKING:
    from resilience.promql.evaluation import Evaluation

Evaluate: TypeAlias = Callable[["Evaluation", Any, Grid], Value]


def _number(_: Evaluation, node: Number, grid: Grid) -> Value:
    if grid.size == 1:
        return Scalar(np.array([node.value]))  # a third of the time
    return Scalar(np.full(grid.size, node.value))


def _string(_: Evaluation, node: String, grid: Grid) -> Value:
    return Text(node.value)


def _selector(evaluation: Evaluation, node: Selector, grid: Grid) -> Value:
    return evaluation.latest(node, grid)


def _negate(evaluation: Evaluation, node: Negate, grid: Grid) -> Value:
    value = evaluation.value(node.expr, grid)
    if isinstance(value, Scalar):
        return Scalar(-value.values)
    assert isinstance(value, Vec)
    delayed = evaluation.options.delayed_names
    negated = unnamed(value.with_values(-value.values), delayed)
    return negated if delayed else unique(negated)


def _binary(evaluation: Evaluation, node: Binary, grid: Grid) -> Value:
    lhs = evaluation.value(node.lhs, grid)
    rhs = evaluation.value(node.rhs, grid)
    return binary.evaluate(node, lhs, rhs, evaluation.options.delayed_names)


def _aggregate(evaluation: Evaluation, node: Aggregate, grid: Grid) -> Value:
    names = frozenset(node.grouping)
    if node.param is None and node.op in streaming.OPERATIONS:
        before = evaluation.budget.spent
        stream = evaluation.parts(node.expr, grid)
        if stream is not None:
            streamed = streaming.aggregate(node.op, stream, names, node.without, grid.size)
            if streamed is not None:
                return streamed
            evaluation.budget.spent = before  # the plain way pays for itself
    vec = evaluation.vec(node.expr, grid)
    if node.param is None:
        return aggregate.aggregate(node.op, vec, names, node.without)
    if node.op == "count_values":
        label = evaluation.text(node.param, grid)
        return ranking.count_values(vec, label, names, node.without)
    param = evaluation.scalar(node.param, grid)
    if node.op == "quantile":
        return aggregate.quantile(vec, param, names, node.without)
    return ranking.top(vec, param, names, node.without, node.op == "topk")


def _call(evaluation: Evaluation, node: Call, grid: Grid) -> Value:
    return CALLS[node.function](evaluation, node, grid)


EVALUATE: dict[type[Node], Evaluate] = {
    Number: _number,
    String: _string,
    Selector: _selector,
    Negate: _negate,
    Binary: _binary,
    Aggregate: _aggregate,
    Call: _call,
}
