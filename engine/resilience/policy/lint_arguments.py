"""Numbers that a function takes and makes nothing of: a quantile of 95, the top 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from resilience.policy.lint_numbers import number_of
from resilience.policy.lint_view import Remark, View
from resilience.promql.plan import Node

_QUANTILES = frozenset({"quantile", "quantile_over_time", "histogram_quantile"})
_FEWEST = frozenset({"topk", "bottomk", "limitk"})


def arguments(view: View) -> Iterator[Remark]:
    """Numbers outside the range in which the function has a result."""
    for divided in view.binaries:
        if divided.op in ("/", "%") and number_of(divided.rhs) == 0:
            yield Remark(divided, "argument-range", f"`{divided.op} 0` is infinite or not a number",
                         "divide by another number")
    for group in view.aggregates:
        if group.op in _RULES and group.param is not None:
            yield from _judged(group, group.op, [group.param])
    for call in view.calls:
        if call.function in _RULES:
            scalars = [arg for arg in call.args if arg.type == "scalar"]
            yield from _judged(call, call.function, scalars)


def _judged(node: Node, name: str, scalars: list[Node]) -> Iterator[Remark]:
    """Judge the scalar arguments of a function, when all of them are plain numbers."""
    numbers = [n for n in map(number_of, scalars) if n is not None]
    if numbers and len(numbers) == len(scalars):
        yield from _RULES[name](node, name, numbers)


def _quantile(node: Node, name: str, numbers: list[float]) -> Iterator[Remark]:
    share = numbers[0]
    if not 0 <= share <= 1:
        result = "no number" if share != share else "+Inf" if share > 1 else "-Inf"
        yield Remark(node, "argument-range", f"`{name}` takes a quantile from 0 to 1: the result "
                     f"of {share:g} is {result}",
                     f"did you mean `{share / 100:g}`?" if 1 < share <= 100 else "use 0.5 to 0.99")


def _fewest(node: Node, name: str, numbers: list[float]) -> Iterator[Remark]:
    if numbers[0] < 1:
        yield Remark(node, "argument-range", f"`{name}` of {numbers[0]:g} has no result",
                     "use 1 or more")


def _clamp(node: Node, name: str, numbers: list[float]) -> Iterator[Remark]:
    if len(numbers) == 2 and numbers[0] > numbers[1]:
        yield Remark(node, "argument-range", f"`{name}` has its least above its greatest",
                     f"write `{name}(…, {numbers[1]:g}, {numbers[0]:g})`")


def _round(node: Node, name: str, numbers: list[float]) -> Iterator[Remark]:
    if numbers[0] == 0:
        yield Remark(node, "argument-range", f"`{name}` to a multiple of 0 has no result",
                     "leave the number out to get whole ones")


_RULES: dict[str, Callable[[Node, str, list[float]], Iterator[Remark]]] = {
    **dict.fromkeys(_QUANTILES, _quantile), **dict.fromkeys(_FEWEST, _fewest),
    "clamp": _clamp, "round": _round,
}
