"""Constant arguments with which an expression can never be evaluated, whatever the data.

Prometheus finds them while it evaluates, and so does the evaluator; who checks an expression
before it runs asks here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from resilience.promql import regex
from resilience.promql.plan import Aggregate, Call, Node, Number, String, walk

Impossible = tuple[Node, str]


def impossible(plan: Node) -> Iterator[Impossible]:
    """Yield each constant that cannot be, and why."""
    for node in walk(plan):
        if isinstance(node, Call) and node.function in _ARGUMENTS:
            yield from _ARGUMENTS[node.function](node.args)
        elif isinstance(node, Aggregate) and node.op == "count_values":
            yield from _names([node.param], "label name of `count_values`")
        elif isinstance(node, Aggregate) and node.op in ("topk", "bottomk"):
            yield from _size(node.op, node.param)


def _label_replace(args: Sequence[Node]) -> Iterator[Impossible]:
    yield from _names(args[1:2], "destination label of `label_replace`")
    pattern = args[4]
    if not isinstance(pattern, String):
        return
    if (why := regex.problem(pattern.value, regex.substitution)) is not None:
        yield pattern, f"bad regex `{pattern.value[:80]}` in `label_replace`: {why}"


def _label_join(args: Sequence[Node]) -> Iterator[Impossible]:
    yield from _names(args[1:2], "destination label of `label_join`")
    yield from _names(args[3:], "source label of `label_join`")


def _names(args: Sequence[Node | None], what: str) -> Iterator[Impossible]:
    for arg in args:
        if isinstance(arg, String) and not arg.value:
            yield arg, f"the {what} is empty"


def _size(op: str, param: Node | None) -> Iterator[Impossible]:
    if isinstance(param, Number) and not param.value < 2.0**63:  # below 1 it takes none
        yield param, f"the parameter of `{op}` is no number of series"


_ARGUMENTS: dict[str, Callable[[Sequence[Node]], Iterator[Impossible]]] = {
    "label_join": _label_join, "label_replace": _label_replace,
}
