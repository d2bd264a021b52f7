"""Comparisons that are missing, decided by the numbers alone, or in the wrong unit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from resilience.policy.lint_units import Measured, measured, number_of, value_range
from resilience.policy.lint_view import Remark, View, decides
from resilience.promql.plan import (
    COMPARISONS,
    SET_OPERATORS,
    Aggregate,
    Binary,
    Call,
    Node,
    walk,
)

# Longer than this, a latency is a mistake or an outage: (part of the name, seconds).
_LONGEST_S = (
    ("inter_token_latency", 5), ("per_output_token", 5), ("time_to_first_token", 100),
    ("queue_time", 100), ("ttft", 100), ("", 600),
)
# A ratio above this is a percentage, not a limit that was overdrawn.
_RATIO_MAX = 2
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
    elif not decides(view.plan) and not any(_is_bool(node) for node in view.nodes):
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
            yield from _of_nothing(side, node, number, op)
            yield from _outside_range(side, node, number, op)


def kept_by_bool(view: View) -> Iterator[Remark]:
    """`bool` makes every series 0 or 1: all of them are there, so all of them are true."""
    if view.role in ("metric", "value"):
        return
    if isinstance(view.plan, Binary) and _is_bool(view.plan):
        yield Remark(view.plan, "bool-comparison", "0 is false here; in an alert of Prometheus, "
                     f"`{view.plan.op} bool` fires at 0 too", "leave out `bool`", "info")
        return
    for part in _parts(view.plan):
        if not decides(part):
            yield from (_kept(node) for node in walk(part) if _is_bool(node))
    yield from _counted_bools(view)


def _parts(node: Node) -> Iterator[Node]:
    """Yield what `and`, `or` and `unless` put together: each is true wherever it has a series."""
    if isinstance(node, Binary) and node.op in SET_OPERATORS:
        yield from _parts(node.lhs)
        yield from _parts(node.rhs)
    else:
        yield node


def _is_bool(node: Node) -> bool:
    return isinstance(node, Binary) and node.bool_result


def _kept(node: Node) -> Remark:
    op = node.op if isinstance(node, Binary) else ""
    return Remark(node, "bool-comparison", f"`{op} bool` keeps every series, with 0 or 1, and 0 is "
                  "as true as 1", "leave out `bool`, or compare the result: `… == 1`")


def _counted_bools(view: View) -> Iterator[Remark]:
    for node in view.nodes:
        if isinstance(node, Aggregate) and node.op == "count" and _is_bool(node.expr):
            yield Remark(node, "bool-comparison", "`count` counts the 0 of `bool` like its 1",
                         "leave out `bool`, or use `sum`")


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


def _of_nothing(side: Node, node: Binary, number: float, op: str) -> Iterator[Remark]:
    """A count is 1 or more, or not there."""
    if isinstance(side, Aggregate) and side.op in ("count", "group") \
            and (op, number) in (("==", 0), ("<", 1), ("<=", 0), ("<", 0)):
        yield Remark(node, "never-true", f"`{side.op}` of nothing has no value, so "
                     f"`{op} {number:g}` is never true", "use `absent(…)`")


# --- units ----------------------------------------------------------------------------------------


def _outside_range(side: Node, node: Binary, number: float, op: str) -> Iterator[Remark]:
    """Fractions are compared with 0.9, not with 90; a percentage the other way round."""
    if math.isinf(number) or math.isnan(number):
        return
    value = measured(side)
    rule = _UNITS.get(value.unit) if value is not None else None
    found = list(rule(value, node, number, op)) if value is not None and rule is not None else []
    yield from found or _by_range(side, node, number, op)


def _fraction(value: Measured, node: Binary, number: float, op: str) -> Iterator[Remark]:
    if number <= 1:
        return
    hint = f"did you mean `{op} {number / 100:g}`?" if number <= 100 else None
    outcome = "never" if op in (">", ">=", "==") else "always"
    yield Remark(node, "unit-mismatch", f"{value.what} is a fraction from 0 to 1: `{op} {number:g}`"
                 f" is {outcome} true", hint)


def _ratio(value: Measured, node: Binary, number: float, op: str) -> Iterator[Remark]:
    """A share by its name may pass 1, where a limit can be overdrawn; it is still no percentage."""
    if _RATIO_MAX < number <= 100:
        yield Remark(node, "unit-mismatch", f"{value.what} is a share from 0 to 1: `{op} "
                     f"{number:g}` looks like a percentage",
                     f"did you mean `{op} {number / 100:g}`?")


def _percent(value: Measured, node: Binary, number: float, op: str) -> Iterator[Remark]:
    """A share that is computed is compared with 0.5 % as well: error rates are small."""
    if 0 < number < 1 and op in (">", ">=") and value.metric is not None:
        yield Remark(node, "unit-mismatch", f"{value.what} is a percentage from 0 to 100",
                     f"did you mean `{op} {number * 100:g}`?")


def _seconds(value: Measured, node: Binary, number: float, op: str) -> Iterator[Remark]:
    longest = next(limit for part, limit in _LONGEST_S if part in value.what)
    if number >= longest and op in (">", ">="):
        yield Remark(node, "unit-mismatch", f"{value.what} is in seconds: `{op} {number:g}` looks "
                     "like milliseconds", f"did you mean `{op} {number / 1000:g}`?")


def _milliseconds(value: Measured, node: Binary, number: float, op: str) -> Iterator[Remark]:
    if 0 < number < 1 and op in (">", ">="):
        yield Remark(node, "unit-mismatch", f"{value.what} is in milliseconds: `{op} {number:g}` "
                     "looks like seconds", f"did you mean `{op} {number * 1000:g}`?")


_UNITS = {"fraction": _fraction, "ratio": _ratio, "percent": _percent, "seconds": _seconds,
          "milliseconds": _milliseconds}


def _by_range(side: Node, node: Binary, number: float, op: str) -> Iterator[Remark]:
    """What can only be from 0 to 1 is `<= 1` whenever it exists."""
    low, high = value_range(side)
    outcome = _outcome(op, number, low, high)
    if outcome is None or isinstance(side, Aggregate) and side.op in ("count", "group"):
        return
    what = "it is never negative" if high == math.inf else f"it is from {low:g} to {high:g}"
    yield Remark(node, f"{outcome}-true", f"{what}: `{op} {number:g}` is {outcome} true",
                 "use a number between that says when to act" if high < math.inf else
                 "use `> 0`, or a number that says when to act" if outcome == "always" else
                 "use `== 0`, or a number that says when to act")


def _outcome(op: str, number: float, low: float, high: float) -> Literal["always", "never"] | None:
    """Return what a comparison comes to for each value from `low` to `high`, if it is one thing."""
    always = {">": low > number, ">=": low >= number, "<": high < number, "<=": high <= number,
              "==": False, "!=": not low <= number <= high}
    never = {">": high <= number, ">=": high < number, "<": low >= number, "<=": low > number,
             "==": not low <= number <= high, "!=": False}
    return "always" if always[op] else "never" if never[op] else None


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
