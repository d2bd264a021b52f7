"""The checksums (CRC-32C) behind the parts of Prometheus' block files."""

from __future__ import annotations

from mmap import mmap

from crc32c import crc32c

from resilience.errors import RecordingError

SIZE = 4


def verify(data: bytes | mmap, start: int, end: int, place: str, what: str) -> None:
    """Raise RecordingError unless the checksum of data[start:end] stands behind it.

    `place` is the file and `what` the part, for the message.
    """
    found = data[end : end + SIZE]
    if len(found) < SIZE or crc32c(data[start:end]) != int.from_bytes(found, "big"):
        raise RecordingError(f"`{place}` is damaged: wrong checksum of {what} at byte {start}")
