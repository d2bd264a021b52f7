"""The guards that the transformer writes into a UDF: operators, items, iteration, unpacking."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Mapping
from types import GeneratorType
from typing import Any

from resilience.sandbox.budget import Run
from resilience.sandbox.limits import INT_BITS_MAX, ITEMS_MAX
from resilience.sandbox.texts import bounded, formatted, percent
from resilience.sandbox.values import ITERABLE, MAPPINGS, SIZED, WRITABLE, kind_of

Guard = Callable[..., Any]
_SEQUENCES = frozenset({list, tuple, deque})


class Operators:
    """The guards of one run, as methods."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._inplace: dict[str, Guard] = {
            "Add": self._add_in_place, "Mult": self._multiply_in_place, "Mod": self.modulo,
            "Pow": self.power, "LShift": self.shift_left, "Sub": operator.isub,
            "Div": operator.itruediv, "FloorDiv": operator.ifloordiv, "RShift": operator.irshift,
            "BitOr": operator.ior, "BitAnd": operator.iand, "BitXor": operator.ixor,
        }

    def names(self) -> dict[str, Guard]:
        """Return the guards under the names that the transformer writes."""
        return {
            "_add_": self.add, "_mul_": self.multiply, "_mod_": self.modulo, "_pow_": self.power,
            "_shl_": self.shift_left, "_in_": self.contains, "_getitem_": self.get_item,
            "_getiter_": self.iterate, "_spread_": self.spread, "_mapping_": self.mapping,
            "_write_": self.writable, "_inplacevar_": self.in_place,
            "_inplaceitem_": self.in_place_item, "_unpack_sequence_": self.unpack,
            "_iter_unpack_sequence_": self.iterate_unpacked, "_text_": self.text,
            "_step_": self._run.step,
        }

    # --- operators ---

    def add(self, left: Any, right: Any) -> Any:
        self._check_sum(left, right)
        return left + right

    def _check_sum(self, left: Any, right: Any) -> None:
        kind = type(left)
        if kind is str and type(right) is str:
            bounded(self._run, len(left) + len(right))
        elif kind in _SEQUENCES and type(right) in SIZED:
            self._items(len(left) + len(right))

    def _add_in_place(self, left: Any, right: Any) -> Any:
        if type(left) in (list, deque):
            left.extend(self.spread(right))
            return left
        self._check_sum(left, right)
        left += right
        return left

    def _multiply_in_place(self, left: Any, right: Any) -> Any:
        if type(left) not in (list, deque):
            return self.multiply(left, right)
        self._check_repeat(left, right)
        left *= right
        return left

    def multiply(self, left: Any, right: Any) -> Any:
        if type(left) is int and type(right) is int:
            self._bits(left.bit_length() + right.bit_length())
        else:
            self._check_repeat(left, right)
            self._check_repeat(right, left)
        return left * right

    def _check_repeat(self, item: Any, times: Any) -> None:
        if isinstance(times, int) and type(item) is str:
            bounded(self._run, len(item) * max(times, 0))
        elif isinstance(times, int) and type(item) in SIZED:
            self._items(len(item) * max(times, 0))

    def modulo(self, left: Any, right: Any) -> Any:
        return percent(self._run, left, right) if type(left) is str else left % right

    def power(self, base: Any, exponent: Any) -> Any:
        if isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1 and exponent > 0:
            self._bits(base.bit_length() * exponent)
        return base**exponent

    def shift_left(self, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int) and left:
            self._bits(left.bit_length() + max(right, 0))
        return left << right

    def in_place(self, name: str, left: Any, right: Any) -> Any:
        """`left op= right`, with the same guards as `left op right`."""
        return self._inplace[name](left, right)

    def in_place_item(self, name: str, container: Any, key: Any, right: Any) -> None:
        """`container[key] op= right`."""
        old = self.get_item(container, key)
        self.writable(container)[key] = self.in_place(name, old, right)

    def contains(self, item: Any, container: Any) -> bool:
        """`item in container`, where C code cannot spin."""
        kind = type(container)
        if kind is range and type(item) not in (int, bool):
            self._run.deny("only a whole number can be searched in a range")
        if kind not in ITERABLE:
            self._run.deny(f"`in` cannot search {kind_of(container)}")
        if kind not in MAPPINGS and kind not in (set, frozenset, range, GeneratorType):
            self._run.spend(len(container) // 64)
        return item in container

    # --- items and iteration ---

    def get_item(self, container: Any, key: Any) -> Any:
        kind = type(container)
        if kind not in SIZED or kind in (set, frozenset):
            self._run.deny(f"{kind_of(container)} has no items to read by `[…]`")
        if type(key) is slice:
            self._run.spend(len(container) // 64)
        return container[key]

    def writable(self, container: Any) -> Any:
        if type(container) not in WRITABLE:
            self._run.deny(f"{kind_of(container)} has no items to set by `[…]`")
        return container

    def iterate(self, items: Any) -> Any:
        """Return `items` if it is plain data that can be iterated."""
        if type(items) not in ITERABLE:
            self._run.deny(f"{kind_of(items)} cannot be iterated")
        return items

    def sized(self, items: Any) -> Any:
        """As `iterate`, and pay for the items that C code is about to walk."""
        items = self.iterate(items)
        if type(items) is not GeneratorType:
            self._run.spend(len(items) // 8)
        return items

    def spread(self, items: Any) -> list[Any]:
        return list(self.sized(items))

    def mapping(self, items: Any) -> Mapping[Any, Any]:
        if type(items) not in MAPPINGS:
            self._run.deny(f"`**` needs a mapping, not {kind_of(items)}")
        self._run.spend(len(items) // 8)
        result: Mapping[Any, Any] = items
        return result

    def unpack(self, items: Any, spec: Mapping[str, Any], _: Guard) -> list[Any]:
        """Return `items` as a list, and its parts where the target is nested (see `spec`)."""
        values = self.spread(items)
        if len(values) < spec["min_len"]:
            return values  # too short: the assignment itself says so
        for index, child in spec["childs"]:
            values[index] = self.unpack(values[index], child, _)
        return values

    def iterate_unpacked(self, items: Any, spec: Mapping[str, Any], _: Guard) -> Any:
        return (self.unpack(item, spec, _) for item in self.iterate(items))

    def text(self, value: object, conversion: int, spec: str) -> str:
        return formatted(self._run, value, conversion, spec)

    # --- limits ---

    def _bits(self, bits: int) -> None:
        if bits > INT_BITS_MAX:
            self._run.deny(f"the number would have more than {INT_BITS_MAX:,} bits")
        self._run.spend(bits // 4096)

    def _items(self, count: int) -> None:
        if count > ITEMS_MAX:
            self._run.deny(f"the list would have more than {ITEMS_MAX:,} items")
        self._run.spend(count // 64)
