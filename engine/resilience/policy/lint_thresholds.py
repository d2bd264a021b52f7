"""Comparisons that are missing, or decided by the numbers alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from resilience.policy import lint_scales
from resilience.policy.lint_numbers import HOLDS, against_number
from resilience.policy.lint_ranges import few_values, is_presence, value_range
from resilience.policy.lint_shares import is_itself
from resilience.policy.lint_view import RATES, Remark, View, decides
from resilience.promql.plan import (
    COMPARISONS,
    SET_OPERATORS,
    Aggregate,
    Binary,
    Call,
    Node,
    Selector,
    walk,
)

_GROWTH = RATES | {"delta", "idelta", "deriv"}
_ASKED_OF_NOTHING = (("==", 0), ("<", 1), ("<=", 0), ("<", 0))
_CLOCKS = frozenset({
    "time", "hour", "minute", "month", "year", "day_of_week", "day_of_month", "day_of_year",
    "days_in_month",
})


def no_comparison(view: View) -> Iterator[Remark]:
    """A trigger that holds nothing back, or that no series can change."""
    if view.role in ("metric", "value"):
        return
    if not view.selectors and _CLOCKS.isdisjoint(call.function for call in view.calls):
        yield Remark(view.plan, "constant-expr", "no series is read: it is the same at all times",
                     "read a metric; a policy that always holds is a setting of the server")
    elif not decides(view.plan) and not any(map(_is_bool, view.binaries)):
        yield Remark(
            view.plan, "no-comparison",
            "no comparison: true whenever a series exists, also at value 0",
            "compare it, as in `… > 0`",
        )
    elif not view.derived:
        yield from _counted_anyway(view.plan)
        yield from _only_there(view)


def _only_there(view: View) -> Iterator[Remark]:
    """The right side of `and` is asked for its series, and the growth of a counter has them
    always."""
    for node in view.binaries:
        if node.op not in ("and", "unless") or decides(node.rhs):
            continue
        inner = node.rhs
        while isinstance(inner, Aggregate):
            inner = inner.expr
        if isinstance(inner, Call) and inner.function in _GROWTH \
                and not _at_another_time(inner.args[0]):
            yield Remark(node.rhs, "no-comparison",
                         f"`{node.op}` asks whether `{inner.function}(…)` has a series, not for "
                         "its value: also at 0", "compare it, as in `… > 0`")


def _at_another_time(node: Node) -> bool:
    return any(isinstance(n, Selector) and (n.offset_ms or n.at is not None) for n in walk(node))


def _counted_anyway(plan: Node) -> Iterator[Remark]:
    """A count of whatever there is, is 1 or more; a count of what a comparison leaves asks
    something."""
    compared = against_number(plan) \
        if isinstance(plan, Binary) and plan.op in COMPARISONS else None
    if compared is None:
        return
    side, number, op = compared
    if isinstance(side, Aggregate) and side.op == "count" and not decides(side.expr) \
            and _outcome(op, number, 1, math.inf) == "always":
        yield Remark(plan, "always-true", f"`count` is 1 or more wherever there is a series: "
                     f"`{op} {number:g}` is always true",
                     "count what a comparison leaves, as in `count(… == 0)`")


def never_or_always(view: View) -> Iterator[Remark]:
    """Comparisons whose outcome the numbers alone decide."""
    for node in view.binaries:
        if node.op not in COMPARISONS:
            continue
        yield from _same_sides(node)
        compared = against_number(node)
        if compared is not None:
            side, number, op = compared
            yield from _odd_threshold(node, number, op)
            yield from _decided(side, node, number, op)


def _decided(side: Node, node: Binary, number: float, op: str) -> list[Remark]:
    """Return one finding for one mistake: that of the first rule that has one."""
    if not math.isfinite(number):
        return []
    for rule in (_of_nothing, lint_scales.wrong_unit, _by_range):
        found = list(rule(side, node, number, op))
        if found:
            return found
    return []


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
    for node in view.aggregates:
        if node.op == "count" and _is_bool(node.expr):
            yield Remark(node, "bool-comparison", "`count` counts the 0 of `bool` like its 1",
                         "leave out `bool`, or use `sum`")


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
            and (op, number) in _ASKED_OF_NOTHING:
        yield Remark(node, "never-true", f"`{side.op}` of nothing has no value, so "
                     f"`{op} {number:g}` is never true", "use `absent(…)`")


def _by_range(side: Node, node: Binary, number: float, op: str) -> Iterator[Remark]:
    """What can only be from 0 to 1 is `<= 1` whenever it exists."""
    low, high = value_range(side)
    values = few_values(side)
    outcome = _outcome(op, number, low, high) if values is None else _tried(op, number, values)
    there = is_presence(side) or isinstance(side, Aggregate) and side.op == "count"
    if outcome is None or there and outcome == "always":       # it asks whether there is a series
        return
    what, hint = _said(side, low, high, outcome)
    yield Remark(node, f"{outcome}-true", f"{what}: `{op} {number:g}` is {outcome} true", hint)


def _said(side: Node, low: float, high: float, outcome: str) -> tuple[str, str]:
    """Return what the values can be, and what to write."""
    if is_itself(side):
        return ("each series is divided by itself, which is 1",
                "sum both sides first: `sum(…) / sum(…)`")
    if is_presence(side):
        return "it is 1 or not there", "leave the comparison out, or ask for the series itself"
    if few_values(side) is not None:
        return "it is 0 or 1", "use `== 0` or `== 1`"
    if high < math.inf:
        return (f"it is from {low:g} to {high:g}" if low > -math.inf else f"it is at most {high:g}",
                "use a number between that says when to act")
    word = f"> {low:g}" if outcome == "always" else f"== {low:g}"
    return ("it is never negative" if low == 0 else f"it is at least {low:g}",
            f"use `{word}`, or a number that says when to act")


def _tried(op: str, number: float, values: tuple[float, ...]) -> Literal["always", "never"] | None:
    """Return what a comparison comes to for each of a few values, if it is one thing."""
    results = {HOLDS[op](value, number) for value in values}
    if len(results) > 1:
        return None
    return "always" if results.pop() else "never"


def _outcome(op: str, number: float, low: float, high: float) -> Literal["always", "never"] | None:
    """Return what a comparison comes to for each value from `low` to `high`, if it is one thing."""
    always = {">": low > number, ">=": low >= number, "<": high < number, "<=": high <= number,
              "==": False, "!=": not low <= number <= high}
    never = {">": high <= number, ">=": high < number, "<": low >= number, "<=": low > number,
             "==": not low <= number <= high, "!=": False}
    return "always" if always[op] else "never" if never[op] else None
