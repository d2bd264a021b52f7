"""Frames between the processes: four bytes of length, big-endian, then that many bytes of JSON."""

from __future__ import annotations

import json
import os
import struct
from typing import Any

_HEADER = struct.Struct(">I")
HEADER_BYTES = _HEADER.size
READY = b"R"  # a worker's first byte: it is locked and waits for its request


def frame(value: Any) -> bytes:
    """Return `value` as one frame; raises ValueError for NaN, cycles and lone surrogates."""
    body = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    return _HEADER.pack(len(body)) + body


def body_length(header: bytes) -> int:
    """Return the length that a complete header announces."""
    return int(_HEADER.unpack(header)[0])


def read_exactly(fd: int, size: int) -> bytes:
    """Return `size` bytes from a blocking descriptor, fewer only at the end of the stream."""
    parts: list[bytes] = []
    while size > 0:
        part = os.read(fd, min(size, 1 << 16))
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_frame(fd: int) -> Any:
    """Return the value of one frame from a trusted peer, None at the end of the stream."""
    header = read_exactly(fd, HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    return json.loads(read_exactly(fd, body_length(header)))


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data` to a blocking descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]
