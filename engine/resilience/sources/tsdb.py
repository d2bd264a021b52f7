"""Reads Prometheus' own storage: one TSDB block, a snapshot folder or a data folder.

Blocks are complete and immutable, so no Prometheus is needed and a running one is not disturbed.
What is still in the write-ahead log of a data folder is not read; that is said in a note.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from resilience.errors import RecordingError
from resilience.sources.series import Series, merge_series
from resilience.sources.tsdb_checksum import SIZE, verify
from resilience.sources.tsdb_chunks import decode_chunks
from resilience.sources.tsdb_index import ChunkRef, SeriesEntry, read_index
from resilience.sources.varint import uvarint, varint

BATCH_CHUNKS = 16_384
XOR = 1
HISTOGRAMS = (2, 3)
CHUNKS_MAGIC = b"\x85\xbd\x40\xdd\x01"  # with the version of the format
TOMBSTONES_MAGIC = b"\x01\x30\xba\x30\x01"
BLOCKS_MAX = 10_000
SNAPSHOT = "a snapshot (`POST /api/v1/admin/tsdb/snapshot`)"

Deletions = dict[int, list[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class Block:
    """One block on disk; samples lie in [min_ms, max_ms)."""

    path: Path
    min_ms: int
    max_ms: int
    samples: int


def find_blocks(path: Path) -> tuple[list[Block], list[str]]:
    """Return the blocks at or in `path`, oldest first, and notes; raises RecordingError."""
    try:
        if (path / "meta.json").is_file():
            return [_block(path)], []
        folders = sorted(p for p in path.iterdir() if (p / "meta.json").is_file())[:BLOCKS_MAX]
    except OSError as error:
        raise RecordingError(f"cannot read `{path}`: {(error.strerror or '').lower()}") from None
    logged = any((path / "wal").glob("[0-9]*"))
    if not folders and logged:
        raise RecordingError(
            f"`{path}` holds no TSDB block yet: all samples are still in the write-ahead log; "
            f"take {SNAPSHOT} and import that"
        )
    if not folders:
        raise RecordingError(f"`{path}` holds no TSDB block: no `meta.json` in it or one below")
    notes = [
        "the newest samples are still in the write-ahead log and are left out; "
        f"{SNAPSHOT} holds them too"
    ] if logged else []
    return sorted((_block(p) for p in folders), key=lambda b: b.min_ms), notes


def _block(path: Path) -> Block:
    try:
        meta = json.loads((path / "meta.json").read_text("utf-8"))
        stats = meta.get("stats") or {}
        return Block(path, int(meta["minTime"]), int(meta["maxTime"]), stats.get("numSamples", 0))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise RecordingError(f"`{path / 'meta.json'}` cannot be read as a block's meta") from None


def read_block(
    block: Block, wanted: Callable[[str], bool] = lambda _: True
) -> tuple[list[Series], list[str]]:
    """Return the series of one block whose metric is `wanted`, and notes on what was left out."""
    index = block.path / "index"
    try:
        data = index.read_bytes()
    except OSError:
        raise RecordingError(f"cannot read `{index}`") from None
    entries = list(read_index(data, str(index), wanted))
    deletions = _tombstones(block.path / "tombstones")
    with _Segments(block.path / "chunks") as segments:
        found: list[Series] = []
        for batch in _batches(entries):
            found.extend(_decode(batch, segments, deletions, block))
        notes = [f"{segments.skipped} chunks with native histograms are left out"]
        return found, notes if segments.skipped else []


def _batches(entries: Sequence[SeriesEntry]) -> Iterator[list[SeriesEntry]]:
    batch: list[SeriesEntry] = []
    chunks = 0
    for entry in entries:
        batch.append(entry)
        chunks += len(entry.chunks)
        if chunks >= BATCH_CHUNKS:
            yield batch
            batch, chunks = [], 0
    if batch:
        yield batch


def _decode(
    entries: list[SeriesEntry], segments: _Segments, deletions: Deletions, block: Block
) -> Iterator[Series]:
    bodies: list[bytes] = []
    held: list[int] = []
    for entry in entries:
        before = len(bodies)
        bodies.extend(b for c in entry.chunks if (b := segments.read(c)) is not None)
        held.append(len(bodies) - before)
    counts, times, values = decode_chunks(bodies, str(block.path / "chunks"))
    # Where the samples of each series end: after its last chunk.
    sample_ends = np.concatenate(([0], np.cumsum(counts)))[np.cumsum([0, *held])]
    for entry, start, end in zip(entries, sample_ends[:-1], sample_ends[1:], strict=True):
        series = Series(entry.labels, times[start:end], values[start:end])
        keep = (series.times_ms >= block.min_ms) & (series.times_ms < block.max_ms)
        for low, high in deletions.get(entry.ref, ()):
            keep &= (series.times_ms < low) | (series.times_ms > high)
        if not keep.all():
            series = Series(entry.labels, series.times_ms[keep], series.values[keep])
        if len(series.times_ms):
            yield merge_series([series])


class _Segments:
    """The chunk files of a block, mapped; opened when first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[int, mmap.mmap] = {}
        self.skipped = 0

    def __enter__(self) -> _Segments:
        return self

    def __exit__(self, *_: object) -> None:
        for mapped in self._open.values():
            mapped.close()

    def read(self, chunk: ChunkRef) -> bytes | None:
        """Return the data of an XOR chunk, None for a histogram; raises RecordingError."""
        mapped = self._open.get(chunk.segment)
        if mapped is None:
            mapped = self._open[chunk.segment] = _map(self._place(chunk))
        try:
            length, at = uvarint(mapped, chunk.offset)
            encoding, at = mapped[at], at + 1
        except IndexError:
            raise self._damaged(chunk, "lies outside") from None
        if at + length + SIZE > len(mapped):
            raise self._damaged(chunk, f"has a length of {length}")
        verify(mapped, at - 1, at + length, str(self._place(chunk)), "a chunk")
        if encoding in HISTOGRAMS:
            self.skipped += 1
            return None
        if encoding != XOR:
            raise self._damaged(chunk, f"has the unknown encoding {encoding}")
        if length < 2:
            raise self._damaged(chunk, f"has a length of {length}")
        return mapped[at : at + length]

    def _place(self, chunk: ChunkRef) -> Path:
        return self._folder / f"{chunk.segment + 1:06d}"

    def _damaged(self, chunk: ChunkRef, what: str) -> RecordingError:
        place = f"`{self._place(chunk)}` is damaged"
        return RecordingError(f"{place}: the chunk at byte {chunk.offset} {what}")


def _map(place: Path) -> mmap.mmap:
    try:
        with place.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        raise RecordingError(f"cannot read `{place}`") from None
    if mapped[:5] != CHUNKS_MAGIC:
        mapped.close()
        raise RecordingError(f"`{place}` is not a chunk file of Prometheus")
    return mapped


def _tombstones(path: Path) -> Deletions:
    """Return the deleted intervals (both ends included) of each series; no file: none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError:
        raise RecordingError(f"cannot read `{path}`") from None
    if data[:5] != TOMBSTONES_MAGIC or len(data) < 9:
        raise RecordingError(f"`{path}` is not a tombstones file")
    found: Deletions = {}
    at, end = 5, len(data) - SIZE
    verify(data, at, end, str(path), "the deletions")
    try:
        while at < end:
            ref, at = uvarint(data, at)
            low, at = varint(data, at)
            high, at = varint(data, at)
            found.setdefault(ref, []).append((low, high))
    except IndexError:
        raise RecordingError(f"`{path}` is damaged") from None
    return found
