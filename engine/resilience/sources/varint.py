"""Integers of variable length, seven bits a byte, as Prometheus' blocks and Parquet have them."""

from __future__ import annotations

from mmap import mmap
from typing import TypeAlias

Buffer: TypeAlias = bytes | memoryview | mmap


def uvarint(data: Buffer, at: int) -> tuple[int, int]:
    """Return the unsigned varint at `at` and where it ends.

    Raises IndexError where it leaves `data` or takes more than 64 bits.
    """
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
        if shift > 63:
            raise IndexError


def varint(data: Buffer, at: int) -> tuple[int, int]:
    """Return the signed (zigzag) varint at `at` and where it ends."""
    value, at = uvarint(data, at)
    return zigzag(value), at


def zigzag(value: int) -> int:
    """Return the signed number that `value` stands for."""
    return (value >> 1) ^ -(value & 1)
