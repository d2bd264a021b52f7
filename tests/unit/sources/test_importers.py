"""What files become: texts with timestamps, API answers, damaged blocks."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.errors import RecordingError, UsageError
from resilience.sources.importers import Kind, import_paths, kind_of, save
from resilience.sources.importers_prometheus import _folder
from resilience.sources.openmetrics import (
    SNIFF_BYTES,
    _more,
    _TextReader,
    is_openmetrics,
    read_text,
)
from resilience.sources.recording import RecordingSource, read
from tests.unit.sources.imported import name, points, text_of, write

CORPUS = Path(
    os.environ.get("RESILIENCE_CORPUS", Path(__file__).resolve().parents[4] / "shared" / "corpus")
)


# --- texts -------------------------------------------------------------------------------------


def test_openmetrics_and_prometheus_text_differ_in_their_times(tmp_path: Path) -> None:
    openmetrics = write(tmp_path, 'a{x="1"} 2 1.5\n# EOF\n', "om")
    prometheus = write(tmp_path, 'a{x="1"} 2 1500\n', "prom")
    assert text_of(openmetrics) == text_of(prometheus) == {name("a", x="1"): [(1_500, 2.0)]}


def test_openmetrics_is_told_by_the_end_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of gigabytes is not read for it; only one that does not end so is."""
    path = write(tmp_path, "a 1 1.5\n" * SNIFF_BYTES + "# EOF\n")
    early = write(tmp_path, "# EOF\n" + "a 1 1.5\n" * SNIFF_BYTES, "early")
    packed = write(tmp_path, gzip.compress(path.read_bytes()), "x.gz")
    assert is_openmetrics(early)
    assert is_openmetrics(packed)
    sizes: list[int] = []

    def more(file: BinaryIO, path: Path) -> bytes:
        sizes.append(len(block := _more(file, path)))
        return block

    monkeypatch.setattr("resilience.sources.openmetrics._more", more)
    assert is_openmetrics(path)
    assert sizes == [SNIFF_BYTES]


@pytest.mark.parametrize(("text", "found"), [
    ("# EOF", True), ("# EOF \t\r\n", True), ("a 1 1\n# EOF", True), ("a 1 1\r\n# EOF\r\n", True),
    ("x# EOF\n", False), ("", False), ("a 1 1\n# EOFx\n", False),
    ("x" * SNIFF_BYTES + "# EOF\n", False), ("x" * SNIFF_BYTES + "\n# EOF\n", True),
    ("a" + "# EOF".rjust(SNIFF_BYTES, "#"), False),
    ("# EOF".ljust(SNIFF_BYTES - 1), True),
    ("x# EOF".ljust(SNIFF_BYTES + 1), False),
])
def test_openmetrics_has_a_whole_line_that_ends_it(
    tmp_path: Path, text: str, found: bool
) -> None:
    assert is_openmetrics(write(tmp_path, text)) is found
    assert is_openmetrics(write(tmp_path, gzip.compress(text.encode()), "x.gz")) is found


def test_a_packed_text_is_unpacked(tmp_path: Path) -> None:
    path = write(tmp_path, gzip.compress(b"a 1 1.5\n# EOF\n"), "x.gz")
    assert text_of(path) == {name("a"): [(1_500, 1.0)]}


@pytest.mark.parametrize("kind", ["auto", "openmetrics", "text"])
@pytest.mark.parametrize("damage", ["cut", "checksum", "stream"])
def test_a_packed_text_that_is_damaged_is_one_clear_error(
    tmp_path: Path, damage: str, kind: Kind
) -> None:
    body = b"".join(b'm{a="%d"} %d 1700000000000\n' % (i, i * i) for i in range(5_000))
    packed = bytearray(gzip.compress(body))
    if damage == "cut":
        del packed[3_000:]
    elif damage == "checksum":
        packed[-6] ^= 1
    else:
        packed[100:200] = bytes(reversed(packed[100:200]))
    path = write(tmp_path, bytes(packed), "x.gz")
    with pytest.raises(RecordingError, match="damaged: it cannot be unpacked"):
        import_paths([path], kind=kind)


def test_times_out_of_order_and_twice_are_put_in_order(tmp_path: Path) -> None:
    path = write(tmp_path, "a 3 3000\na 1 1000\na 9 3000\n")
    assert text_of(path) == {name("a"): [(1_000, 1.0), (3_000, 3.0)]}


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("a 1 1\nb x 1\n", ":2:", "not a number"),
        ("a 1 1\nb{ 1 1\n", ":2:", "not closed"),
        ("# HELP a b\na 1 1.5\n", ":2:", "whole milliseconds"),
        ("a 1 1\n# EOF\nb 1 1\n# EOF\n", ":3:", "after `# EOF`"),
        ("a 1 1\n# EOF\n\nb 1 1\n", ":4:", "after `# EOF`"),
        ("# EOF\na 1 1764430000000\n", ":2:", "after `# EOF`"),
        ("a 1 1\r\n# EOF \r\n# TYPE a gauge\n", ":3:", "after `# EOF`"),
        ("a 1 NaN\n# EOF\n", ":1:", "not a time"),
        ("a 1 1\na 1 1764430000000\n# EOF\n", ":2:", "seconds are meant"),
        ("a 1 1e300\n# EOF\n", ":1:", "seconds are meant"),
        ("a 1 1764430000000000\n", ":1:", "milliseconds are meant"),
        ("a 1 -9223372036854775807\n", ":1:", "milliseconds are meant"),
        (b"a 1 1\na\xff 1 1\n", ":2:", "UTF-8"),
    ],
)
def test_an_error_names_file_and_line(
    tmp_path: Path, text: str | bytes, place: str, reason: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(RecordingError, match=reason) as caught:
        text_of(path)
    assert str(caught.value).startswith(f"{path}{place} ")


def test_seconds_that_were_taken_for_milliseconds_are_noted(tmp_path: Path) -> None:
    _, notes = read_text(write(tmp_path, "a 1 1764430000\n"), openmetrics=False)
    assert "before 1973" in notes[0]
    _, notes = read_text(write(tmp_path, "a 1 1764430000000\n"), openmetrics=False)
    assert notes == []


def test_samples_without_a_time_are_one_scrape(tmp_path: Path) -> None:
    path = write(tmp_path, "a 1\nb 2 1764430000000\nc 3\n")
    found, notes = read_text(path, openmetrics=False, at_ms=1764430005000)
    times = {one.name: one.times_ms.tolist() for one in found}
    assert times == {"a": [1764430005000], "b": [1764430000000], "c": [1764430005000]}
    assert notes == ["2 samples have no time: taken as scraped at 2025-11-29T15:26:45+00:00"]
    os.utime(path, (1764430001, 1764430001))
    found, _ = read_text(path, openmetrics=False)
    assert found[0].times_ms.tolist() == [1764430001000]


def test_every_corpus_text_imports_or_names_its_line(tmp_path: Path) -> None:
    files = sorted((CORPUS / "metrics").glob("*.txt"))
    if not files:
        pytest.skip(f"no exposition texts in {CORPUS}: set RESILIENCE_CORPUS")
    for file in files:
        try:
            save(tmp_path / file.name, import_paths([file]))
        except RecordingError as error:
            assert str(error).startswith(f"{file}:")


def test_only_wanted_metrics_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path, "a 1 1\nb 1 1\n# x\na 2 2\n")
    found, _ = read_text(path, openmetrics=False, wanted="b".__eq__)
    assert [one.name for one in found] == ["b"]


LINES = st.lists(
    st.one_of(
        st.sampled_from(
            ["", "# TYPE a gauge", "a 1 5", "a NaN 6", "a +Inf 7", 'a{x="}"} 1 5',
             'a{x="p q"} 1.5e3 8', 'a{x="#"} 1 5', "a\t1 5", "a  1 5", 'a{x="1"}  2 9',
             '{"u.v"} 1 3', 'a{x="1"} 1 1 # {t="}"} 1', "a 1", "a x 1", "b{ 1 1", "a 1 1 1"]
        ),
        st.builds("m{{l=\"{}\"}} {} {}".format, st.integers(0, 3), st.floats(), st.integers(0, 99)),
    ),
    max_size=8,
)  # fmt: skip


@given(LINES, st.booleans())
def test_whole_blocks_are_read_as_line_by_line(lines: list[str], openmetrics: bool) -> None:
    block = ("\n".join([*lines, "# EOF"] if openmetrics else lines) + "\n").encode()
    fast = _TextReader(openmetrics, lambda _: True)
    found = fast._plain(block)
    if found is None:
        return
    slow = _TextReader(openmetrics, lambda _: True)
    expected = slow._line_by_line(block, 1)
    named = [[r._reader.labels[i] for i in c[0]] for r, c in ((fast, found), (slow, expected))]
    assert named[0] == named[1]
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_array_equal(found[2], expected[2])
    assert fast._ended == slow._ended


def test_plain_lines_do_take_the_fast_way() -> None:
    reader = _TextReader(True, lambda _: True)
    found = reader._plain(b'# TYPE a gauge\na{x="p q"} 1 1.5\na 2 2.5\n# EOF\n')
    assert found is not None
    assert found[2].tolist() == [1_500, 2_500]


# --- answers of the API ------------------------------------------------------------------------


def answer(kind: str, result: Any, **more: Any) -> str:
    body = {"status": "success", "data": {"resultType": kind, "result": result}, **more}
    return json.dumps(body)


def matrix(*times: list[float]) -> str:
    return answer(
        "matrix",
        [
            {"metric": {"__name__": "a", "i": str(i)}, "values": [[t, "1"] for t in own]}
            for i, own in enumerate(times)
        ],
    )


@pytest.mark.parametrize(
    ("body", "raw"),
    [
        (matrix([0, 15, 30], [0, 15]), False),
        (matrix([1.5, 16.5], [31.5]), False),
        (matrix([5]), False),
        (matrix([0.012, 15.013, 30.012]), True),
        (matrix([0, 15, 30], [4.2, 19.2, 34.2]), True),
        (answer("vector", [{"metric": {"__name__": "a"}, "value": [1, "1"]}]), False),
    ],
)
def test_resampled_answers_are_told_by_their_times(tmp_path: Path, body: str, raw: bool) -> None:
    path = write(tmp_path, body, "x.json")
    out = tmp_path / "r.parquet"
    save(out, import_paths([path]))
    recording = read(out)
    assert recording.meta.raw is raw
    assert any("resampled" in text for text in recording.warnings) is not raw
    assert import_paths([path], raw=True).raw


def test_a_data_object_alone_is_an_answer(tmp_path: Path) -> None:
    body = matrix([0.012, 15.013, 30.012])
    data = json.dumps(json.loads(body)["data"])          # as `query -o json` prints it
    whole, alone = (import_paths([write(tmp_path, text, "x.json")]) for text in (body, data))
    assert (alone.series[0].name, alone.raw) == ("a", True)
    assert points(alone.series[0]) == points(whole.series[0])


def test_one_resampled_file_makes_the_whole_recording_resampled(tmp_path: Path) -> None:
    raw = write(tmp_path, matrix([0.012, 15.013, 30.012]), "raw.json")
    resampled = write(tmp_path, matrix([0, 15, 30]), "resampled.json")
    assert not import_paths([raw, resampled]).raw


def test_special_values_warnings_and_histograms(tmp_path: Path) -> None:
    values = [[1, "NaN"], [2, "+Inf"], [3, "0x1p-3"]]
    one = {"metric": {"__name__": "a"}, "values": values, "histograms": [[1, {}]]}
    path = write(tmp_path, "// where it is from\n" + answer("matrix", [one], warnings=["partial"]))
    imported = import_paths([path])
    assert points(imported.series[0])[1:] == [(2_000, float("inf")), (3_000, 0.125)]
    assert any("partial" in note for note in imported.notes)
    assert any("histogram" in note for note in imported.notes)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"status":"error","errorType":"bad_data","error":"no"}', "bad_data: no"),
        ('{"status":"success","data":{}}', "resultType"),
        ('// a\n{"status": x}', ":2:12: not JSON"),
        (answer("scalar", [1, "1"]), "a scalar holds no series"),
        (answer("matrix", [{"values": [[1, "1"]]}]), "malformed"),
        (answer("matrix", [{"metric": {}, "values": [[1, "q"]]}]), "`q` is not the value"),
        (answer("matrix", [{"metric": {}, "values": [1]}]), "malformed"),
        (answer("matrix", []), "the answer is empty"),
        ('{"a":' * 100_000, "nested|JSON"),
    ],
)
def test_a_bad_answer_is_one_clear_error(tmp_path: Path, body: str, reason: str) -> None:
    with pytest.raises(RecordingError, match=reason):
        save(tmp_path / "r.parquet", import_paths([write(tmp_path, body)]))
    assert not (tmp_path / "r.parquet").exists()


def test_every_corpus_answer_loads_or_says_why(tmp_path: Path) -> None:
    files = sorted((CORPUS / "api").glob("*.json*"))
    if not files:
        pytest.skip(f"no API answers in {CORPUS}: set RESILIENCE_CORPUS")
    refused: list[str] = []
    for file in files:
        try:
            save(tmp_path / f"{file.name}.parquet", import_paths([file]))
        except RecordingError as error:
            refused.append(file.name)
            assert "\n" not in str(error)
    assert refused == ["05_matrix_empty.json", "09_error_ours.json"]


# --- replays -----------------------------------------------------------------------------------


def test_every_corpus_replay_imports_and_answers(tmp_path: Path) -> None:
    files = sorted((CORPUS / "replay").glob("*.om.txt"))
    if not files:
        pytest.skip(f"no replays in {CORPUS}: set RESILIENCE_CORPUS")
    for file in files:
        summary = save(tmp_path / f"{file.name}.parquet", import_paths([file]))
        assert summary.meta.scrape_interval_ms == 10_000
        assert summary.meta.raw
        source = RecordingSource(read(summary.path))
        expr, end_ms = 'count({__name__!=""})', summary.meta.end_ms
        results = source.query([expr], end_ms, seq=source.seq(), deadline_ms=1)
        assert results[expr].samples[0].value >= 1


# --- kinds and blocks --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("a 1 1\n", "text"),
        ('{"a",x=":"} 1 1\n', "text"),
        ('{x="1"} 1 1\n', "text"),
        ("", "text"),
        ("// note\n{\n", "text"),
        ('// note\n{\n "status": 1}', "api"),
        ('{"status":"success"}', "api"),
        ("{}", "api"),
    ],
)
def test_a_file_is_known_by_its_beginning(tmp_path: Path, text: str, kind: str) -> None:
    assert kind_of(write(tmp_path, text)) == kind


def test_a_recording_is_not_imported_again(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="is a recording already"):
        kind_of(write(tmp_path, b"PAR1...."))


def test_parts_go_on_after_a_crash_but_not_in_what_belongs_to_others(tmp_path: Path) -> None:
    out, span = tmp_path / "r.parquet", (1_000, 2_000)
    folder = tmp_path / "r.parquet.parts"
    folder.mkdir()                              # the crash came before anything was in it
    assert _folder(out, "a", span) == (folder, span)
    assert _folder(out, "a", (5_000, 6_000)) == (folder, span)      # "-1d" is another time by now
    with pytest.raises(UsageError, match="belongs to another recording"):
        _folder(out, "b", span)
    (folder / "state.json").write_text("[1")
    with pytest.raises(RecordingError, match="cannot use"):
        _folder(out, "a", span)
    (folder / "state.json").rename(folder / "part-000000.parquet")
    with pytest.raises(UsageError, match="is not empty"):
        _folder(out, "a", span)


def test_paths_that_hold_nothing(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot read"):
        import_paths([tmp_path / "none"])
    with pytest.raises(RecordingError, match="cannot read .*no such file"):
        import_paths([tmp_path / "none"], kind="tsdb")
    with pytest.raises(RecordingError, match="cannot read .*not a directory"):
        import_paths([write(tmp_path, "a 1 1\n", "text")], kind="tsdb")
    with pytest.raises(RecordingError, match="no TSDB block: no `meta.json`"):
        import_paths([tmp_path])
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / "00000000").write_bytes(b"")
    with pytest.raises(RecordingError, match="no TSDB block yet: .*take a snapshot"):
        import_paths([tmp_path])
    with pytest.raises(RecordingError, match="no sample was found"):
        save(tmp_path / "r", import_paths([write(tmp_path, "# EOF\n")]))


@pytest.mark.parametrize(
    ("meta", "index", "reason"),
    [
        ("{", b"", "meta"),
        ('{"minTime": 1}', b"", "meta"),
        ('{"minTime": 0, "maxTime": 1}', None, "cannot read"),
        ('{"minTime": 0, "maxTime": 1}', b"short", "not the index"),
        ('{"minTime": 0, "maxTime": 1}', b"\xba\xaa\xd7\x00\x01" + bytes(60), "format 1"),
        ('{"minTime": 0, "maxTime": 1}', b"\xba\xaa\xd7\x00\x02" + b"\xff" * 60, "damaged"),
    ],
)
def test_a_damaged_block_is_one_clear_error(
    tmp_path: Path, meta: str, index: bytes | None, reason: str
) -> None:
    block = tmp_path / "01BLOCK"
    block.mkdir()
    write(block, meta, "meta.json")
    if index is not None:
        write(block, index, "index")
    with pytest.raises(RecordingError, match=reason):
        import_paths([tmp_path])
