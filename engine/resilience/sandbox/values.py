"""The types that a UDF may hold, by exact type: a subclass is somebody else's code."""

from __future__ import annotations

import datetime
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import GeneratorType, MappingProxyType
from typing import Any


class Kind:
    """A type as a UDF sees it: it can be called and named in `isinstance`, and nothing else.

    `members` are what may be read from it (`dict.fromkeys`, `timezone.utc`).
    """

    __slots__ = ("_make", "_name", "members", "types")

    def __init__(
        self, name: str, make: Callable[..., Any], types: tuple[type, ...],
        members: dict[str, Any] | None = None,
    ) -> None:
        self._name = name
        self._make = make
        self.types = types
        self.members = MappingProxyType(members or {})

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._make(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<class '{self._name}'>"


class Facade:
    """A module as a UDF sees it: listed names only."""

    __slots__ = ("members", "name")

    def __init__(self, name: str, members: dict[str, Any]) -> None:
        self.name = name
        self.members = MappingProxyType(members)

    def __repr__(self) -> str:
        return f"<module '{self.name}'>"


DICT_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
ORDERED_VIEWS: tuple[type, ...] = (
    type(OrderedDict[str, int]().keys()), type(OrderedDict[str, int]().values()),
    type(OrderedDict[str, int]().items()),
)
MAPPINGS: frozenset[type] = frozenset({dict, Counter, OrderedDict, defaultdict})
SIZED: frozenset[type] = (
    frozenset({list, tuple, str, set, frozenset, range, deque})
    | MAPPINGS | frozenset(DICT_VIEWS) | frozenset(ORDERED_VIEWS)
)
ITERABLE: frozenset[type] = SIZED | frozenset({GeneratorType})
WRITABLE: frozenset[type] = MAPPINGS | frozenset({list, deque})
TIMES: frozenset[type] = frozenset({
    datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone,
})


def kind_of(value: object) -> str:
    """Return what an author calls the type of `value`, never the interpreter's word for it."""
    names: dict[type, str] = {
        type(None): "None", bool: "a boolean", int: "a whole number", float: "a number",
        str: "a text", list: "a list", tuple: "a tuple", dict: "a mapping", set: "a set",
        frozenset: "a set", range: "a range", GeneratorType: "a generator", Facade: "a module",
        Kind: "a type", deque: "a deque", Counter: "a counter", defaultdict: "a mapping",
        OrderedDict: "a mapping", datetime.datetime: "a time", datetime.date: "a date",
        datetime.timedelta: "a time span", datetime.timezone: "a time zone",
    }
    if isinstance(value, BaseException):
        return "an error"
    return names.get(type(value), "a function" if callable(value) else "this value")
