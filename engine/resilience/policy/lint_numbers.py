"""Plain numbers in an expression, and how a message writes one."""

from __future__ import annotations

import operator

from resilience.promql.plan import Binary, Negate, Node, Number

HOLDS = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
         "==": operator.eq, "!=": operator.ne}
MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


def number_of(node: Node) -> float | None:
    """Return the number that `node` is, with its sign; None for anything else."""
    if isinstance(node, Negate):
        inner = number_of(node.expr)
        return None if inner is None else -inner
    if isinstance(node, Binary) and node.type == "scalar":
        return _computed(node.op, number_of(node.lhs), number_of(node.rhs))
    return node.value if isinstance(node, Number) else None


def _computed(op: str, left: float | None, right: float | None) -> float | None:
    """Return `95 / 100`, and None for what is not plain arithmetic."""
    if left is None or right is None:
        return None
    if op == "/":
        return left / right if right else None
    return {"+": left + right, "-": left - right, "*": left * right}.get(op)


def against_number(node: Binary) -> tuple[Node, float, str] | None:
    """Return (other side, number, operator seen from the other side) of what is compared with a
    number, which may stand on either side; None for anything else."""
    right, left = number_of(node.rhs), number_of(node.lhs)
    if right is not None:
        return node.lhs, right, node.op
    if left is not None:
        return node.rhs, left, MIRRORED.get(node.op, node.op)
    return None


def shown(number: float) -> str:
    """Return a number as one writes it: `2000000`, where `%g` makes it `2e+06`."""
    whole = number == int(number) if abs(number) < 1e15 else False
    return str(int(number)) if whole else f"{number:.6g}"
