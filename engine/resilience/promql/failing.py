"""Where in an expression an evaluation failed.

The evaluator works on shared, canonical parts, so an error names the part; what the user wrote is
searched for it here, only once there is an error.
"""

from __future__ import annotations

from dataclasses import replace

from resilience.errors import PromQLError
from resilience.promql.lexer import Source
from resilience.promql.parser import parse_checked
from resilience.promql.plan import Binary, Node, walk
from resilience.samples import QueryResult


def place_of(expr: str, part: str | None) -> tuple[int, int] | None:
    """Return line and column, both from 1, of `part` in `expr`; None if it is not in it.

    An operation is where its operator is. Of equal parts the first one failed.
    """
    if part is None:
        return None
    try:
        plan = parse_checked(expr)
    except PromQLError:
        return None
    found = next((node for node in walk(plan) if node.text == part), None)
    return None if found is None else Source(expr).place(_offset(found))


def _offset(node: Node) -> int:
    return node.operator_pos if isinstance(node, Binary) else node.pos


def located(error: PromQLError, expr: str) -> PromQLError:
    """Return an evaluation error of `expr` with its place."""
    place = place_of(expr, error.part)
    if place is not None:
        error.line, error.column = place
    return error


def located_result(result: QueryResult, expr: str) -> QueryResult:
    """Return an answer whose error, if there is one, begins with its line and column in `expr`."""
    if result.error is None:
        return result
    place = place_of(expr, result.failed)
    if place is None:
        return result
    return replace(result, error=f"{place[0]}:{place[1]}: {result.error}", failed=None)
