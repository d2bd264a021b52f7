"""Reads the pages of a recording file into place, without Arrow: for files that are laid out as
`recording_write` does, where the compiled kernel is there.

Arrow spends most of its time on what makes its lists general, and its import alone takes as long
as the samples of a day. Whatever does not look as expected is `UnfitError`: Arrow reads it then,
or says what is wrong.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from resilience.promql import kernel
from resilience.sources.recording_format import META_KEY
from resilience.sources.recording_rows import Places, Rows, shared

Struct: TypeAlias = dict[int, Any]  # one of Thrift's: field number -> value

MAGIC = b"PAR1"
FOOTER_MAX = 64 * 2**20
LEVELS_MAX = 2**24  # in one column of one part; but for values, which their groups bound
EXPANSION_MAX = 256  # LZ4 cannot pack tighter
DATA_PAGE, DICTIONARY_PAGE = 0, 2
PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY, BYTE_STREAM_SPLIT = 0, 2, 3, 8, 9
UNCOMPRESSED, LZ4_RAW = 0, 7
# (name, physical type, repetition, children) of the columns of `recording_schema`, depth first.
_TEXT, _INT32, _INT64, _DOUBLE = 6, 1, 2, 5
SCHEMA: tuple[tuple[bytes, int | None, int | None, int | None], ...] = (
    (b"kind", _TEXT, 1, None), (b"name", _TEXT, 1, None),
    (b"labels", None, 1, 1), (b"key_value", None, 2, 2),
    (b"key", _TEXT, 0, None), (b"value", _TEXT, 1, None),
    (b"group", _INT32, 1, None),
    (b"t", None, 1, 1), (b"list", None, 2, 1), (b"element", _INT64, 1, None),
    (b"seq", None, 1, 1), (b"list", None, 2, 1), (b"element", _INT64, 1, None),
    (b"v", None, 1, 1), (b"list", None, 2, 1), (b"element", _DOUBLE, 1, None),
    (b"body", _TEXT, 1, None),
)


class UnfitError(Exception):
    """Not laid out as we write it: to be read with Arrow."""


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column of the file: its place, its greatest levels, and what it holds."""

    index: int
    repeated: bool
    level: int
    text: bool = False


KIND, NAME = _Leaf(0, False, 1, True), _Leaf(1, False, 1, True)
KEY, VALUE = _Leaf(2, True, 2, True), _Leaf(3, True, 3, True)
GROUP, T, SEQ = _Leaf(4, False, 1), _Leaf(5, True, 3), _Leaf(6, True, 3)
V, BODY = _Leaf(7, True, 3), _Leaf(8, False, 1, True)


@dataclass(frozen=True, slots=True)
class _Page:
    kind: int
    count: int
    encoding: int
    body: memoryview


@dataclass(frozen=True, slots=True, eq=False)
class _Column:
    """Levels uint8[N], and the values where `levels` is the leaf's greatest."""

    again: NDArray[np.uint8]
    levels: NDArray[np.uint8]
    values: Sequence[Any]


class PagedFile:
    """Implements `recording_read.RecordingFile`; a context manager that closes the file."""

    def __init__(self, path: Path) -> None:
        """Raises UnfitError, OSError, ValueError or IndexError if it cannot be read this way."""
        compiled = kernel.active()
        if compiled is None or sys.byteorder != "little":
            raise UnfitError("no compiled kernel")
        self._kernel = compiled
        self._file = path.open("rb", buffering=0)
        self._raw, self._scratch = bytearray(), bytearray()
        try:
            self._footer = self._read_footer()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> PagedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    # --- the footer -----------------------------------------------------------------------------

    def _read_footer(self) -> Struct:
        self._size = os.fstat(self._file.fileno()).st_size
        end = bytes(self._read(max(self._size - 8, 0), 8))
        size = int.from_bytes(end[:4], "little")
        if end[4:] != MAGIC or not 0 < size <= min(FOOTER_MAX, self._size - 12):
            raise UnfitError("no footer")
        footer, _ = self._kernel.thrift(self._read(self._size - 8 - size, size), 0)
        columns = tuple((e[4], e.get(1), e.get(3), e.get(5)) for e in footer[2][1:])
        if columns != SCHEMA or footer[2][0].get(5) != 8:
            raise UnfitError("other columns")
        return footer

    def _read(self, start: int, size: int) -> memoryview:
        """Return bytes of the file, which are only good until the next are read."""
        if start < 0 or size < 0 or start + size > self._size:
            raise UnfitError("a place outside of the file")
        if len(self._raw) < size:
            self._raw = bytearray()              # first, so that its memory can serve again
            self._raw = bytearray(size)
        data = memoryview(self._raw)[:size]
        self._file.seek(start)
        if self._file.readinto(data) != size:
            raise UnfitError("the file is cut")
        return data

    @property
    def meta_text(self) -> bytes | None:
        pairs = (e for e in self._footer.get(5, ()) if e[1] == META_KEY)
        return next((bytes(e[2]) for e in pairs), None)

    @property
    def parts(self) -> int:
        return len(self._footer[4])

    def _chunk(self, part: int, leaf: _Leaf) -> Struct:
        found: Struct = self._footer[4][part][1][leaf.index][3]
        return found

    def _rows(self, part: int) -> int:
        rows = int(self._footer[4][part][3])
        if not 0 <= rows <= LEVELS_MAX:
            raise UnfitError("too many rows")
        return rows

    def bounds(self, part: int, column: str) -> tuple[str, str] | None:
        found = self._chunk(part, {"kind": KIND, "name": NAME}[column]).get(12, {})
        if 5 not in found or 6 not in found:
            return None
        return str(found[6], "utf-8"), str(found[5], "utf-8")

    # --- pages ----------------------------------------------------------------------------------

    def _pages(self, part: int, leaf: _Leaf) -> Iterator[_Page]:
        """Yield the pages of a column; a body is only good until the next is asked for."""
        chunk = self._chunk(part, leaf)
        start = chunk.get(11) or chunk[9]
        data = self._read(start, chunk[7])
        at = 0
        while at < len(data):
            header, at = self._kernel.thrift(data, at)
            body = data[at : at + header[3]]
            at += len(body)
            inner = header.get(5) or header.get(7)
            if inner is None or header[1] not in (DATA_PAGE, DICTIONARY_PAGE):
                raise UnfitError("pages of another kind")
            if header[1] == DATA_PAGE and (inner[3], inner[4]) != (RLE, RLE):
                raise UnfitError("levels in another encoding")
            yield _Page(header[1], inner[1], inner[2], self._unpacked(body, header[2], chunk[4]))

    def _unpacked(self, body: memoryview, size: int, codec: int) -> memoryview:
        if codec == UNCOMPRESSED:
            return body
        if codec != LZ4_RAW or not 0 <= size <= EXPANSION_MAX * (len(body) + 1):
            raise UnfitError("packed otherwise")
        if len(self._scratch) < size:
            self._scratch = bytearray()
            self._scratch = bytearray(size)
        target = memoryview(self._scratch)[:size]
        self._kernel.lz4(body, target)
        return target

    # --- rows -----------------------------------------------------------------------------------

    def rows(self, part: int, only_series: bool) -> Rows:
        size = self._rows(part)
        kinds, names = self._flat(part, KIND, size), self._flat(part, NAME, size)
        groups = self._flat(part, GROUP, size)
        keys, texts, offsets = self._labels(part, size)
        if only_series:
            return Rows(kinds, names, groups, keys, texts, offsets)
        t, seq = self._lists(part, T, size), self._lists(part, SEQ, size)
        body = self._flat(part, BODY, size)
        return Rows(kinds, names, groups, keys, texts, offsets, t, seq, body)

    def _flat(self, part: int, leaf: _Leaf, size: int) -> Sequence[Any]:
        """Return one value for each row, None for a null."""
        column = self._column(part, leaf)
        if len(column.levels) != size:
            raise UnfitError("other rows")
        if len(column.values) == size:
            return column.values
        values = iter(column.values)
        there = (column.levels == leaf.level).tolist()
        return [next(values) if one else None for one in there]

    def _labels(
        self, part: int, size: int
    ) -> tuple[Sequence[str], Sequence[str | None], list[int]]:
        """Return the labels of all rows one after the other, and where each row's begin."""
        keys, texts = self._column(part, KEY), self._column(part, VALUE)
        there = keys.levels == KEY.level
        if not np.array_equal(keys.again, texts.again):
            raise UnfitError("keys and values differ in number")
        if not np.array_equal(there, texts.levels >= VALUE.level - 1):
            raise UnfitError("keys and values differ in number")
        values = texts.values
        if len(values) != len(keys.values):
            again = iter(values)
            present = (texts.levels[there] == VALUE.level).tolist()
            values = [next(again) if p else None for p in present]
        if len(values) != len(keys.values):
            raise UnfitError("keys and values differ in number")
        return keys.values, values, self._offsets(keys.again, there, size)

    def _lists(self, part: int, leaf: _Leaf, size: int) -> list[NDArray[np.int64]]:
        column = self._column(part, leaf)
        there = column.levels == leaf.level
        if (column.levels == leaf.level - 1).any():
            raise UnfitError("a number is missing")
        offsets = self._offsets(column.again, there, size)
        numbers = np.asarray(column.values, np.int64)
        return [numbers[a:b] for a, b in zip(offsets, offsets[1:], strict=False)]

    @staticmethod
    def _offsets(
        again: NDArray[np.uint8], there: NDArray[np.bool_], size: int
    ) -> list[int]:
        """Return where the list of each row begins among the values that are there."""
        begins = np.flatnonzero(again == 0)
        if len(begins) != size or (size and begins[0]):
            raise UnfitError("other rows")
        if there.all():
            return [*begins.tolist(), len(there)]
        before = np.concatenate(([0], np.cumsum(there)))
        return [*before[begins].tolist(), int(before[-1])]

    def _column(self, part: int, leaf: _Leaf) -> _Column:
        """Return a column other than the samples."""
        total = self._chunk(part, leaf)[5]
        if not 0 <= total <= LEVELS_MAX:
            raise UnfitError("too many values")
        again, levels = np.zeros(total, np.uint8), np.empty(total, np.uint8)
        texts: list[str] = []
        numbers = np.empty(0 if leaf.text else total, np.int64)
        dictionary: list[str] = []
        known: dict[str, str] = {}
        row = have = 0
        for page in self._pages(part, leaf):
            if page.kind == DICTIONARY_PAGE:
                dictionary = shared(_texts(page.body, page.count), known)
                continue
            place = slice(row, row + page.count)
            if not row <= place.stop <= total:
                raise UnfitError("too many values")
            at = self._levels(page, 0, 1, again[place]) if leaf.repeated else 0
            at = self._levels(page, at, leaf.level.bit_length(), levels[place])
            count = int(np.count_nonzero(levels[place] == leaf.level))
            if leaf.text:
                texts += self._page_texts(page, at, count, dictionary, known)
            else:
                self._page_numbers(page, at, leaf, numbers[have : have + count])
            row, have = place.stop, have + count
        if row < total:
            raise UnfitError("values are missing")
        if leaf.text:
            return _Column(again, levels, texts)
        found: Any = numbers[:have]
        return _Column(again, levels, found.tolist() if leaf is GROUP else found)

    def _levels(self, page: _Page, at: int, width: int, out: NDArray[np.uint8]) -> int:
        """Read the levels of a page; return where they end."""
        end = at + 4 + int.from_bytes(page.body[at : at + 4], "little")
        if end > len(page.body):
            raise UnfitError("levels reach over the end")
        self._kernel.hybrid(page.body[:end], at + 4, width, out)
        return end

    def _page_texts(
        self, page: _Page, at: int, count: int, dictionary: list[str], known: dict[str, str]
    ) -> list[str]:
        body = page.body[at:]
        if page.encoding in (PLAIN_DICTIONARY, RLE_DICTIONARY):
            places = np.empty(count, np.int32)
            if count:
                self._kernel.hybrid(body, 1, body[0], places)
                if places.min() < 0:
                    raise UnfitError("a place outside of the dictionary")
            return [dictionary[i] for i in places.tolist()]
        if page.encoding != PLAIN:
            raise UnfitError("texts in another encoding")
        return shared(_texts(body, count), known)

    def _page_numbers(self, page: _Page, at: int, leaf: _Leaf, out: NDArray[np.int64]) -> None:
        body = page.body[at:]
        kind = np.dtype("<i4" if leaf is GROUP else "<i8")
        if len(body) != len(out) * kind.itemsize:
            raise UnfitError("numbers reach over the end")
        if page.encoding == PLAIN:
            out[:] = np.frombuffer(body, kind)
        elif page.encoding == BYTE_STREAM_SPLIT and leaf is not GROUP:
            self._kernel.joined(body, out)
        else:
            raise UnfitError("numbers in another encoding")

    # --- samples --------------------------------------------------------------------------------

    def fill(self, part: int, places: Places, target: NDArray[np.float64]) -> None:
        size = self._rows(part)
        if len(places.starts) != size:
            raise UnfitError("other rows")
        state = np.array([-1, 0], np.int64)
        room = len(target) + LEVELS_MAX
        places.gaps[:] = -1
        for page in self._pages(part, V):
            room -= page.count
            if page.encoding not in (PLAIN, BYTE_STREAM_SPLIT) or page.count < 0 or room < 0:
                raise UnfitError("values in another encoding")
            self._kernel.lists(
                page.body, page.encoding == BYTE_STREAM_SPLIT, page.count, state, places.lengths,
                places.starts, places.gaps, target,
            )
        row, have = state.tolist()
        if row != size - 1 or (places.starts[row] >= 0 and have != places.lengths[row]):
            raise UnfitError("other rows")


def _texts(body: memoryview, count: int) -> list[str]:
    """Return texts that lie one after the other, each behind its size."""
    found: list[str] = []
    at = 0
    for _ in range(count):
        end = at + 4 + int.from_bytes(body[at : at + 4], "little")
        if end > len(body) or at + 4 > len(body):
            raise UnfitError("a text reaches over the end")
        found.append(str(body[at + 4 : end], "utf-8"))
        at = end
    return found
