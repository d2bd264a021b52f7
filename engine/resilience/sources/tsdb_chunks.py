"""Decoding of TSDB chunks (XOR compression), many chunks in step.

A chunk is a bit stream that must be read sample by sample, which Python does slowly. So all chunks
of a batch are read side by side: step i reads sample i of each, as a few NumPy operations over all
of them. That is some fifty times as fast as one chunk after another.

Times: the first is a varint, the second a varint difference, then differences of differences
behind a prefix of 1 to 4 bits. Values: the first in full, then the XOR with the one before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from resilience.errors import RecordingError

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Floats = NDArray[np.float64]

PAD = 32
VARINT_BYTES_MAX = 10
# Of the four bits in front of a time: how many are the prefix, how many bits follow.
_PREFIX = np.array([1] * 8 + [2] * 4 + [3] * 2 + [4, 4], np.uint64)
_WIDTH = np.array([0] * 8 + [14] * 4 + [17] * 2 + [20, 64], np.uint64)
_ONE, _63, _64 = np.uint64(1), np.uint64(63), np.uint64(64)


def decode_chunks(chunks: Sequence[bytes], place: str) -> tuple[Ints, Ints, Floats]:
    """Return (samples per chunk, times in ms, values), chunk after chunk.

    `chunks` are the data of XOR chunks, which begin with two bytes of count. Raises
    RecordingError when a chunk says more samples than it holds.
    """
    counts = np.array([int.from_bytes(c[:2], "big") for c in chunks], np.int64)
    times = np.zeros(int(counts.sum()), np.int64)
    bits = np.zeros(len(times), np.uint64)
    if len(times):
        # Longest first: the chunks that still have samples are then always a prefix.
        order = np.argsort(-counts, kind="stable")
        decoder = _Decoder(chunks, counts, order)
        decoder.run(times, bits)
        if decoder.overrun:
            raise RecordingError(f"`{place}` is damaged: a chunk ends before its samples")
    return counts, times, bits.view(np.float64)


class _Decoder:
    """The state of all chunks of a batch: where each one reads, and its last sample."""

    def __init__(self, chunks: Sequence[bytes], counts: Ints, order: Ints) -> None:
        body = b"".join(chunks) + bytes(PAD)
        ends = np.cumsum([len(c) for c in chunks], dtype=np.int64)
        self._bytes = np.frombuffer(body, np.uint8)
        # Every position as the start of an 8-byte word: one gather reads 57 bits or more.
        self._words = np.ndarray((len(body) - 8,), ">u8", body, strides=(1,))
        self._counts = counts[order]
        self._out = (np.cumsum(counts) - counts)[order]
        self._end = ends[order] * 8
        starts = np.concatenate(([0], ends[:-1]))[order]
        self._at = (starts + 2) * 8
        self.overrun = False

    def run(self, times: Ints, bits: Words) -> None:
        """Read all samples into the flat outputs."""
        self._first()
        for step in range(int(self._counts[0])):
            live = int(np.searchsorted(-self._counts, -step, "left"))
            if step == 1:
                self._second(live)
            elif step > 1:
                self._next_time(live)
            if step:
                self._next_value(live)
            times[self._out[:live] + step] = self._time[:live]
            bits[self._out[:live] + step] = self._value[:live]
            # A damaged chunk stays inside the buffer; its samples are thrown away at the end.
            past = self._at > self._end
            self.overrun = self.overrun or bool(past.any())
            np.minimum(self._at, self._end, out=self._at)

    def _first(self) -> None:
        live = len(self._counts)
        raw = self._uvarint(live)
        self._time = (raw >> _ONE).view(np.int64) ^ -(raw & _ONE).view(np.int64)
        self._value = self._read64(self._at)
        self._at += 64
        self._delta = np.zeros(live, np.int64)
        self._lead = np.zeros(live, np.uint64)
        self._trail = np.zeros(live, np.uint64)

    def _second(self, live: int) -> None:
        self._delta[:live] = self._uvarint(live).view(np.int64)
        self._time[:live] += self._delta[:live]

    def _uvarint(self, live: int) -> Words:
        """Read one varint of each of the first `live` chunks; they are on byte bounds here."""
        value = np.zeros(live, np.uint64)
        more = np.ones(live, bool)
        for number in range(VARINT_BYTES_MAX):
            byte = self._bytes[np.minimum(self._at[:live] >> 3, len(self._bytes) - 1)]
            part = (byte & 0x7F).astype(np.uint64) << np.uint64(7 * number)
            value |= np.where(more, part, np.uint64(0))
            self._at[:live] += np.where(more, 8, 0)
            more &= byte >= 0x80
            if not more.any():
                break
        return value

    def _peek(self, at: Ints) -> Words:
        """Return at least 57 bits from `at` on, left-aligned."""
        word: Words = self._words[at >> 3].astype(np.uint64)
        shifted: Words = word << (at & 7).astype(np.uint64)
        return shifted

    def _read64(self, at: Ints) -> Words:
        """Return exactly 64 bits from `at` on."""
        byte = self._bytes[(at >> 3) + 8].astype(np.uint64)
        full: Words = self._peek(at) | (byte >> (np.uint64(8) - (at & 7).astype(np.uint64)))
        return full

    def _next_time(self, live: int) -> None:
        at = self._at[:live]
        word = self._peek(at)
        kind = word >> np.uint64(60)
        prefix, width = _PREFIX[kind], _WIDTH[kind]
        # `width` 0 would shift by 64, which is undefined: shift by 1 and 63 instead.
        raw = ((word << prefix) >> _ONE) >> (_63 - np.minimum(width, _63))
        change = raw.view(np.int64)
        half = _ONE << (np.maximum(width, _ONE) - _ONE)
        wrap = np.where(raw > half, _ONE << np.minimum(width, _63), np.uint64(0)).view(np.int64)
        change = change - wrap
        long = width == _64
        if long.any():
            change[long] = self._read64(at[long] + 4).view(np.int64)
        at += (prefix + width).view(np.int64)
        self._delta[:live] += change
        self._time[:live] += self._delta[:live]

    def _next_value(self, live: int) -> None:
        at, lead, trail = self._at[:live], self._lead[:live], self._trail[:live]
        word = self._peek(at)
        control = word >> np.uint64(62)
        changed, fresh = control >= 2, control == 3
        new_lead = (word << np.uint64(2)) >> np.uint64(59)
        new_size = (word << np.uint64(7)) >> np.uint64(58)
        new_size = np.where(new_size == 0, _64, new_size)
        lead[fresh] = new_lead[fresh]
        trail[fresh] = (_64 - new_lead - new_size)[fresh] & _63
        size = np.where(changed, _64 - lead - trail, _ONE)
        header = np.where(changed, np.where(fresh, 13, 2), 1)
        full = self._read64(at + header)
        xor = (full >> (_64 - size) & np.uint64(0xFFFFFFFFFFFFFFFF)) << trail
        self._value[:live] ^= np.where(changed, xor, np.uint64(0))
        at += header + np.where(changed, size, 0).astype(np.int64)
