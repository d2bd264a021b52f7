"""Frames between the processes: four bytes of length, big-endian, then that many bytes of JSON."""

from __future__ import annotations

import json
import os
import struct
from typing import Any

_HEADER = struct.Struct(">I")
HEADER_BYTES = _HEADER.size
_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))
_READ_BYTES = 1 << 16
READY = b"R"  # a worker's first byte: it is locked and waits for its request


def frame(value: Any) -> bytes:
    """Return `value` as one frame; raises ValueError for NaN, cycles and lone surrogates."""
    body = _ENCODER.encode(value).encode()
    return _HEADER.pack(len(body)) + body


def body_length(header: bytes) -> int:
    """Return the length that a complete header announces."""
    return int(_HEADER.unpack(header)[0])


def read_frame(fd: int) -> Any:
    """Return the value of one frame from a trusted peer, None at the end of the stream."""
    data = os.read(fd, _READ_BYTES)  # most requests come whole
    while len(data) < HEADER_BYTES or len(data) < HEADER_BYTES + body_length(data[:HEADER_BYTES]):
        part = os.read(fd, _READ_BYTES)
        if not part:
            return None
        data += part
    return json.loads(data[HEADER_BYTES:])


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data` to a blocking descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]
