"""The index of a Prometheus TSDB block: which series there are and where their chunks lie.

The file is a table of strings, a run of series entries and a table of contents at its end; see
"index disk format" in Prometheus' own documents. Only format 2 (Prometheus 2.2 and later) is read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from resilience.errors import RecordingError
from resilience.samples import Labels, labels_of
from resilience.sources.tsdb_checksum import SIZE, verify
from resilience.sources.varint import uvarint, zigzag

MAGIC = b"\xba\xaa\xd7\x00"
VERSION = 2
TOC_BYTES = 52
SERIES_ALIGN = 16


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """One chunk of a series. `segment` counts from 0; `offset` is where its length stands."""

    min_ms: int
    max_ms: int
    segment: int
    offset: int


@dataclass(frozen=True, slots=True)
class SeriesEntry:
    """One series. `ref` is what tombstones name it by."""

    ref: int
    labels: Labels
    chunks: tuple[ChunkRef, ...]


def read_index(
    data: bytes, place: str, wanted: Callable[[str], bool] = lambda _: True
) -> Iterator[SeriesEntry]:
    """Yield the series whose metric name is `wanted`; raises RecordingError naming `place`."""
    if data[:4] != MAGIC or len(data) < 5 + TOC_BYTES:
        raise RecordingError(f"`{place}` is not the index of a Prometheus block")
    if data[4] != VERSION:
        raise RecordingError(f"`{place}` has index format {data[4]}, only {VERSION} is read")
    start = len(data) - TOC_BYTES
    verify(data, start, len(data) - SIZE, place, "the table of contents")
    try:
        toc = struct.unpack(">6Q", data[start:-SIZE])
        symbols = _symbols(data, toc[0], place)
        end = min((at for at in toc if at > toc[1]), default=start)
        yield from _series(data, toc[1], end, symbols, wanted, place)
    except (IndexError, struct.error, UnicodeDecodeError, OverflowError):
        raise RecordingError(f"`{place}` is damaged: an entry points outside") from None


def _symbols(data: bytes, at: int, place: str) -> list[str]:
    size, count = struct.unpack_from(">II", data, at)
    verify(data, at + 4, at + 4 + size, place, "the symbols")
    at += 8
    found: list[str] = []
    for _ in range(count):
        length, at = uvarint(data, at)
        found.append(data[at : at + length].decode("utf-8"))
        at += length
        if at > len(data):
            raise IndexError
    return found


def _series(
    data: bytes, at: int, end: int, symbols: list[str], wanted: Callable[[str], bool], place: str
) -> Iterator[SeriesEntry]:
    keep: dict[str, bool] = {}
    while at < end:
        at += -at % SERIES_ALIGN
        ref = at // SERIES_ALIGN
        length, at = uvarint(data, at)
        if not length:
            return
        verify(data, at, at + length, place, "a series")
        labels, chunks_at = _labels(data, at, symbols)
        name = dict(labels).get("__name__", "")
        if name not in keep:
            keep[name] = wanted(name)
        if keep[name]:
            yield SeriesEntry(ref, labels, tuple(_chunks(data, chunks_at)))
        at += length + SIZE


def _labels(data: bytes, at: int, symbols: list[str]) -> tuple[Labels, int]:
    count, at = uvarint(data, at)
    pairs: list[tuple[str, str]] = []
    for _ in range(count):
        name, at = uvarint(data, at)
        value, at = uvarint(data, at)
        pairs.append((symbols[name], symbols[value]))
    return labels_of(pairs), at


def _chunks(data: bytes, at: int) -> Iterator[ChunkRef]:
    count, at = uvarint(data, at)
    reference = max_ms = 0
    for number in range(count):
        gap, at = uvarint(data, at)
        span, at = uvarint(data, at)
        step, at = uvarint(data, at)
        min_ms = zigzag(gap) if number == 0 else max_ms + gap
        max_ms = min_ms + span
        reference = step if number == 0 else reference + zigzag(step)
        yield ChunkRef(min_ms, max_ms, reference >> 32, reference & 0xFFFFFFFF)
