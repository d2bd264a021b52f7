"""A schema as one quick yes: most documents are right, and jsonschema is for saying why not.

`acceptor` turns the few keywords that our schemas use (fragments.py) into nested functions. A yes
means that jsonschema finds nothing and that every duration is within its bounds; a no means nothing
yet. A schema with any other keyword, as a plug-in may bring it, is never accepted here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from resilience.model import Json, parse_duration
from resilience.policy.document import Map, Seq

Test: TypeAlias = Callable[[Any], bool]
_NOTES = frozenset({"description", "default", "examples", "title", "$schema", "$id", "x-type"})
_BOUNDS = frozenset({"x-minimum-ms", "x-maximum-ms"})
_STRING = frozenset({"pattern", "minLength", "maxLength", "enum", "const"})
_NUMBER = frozenset({"minimum", "maximum", "exclusiveMinimum"})
_ARRAY = frozenset({"items", "minItems", "maxItems"})
_OBJECT = frozenset(
    {"properties", "required", "additionalProperties", "propertyNames", "maxProperties"}
)


def acceptor(schema: Json) -> Test:
    """Return the test of `schema`: true only for what jsonschema accepts, durations included."""
    return _test(schema) or _nothing


def _test(schema: Json) -> Test | None:
    """Return the test of one fragment; None when it says more than is known here."""
    if not isinstance(schema, Mapping) or not schema.keys() - _NOTES:
        return None if not isinstance(schema, Mapping) else _anything
    kinds = schema.get("type", "string" if isinstance(schema.get("const"), str) else "")
    tests: dict[type, Test] = {}
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        made = _MAKERS[kind](schema) if kind in _MAKERS else None
        if made is None:
            return None
        for python_type, test in made.items():
            tests.setdefault(python_type, test)
    unknown = schema.keys() - _NOTES - _BOUNDS - _STRING - _NUMBER - _ARRAY - _OBJECT - {"type"}
    return None if unknown else _by_type(tests)


def _anything(_: Any) -> bool:
    return True


def _nothing(_: Any) -> bool:
    return False


def _by_type(tests: dict[type, Test]) -> Test:
    def test(value: Any) -> bool:
        found = tests.get(type(value))
        return found is not None and found(value)

    return test


def _strings(schema: Mapping[str, Any]) -> dict[type, Test] | None:
    words = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if words is not None:
        allowed = frozenset(word for word in words if isinstance(word, str))
        return {str: allowed.__contains__}
    low, high = schema.get("minLength", 0), schema.get("maxLength", 2**63)
    search = re.compile(schema["pattern"]).search if "pattern" in schema else None
    in_bounds = _duration(schema) if schema.get("x-type") == "duration" else None

    def test(text: str) -> bool:
        return low <= len(text) <= high and (search is None or search(text) is not None) \
            and (in_bounds is None or in_bounds(text))

    return {str: test}


def _duration(schema: Mapping[str, Any]) -> Test:
    low, high = schema.get("x-minimum-ms", 0), schema.get("x-maximum-ms", 2**63)

    @lru_cache(maxsize=256)
    def test(text: str) -> bool:
        try:
            return bool(low <= parse_duration(text) <= high)
        except ValueError:
            return False

    return test


def _integers(schema: Mapping[str, Any]) -> dict[type, Test] | None:
    test = _within(schema)
    return {int: test, float: lambda value: value.is_integer() and test(value)}


def _numbers(schema: Mapping[str, Any]) -> dict[type, Test] | None:
    test = _within(schema)
    return {int: test, float: test}


def _within(schema: Mapping[str, Any]) -> Test:
    if schema.get("x-type") == "duration" and schema.get("x-minimum-ms", 0) > 0:
        return _nothing                    # the one bare number is 0, and it is too short
    low, high = schema.get("minimum", float("-inf")), schema.get("maximum", float("inf"))
    above = schema.get("exclusiveMinimum", float("-inf"))
    return lambda value: low <= value <= high and value > above


def _booleans(_: Mapping[str, Any]) -> dict[type, Test] | None:
    return {bool: _anything}


def _arrays(schema: Mapping[str, Any]) -> dict[type, Test] | None:
    item = _test(schema.get("items", {}))
    low, high = schema.get("minItems", 0), schema.get("maxItems", 2**63)
    if item is None:
        return None
    test = lambda value: low <= len(value) <= high and all(map(item, value))  # noqa: E731
    return {list: test, Seq: test}


def _objects(schema: Mapping[str, Any]) -> dict[type, Test] | None:
    known = {key: _test(below) for key, below in schema.get("properties", {}).items()}
    extra = schema.get("additionalProperties", {})
    others = _nothing if extra is False else _test(extra)
    names = _test({"type": "string", **schema.get("propertyNames", {})})
    if others is None or names is None or None in known.values():
        return None
    required = frozenset(schema.get("required", ()))
    most = schema.get("maxProperties", 2**63)

    def test(value: dict[str, Any]) -> bool:
        if len(value) > most or not required <= value.keys():
            return False
        for key, below in value.items():
            if not (known.get(key) or others)(below):
                return False
        return "propertyNames" not in schema or all(map(names, value))

    return {dict: test, Map: test}


_MAKERS: dict[str, Callable[[Mapping[str, Any]], dict[type, Test] | None]] = {
    "string": _strings, "integer": _integers, "number": _numbers, "boolean": _booleans,
    "array": _arrays, "object": _objects,
}
