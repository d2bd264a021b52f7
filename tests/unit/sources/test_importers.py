"""What files become: texts with timestamps, API answers, damaged blocks, and how series group."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.errors import RecordingError
from resilience.model import Labels, labels_of
from resilience.promql.storage import is_absent
from resilience.sources.importers import import_paths, kind_of, save
from resilience.sources.openmetrics import _TextReader, is_openmetrics, read_text
from resilience.sources.recording import RecordingSource, read
from resilience.sources.recording_format import Group
from resilience.sources.series import Series, group_series, infer_interval, merge_series

CORPUS = Path(
    os.environ.get("RESILIENCE_CORPUS", Path(__file__).resolve().parents[4] / "shared" / "corpus")
)


def name(text: str, **labels: str) -> Labels:
    return labels_of({"__name__": text, **labels})


def series(labels: Labels, *points: tuple[int, float]) -> Series:
    times = np.array([t for t, _ in points], np.int64)
    return Series(labels, times, np.array([v for _, v in points], np.float64))


def points(one: Series) -> list[tuple[int, float]]:
    return list(zip(one.times_ms.tolist(), one.values.tolist(), strict=True))


def write(folder: Path, text: str | bytes, file: str = "x") -> Path:
    path = folder / file
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def text_of(path: Path) -> dict[Labels, list[tuple[int, float]]]:
    found, _ = read_text(path, openmetrics=is_openmetrics(path))
    return {one.labels: points(one) for one in found}


# --- texts -------------------------------------------------------------------------------------


def test_openmetrics_and_prometheus_text_differ_in_their_times(tmp_path: Path) -> None:
    openmetrics = write(tmp_path, 'a{x="1"} 2 1.5\n# EOF\n', "om")
    prometheus = write(tmp_path, 'a{x="1"} 2 1500\n', "prom")
    assert text_of(openmetrics) == text_of(prometheus) == {name("a", x="1"): [(1_500, 2.0)]}


def test_a_packed_text_is_unpacked(tmp_path: Path) -> None:
    path = write(tmp_path, gzip.compress(b"a 1 1.5\n# EOF\n"), "x.gz")
    assert text_of(path) == {name("a"): [(1_500, 1.0)]}
    with pytest.raises(RecordingError, match="unpacked"):
        text_of(write(tmp_path, gzip.compress(b"a 1 1\n" * 100)[:20], "cut.gz"))


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
        ("a 1 NaN\n# EOF\n", ":1:", "not a time"),
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


@settings(deadline=None)
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


def test_paths_that_hold_nothing(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot read"):
        import_paths([tmp_path / "none"])
    with pytest.raises(RecordingError, match="no TSDB block"):
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


# --- groups ------------------------------------------------------------------------------------


def test_missing_metrics_are_reported_and_kept_in_the_recording(tmp_path: Path) -> None:
    path = write(tmp_path, "a 1 1764430000\n# EOF\n")
    summary = save(tmp_path / "r", import_paths([path]), needed=frozenset({"a", "b"}))
    assert summary.missing == ("b",)
    assert read(tmp_path / "r").warnings == ("no samples of `b`",)


def test_series_of_one_target_share_a_group_although_one_came_late() -> None:
    own = {"job": "j", "instance": "i"}
    early = series(name("a", **own), (1, 1.0), (2, 2.0), (3, 3.0))
    late = series(name("b", **own), (2, 5.0), (3, 6.0))
    other = series(name("a", job="j", instance="k"), (1, 9.0))
    groups = group_series([early, late, other])
    assert [[dict(x)["__name__"] for x in g.labels] for g in groups] == [["a", "b"], ["a"]]
    assert is_absent(groups[0].values).tolist() == [[False] * 3, [True, False, False]]
    assert [g.number for g in groups] == [0, 1]


def test_series_with_nothing_in_common_do_not_blow_up_a_group() -> None:
    many = [series(name(f"m{i}"), (i, 1.0)) for i in range(50)]
    assert [g.values.size for g in group_series(many)] == [1] * 50


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 8), st.floats(allow_nan=False)),
        max_size=40,
    )
)
def test_grouping_keeps_every_sample(rows: list[tuple[str, int, float]]) -> None:
    parts: dict[str, dict[int, float]] = {}
    for metric, t, value in rows:
        parts.setdefault(metric, {}).setdefault(t, value)
    given_series = [series(name(m), *sorted(p.items())) for m, p in parts.items()]
    back: dict[str, dict[int, float]] = {}
    for group in group_series(given_series):
        back |= {dict(x)["__name__"]: _row(group, i) for i, x in enumerate(group.labels)}
    assert back == parts


def _row(group: Group, row: int) -> dict[int, float]:
    there = ~is_absent(group.values[row])
    return dict(
        zip(group.times_ms[there].tolist(), group.values[row][there].tolist(), strict=True)
    )


def test_the_first_of_two_samples_at_one_time_stands() -> None:
    parts = [series(name("a"), (2, 2.0), (3, 3.0)), series(name("a"), (1, 1.0), (2, 9.0))]
    merged = merge_series(parts)
    assert points(merged) == [(1, 1.0), (2, 2.0), (3, 3.0)]


@pytest.mark.parametrize(
    ("times", "interval_ms"),
    [
        ([[0, 15_012, 29_990, 45_001, 60_000]], 15_000),
        ([[0, 1_001, 1_999]], 1_000),
        ([[0, 250, 500]], 250),
        ([[0], []], 15_000),
        ([], 15_000),
        ([[0, 10_000, 20_000, 500_000, 510_000]], 10_000),
    ],
)
def test_the_scrape_interval_is_inferred(times: list[list[int]], interval_ms: int) -> None:
    assert infer_interval(np.array(t, np.int64) for t in times) == interval_ms
