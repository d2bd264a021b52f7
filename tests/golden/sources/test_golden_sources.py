"""Files that must stay readable: a recording of version 1, and a block that Prometheus wrote."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from resilience.promql.storage import STALE_BITS, is_absent
from resilience.sources.importers import import_paths, save
from resilience.sources.recording import read
from resilience.sources.recording_schema import SCHEMA

HERE = Path(__file__).parent
T0 = 1_764_430_000_000


def samples(path: Path) -> dict[object, list[tuple[int, int]]]:
    """Return (time, bits) of each sample by series; all NaNs that are not stale are one."""
    found: dict[object, list[tuple[int, int]]] = {}
    for group in read(path).store.groups():
        for labels, row in zip(group.labels, group.values, strict=True):
            row = np.ascontiguousarray(row)
            bits = row.view(np.int64)
            bits = np.where(np.isnan(row) & (bits != STALE_BITS), -1, bits)
            there = ~is_absent(row)
            found[labels] = list(
                zip(group.times[there].tolist(), bits[there].tolist(), strict=True)
            )
    return found


def test_a_recording_of_version_1_is_read() -> None:
    recording = read(HERE / "recording_v1.parquet")
    assert recording.meta.to_json() == {
        "version": 1, "source": "resilience", "source_version": "0.1.0",
        "scrape_interval_ms": 1_000, "lookback_ms": 300_000, "raw": True, "start_ms": T0,
        "end_ms": T0 + 2_000, "revision": "r",
    }  # fmt: skip
    assert [e["type"] for e in recording.events] == ["state", "tick", "query", "tick"]
    assert [t["seq"] for t in recording.ticks] == [1, 2]
    one, zero, inf = (int(np.float64(v).view(np.int64)) for v in (1.0, -0.0, np.inf))
    assert samples(HERE / "recording_v1.parquet") == {
        (("__name__", "a"),): [(T0, -1), (T0 + 1_000, zero), (T0 + 2_000, inf)],
        (("__name__", "b"), ("x", "1")): [(T0, one), (T0 + 2_000, STALE_BITS)],
    }


def test_its_schema_and_metadata_are_those_of_the_contract() -> None:
    schema = pq.read_schema(HERE / "recording_v1.parquet")
    assert schema.names == ["kind", "name", "labels", "group", "t", "seq", "v", "body"]
    assert schema.remove_metadata() == SCHEMA
    assert json.loads(schema.metadata[b"resilience"])["version"] == 1


def test_a_block_of_prometheus_holds_what_it_was_made_from(tmp_path: Path) -> None:
    save(tmp_path / "text.parquet", import_paths([HERE / "samples.om"]))
    save(tmp_path / "tsdb.parquet", import_paths([HERE / "blocks"]))
    from_text = samples(tmp_path / "text.parquet")
    assert len(from_text) == 5
    assert samples(tmp_path / "tsdb.parquet") == from_text
