"""Recordings that somebody damaged or made up: one clear error each, never a wrong answer."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from resilience.errors import RecordingError
from resilience.model import canonical_json
from resilience.sources.recording import RecordingMeta, RecordingSource, read
from resilience.sources.recording_format import META_KEY
from resilience.sources.recording_schema import SCHEMA

GOLDEN = Path(__file__).parents[2] / "golden" / "sources" / "recording_v1.parquet"
GROUP = {"kind": "group", "name": "", "group": 0, "t": [1000, 2000], "seq": [1, 2]}
SERIES = {"kind": "series", "name": "up", "labels": [("a", "b")], "group": 0, "v": [1.0, 2.0]}
EVENT = {"kind": "event", "name": "tick"}


def made(path: Path, rows: list[dict[str, Any]], **types: pa.DataType) -> Path:
    """Write rows as they are, with other types of columns if asked."""
    fields = [pa.field(f.name, types.get(f.name, f.type)) for f in SCHEMA]
    meta = {META_KEY: canonical_json(RecordingMeta("test").to_json())}
    columns = [pa.array([row.get(f.name) for row in rows], f.type) for f in fields]
    pq.write_table(pa.Table.from_arrays(columns, schema=pa.schema(fields, meta)), path)
    return path


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([GROUP, SERIES, SERIES], "the same series twice"),
        ([GROUP, {**GROUP, "group": 1}, SERIES, {**SERIES, "group": 1}], "the same series twice"),
        ([GROUP, GROUP, SERIES], "two groups 0"),
        ([GROUP, {**SERIES, "group": 7}], "series of group 7, which has no row"),
        ([GROUP, {**SERIES, "group": None}], "series of group None, which has no row"),
        ([GROUP, {**SERIES, "v": [1.0]}], "1 values for the 2 times"),
        ([GROUP, {**SERIES, "v": None}], "0 values for the 2 times"),
        ([GROUP, {**SERIES, "labels": [("a", "b"), ("a", "c")]}], "a label twice"),
        ([GROUP, {**SERIES, "labels": [("__name__", "down")]}], "a label twice"),
        ([{**GROUP, "t": [None, 2000]}, SERIES], "a time or sequence number is missing"),
        ([{**GROUP, "seq": [None, 2]}, SERIES], "a time or sequence number is missing"),
        ([{**GROUP, "t": [-(2**63), 2000]}, SERIES], "out of range"),
        ([{**GROUP, "t": [0, 2**63 - 1]}, SERIES], "out of range"),
        ([{**GROUP, "seq": [2, 1]}, SERIES], "out of range"),
        ([{**EVENT, "body": "{"}], "double quotes"),
        ([{**EVENT, "body": "[]"}], "an event without a type"),
        ([{**EVENT, "body": '{"a": 1}'}], "an event without a type"),
        ([{**EVENT, "body": None}], "is damaged"),
        ([{"kind": "other", "name": "x"}], "other"),
        ([{"name": "x"}], "is damaged"),
    ],
)
def test_rows_that_cannot_be(tmp_path: Path, rows: list[dict[str, Any]], reason: str) -> None:
    path = made(tmp_path / "r.parquet", rows)
    with pytest.raises(RecordingError, match="is damaged") as caught:
        read(path)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("types", "reason"),
    [
        ({"v": pa.list_(pa.float32())}, "column `v` holds"),
        ({"v": pa.large_list(pa.float64())}, "column `v` holds"),
        ({"v": pa.float64()}, "column `v` holds"),
        ({"t": pa.list_(pa.timestamp("ms"))}, "column `t` holds"),
        ({"labels": pa.list_(pa.string())}, "column `labels` holds"),
        ({"kind": pa.int32()}, "column `kind` holds"),
    ],
)
def test_columns_of_another_type(
    tmp_path: Path, types: dict[str, pa.DataType], reason: str
) -> None:
    path = made(tmp_path / "r.parquet", [], **types)
    with pytest.raises(RecordingError, match=reason):
        read(path)


@pytest.mark.parametrize("field", ["scrape_interval_ms", "lookback_ms"])
def test_durations_of_the_metadata_are_positive(field: str) -> None:
    body = RecordingMeta("test").to_json() | {field: -5}
    with pytest.raises(RecordingError, match="not positive"):
        RecordingMeta.from_json(json.loads(json.dumps(body)))


def test_a_row_without_labels_or_name_is_a_series_like_others(tmp_path: Path) -> None:
    path = made(tmp_path / "r.parquet", [GROUP, {**SERIES, "labels": None}])
    assert read(path).store.groups()[0].labels == ((("__name__", "up"),),)


@pytest.mark.parametrize("seed", range(60))
def test_a_file_with_changed_bytes_is_read_or_refused(tmp_path: Path, seed: int) -> None:
    """Also where Arrow would end the process: it does for a footer with types of its own."""
    source = random.Random(seed)
    raw = bytearray(GOLDEN.read_bytes())
    if seed % 4 == 0:
        raw = raw[: source.randrange(len(raw))]
    for _ in range(source.choice([1, 3, 30])):
        raw[source.randrange(len(raw))] = source.randrange(256)
    path = tmp_path / "r.parquet"
    path.write_bytes(raw)
    try:
        RecordingSource(read(path, {"samples"} if seed % 2 else None))
    except RecordingError as error:
        assert "\n" not in str(error)
