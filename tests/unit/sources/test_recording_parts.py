"""The Parquet format and the folder of parts: what goes in comes out, also after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.errors import RecordingError
from resilience.model import Labels, labels_of
from resilience.promql.storage import ABSENT, STALE, is_absent, is_stale
from resilience.sources.recording_format import Contents, Group, RecordingMeta
from resilience.sources.recording_parts import merge_parts, read_parts
from resilience.sources.recording_read import read_file, read_meta
from resilience.sources.recording_write import write_file
from resilience.sources.recording_writer import RecordingWriter

META = RecordingMeta("embedded", "vllm 0.32", 1_000, start_ms=1_000, end_ms=3_000, revision="r")
Cells = dict[Labels, list[tuple[int, int, int]]]


def name(text: str, **labels: str) -> Labels:
    return labels_of({"__name__": text, **labels})


def cells(contents: Contents) -> Cells:
    """Return (seq, time, bits) of each sample, by series."""
    found: Cells = {}
    for group in contents.groups:
        for labels, row in zip(group.labels, group.values, strict=True):
            bits = row.view(np.int64)
            found[labels] = [
                (int(group.seqs[i]), int(group.times_ms[i]), int(bits[i]))
                for i in np.flatnonzero(~is_absent(row))
            ]
    return {labels: samples for labels, samples in found.items() if samples}


def small() -> tuple[list[Group], list[dict[str, object]]]:
    values = np.array([[1.0, np.nan, STALE], [ABSENT, -0.0, np.inf]])
    group = Group(
        [name("b", x="1"), name("a")], np.array([1_000, 2_000, 3_000]), np.array([1, 2, 3]), values
    )
    other = Group([name("a", x="2")], np.array([1_500]), np.array([4]), np.array([[7.0]]), 1)
    events: list[dict[str, object]] = [
        {"type": "tick", "t_ms": 1_000, "seq": 1},
        {"type": "query", "t_ms": 1_000, "value": "NaN"},
        {"type": "tick", "t_ms": 2_000, "seq": 2},
    ]
    return [group, other], events


def test_a_file_gives_back_every_bit(tmp_path: Path) -> None:
    groups, events = small()
    write_file(tmp_path / "r.parquet", groups, events, META)
    back = read_file(tmp_path / "r.parquet")
    assert back.meta == META == read_meta(tmp_path / "r.parquet")
    assert cells(back) == cells(Contents(META, tuple(groups), ()))
    assert list(back.bodies) == events
    assert is_stale(back.groups[0].values).sum() == 1
    assert os.listdir(tmp_path) == ["r.parquet"]


def test_the_rows_are_those_of_the_contract(tmp_path: Path) -> None:
    groups, events = small()
    write_file(tmp_path / "r.parquet", groups, events, META)
    table = pq.read_table(tmp_path / "r.parquet")
    rows = table.to_pylist()
    assert [(r["kind"], r["name"]) for r in rows] == [
        ("event", "query"),
        ("event", "tick"),
        ("event", "tick"),
        ("group", ""),
        ("group", ""),
        ("series", "a"),
        ("series", "a"),
        ("series", "b"),
    ]
    assert rows[3]["t"] == [1_000, 2_000, 3_000]
    assert rows[3]["seq"] == [1, 2, 3]
    assert rows[5]["v"][0] is None
    assert rows[7]["labels"] == [("x", "1")]
    assert table.schema.field("v").type == pa.list_(pa.float64())


def test_only_the_named_metrics_are_loaded(tmp_path: Path) -> None:
    groups, events = small()
    write_file(tmp_path / "r.parquet", groups, events, META)
    back = read_file(tmp_path / "r.parquet", frozenset({"b"}))
    assert [labels for g in back.groups for labels in g.labels] == [name("b", x="1")]
    assert len(back.events) == 3
    none = read_file(tmp_path / "r.parquet", frozenset({"zzz"}))
    assert not any(g.labels for g in none.groups)


@pytest.mark.parametrize("content", [b"", b"not parquet", b"PAR1" + bytes(40) + b"PAR1"])
def test_a_file_that_is_no_recording(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(RecordingError, match="not a recording"):
        read_file(tmp_path / "x")


def test_a_parquet_file_of_another_kind(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x.parquet")
    with pytest.raises(RecordingError, match="not a recording"):
        read_file(tmp_path / "x.parquet")
    with pytest.raises(RecordingError, match="no recording"):
        read_file(tmp_path / "none.parquet")


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    groups, events = small()
    write_file(tmp_path / "r.parquet", groups, events, META)
    body = (tmp_path / "r.parquet").read_bytes()
    for keep in range(0, len(body), 97):
        (tmp_path / "cut").write_bytes(body[:keep])
        with pytest.raises(RecordingError):
            read_file(tmp_path / "cut")


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"version": 2}, "version `2`"), ({"more": 1}, "unknown `more`"), ({"raw": 1}, "wrong type")],
)
def test_metadata_is_checked(change: dict[str, object], reason: str) -> None:
    with pytest.raises(RecordingError, match=reason):
        RecordingMeta.from_json({**META.to_json(), **change})


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot write `.*`: no such file or directory$"):
        write_file(tmp_path / "none" / "r.parquet", [], [], META)
    groups, events = small()
    (tmp_path / "r.parquet").mkdir()
    with pytest.raises(RecordingError, match="cannot write"):
        write_file(tmp_path / "r.parquet", groups, events, META)
    assert os.listdir(tmp_path) == ["r.parquet"]


# --- parts -------------------------------------------------------------------------------------

Batch = tuple[int, int, tuple[Labels, ...], list[float]]
SERIES = [name("m", x=str(i)) for i in range(4)] + [name("n")]


def feed(writer: RecordingWriter, batches: Sequence[Batch]) -> Cells:
    expected: Cells = {}
    for seq, t_ms, labels, values in batches:
        row = np.array(values)
        writer.batch(seq, t_ms, labels, row)
        for one, bits in zip(labels, row.view(np.int64), strict=True):
            expected.setdefault(one, []).append((seq, t_ms, int(bits)))
    return expected


BATCHES = st.lists(
    st.tuples(
        st.integers(0, 5_000),
        st.lists(st.sampled_from(SERIES), min_size=1, unique=True),
        st.sampled_from([1.0, float("nan"), float(STALE), -2.5]),
    ),
    max_size=12,
)


@settings(max_examples=15)
@given(BATCHES, st.integers(1, 12))
def test_parts_and_their_join_hold_what_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, list[Labels], float]],
    part_samples: int,
) -> None:
    folder = tmp_path_factory.mktemp("rec") / "live"
    writer = RecordingWriter(folder, META, part_samples=part_samples)
    batches: list[Batch] = []
    for seq, (t_ms, labels, value) in enumerate(steps, 1):
        batches.append((seq, t_ms, tuple(labels), [value + i for i in range(len(labels))]))
    expected = feed(writer, batches)
    for series, samples in expected.items():
        assert sorted(cells(read_parts(folder)).get(series, [])) == sorted(samples)
    path = writer.close()
    assert cells(read_file(path)) == expected
    assert not folder.exists()


def test_events_keep_their_order_over_parts(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "live", META, part_events=2)
    kinds = ["tick", "b", "tick", "a", "b"]
    bodies = [{"type": kind, "t_ms": 1_000 * i} for i, kind in enumerate(kinds, 1)]
    for body in bodies:
        writer.event(body)
    assert list(read_parts(tmp_path / "live").bodies) == bodies
    back = read_file(writer.close(tmp_path / "out.parquet"))
    assert list(back.bodies) == bodies
    assert (back.meta.start_ms, back.meta.end_ms) == (1_000, 3_000)


def test_a_closed_writer_and_a_used_folder_are_refused(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "live", META)
    with pytest.raises(RecordingError, match="not empty"):
        RecordingWriter(tmp_path / "live", META)
    writer.close()
    with pytest.raises(RecordingError, match="closed"):
        writer.event({"type": "tick", "t_ms": 0})


def test_a_folder_without_parts_is_no_recording(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="no parts"):
        read_parts(tmp_path)


@pytest.mark.parametrize("part_samples", [1, 2, 100])
def test_what_a_killed_engine_leaves_says_how_far_it_reaches(
    tmp_path: Path, part_samples: int
) -> None:
    writer = RecordingWriter(tmp_path / "live", META, part_samples=part_samples)
    feed(writer, [(n, 1_000 * n, (SERIES[0],), [1.0]) for n in (1, 2, 3)])
    writer.event({"type": "tick", "t_ms": 3_500})
    writer.abandon()
    meta = read_parts(tmp_path / "live").meta
    assert (meta.start_ms, meta.end_ms) == (1_000, 3_500)


def test_a_torn_last_line_is_left_out_and_a_damaged_one_refused(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "live", META)
    feed(writer, [(1, 1_000, (SERIES[0],), [1.0]), (2, 2_000, (SERIES[0],), [2.0])])
    writer.abandon()
    (tail,) = (tmp_path / "live").glob("*.tail")
    lines = tail.read_bytes().splitlines(keepends=True)
    tail.write_bytes(b"".join(lines[:-1]) + lines[-1][:-5])
    assert len(cells(read_parts(tmp_path / "live"))[SERIES[0]]) == 1
    tail.write_bytes(lines[0] + b"{}\n")
    with pytest.raises(RecordingError, match="damaged"):
        read_parts(tmp_path / "live")


def test_a_tail_beside_its_finished_part_does_not_count_twice(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "live", META, part_samples=1)
    expected = feed(writer, [(1, 1_000, (SERIES[0],), [1.0])])
    writer.abandon()
    (tmp_path / "live" / "part-000000.tail").write_text("left over\n")
    assert cells(read_parts(tmp_path / "live")) == expected


KILLED = """
import sys
from pathlib import Path
import numpy as np
from resilience.sources.recording_format import RecordingMeta
from resilience.sources.recording_writer import RecordingWriter
writer = RecordingWriter(Path(sys.argv[1]), RecordingMeta("embedded"), part_samples=30)
labels = tuple((("__name__", f"m{i}"),) for i in range(10))
for seq in range(1, 8):
    writer.batch(seq, seq * 1000, labels, np.full(10, float(seq)))
    writer.event({"type": "tick", "t_ms": seq * 1000, "seq": seq})
print("written", flush=True)
sys.stdin.read()
"""


def test_a_killed_engine_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"written\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    back = read_parts(folder)
    assert [len(samples) for samples in cells(back).values()] == [7] * 10
    assert [e["seq"] for e in back.bodies] == list(range(1, 8))
    merge_parts(folder, tmp_path / "out.parquet")
    assert cells(read_file(tmp_path / "out.parquet")) == cells(back)


def test_meta_of_parts_spans_all_of_them(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "live", replace(META, start_ms=0, end_ms=0), part_samples=1)
    feed(writer, [(1, 5_000, (SERIES[0],), [1.0]), (2, 9_000, (SERIES[0],), [2.0])])
    meta = read_meta(writer.close())
    assert (meta.start_ms, meta.end_ms) == (5_000, 9_000)
