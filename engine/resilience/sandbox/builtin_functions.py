"""The builtins of a UDF: own, listed, bounded; kinds instead of types."""

from __future__ import annotations

from collections.abc import Callable
from types import GeneratorType
from typing import Any

from resilience.sandbox.budget import Run
from resilience.sandbox.denials import NAME_HINTS
from resilience.sandbox.limits import DIGITS_MAX, ITEMS_MAX, RANGE_MAX
from resilience.sandbox.operators import Operators
from resilience.sandbox.texts import check_spec, formatted, join, text
from resilience.sandbox.values import SIZED, Kind, kind_of

EXCEPTIONS: tuple[type[Exception], ...] = (
    Exception, ArithmeticError, AssertionError, AttributeError, ImportError, IndexError, KeyError,
    LookupError, NameError, NotImplementedError, OverflowError, RecursionError, RuntimeError,
    StopIteration, TypeError, ValueError, ZeroDivisionError,
)
NUMBER_TEXT_MAX = 4_300


class Builtins:
    """The functions that need the run: they count, measure or deny."""

    def __init__(self, run: Run, operators: Operators) -> None:
        self._run = run
        self._operators = operators
        self._kinds = self._make_kinds()

    def names(self) -> dict[str, Any]:
        """Return every builtin, and for the rest of Python's a stub that says what to write."""
        offered: dict[str, Any] = {e.__name__: e for e in EXCEPTIONS}
        offered |= {"abs": abs, "bin": bin, "chr": chr, "hex": hex, "oct": oct, "ord": ord,
                    "divmod": divmod, "callable": callable}
        offered |= self._kinds
        for function in (
            self.len, self.sum, self.any, self.all, self.min, self.max, self.sorted, self.map,
            self.filter, self.zip, self.enumerate, self.reversed, self.next, self.round, self.pow,
            self.repr, self.format, self.isinstance, self.print,
        ):
            offered[function.__name__] = function
        return {name: self._stub(name) for name in NAME_HINTS} | offered

    def _stub(self, name: str) -> Callable[..., Any]:
        def denied(*args: object, **kwargs: object) -> Any:
            self._run.deny(f"`{name}` is not available; {NAME_HINTS[name]}")

        return denied

    # --- kinds ---

    def _make_kinds(self) -> dict[str, Kind]:
        spread = self._operators.spread
        kinds = [
            Kind("bool", bool, (bool,)),
            Kind("int", self._int, (int,)),
            Kind("float", self._float, (float,)),
            Kind("str", self._str, (str,)),
            Kind("list", lambda items=(): spread(items), (list,)),
            Kind("tuple", lambda items=(): tuple(spread(items)), (tuple,)),
            Kind("set", lambda items=(): set(spread(items)), (set,)),
            Kind("frozenset", lambda items=(): frozenset(spread(items)), (frozenset,)),
            Kind("dict", self._dict, (dict,), {"fromkeys": self._fromkeys}),
            Kind("range", self._range, (range,)),
        ]
        return {repr(kind)[8:-2]: kind for kind in kinds}

    def _int(self, value: Any = 0, base: int = 10) -> int:
        if type(value) is str:
            if len(value) > NUMBER_TEXT_MAX:
                self._run.deny(f"a number has up to {NUMBER_TEXT_MAX:,} digits")
            return int(value, base)
        return int(self._number(value))

    def _float(self, value: Any = 0.0) -> float:
        if type(value) is str:
            if len(value) > NUMBER_TEXT_MAX:
                self._run.deny(f"a number has up to {NUMBER_TEXT_MAX:,} digits")
            return float(value)
        return float(self._number(value))

    def _number(self, value: Any) -> Any:
        if type(value) not in (int, float, bool):
            raise TypeError(f"{kind_of(value)} is not a number")
        return value

    def _str(self, value: object = "") -> str:
        return text(self._run, value)

    def _dict(self, items: Any = (), /, **more: Any) -> dict[Any, Any]:
        return {**dict(self._operators.sized(items)), **more}

    def _fromkeys(self, items: Any, value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(self._operators.spread(items), value)

    def _range(self, *bounds: int) -> range:
        made = range(*bounds)
        start, stop, step = made.start, made.stop, made.step
        if abs(stop - start) // abs(step) > RANGE_MAX:
            self._run.deny(f"a range has up to {RANGE_MAX:,} numbers")
        return made

    def isinstance(self, value: object, kind: Any) -> bool:
        """As Python's, with the kinds above, those of the modules, exceptions, or a tuple."""
        kinds = kind if type(kind) is tuple else (kind,)
        real: list[type] = []
        for item in kinds:
            if type(item) is Kind:
                real.extend(item.types)
            elif isinstance(item, type) and issubclass(item, Exception):
                real.append(item)
            else:
                self._run.deny("`isinstance` takes kinds such as `int`, or a tuple of them")
        return isinstance(value, tuple(real))

    # --- iterating ---

    def len(self, value: Any) -> int:
        if type(value) not in SIZED:
            raise TypeError(f"{kind_of(value)} has no length")
        return len(value)

    def sum(self, items: Any, start: Any = 0) -> Any:
        total = start
        for item in self._operators.iterate(items):
            self._run.step()
            total = self._operators.add(total, item)
        return total

    def any(self, items: Any) -> bool:
        return any(self._operators.sized(items))

    def all(self, items: Any) -> bool:
        return all(self._operators.sized(items))

    def min(self, *args: Any, **options: Any) -> Any:
        return min(*self._candidates(args), **self._options(options, "key", "default"))

    def max(self, *args: Any, **options: Any) -> Any:
        return max(*self._candidates(args), **self._options(options, "key", "default"))

    def _candidates(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._operators.sized(args[0]),) if len(args) == 1 else args

    def _options(self, options: dict[str, Any], *allowed: str) -> dict[str, Any]:
        for name in options:
            if name not in allowed:
                self._run.deny(f"the option `{name}` is not available here")
        return options

    def sorted(self, items: Any, **options: Any) -> list[Any]:
        listed = self._operators.spread(items)
        self._run.spend(len(listed))
        listed.sort(**self._options(options, "key", "reverse"))
        return listed

    def map(self, function: Callable[..., Any], *items: Any) -> list[Any]:
        return self._bounded(map(function, *map(self._operators.sized, items)))

    def filter(self, function: Callable[..., Any] | None, items: Any) -> list[Any]:
        return self._bounded(filter(function, self._operators.sized(items)))

    def zip(self, *items: Any, **options: Any) -> list[Any]:
        sized = map(self._operators.sized, items)
        strict = bool(self._options(options, "strict").get("strict", False))
        return self._bounded(zip(*sized, strict=strict))

    def enumerate(self, items: Any, start: int = 0) -> list[Any]:
        return self._bounded(enumerate(self._operators.sized(items), start))

    def reversed(self, items: Any) -> list[Any]:
        return self._operators.spread(items)[::-1]

    def _bounded(self, items: Any) -> list[Any]:
        """Return a list: nested lazy iterators can exhaust the interpreter's own stack."""
        out: list[Any] = []
        for item in items:
            self._run.step()
            out.append(item)
            if len(out) > ITEMS_MAX:
                self._run.deny(f"the list would have more than {ITEMS_MAX:,} items")
        return out

    def next(self, items: Any, *default: Any) -> Any:
        if type(items) is not GeneratorType:
            self._run.deny("`next` takes an expression such as `(x for x in items)`")
        return next(items, *default)

    # --- numbers and texts ---

    def round(self, number: Any, digits: Any = None) -> Any:
        if digits is not None and (type(digits) is not int or abs(digits) > DIGITS_MAX):
            self._run.deny(f"`round` takes up to {DIGITS_MAX} digits")
        return round(self._number(number), digits)

    def pow(self, base: Any, exponent: Any, modulus: Any = None) -> Any:
        if modulus is None:
            return self._operators.power(base, exponent)
        parts = (base, exponent, modulus)
        if any(type(p) is not int or p.bit_length() > 4096 for p in parts):
            self._run.deny("`pow` with a modulus takes whole numbers up to 4,096 bits")
        self._run.spend(1000)
        return pow(base, exponent, modulus)

    def repr(self, value: object) -> str:
        return text(self._run, value, repr)

    def format(self, value: object, spec: str = "") -> str:
        if spec:
            check_spec(self._run, spec)
        return formatted(self._run, value, -1, spec)

    def print(self, *values: object, **options: Any) -> None:
        """Write to the log of the call."""
        options = self._options(options, "sep", "end")
        sep, end = options.get("sep"), options.get("end")
        sep, end = " " if sep is None else sep, "\n" if end is None else end
        if not isinstance(sep, str) or not isinstance(end, str):
            raise TypeError("`sep` and `end` are texts")
        shown = join(self._run, sep, [text(self._run, v) for v in values])
        self._run.write_log(shown + end)
