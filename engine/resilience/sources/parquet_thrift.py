"""Thrift's compact protocol, as far as Parquet's footer and page headers need it."""

from __future__ import annotations

from typing import Any, TypeAlias

from resilience.sources.varint import uvarint, varint

Buffer: TypeAlias = bytes | memoryview
Struct: TypeAlias = dict[int, Any]

_DEPTH_MAX = 16
_TRUE, _FALSE, _BYTE, _I16, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = (
    1, 2, 3, 4, 6, 7, 8, 9, 10, 12,
)


def read_struct(data: Buffer, at: int = 0) -> tuple[Struct, int]:
    """Return the struct at `at`, field number -> value, and where it ends.

    Raises ValueError or IndexError for bytes that are no such thing.
    """
    return _struct(data, at, 0)


def _struct(data: Buffer, at: int, depth: int) -> tuple[Struct, int]:
    if depth > _DEPTH_MAX:
        raise ValueError("nested too deeply")
    found: Struct = {}
    field = 0
    while True:
        head = data[at]
        at += 1
        if not head:
            return found, at
        if head >> 4:
            field += head >> 4
        else:
            field, at = varint(data, at)
        kind = head & 15
        if kind in (_TRUE, _FALSE):
            found[field] = kind == _TRUE
        else:
            found[field], at = _value(data, at, kind, depth)


def _value(data: Buffer, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if _I16 <= kind <= _I64:
        return varint(data, at)
    if kind == _BINARY:
        size, at = uvarint(data, at)
        if size > len(data) - at:
            raise ValueError("a text reaches over the end")
        return bytes(data[at : at + size]), at + size
    if kind == _STRUCT:
        return _struct(data, at, depth + 1)
    if kind in (_LIST, _SET):
        return _list(data, at, depth)
    if kind in (_TRUE, _FALSE, _BYTE):  # in a list each takes a byte
        return data[at], at + 1
    if kind == _DOUBLE:
        return bytes(data[at : at + 8]), at + 8
    raise ValueError(f"a value of type {kind}")


def _list(data: Buffer, at: int, depth: int) -> tuple[list[Any], int]:
    head = data[at]
    at += 1
    size = head >> 4
    if size == 15:
        size, at = uvarint(data, at)
    if size > len(data) - at:  # each takes a byte or more
        raise ValueError("a list reaches over the end")
    found: list[Any] = []
    for _ in range(size):
        value, at = _value(data, at, head & 15, depth + 1)
        found.append(value)
    return found, at
