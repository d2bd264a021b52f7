"""Numbers in another unit than what they are compared with: 90 for 0.9, 0.5 for 500 ms."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from resilience.policy.lint_numbers import number_of, shown
from resilience.policy.lint_ranges import FLAGS, few_values
from resilience.policy.lint_shares import TIMES, unwrapped
from resilience.policy.lint_units import Measured, measured
from resilience.policy.lint_view import Remark, View
from resilience.promql.plan import COMPARISONS, Aggregate, Binary, Call, Node

# Longer than this, a latency is a mistake or an outage: (part of the name, seconds).
_LONGEST_S = (
    ("inter_token_latency", 5), ("per_output_token", 5), ("time_to_first_token", 100),
    ("queue_time", 100), ("ttft", 100), ("connection_duration", 1e6), ("block_", 1e6),
    ("residence", 1e6), ("startup", 1e5), ("load_weights", 1e5), ("", 600),
)
# Shorter than this, no server has answered: (part of the name, milliseconds).
_SHORTEST_MS = (("first_response", 20), ("", 1))
_SHORTEST_US = 20
# A ratio above this is a percentage, not a limit that was overdrawn.
_RATIO_MAX = 2
_BYTES_MIN = 100
_EPOCH_MIN = 1e9
_MEBIBYTES_MAX = 10_000_000
_SHARES = frozenset({"fraction", "percent"})
_SAME_UNIT = COMPARISONS | {"+", "-"}
_FAMILIES = (TIMES, _SHARES, frozenset({"bytes", "mebibytes"}))


def wrong_unit(side: Node, node: Binary, number: float, op: str) -> Iterator[Remark]:
    """Fractions are compared with 0.9, not with 90; a percentage the other way round."""
    value = measured(side) if few_values(side) is None else None
    rule = _UNITS.get(value.unit) if value is not None else None
    if value is not None and rule is not None:
        yield from rule(value, node, number, op)


def _mismatch(node: Node, message: str, op: str, meant: float | None) -> Remark:
    hint = None if meant is None else f"did you mean `{op} {shown(meant)}`?"
    return Remark(node, "unit-mismatch", message, hint)


def _fraction(value: Measured, node: Binary, number: float, op: str) -> Iterator[Remark]:
    if number <= 1:
        return
    outcome = "never" if op in (">", ">=", "==") else "always"
    yield _mismatch(node, f"{value.what} is a fraction from 0 to 1: `{op} {number:g}` is {outcome} "
                    "true", op, number / 100 if number <= 100 else None)


def _ratio(value: Measured, node: Binary, number: float, op: str) -> Iterator[Remark]:
    """A share by its name may pass 1, where a limit can be overdrawn; it is still no percentage."""
    if _RATIO_MAX < abs(number) <= 100:
        yield _mismatch(node, f"{value.what} is a share from 0 to 1: `{op} {number:g}` looks like "
                        "a percentage", op, number / 100)


def _percent(value: Measured, node: Binary, number: float, op: str) -> Iterator[Remark]:
    """A share that is computed is compared with 0.5 % as well: error rates are small."""
    if 0 < number < 1 and value.metric is not None:
        yield _mismatch(node, f"{value.what} is a percentage from 0 to 100", op, number * 100)


def _seconds(value: Measured, node: Binary, number: float, op: str) -> Iterator[Remark]:
    longest = next(limit for part, limit in _LONGEST_S if part in value.what)
    if number >= longest:
        yield _mismatch(node, f"{value.what} is in seconds: `{op} {number:g}` looks like "
                        "milliseconds", op, number / 1000)


def _milliseconds(value: Measured, node: Binary, number: float, op: str) -> Iterator[Remark]:
    shortest = next(limit for part, limit in _SHORTEST_MS if part in value.what)
    if 0 < number < shortest:
        yield _mismatch(node, f"{value.what} is in milliseconds: `{op} {number:g}` looks like "
                        "seconds", op, number * 1000)


def _microseconds(value: Measured, node: Binary, number: float, op: str) -> Iterator[Remark]:
    if 0 < number < _SHORTEST_US:
        yield _mismatch(node, f"{value.what} is in microseconds: `{op} {number:g}` looks like "
                        "seconds", op, number * 1e6)


def _bytes(value: Measured, node: Binary, number: float, op: str) -> Iterator[Remark]:
    if 0 < number <= _BYTES_MIN:
        yield _mismatch(node, f"{value.what} is in bytes: `{op} {number:g}` looks like gibibytes "
                        "or a share", op, number * 1024**3)


def _mebibytes(value: Measured, node: Binary, number: float, op: str) -> Iterator[Remark]:
    if number > _MEBIBYTES_MAX:
        yield _mismatch(node, f"{value.what} is in MiB: `{op} {number:g}` looks like bytes", op,
                        round(number / 1024**2))
    elif 0 < number < 1:
        yield Remark(node, "unit-mismatch", f"{value.what} is in MiB: `{op} {number:g}` looks like "
                     "a share", "divide it by the whole, as in `used / (used + free)`")


def _epoch(value: Measured, node: Binary, number: float, op: str) -> Iterator[Remark]:
    if 0 < number < _EPOCH_MIN:
        outcome = "always" if op in (">", ">=", "!=") else "never"
        yield Remark(node, "unit-mismatch", f"{value.what} is a moment, in seconds since 1970: "
                     f"`{op} {number:g}` is {outcome} true", "compare its age: `time() - …`")


_UNITS: dict[str, Callable[[Measured, Binary, float, str], Iterator[Remark]]] = {
    "fraction": _fraction, "ratio": _ratio, "percent": _percent, "seconds": _seconds,
    "milliseconds": _milliseconds, "microseconds": _microseconds, "bytes": _bytes,
    "mebibytes": _mebibytes, "epoch": _epoch,
}
# What is scaled the wrong way: (unit, operator, number) -> the unit that it has already.
_TWICE = {
    ("fraction", "/", 100.0): "a fraction from 0 to 1", ("percent", "*", 100.0): "a percentage",
    ("seconds", "/", 1000.0): "in seconds", ("seconds", "/", 1e6): "in seconds",
}


def scaled_twice(view: View) -> Iterator[Remark]:
    """A fraction by 100 and seconds by 1000 are in no unit that anybody compares with."""
    for node in view.binaries:
        for side, other in ((node.lhs, node.rhs), (node.rhs, node.lhs)):
            number = number_of(other)
            if number is None or (node.op == "/" and side is node.rhs):
                continue
            value = measured(side)
            has = _TWICE.get((value.unit, node.op, number)) if value is not None else None
            if value is not None and has is not None:
                yield Remark(node, "unit-mismatch", f"{value.what} is {has} already",
                             f"leave out `{node.op} {shown(number)}`")


def units_together(view: View) -> Iterator[Remark]:
    """Seconds compared with milliseconds are nonsense, whatever the numbers are."""
    for node in view.binaries:
        if node.op in _SAME_UNIT:
            left, right = measured(node.lhs), measured(node.rhs)
            units = {side.unit for side in (left, right) if side is not None}
            if left is not None and right is not None and len(units) == 2 \
                    and any(units <= family for family in _FAMILIES):
                yield Remark(node, "unit-mismatch", f"{left.what} is in {_name(left)} and "
                             f"{right.what} in {_name(right)}",
                             "bring one of them into the unit of the other")


def _name(value: Measured) -> str:
    return {"fraction": "fractions of 1", "mebibytes": "MiB"}.get(value.unit, value.unit)


# --- sums of shares -------------------------------------------------------------------------------


def sums_of_fractions(view: View) -> Iterator[Remark]:
    """The sum of usages of several servers is no usage; divided by their number it is a mean."""
    for node in view.nodes:
        summed = _summed(node)
        value = None if summed is None or _is_divided(view, node) else measured(summed)
        if value is not None and value.unit in _SHARES and value.metric is not None \
                and value.metric not in FLAGS:
            each = "moment" if isinstance(node, Call) else "server"
            yield Remark(node, "sum-of-fractions",
                         f"a sum of {value.what}, which is a share of each {each}",
                         "use `max_over_time` or `avg_over_time`" if isinstance(node, Call)
                         else "use `max` or `avg`")


def _summed(node: Node) -> Node | None:
    if isinstance(node, Aggregate) and node.op == "sum":
        return node.expr
    if isinstance(node, Call) and node.function == "sum_over_time":
        return node.args[0]
    return None


def _is_divided(view: View, node: Node) -> bool:
    """Whether the sum is divided by how many there are."""
    above = view.parents.get(id(node))
    if not isinstance(above, Binary) or above.op != "/" or above.lhs is not node:
        return False
    by = unwrapped(above.rhs)
    if isinstance(by, Aggregate) and by.op == "count":
        return True
    if isinstance(by, Call) and by.function == "count_over_time":
        return True
    number = number_of(by)
    return number is not None and number != 100
