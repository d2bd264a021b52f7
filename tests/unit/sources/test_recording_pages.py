"""Recordings read page by page: the same as Arrow reads, or left to Arrow."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from resilience.errors import RecordingError
from resilience.promql import kernel
from resilience.promql.storage import ABSENT, STALE, last_gaps
from resilience.samples import Labels, labels_of
from resilience.sources import recording_read
from resilience.sources.recording_format import Contents, Group, RecordingMeta
from resilience.sources.recording_pages import PagedFile, UnfitError
from resilience.sources.recording_read import read_file
from resilience.sources.recording_rows import Names, Rows, label_sets
from resilience.sources.recording_write import write_file

META = RecordingMeta("test")
needs_kernel = pytest.mark.skipif(kernel.COMPILED is None, reason="no compiled kernel here")


def series(name: str, **labels: str) -> Labels:
    return labels_of({"__name__": name, **labels})


def groups(seed: int) -> list[Group]:
    """Groups of odd shapes: one sample, none, more than a page, with gaps and odd values."""
    source = np.random.default_rng(seed)
    odd = np.array([ABSENT, STALE, np.nan, np.inf, -0.0, 0.0, 5e-324, 1e308])
    found: list[Group] = []
    for number, (rows, columns) in enumerate([(1, 1), (3, 7), (5, 700), (2, 90_000), (0, 4)]):
        values = source.random((rows, columns)) if number % 2 else source.integers(
            0, 9, (rows, columns)
        ).astype(np.float64)
        if number % 3 == seed % 3:
            places = source.random((rows, columns)) < 0.1
            values[places] = source.choice(odd, int(places.sum()))
        times = np.cumsum(source.integers(1, 20_000, columns)).astype(np.int64)
        labels = [series(f"m{i % 2}", g=str(number), i=str(i), long="ü" * i) for i in range(rows)]
        found.append(Group(labels, times, np.arange(columns, dtype=np.int64), values, number))
    return found


def events(count: int) -> list[dict[str, Any]]:
    return [{"type": "tick" if i % 2 else "note", "t_ms": i, "text": "x" * i} for i in range(count)]


def by_pages(path: Path, names: Names = None) -> Contents:
    with PagedFile(path) as file:
        return recording_read._contents(file, path, names)


def equal(a: Contents, b: Contents) -> None:
    assert a.meta == b.meta
    assert a.events == b.events
    assert [g.number for g in a.groups] == [g.number for g in b.groups]
    for x, y in zip(a.groups, b.groups, strict=True):
        assert x.labels == y.labels
        assert x.times_ms.tobytes() == y.times_ms.tobytes()
        assert x.seqs.tobytes() == y.seqs.tobytes()
        assert x.values.tobytes() == y.values.tobytes()
        if x.labels:
            assert x.gaps is not None
            assert x.gaps.tolist() == last_gaps(y.values).tolist()


@needs_kernel
@pytest.mark.parametrize("names", [None, frozenset({"m1"}), frozenset({"none"})])
@pytest.mark.parametrize("seed", range(6))
def test_pages_hold_what_arrow_reads(
    tmp_path: Path, seed: int, names: frozenset[str] | None
) -> None:
    path = tmp_path / "r.parquet"
    write_file(path, groups(seed), events(seed * 7), META)
    equal(by_pages(path, names), recording_read._read_arrow(path, names))


@needs_kernel
def test_what_was_written_is_read_without_arrow(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "r.parquet"
    write_file(path, groups(1), events(3), META)
    monkeypatch.setattr(recording_read, "_read_arrow", None)
    assert len(read_file(path).events) == 3


def rewritten(path: Path, **options: Any) -> Path:
    """The same table as somebody else would write it."""
    table = pq.read_table(path)
    other = path.with_name("other.parquet")
    pq.write_table(table, other, **options)
    return other


@needs_kernel
@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zstd"}, {"compression": "snappy"}, {"compression": "gzip"},
        {"compression": "none"}, {"compression": "lz4", "use_dictionary": False},
        {"compression": "lz4", "data_page_version": "2.0"},
        {"compression": "lz4", "write_page_checksum": True},
        {"compression": "lz4", "row_group_size": 3, "data_page_size": 64},
    ],
)
def test_files_of_other_writers_are_read_all_the_same(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    path = tmp_path / "r.parquet"
    write_file(path, groups(2), events(5), META)
    other = rewritten(path, **options)
    expected = recording_read._read_arrow(path, None)
    found = read_file(other)
    for x, y in zip(found.groups, expected.groups, strict=True):
        assert x.labels == y.labels
        assert x.values.tobytes() == y.values.tobytes()
    assert found.events == expected.events


@needs_kernel
@pytest.mark.parametrize("seed", range(80))
def test_changed_bytes_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    """No byte makes the compiled reader read or write where it should not."""
    source = random.Random(seed)
    path = tmp_path / "r.parquet"
    write_file(path, groups(seed)[:3], events(4), META)
    raw = bytearray(path.read_bytes())
    for _ in range(source.choice([1, 2, 30])):
        raw[source.randrange(len(raw))] = source.choice([0, 1, 127, 255, source.randrange(256)])
    path.write_bytes(raw)
    try:
        read_file(path)
    except RecordingError as error:
        assert "\n" not in str(error)


@needs_kernel
def test_damaged_blocks_are_refused() -> None:
    compiled = kernel.COMPILED
    assert compiled is not None
    blocks = [b"", b"\x10", b"\xf0", b"\xf0" + b"\xff" * 40, b"\x00\x01\x00", b"\x14a\x02\x00\x00",
              b"\x1fa\x01\x00" + b"\xff" * 9, b"\x50abcde"]
    for block in blocks:
        with pytest.raises(ValueError, match="damaged"):
            compiled.lz4(block, bytearray(4))
    out = bytearray(9)
    compiled.lz4(b"\x13a\x01\x00\x10b", out)
    assert out == b"aaaaaaaab"
    numbers = np.empty(9, np.int32)
    for levels in (b"", b"\x80", b"\x03", b"\xff\xff\xff\xff\xff\x01", b"\x04\x01"):
        with pytest.raises(ValueError, match="damaged"):
            compiled.hybrid(levels, 0, 1, numbers)


@pytest.mark.parametrize(
    "data", [b"", b"\x15", b"\x18\xff\xff\x7f", b"\x19\xfc\xff\xff\x7f", b"\x1d\x00", b"\x1c" * 99,
             b"\x16" + b"\xff" * 12, b"\x16" + b"\xff" * 9 + b"\x02\x00", b"\x11\x1e\x00",
             b"\x19" * 4_000_000, b"\x19\xf9\xff\xff\xff\x01" * 99]
)
@needs_kernel
def test_broken_thrift_is_an_error(data: bytes) -> None:
    assert kernel.COMPILED is not None
    with pytest.raises(ValueError):
        kernel.COMPILED.thrift(data, 0)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"\x00", {}),
        (b"\x15\x02\x15\x01\x00", {1: 1, 2: -1}),
        (b"\x16" + b"\xff" * 9 + b"\x01\x00", {1: -(2**63)}),
        (b"\x11\x12\x00", {1: True, 2: False}),
        (b"\x05\x0c\x04\x00", {6: 2}),
        (b"\x18\x02ab\x00", {1: b"ab"}),
        (b"\x19\x25\x02\x04\x00", {1: [1, 2]}),
        (b"\x19\x21\x01\x02\x00", {1: [1, 2]}),
        (b"\x1c\x15\x02\x00\x00", {1: {1: 1}}),
        (b"\x17\x00\x00\x00\x00\x00\x00\xf0\x3f\x13\x07\x00",
         {1: bytes.fromhex("000000000000f03f"), 2: 7}),
    ],
)
@needs_kernel
def test_thrift(data: bytes, found: dict[int, object]) -> None:
    assert kernel.COMPILED is not None
    assert kernel.COMPILED.thrift(b"??" + data + b"?", 2) == (found, len(data) + 2)
    for end in range(len(data)):
        with pytest.raises(ValueError):
            kernel.COMPILED.thrift(data[:end], 0)


def rows_of(source: random.Random) -> Rows:
    """Rows as any writer may leave them: no order, nulls, empty texts, sometimes a label twice."""
    keys: list[str] = []
    texts: list[str | None] = []
    offsets = [0]
    names = [source.choice(["up", "ü", "", None, "A"]) for _ in range(9)]
    for _ in names:
        have = source.sample(["a", "A", "ü", "z\U0001f600", "_", "job"], source.randrange(6))
        for key in [*have, *have[: source.random() < 0.05]]:
            keys.append(key)
            texts.append(source.choice(["", None, "x", "y", "ü", "long" * 9]))
        offsets.append(len(keys))
    return Rows(["series"] * 9, names, [0] * 9, keys, texts, offsets)


@needs_kernel
@pytest.mark.parametrize("seed", range(30))
def test_labels_are_the_same_with_the_kernel(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(20):
        rows = rows_of(source)
        found: list[object] = []
        for compiled in (True, False):
            try:
                kernel.use(compiled)
                found.append(label_sets(rows, list(range(9))))
            except ValueError as error:
                found.append(str(error))
            finally:
                kernel.use(True)
        assert found[0] == found[1]


@needs_kernel
@pytest.mark.parametrize(
    ("keys", "texts", "offsets", "names", "rows"),
    [
        (["a"], ["b"], [0, 2], ["n"], [0]), (["a"], [], [0, 1], ["n"], [0]),
        (["a"], ["b"], [-1, 1], ["n"], [0]), (["a"], ["b"], [0, 2**70], ["n"], [0]),
        (["a"], ["b"], [0, 1], ["n"], [1]), (["a"], ["b"], [0, 1], ["n"], [-1]),
        (["a"], ["b"], [0], ["n"], [0]), (["a"], ["b"], [0, 1], [], [0]),
        ([None], ["b"], [0, 1], ["n"], [0]), (["a"], [7], [0, 1], ["n"], [0]),
        (["a"], ["b"], [0, 1], [7], [0]), (["a"], ["b"], ["0", "1"], ["n"], [0]),
        (("a",), ["b"], [0, 1], ["n"], [0]),
    ],
)
def test_labels_that_reach_outside_are_refused(
    keys: Any, texts: Any, offsets: Any, names: Any, rows: Any
) -> None:
    assert kernel.COMPILED is not None
    with pytest.raises((ValueError, TypeError, OverflowError)):
        kernel.COMPILED.label_sets(keys, texts, offsets, names, rows)


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("read", [
    pytest.param(by_pages, marks=needs_kernel), recording_read._read_arrow,
])
def test_equal_texts_of_labels_are_one_object(
    tmp_path: Path, read: Callable[[Path, Names], Contents], dictionary: bool
) -> None:
    labels = [series("up", job=f"job {i % 3}", instance=f"host {i}") for i in range(300)]
    path, plain = tmp_path / "a.parquet", tmp_path / "b.parquet"
    write_file(path, [Group(labels, np.zeros(1, np.int64), np.zeros(1, np.int64),
                            np.zeros((300, 1)), 0)], [], META)
    pq.write_table(pq.read_table(path), plain, use_dictionary=False, compression="lz4")
    found = read(path if dictionary else plain, None).groups[0].labels
    assert sorted(found) == sorted(labels)
    texts = [text for one in found for pair in one for text in pair]
    assert len({id(text) for text in texts}) == len(set(texts))


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_kernel), False])
@pytest.mark.parametrize("offsets", [[0, -1], [-1, 1], [-2, -1], [2, 1], [1, 3], [3, 3]])
def test_labels_outside_their_columns_are_refused(offsets: list[int], compiled: bool) -> None:
    rows = Rows(["series"], ["n"], [0], ["a", "b"], ["x", "y"], offsets)
    try:
        kernel.use(compiled)
        with pytest.raises(ValueError, match="^labels reach outside their columns$"):
            label_sets(rows, [0])
    finally:
        kernel.use(True)


def test_without_a_kernel_arrow_reads(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    write_file(path, groups(3), events(2), META)
    with_it = read_file(path)
    try:
        kernel.use(False)
        with pytest.raises(UnfitError):
            PagedFile(path)
        assert read_file(path).events == with_it.events
    finally:
        kernel.use(True)
