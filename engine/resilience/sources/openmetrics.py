"""Files of OpenMetrics or Prometheus text with timestamps, as series.

Files of this kind reach gigabytes, so a block of plain lines (series, value, time; no exemplars)
is taken apart as a whole: NumPy finds the words, Arrow turns them into numbers. Any other block
goes through the line reader, which also finds the line of an error.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from array import array
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from resilience.errors import RecordingError
from resilience.samples import FIRST_MS, LAST_MS
from resilience.sources.exposition import NO_TIME, ExpositionError, Reader, Samples, decode
from resilience.sources.recording_format import name_of
from resilience.sources.series import Series, merge_series

BLOCK_BYTES = 8 * 1024 * 1024
SNIFF_BYTES = 4_096
_EOF = re.compile(rb"\n# EOF[ \t\r]*\n")
WORDS = 6
_SPACE, _NEWLINE, _HASH, _CLOSE = b" \n#}"
# Times before this are taken for seconds in milliseconds' clothing: 1973.
MILLISECONDS_MIN = 100_000_000_000

Columns = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]


def read_text(
    path: Path,
    *,
    openmetrics: bool,
    at_ms: int | None = None,
    wanted: Callable[[str], bool] = lambda _: True,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[list[Series], list[str]]:
    """Return the series whose metric is `wanted`, and notes; `progress` is told the bytes read.

    A sample without a time is taken as scraped at `at_ms` (None: when the file was last changed).
    Raises RecordingError with the line of the first error.
    """
    reader = _TextReader(openmetrics, wanted, _changed_ms(path) if at_ms is None else at_ms)
    try:
        for block, first_line in _blocks(path, progress):
            reader.take(block, first_line)
        reader.end()
    except ExpositionError as error:
        raise RecordingError(f"{path}:{error.line}: {error.message}") from None
    return reader.series(), reader.notes()


def _changed_ms(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns // 1_000_000
    except OSError as error:
        raise RecordingError(f"cannot read `{path}`: {(error.strerror or '').lower()}") from None


def _open(path: Path) -> BinaryIO:
    try:
        if path.suffix == ".gz":
            return cast(BinaryIO, gzip.open(path, "rb"))
        return path.open("rb")
    except OSError as error:
        raise RecordingError(f"cannot read `{path}`: {(error.strerror or '').lower()}") from None


def is_openmetrics(path: Path) -> bool:
    """Return whether a line is `# EOF`, the last one or not; raises RecordingError."""
    tail = b"\n"
    with _open(path) as file:
        if path.suffix != ".gz" and file.seekable() and _ends_with_eof(file, path):
            return True
        while more := _more(file, path):
            text = tail + more
            if _EOF.search(text):
                return True
            tail = text[-SNIFF_BYTES:]
    return _EOF.search(tail + b"\n") is not None


def _ends_with_eof(file: BinaryIO, path: Path) -> bool:
    """Look at the end of a file alone, and go back to its beginning: it may hold gigabytes."""
    start = max(file.seek(0, os.SEEK_END) - SNIFF_BYTES, 0)
    file.seek(start)
    end = _more(file, path)
    file.seek(0)
    return _EOF.search((b"" if start else b"\n") + end + b"\n") is not None


def _more(file: BinaryIO, path: Path) -> bytes:
    """Return the next block, empty at the end; raises RecordingError."""
    try:
        return file.read(BLOCK_BYTES)
    except (OSError, EOFError, zlib.error):
        raise RecordingError(f"`{path}` is damaged: it cannot be unpacked") from None


def _blocks(path: Path, progress: Callable[[int], None]) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of whole lines and the number of their first line."""
    rest, line, read = b"", 1, 0
    with _open(path) as file:
        while chunk := _more(file, path):
            read += len(chunk)
            whole, newline, tail = (rest + chunk).rpartition(b"\n")
            rest = tail
            if newline:
                yield whole + newline, line
                line += whole.count(b"\n") + 1
            elif len(rest) > BLOCK_BYTES:
                raise ExpositionError(line, "the line is too long")
            progress(read)
    if rest:
        yield rest + b"\n", line


class _TextReader:
    """Collects samples; `_keep[i]` says whether series i of the line reader is wanted."""

    def __init__(
        self, openmetrics: bool, wanted: Callable[[str], bool], at_ms: int = 0
    ) -> None:
        self._openmetrics = openmetrics
        self._at_ms = at_ms
        self._untimed = 0
        self._wanted = wanted
        self._reader = Reader(openmetrics=openmetrics)
        self._keep: list[bool] = []
        self._places: dict[bytes, int] = {}
        self._columns: list[Columns] = []
        self._ended = False
        self._lines = 1
        self._oldest = MILLISECONDS_MIN

    def take(self, block: bytes, first_line: int) -> None:
        found = None if self._ended else self._plain(block)
        if found is None:
            found = self._line_by_line(block, first_line)
        keep = self._kept()[found[0]]
        if not keep.all():
            found = (found[0][keep], found[1][keep], found[2][keep])
        self._columns.append(found)
        self._lines = first_line + block.count(b"\n")

    def end(self) -> None:
        """Check that an OpenMetrics text was complete."""
        if self._openmetrics and not self._ended:
            raise ExpositionError(self._lines, "the text does not end with `# EOF`")

    def _kept(self) -> NDArray[np.bool_]:
        labels = self._reader.labels
        self._keep += [self._wanted(name_of(one)) for one in labels[len(self._keep) :]]
        return np.array(self._keep, bool)

    def _line_by_line(self, block: bytes, first_line: int) -> Columns:
        samples = Samples()
        text = decode(block, first_line)
        self._ended = self._reader.feed(text, samples, first_line=first_line, ended=self._ended)
        times = np.frombuffer(samples.times_ms, np.int64)
        untimed = times == NO_TIME
        if untimed.any():
            self._untimed += int(untimed.sum())
            times = np.where(untimed, self._at_ms, times)
        series = np.frombuffer(array("q", samples.series), np.int64)
        return series, np.frombuffer(samples.values, np.float64), times

    # --- whole blocks --------------------------------------------------------------------------

    def _plain(self, block: bytes) -> Columns | None:
        """Return the samples of a block of plain lines, None if it holds anything else."""
        body = block.rstrip()
        ended = body.endswith(b"# EOF")
        if ended:
            body = body[: -len(b"# EOF")]
        if b"\n# EOF" in body:
            return None
        bounds = _word_bounds(body)
        if bounds is None:
            return None
        try:
            keys, values, times = self._numbers(body, bounds)
            places = np.array([self._place(key) for key in keys.dictionary.to_pylist()], np.int64)
        except (pa.ArrowException, ExpositionError, UnicodeDecodeError):
            return None
        self._ended = ended
        indices = keys.indices.to_numpy()
        return (places[indices] if len(places) else indices.astype(np.int64)), values, times

    def _place(self, key: bytes) -> int:
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = self._reader.index_of(key.decode("utf-8"))
        return place

    def _numbers(
        self, body: bytes, bounds: NDArray[np.int32]
    ) -> tuple[pa.DictionaryArray, NDArray[np.float64], NDArray[np.int64]]:
        count = len(bounds) - 1
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(body)]
        words = pa.StringArray.from_buffers(count, buffers[1], buffers[2])
        every = np.arange(0, count, WORDS)
        keys = pa.Array.from_buffers(pa.binary(), count, buffers).take(pa.array(every))
        values = pc.cast(words.take(pa.array(every + 2)), pa.float64()).to_numpy()
        stamps = words.take(pa.array(every + 4))
        if self._openmetrics:
            seconds = pc.cast(stamps, pa.float64()).to_numpy()
            if not (np.abs(seconds) <= LAST_MS).all():  # far beyond what fits; NaN is not
                raise pa.ArrowInvalid("a time is not finite")
            times = (seconds * 1000).astype(np.int64)
        else:
            times = pc.cast(stamps, pa.int64()).to_numpy()
        if times.min() < FIRST_MS or times.max() > LAST_MS:
            raise pa.ArrowInvalid("a time is out of range")
        return keys.dictionary_encode(), values, times

    # --- the result ----------------------------------------------------------------------------

    def series(self) -> list[Series]:
        """Return the wanted series in order of first appearance."""
        if not self._columns:
            return []
        series, values, times = (np.concatenate(c) for c in zip(*self._columns, strict=True))
        self._columns = []
        order = np.argsort(series, kind="stable")
        series, values, times = series[order], values[order], times[order]
        present, starts = np.unique(series, return_index=True)
        if not len(series):
            return []
        ends = [*starts[1:], len(series)]
        self._oldest = int(times.min())
        return [
            merge_series([Series(self._reader.labels[i], times[a:b], values[a:b])])
            for i, a, b in zip(present, starts, ends, strict=True)
        ]

    def notes(self) -> list[str]:
        found: list[str] = []
        if self._untimed:
            at = datetime.fromtimestamp(self._at_ms / 1000, UTC).isoformat(timespec="seconds")
            found.append(f"{self._untimed} samples have no time: taken as scraped at {at}")
        if not self._openmetrics and self._oldest < MILLISECONDS_MIN:
            found.append(
                "the times lie before 1973: are they seconds? then say that it is OpenMetrics, "
                "or end the text with `# EOF`"
            )
        return found


def _word_bounds(body: bytes) -> NDArray[np.int32] | None:
    """Return where the words of each sample line begin, six to a line, and the end.

    The words are: series, blank, value, blank, time, and all up to the next sample. None if a
    line is not of this kind.
    """
    text = np.frombuffer(body, np.uint8)
    if not len(text) or b"\t" in body or b"\r" in body:
        return None
    ends = np.flatnonzero(text == _NEWLINE)
    if not len(ends) or ends[-1] != len(text) - 1:
        ends = np.append(ends, len(text))
    starts = np.concatenate(([0], ends[:-1] + 1))
    samples = (starts < ends) & (text[np.minimum(starts, len(text) - 1)] != _HASH)
    if body.count(b"#") != _comment_hashes(body, starts[~samples], ends[~samples]):
        return None
    starts, ends = starts[samples], ends[samples]
    spaces = np.flatnonzero(text == _SPACE)
    last = np.searchsorted(spaces, ends) - 1
    if not len(starts) or last.min() < 1:
        return None
    before_time, before_value = spaces[last], spaces[last - 1]
    closed = text[before_value - 1] == _CLOSE
    two = np.searchsorted(spaces, starts) == last - 1
    if not ((before_value > starts) & (closed | two)).all():
        return None
    bounds = np.stack(
        [starts, before_value, before_value + 1, before_time, before_time + 1, ends], axis=1
    )
    return np.append(bounds.ravel(), len(text)).astype(np.int32)


def _comment_hashes(body: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> int:
    """Count the `#` of comment lines; any other belongs to an exemplar or a label."""
    lines = zip(starts.tolist(), ends.tolist(), strict=True)
    return sum(body.count(b"#", start, end) for start, end in lines)
