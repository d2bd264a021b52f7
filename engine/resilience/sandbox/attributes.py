"""What may be read from a value: an allowlist by exact type.

Methods whose work or result is not bounded by what they are called on are replaced by guarded
ones; the others are the real bound methods, from which nothing can be read in turn.
"""

from __future__ import annotations

import datetime
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

from resilience.sandbox.budget import Run
from resilience.sandbox.denials import ATTRIBUTE_HINTS
from resilience.sandbox.limits import FIELD_WIDTH_MAX, ITEMS_MAX
from resilience.sandbox.operators import Operators
from resilience.sandbox.texts import bounded, join, strftime
from resilience.sandbox.values import ITERABLE, Facade, Kind, kind_of

_DICT = "clear copy get items keys pop popitem setdefault update values"
_SET = "difference intersection isdisjoint issubset issuperset symmetric_difference union copy"

PLAIN: dict[type, frozenset[str]] = {
    kind: frozenset(names.split())
    for kind, names in {
        str: "capitalize casefold count endswith find index isalnum isalpha isascii isdecimal "
             "isdigit isidentifier islower isnumeric isprintable isspace istitle isupper lower "
             "lstrip partition removeprefix removesuffix rfind rindex rpartition rsplit rstrip "
             "split splitlines startswith strip swapcase title upper",
        int: "bit_length bit_count is_integer numerator denominator",
        bool: "bit_length bit_count",
        float: "is_integer hex",
        list: "append clear copy count index insert pop remove reverse",
        tuple: "count index",
        dict: _DICT,
        OrderedDict: _DICT + " move_to_end",
        defaultdict: _DICT,
        Counter: _DICT + " most_common subtract total",
        set: _SET + " add clear discard pop remove",
        frozenset: _SET,
        range: "start stop step index count",
        deque: "append appendleft clear copy count index insert pop popleft remove reverse rotate "
               "maxlen",
        datetime.datetime: "year month day hour minute second microsecond tzinfo date weekday "
                           "isoweekday isoformat replace toordinal fold",
        datetime.date: "year month day weekday isoweekday isoformat replace toordinal",
        datetime.time: "hour minute second microsecond tzinfo isoformat replace",
        datetime.timedelta: "days seconds microseconds total_seconds",
        datetime.timezone: "",
    }.items()
}
# Methods that C code would run without a bound, by type: name -> guarded method below.
GUARDED: dict[type, frozenset[str]] = {
    str: frozenset(["center", "expandtabs", "join", "ljust", "replace", "rjust", "zfill"]),
    list: frozenset({"extend", "sort"}),
    deque: frozenset({"extend", "extendleft"}),
    set: frozenset({
        "update", "difference_update", "intersection_update", "symmetric_difference_update",
    }),
    datetime.datetime: frozenset({
        "astimezone", "isocalendar", "strftime", "timestamp", "utcoffset",
    }),
    datetime.date: frozenset({"isocalendar", "strftime"}),
    datetime.time: frozenset({"strftime"}),
    datetime.timezone: frozenset({"utcoffset"}),
}
_WALKING = frozenset((_SET + " update subtract most_common").split()) - {"copy"}

def _hint(name: str) -> str:
    hint = ATTRIBUTE_HINTS.get(name)
    return f"; {hint}" if hint else ""


Method = Callable[..., Any]


def every_name() -> frozenset[str]:
    """Return all attribute names that some value offers."""
    return frozenset().union(*PLAIN.values(), *GUARDED.values())


class Attributes:
    """`_getattr_` of one run."""

    def __init__(self, run: Run, operators: Operators) -> None:
        self._run = run
        self._operators = operators
        self._guards: dict[str, Callable[[Any], Method]] = {
            "center": self._pad("center"), "ljust": self._pad("ljust"), "rjust": self._pad("rjust"),
            "zfill": self._pad("zfill"), "expandtabs": self._expandtabs, "join": self._join,
            "replace": self._replace, "extend": self._extend, "extendleft": self._extend_left,
            "sort": self._sort, "strftime": self._strftime, "timestamp": self._timestamp,
            "isocalendar": lambda value: lambda: tuple(value.isocalendar()),
            "astimezone": self._astimezone, "utcoffset": self._utcoffset,
        }

    def get(self, value: Any, name: str) -> Any:
        """Return `value.name` if the exact type of `value` offers it; denies all else."""
        kind = type(value)
        if name in PLAIN.get(kind, ()):
            method = getattr(value, name)
            return self._walking(method) if name in _WALKING else method
        if name in GUARDED.get(kind, ()):
            guard = self._guards.get(name)
            return guard(value) if guard else self._walking(getattr(value, name))
        if kind is Facade or kind is Kind:
            return self._member(value, name)
        self._run.deny(
            f"{kind_of(value)} has no attribute `{name}` that a UDF may use{_hint(name)}")

    def _member(self, value: Facade | Kind, name: str) -> Any:
        if name not in value.members:
            offered = ", ".join(sorted(value.members)) or "nothing"
            self._run.deny(f"`{name}` is not available here{_hint(name)}; offered: {offered}")
        return value.members[name]

    def _walking(self, method: Method) -> Method:
        """Pay for the arguments that `method` iterates in C, and let it see only plain data."""

        def walk(*args: Any, **kwargs: Any) -> Any:
            for argument in args:
                if type(argument) in ITERABLE:
                    self._operators.sized(argument)
            return method(*args, **kwargs)

        return walk

    # --- texts ---

    def _pad(self, name: str) -> Callable[[str], Method]:
        def guard(value: str) -> Method:
            def pad(width: Any, *fill: str) -> Any:
                if not isinstance(width, int) or width > FIELD_WIDTH_MAX:
                    self._run.deny(f"`{name}` pads up to {FIELD_WIDTH_MAX:,} characters")
                return getattr(value, name)(width, *fill)

            return pad

        return guard

    def _expandtabs(self, value: str) -> Method:
        def expandtabs(tabsize: Any = 8) -> str:
            if not isinstance(tabsize, int) or tabsize > 100:
                self._run.deny("`expandtabs` takes up to 100 columns")
            bounded(self._run, len(value) + value.count("\t") * max(tabsize, 0))
            return value.expandtabs(tabsize)

        return expandtabs

    def _join(self, value: str) -> Method:
        return lambda items: join(self._run, value, self._operators.spread(items))

    def _replace(self, value: str) -> Method:
        def replace(old: str, new: str, count: int = -1) -> str:
            if type(old) is not str or type(new) is not str:
                self._run.deny("`replace` takes two texts")
            bounded(self._run, len(value) + value.count(old) * len(new))
            return value.replace(old, new, count)

        return replace

    # --- lists ---

    def _extend(self, value: Any) -> Method:
        return lambda items: value.extend(self._checked(value, items))

    def _extend_left(self, value: Any) -> Method:
        return lambda items: value.extendleft(self._checked(value, items))

    def _checked(self, value: Any, items: Any) -> Any:
        items = self._operators.spread(items)
        if len(value) + len(items) > ITEMS_MAX:
            self._run.deny(f"the list would have more than {ITEMS_MAX:,} items")
        return items

    def _sort(self, value: list[Any]) -> Method:
        def sort(*, key: Method | None = None, reverse: bool = False) -> None:
            self._run.spend(len(value))
            value.sort(key=key, reverse=reverse)

        return sort

    # --- times: no local zone ---

    def _strftime(self, value: Any) -> Method:
        return lambda spec: strftime(self._run, value, spec)

    def _timestamp(self, value: datetime.datetime) -> Method:
        self._need_zone(value.tzinfo)
        return value.timestamp

    def _utcoffset(self, value: Any) -> Method:
        return lambda when=None: (
            value.utcoffset(when) if type(value) is datetime.timezone else value.utcoffset())

    def _astimezone(self, value: datetime.datetime) -> Method:
        def astimezone(zone: datetime.timezone) -> datetime.datetime:
            self._need_zone(value.tzinfo)
            self._need_zone(zone)
            return value.astimezone(zone)

        return astimezone

    def _need_zone(self, zone: object) -> None:
        if type(zone) is not datetime.timezone:
            self._run.deny("a UDF has no local time zone; use `timezone.utc`")
