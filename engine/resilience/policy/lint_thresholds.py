"""Comparisons that are missing, decided by the numbers alone, or in the wrong unit."""

from __future__ import annotations

import math
from collections.abc import Iterator

from resilience.policy.lint_units import Measured, is_never_negative, measured, number_of
from resilience.policy.lint_view import Remark, View, decides
from resilience.promql.plan import COMPARISONS, Aggregate, Binary, Call, Node

# Longer than this, a latency is a mistake or an outage: (part of the name, seconds).
_LONGEST_S = (
    ("inter_token_latency", 5), ("per_output_token", 5), ("time_to_first_token", 100),
    ("queue_time", 100), ("ttft", 100), ("", 600),
)
_CLOCKS = frozenset({
    "time", "hour", "minute", "month", "year", "day_of_week", "day_of_month", "day_of_year",
    "days_in_month",
})


def no_comparison(view: View) -> Iterator[Remark]:
    """A trigger that holds nothing back, or that no series can change."""
    if view.role in ("metric", "value"):
        return
    calls = {node.function for node in view.nodes if isinstance(node, Call)}
    if not any(view.selectors) and not calls & _CLOCKS:
        yield Remark(view.plan, "constant-expr", "no series is read: it is the same at all times",
                     "read a metric; a policy that always holds is a setting of the server")
    elif not decides(view.plan):
        yield Remark(
            view.plan, "no-comparison",
            "no comparison: true whenever a series exists, also at value 0",
            "compare it, as in `… > 0`",
        )


def never_or_always(view: View) -> Iterator[Remark]:
    """Comparisons whose outcome the numbers alone decide."""
    for node in view.nodes:
        if not isinstance(node, Binary) or node.op not in COMPARISONS:
            continue
        yield from _same_sides(node)
        for side, number, op in _against_number(node):
            yield from _odd_threshold(node, number, op)
            yield from _below_zero(side, node, number, op)
            yield from _outside_range(side, node, number, op)


def _against_number(node: Binary) -> Iterator[tuple[Node, float, str]]:
    """Yield (other side, number, operator seen from the other side)."""
    mirrored = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
    right, left = number_of(node.rhs), number_of(node.lhs)
    if right is not None:
        yield node.lhs, right, node.op
    elif left is not None:
        yield node.rhs, left, mirrored.get(node.op, node.op)


def _same_sides(node: Binary) -> Iterator[Remark]:
    """`x == x` drops NaN and `x != x` finds it; the others compare nothing."""
    if node.lhs.text == node.rhs.text and node.op in (">", "<", ">=", "<="):
        word = "always" if "=" in node.op else "never"
        yield Remark(node, f"{word}-true", f"both sides are the same: `{node.op}` is {word} true",
                     "compare it with a number or another metric")


def _odd_threshold(node: Binary, number: float, op: str) -> Iterator[Remark]:
    if math.isnan(number):
        outcome = "always" if op == "!=" else "never"
        yield Remark(node, "never-true" if outcome == "never" else "always-true",
                     f"a comparison with NaN is {outcome} true", "write a number")
    elif math.isinf(number):
        never = (number > 0) == (op in (">", ">="))
        code, word = ("never-true", "never") if never else ("always-true", "always")
        if op not in ("==", "!="):
            yield Remark(node, code, f"`{op} {'+' if number > 0 else '-'}Inf` is {word} true",
                         "write a number")


def _below_zero(side: Node, node: Binary, number: float, op: str) -> Iterator[Remark]:
    """What is never negative is `>= 0` whenever it exists."""
    if isinstance(side, Aggregate) and side.op in ("count", "group"):
        if (op, number) in (("==", 0), ("<", 1), ("<=", 0), ("<", 0)):
            yield Remark(node, "never-true", f"`{side.op}` of nothing has no value, so "
                         f"`{op} {number:g}` is never true", "use `absent(…)`")
        return
    if math.isinf(number) or not is_never_negative(side):
        return
    if (op == ">=" and number <= 0) or (op in (">", "!=") and number < 0):
        yield Remark(node, "always-true", f"it is never negative: `{op} {number:g}` is always true",
                     "use `> 0`, or a number that says when to act")
    elif (op == "<" and number <= 0) or (op in ("<=", "==") and number < 0):
        yield Remark(node, "never-true", f"it is never negative: `{op} {number:g}` is never true",
                     "use `== 0`, or a number that says when to act")


# --- units ----------------------------------------------------------------------------------------


def _outside_range(side: Node, node: Binary, number: float, op: str) -> Iterator[Remark]:
    """Fractions are compared with 0.9, not with 90; a percentage the other way round."""
    value = measured(side)
    if value is None or math.isinf(number):
        return
    rule = {"fraction": _fraction, "percent": _percent, "seconds": _seconds,
            "milliseconds": _milliseconds}.get(value.unit)
    if rule is not None:
        yield from rule(value, node, number, op)


def _fraction(value: Measured, node: Binary, number: float, op: str) -> Iterator[Remark]:
    if number <= 1:
        if number == 1 and op == ">":
            yield Remark(node, "never-true", f"{value.what} is a fraction from 0 to 1: `> 1` is "
                         "never true", "use `>= 1`, or a smaller number")
        return
    hint = f"did you mean `{op} {number / 100:g}`?" if number <= 100 else None
    outcome = "never" if op in (">", ">=", "==") else "always"
    yield Remark(node, "unit-mismatch", f"{value.what} is a fraction from 0 to 1: `{op} {number:g}`"
                 f" is {outcome} true", hint)


def _percent(value: Measured, node: Binary, number: float, op: str) -> Iterator[Remark]:
    if 0 < number < 1 and op in (">", ">="):
        yield Remark(node, "unit-mismatch", f"{value.what} is a percentage from 0 to 100",
                     f"did you mean `{op} {number * 100:g}`?")
    elif number > 100 or (number == 100 and op == ">"):
        outcome = "never" if op in (">", ">=", "==") else "always"
        yield Remark(node, f"{outcome}-true", f"{value.what} is a percentage from 0 to 100: "
                     f"`{op} {number:g}` is {outcome} true", "use a smaller number")


def _seconds(value: Measured, node: Binary, number: float, op: str) -> Iterator[Remark]:
    longest = next(limit for part, limit in _LONGEST_S if part in value.what)
    if number >= longest and op in (">", ">="):
        yield Remark(node, "unit-mismatch", f"{value.what} is in seconds: `{op} {number:g}` looks "
                     "like milliseconds", f"did you mean `{op} {number / 1000:g}`?")


def _milliseconds(value: Measured, node: Binary, number: float, op: str) -> Iterator[Remark]:
    if 0 < number < 1 and op in (">", ">="):
        yield Remark(node, "unit-mismatch", f"{value.what} is in milliseconds: `{op} {number:g}` "
                     "looks like seconds", f"did you mean `{op} {number * 1000:g}`?")


def sums_of_fractions(view: View) -> Iterator[Remark]:
    """The sum of usages of several servers is no usage."""
    for node in view.nodes:
        if isinstance(node, Aggregate) and node.op == "sum":
            value = measured(node.expr)
            if value is not None and value.unit in ("fraction", "percent") \
                    and value.metric is not None and value.metric not in ("up", "probe_success"):
                yield Remark(node, "sum-of-fractions",
                             f"a sum of {value.what}, which is a share of each server",
                             "use `max` or `avg`")
