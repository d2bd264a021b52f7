"""Comparisons that together are always true or never: `x > 5 or x <= 5`, `x > 5 and x < 3`.

What is compared is a variable, and of its value matters only where it stands among the numbers that
it is compared with. So trying a few values of each variable is a proof.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

from resilience.policy.lint_label_sets import labels_left
from resilience.policy.lint_numbers import HOLDS, MIRRORED, against_number
from resilience.policy.lint_ranges import few_values, value_range
from resilience.policy.lint_view import Remark, View
from resilience.promql.plan import COMPARISONS, SET_OPERATORS, Binary, Node

_TESTS_MAX = 16
_WORLDS_MAX = 2_000
_Range: TypeAlias = tuple[float, float]
_ANY: _Range = (-math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class _Test:
    """`variable op number`; `range` is where the variable can be, `values` all it can be."""

    variable: str
    op: str
    number: float
    range: _Range = _ANY
    values: tuple[float, ...] | None = None

    @property
    def tests(self) -> tuple[_Test, ...]:
        return (self,)

    def holds(self, world: Mapping[str, float]) -> bool:
        return bool(HOLDS[self.op](world[self.variable], self.number))


@dataclass(frozen=True, slots=True)
class _Joint:
    """Two conditions of the same series, put together. `tests` are those of both, or none when
    they are too many to try."""

    op: str
    left: _Condition
    right: _Condition
    tests: tuple[_Test, ...]

    def holds(self, world: Mapping[str, float]) -> bool:
        left, right = self.left.holds(world), self.right.holds(world)
        if self.op == "or":
            return left or right
        return left and right if self.op == "and" else left and not right


_Condition: TypeAlias = _Joint | _Test


def contradictions(view: View) -> Iterator[Remark]:
    """`and`, `or`, `unless` and chains of comparisons whose outcome no value changes."""
    if not _may_be_joint(view):
        return
    decided: set[int] = set()
    known: dict[int, _Condition] = {}
    for node in reversed(view.nodes):                     # what stands below comes first
        if any(id(child) in decided for child in node.children):
            decided.add(id(node))
            continue
        outcome = _outcome(_condition(node, known))
        if outcome is not None:
            decided.add(id(node))
            yield _remark(node, outcome)


def _may_be_joint(view: View) -> bool:
    """Whether there is more than one comparison alone."""
    return len(view.binaries) > 1 or any(node.op in SET_OPERATORS for node in view.binaries)


def implies(one: Node, other: Node) -> bool:
    """Return whether `other` holds for every value for which `one` does, by their numbers alone."""
    known: dict[int, _Condition] = {}
    left, right = _condition(one, known), _condition(other, known)
    return _outcome(_joint("unless", left, right)) is False


def _remark(node: Node, outcome: bool) -> Remark:
    word = "always" if outcome else "never"
    return Remark(node, f"{word}-true",
                  f"`{node.op if isinstance(node, Binary) else ''}` of these comparisons is {word} "
                  "true, whatever the value", "look at the numbers, and at `and` against `or`")


# --- from the expression to conditions ------------------------------------------------------------


def _condition(node: Node, known: dict[int, _Condition]) -> _Condition:
    """Return what `node` says; `known` holds what has been asked before."""
    found = known.get(id(node))
    if found is None:
        found = known[id(node)] = _new(node, known)
    return found


def _new(node: Node, known: dict[int, _Condition]) -> _Condition:
    if isinstance(node, Binary) and node.op in SET_OPERATORS and _same_series(node):
        return _joint(node.op, _condition(node.lhs, known), _condition(node.rhs, known))
    if isinstance(node, Binary) and node.op in COMPARISONS and not node.bool_result:
        return _comparison(node, known) or _unknown(node)
    return _unknown(node)


def _joint(op: str, left: _Condition, right: _Condition) -> _Joint:
    tests = left.tests + right.tests
    many = not left.tests or not right.tests or len(tests) > _TESTS_MAX
    return _Joint(op, left, right, () if many else tests)


def _unknown(node: Node) -> _Test:
    """Something that may hold or not, by itself."""
    return _Test(f"({node.text})", "==", 0)


def _comparison(node: Binary, known: dict[int, _Condition]) -> _Condition | None:
    compared = against_number(node)
    if compared is not None:
        side, number, op = compared
        return _against(side, op, number, known)
    if node.matching is None or node.matching.on or node.matching.labels:
        return None
    pair = sorted((node.lhs.text, node.rhs.text))
    op = node.op if pair[0] == node.lhs.text else MIRRORED.get(node.op, node.op)
    return _Test(" - ".join(pair), op, 0)


def _against(
    side: Node, op: str, number: float, known: dict[int, _Condition]
) -> _Condition | None:
    """Return what `side op number` says; a comparison on the side is a condition too."""
    if not math.isfinite(number):
        return None
    value = side
    while isinstance(value, Binary) and value.op in COMPARISONS and not value.bool_result:
        value = value.rhs if value.lhs.type == "scalar" else value.lhs
    test = _Test(value.text, op, number, value_range(value), few_values(value))
    return test if value is side else _joint("and", _condition(side, known), test)


def _same_series(node: Binary) -> bool:
    """Whether both sides speak of one series: joined by all labels, or each has only one."""
    matching = node.matching
    if matching is None or not (matching.on or matching.labels):
        return True
    return labels_left(node.lhs) == labels_left(node.rhs) == frozenset()


# --- from conditions to what they come to ---------------------------------------------------------


def _outcome(condition: _Condition) -> bool | None:
    """Return what a joint condition always is; None when that depends on the values, when one of
    its comparisons is decided alone, or when there is too much to try."""
    tests = condition.tests
    if isinstance(condition, _Test) or not tests:
        return None
    values = {t.variable: t.values or _values(tests, t.variable, t.range) for t in tests}
    if any(len({t.holds({t.variable: v}) for v in values[t.variable]}) < 2 for t in tests):
        return None
    if math.prod(map(len, values.values())) > _WORLDS_MAX:
        return None
    outcomes = {condition.holds(dict(zip(values, world, strict=True)))
                for world in product(*values.values())}
    return outcomes.pop() if len(outcomes) == 1 else None


def _values(tests: tuple[_Test, ...], variable: str, within: _Range) -> list[float]:
    """Return the numbers, one between each two and one beyond both ends, as far as they can be."""
    marks = sorted({t.number for t in tests if t.variable == variable})
    between = [(one + other) / 2 for one, other in zip(marks, marks[1:], strict=False)]
    ends = [max(marks[0] - 1, within[0]), min(marks[-1] + 1, within[1])]
    return [v for v in (*ends, *marks, *between) if within[0] <= v <= within[1]]
