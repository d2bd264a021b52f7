"""Frozen dataclasses to JSON and back, by their own type hints.

For what the engine keeps for itself (the inputs of a decision): a field that somebody adds to one
of these values is kept from then on, without a line here. Documents that others read have their
own `to_json`.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from resilience.model import Json


def to_json(value: Any) -> Json:
    """Return plain JSON: a dataclass as an object, a mapping as a list of pairs."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return value


def from_json(kind: Any, body: Json) -> Any:
    """Return the value of type `kind` that `pack` made `body` of; raises ValueError."""
    try:
        return _read(kind, body)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is no {getattr(kind, '__name__', kind)}: {error}") from error


def pack(kind: Any, value: Any) -> Json:
    """Return plain JSON of `value`, whose type is `kind`: mappings with any keys survive."""
    origin, parts = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = _hints_of(kind)
        return {name: pack(hint, getattr(value, name)) for name, hint in hints.items()}
    if origin in (Union, types.UnionType):
        return None if value is None else pack(_one(parts), value)
    if origin is tuple and value is not None:
        return [pack(hint, item) for hint, item in zip(_items(parts, value), value, strict=True)]
    if origin is not None and isinstance(value, Mapping) and len(parts) == 2:
        return [[pack(parts[0], key), pack(parts[1], item)] for key, item in value.items()]
    return to_json(value)


def _read(kind: Any, body: Json) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        made: Any = kind
        return made(**{name: _read(hint, body[name]) for name, hint in _hints_of(kind).items()})
    if origin in (Union, types.UnionType):
        return None if body is None else _read(_one(parts), body)
    if origin is tuple:
        return tuple(
            _read(hint, item) for hint, item in zip(_items(parts, body), body, strict=True)
        )
    if isinstance(origin, type) and issubclass(origin, Mapping) and len(parts) == 2:
        return {_read(parts[0], key): _read(parts[1], item) for key, item in body}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(body)
    return float(body) if kind is float else body


def _read_hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind) if f.init}


_hints_of: Callable[[Any], dict[str, Any]] = cache(_read_hints)


def _one(parts: tuple[Any, ...]) -> Any:
    """Return the type beside None; of several plain ones none needs to be told apart."""
    rest = [part for part in parts if part is not type(None)]
    return rest[0] if len(rest) == 1 else Any


def _items(parts: tuple[Any, ...], value: Any) -> list[Any]:
    if len(parts) == 2 and parts[1] is Ellipsis:
        return [parts[0]] * len(value)
    return list(parts)
