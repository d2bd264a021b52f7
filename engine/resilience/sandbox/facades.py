"""The modules of a UDF: listed functions of the real ones, bounded, without clock or hooks."""

from __future__ import annotations

import datetime
import heapq
import json
import math
import statistics
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from importlib import import_module
from typing import Any

from resilience.sandbox.budget import Run
from resilience.sandbox.limits import INT_BITS_MAX, TEXT_CHARS_MAX, words
from resilience.sandbox.operators import Operators
from resilience.sandbox.texts import measure
from resilience.sandbox.values import Facade, Kind

# C code imports these by itself (most_common, strftime, fromtimestamp): too late under the lock.
IMPORTED_AHEAD = (heapq, time, import_module("_strptime"))
_MATH = words(
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh degrees erf erfc exp "
    "exp2 expm1 fabs floor fmod frexp gamma hypot isclose isfinite isinf isnan isqrt ldexp "
    "lgamma log log10 log1p log2 modf nextafter pow radians remainder sin sinh sqrt tan tanh "
    "trunc ulp"
)
_MATH_LISTS = words(
    "fsum dist"
)
_STATISTICS = words(
    "mean fmean geometric_mean harmonic_mean median median_low median_high mode multimode "
    "pstdev pvariance stdev variance quantiles covariance correlation linear_regression"
)
_FACTORIAL_MAX = 1_000
_ZONE_NAME_MAX = 32  # every text of a time holds it


class Facades:
    """The modules of one run."""

    def __init__(self, run: Run, operators: Operators) -> None:
        self._run = run
        self._operators = operators

    def modules(self) -> dict[str, Facade]:
        """Return name -> module as a UDF sees it."""
        return {
            "collections": Facade("collections", self._collections()),
            "datetime": Facade("datetime", self._datetime()),
            "json": Facade("json", {"loads": self._loads, "dumps": self._dumps,
                                    "JSONDecodeError": json.JSONDecodeError}),
            "math": Facade("math", self._math()),
            "statistics": Facade("statistics", self._statistics()),
        }

    # --- math and statistics ---

    def _math(self) -> dict[str, Any]:
        members: dict[str, Any] = {n: getattr(math, n) for n in ("e", "inf", "nan", "pi", "tau")}
        members |= {name: getattr(math, name) for name in _MATH}
        members |= {name: self._on_lists(getattr(math, name)) for name in _MATH_LISTS}
        members |= {"factorial": self._factorial, "prod": self._prod,
                    "comb": self._choose(math.comb), "perm": self._choose(math.perm),
                    "gcd": self._whole(math.gcd), "lcm": self._whole(math.lcm)}
        return members

    def _factorial(self, number: Any) -> int:
        if type(number) is not int or number > _FACTORIAL_MAX:
            self._run.deny(f"`factorial` takes whole numbers up to {_FACTORIAL_MAX:,}")
        return math.factorial(number)

    def _choose(self, function: Callable[..., int]) -> Callable[..., int]:
        def choose(*numbers: Any) -> int:
            if any(type(n) is not int or n > _FACTORIAL_MAX for n in numbers):
                self._run.deny(f"this function takes whole numbers up to {_FACTORIAL_MAX:,}")
            return function(*numbers)

        return choose

    def _whole(self, function: Callable[..., int]) -> Callable[..., int]:
        def whole(*numbers: Any) -> int:
            if sum(n.bit_length() for n in numbers if isinstance(n, int)) > INT_BITS_MAX:
                self._run.deny(f"the numbers have more than {INT_BITS_MAX:,} bits")
            self._run.spend(len(numbers))
            return function(*numbers)

        return whole

    def _prod(self, items: Any, *, start: Any = 1) -> Any:
        total = start
        for item in self._operators.iterate(items):
            self._run.step()
            total = self._operators.multiply(total, item)
        return total

    def _on_lists(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def on_lists(*lists: Any) -> Any:
            return function(*(self._operators.spread(item) for item in lists))

        return on_lists

    def _statistics(self) -> dict[str, Any]:
        members: dict[str, Any] = {
            name: self._statistic(getattr(statistics, name)) for name in _STATISTICS
        }
        members["linear_regression"] = self._regression
        return members | {"StatisticsError": statistics.StatisticsError}

    def _statistic(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def statistic(*lists: Any, **options: Any) -> Any:
            return function(*map(self._numbers, lists), **{
                name: self._numbers(value) if type(value) in (list, tuple) else self._option(value)
                for name, value in options.items()})

        return statistic

    def _regression(self, xs: Any, ys: Any) -> tuple[float, float]:
        """(slope, intercept), as a plain pair."""
        slope, intercept = statistics.linear_regression(self._numbers(xs), self._numbers(ys))
        return slope, intercept

    def _numbers(self, items: Any) -> list[Any]:
        listed = self._operators.spread(items) if not isinstance(items, int | float) else items
        if not isinstance(listed, list):
            self._run.deny("statistics take a list of numbers; name the options, as in `n=20`")
        self._run.spend(len(listed) * 8)  # exact fractions inside: slower than their length
        for item in listed:
            if type(item) not in (int, float, bool, str):
                raise TypeError("statistics take a list of numbers")
        return listed

    def _option(self, value: Any) -> Any:
        if value is None or type(value) in (float, bool, str):
            return value
        if type(value) is not int or not 0 <= value <= 1_000:
            self._run.deny("an option of statistics is a small whole number")
        return value

    # --- datetime: no clock, no local zone ---

    def _datetime(self) -> dict[str, Any]:
        real = datetime
        return {
            "datetime": Kind("datetime", real.datetime, (real.datetime,), {
                "fromisoformat": real.datetime.fromisoformat, "combine": real.datetime.combine,
                "fromtimestamp": self._fromtimestamp,
            }),
            "date": Kind("date", real.date, (real.date,), {
                "fromisoformat": real.date.fromisoformat, "fromordinal": real.date.fromordinal,
            }),
            "time": Kind("time", real.time, (real.time,), {
                "fromisoformat": real.time.fromisoformat}),
            "timedelta": Kind("timedelta", real.timedelta, (real.timedelta,)),
            "timezone": Kind("timezone", self._timezone, (real.timezone,),
                             {"utc": real.timezone.utc}),
            "UTC": real.timezone.utc,
        }

    def _timezone(self, offset: Any, *name: Any) -> datetime.timezone:
        if any(type(n) is str and len(n) > _ZONE_NAME_MAX for n in name):
            self._run.deny(f"the name of a time zone has up to {_ZONE_NAME_MAX} characters")
        return datetime.timezone(offset, *name)

    def _fromtimestamp(self, seconds: Any, tz: Any = None) -> datetime.datetime:
        if type(tz) is not datetime.timezone:
            self._run.deny("`fromtimestamp` needs a time zone: `fromtimestamp(t, timezone.utc)`")
        return datetime.datetime.fromtimestamp(seconds, tz)

    # --- json: no hooks ---

    def _loads(self, text: Any, **options: Any) -> Any:
        if options:
            self._run.deny("`json.loads` takes a text and no options")
        if type(text) is not str or len(text) > TEXT_CHARS_MAX:
            self._run.deny("`json.loads` takes a text")
        self._run.spend(len(text) // 64)
        return json.loads(text)

    def _dumps(self, value: Any, **options: Any) -> str:
        for name, option in options.items():
            listed = name in ("sort_keys", "indent", "ensure_ascii")
            if not listed or type(option) not in (int, bool):
                self._run.deny(f"the option `{name}` of `json.dumps` is not available")
        if not 0 <= options.get("indent", 0) <= 8:
            self._run.deny("`indent` is a number from 0 to 8")
        measure(self._run, value)
        return json.dumps(value, **options)

    # --- collections ---

    def _collections(self) -> dict[str, Any]:
        return {
            "Counter": Kind("Counter", self._counter, (Counter,)),
            "OrderedDict": Kind("OrderedDict", self._ordered, (OrderedDict,)),
            "defaultdict": Kind("defaultdict", self._defaultdict, (defaultdict,)),
            "deque": Kind("deque", self._deque, (deque,)),
        }

    def _counter(self, items: Any = (), /, **more: int) -> Counter[Any]:
        return Counter(self._operators.sized(items), **more)

    def _ordered(self, items: Any = ()) -> OrderedDict[Any, Any]:
        return OrderedDict(self._operators.sized(items))

    def _defaultdict(self, factory: Any = None, items: Any = (), /) -> defaultdict[Any, Any]:
        return defaultdict(factory, self._operators.sized(items))

    def _deque(self, items: Any = (), maxlen: int | None = None) -> deque[Any]:
        return deque(self._operators.spread(items), maxlen)
