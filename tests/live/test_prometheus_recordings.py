"""Recordings of a real Prometheus: of its blocks, a snapshot, its text, and over its API."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from click.testing import CliRunner

from resilience.cli.record import command as record_command
from resilience.errors import SourceError
from resilience.promql.storage import is_absent
from resilience.sources import importers_prometheus
from resilience.sources.importers import import_paths, save
from resilience.sources.importers_prometheus import needs_of, record
from resilience.sources.prometheus import PrometheusSource
from resilience.sources.recording import read
from tests.live import metric_servers as kit

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


def samples_of(path: Path) -> dict[Any, list[tuple[int, int]]]:
    """Return (time, bits) of each sample by series."""
    found: dict[Any, list[tuple[int, int]]] = {}
    for group in read(path).store.groups():
        for labels, row in zip(group.labels, group.values, strict=True):
            row = np.ascontiguousarray(row)
            there = ~is_absent(row)
            bits = np.where(np.isnan(row), 0, row.view(np.int64))[there]
            found[labels] = list(zip(group.times[there].tolist(), bits.tolist(), strict=True))
    return found


def test_blocks_and_text_make_the_same_recording(history: Any, tmp_path: Path) -> None:
    save(tmp_path / "text.parquet", import_paths([history.text]))
    save(tmp_path / "tsdb.parquet", import_paths([history.blocks]))
    assert samples_of(tmp_path / "text.parquet") == samples_of(tmp_path / "tsdb.parquet")
    assert read(tmp_path / "tsdb.parquet").meta.scrape_interval_ms == kit.STEP_MS


def test_a_snapshot_is_read_and_deleted_samples_stay_deleted(
    history: Any, tmp_path: Path
) -> None:
    shutil.copytree(history.blocks, tmp_path / "data")
    running = kit.prometheus(tmp_path)
    try:
        admin = f"{running.url}/api/v1/admin/tsdb"
        middle = (history.start_ms + kit.BLOCK_MS // 2) / 1000
        times = {"start": middle, "end": middle + 600}
        chosen: dict[str, str | float] = {"match[]": 'kv{model="b"}', **times}
        assert httpx.post(f"{admin}/delete_series", params=chosen, timeout=60).status_code == 204
        name = httpx.post(f"{admin}/snapshot", timeout=60).json()["data"]["name"]
    finally:
        running.stop()
    whole = import_paths([history.text])
    rest = import_paths([tmp_path / "data" / "snapshots" / name])
    save(tmp_path / "whole.parquet", whole)
    save(tmp_path / "rest.parquet", rest)
    expected = samples_of(tmp_path / "whole.parquet")
    for labels, samples in expected.items():
        if ("__name__", "kv") in labels and ("model", "b") in labels:
            low, high = middle * 1000, middle * 1000 + 600_000
            expected[labels] = [s for s in samples if not low <= s[0] <= high]
    assert samples_of(tmp_path / "rest.parquet") == expected


def test_raw_samples_are_recorded_and_an_interrupted_call_goes_on(
    history: Any, source: PrometheusSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = needs_of(["rate(requests_total[5m])", 'kv{model="a"}', "nothing > 1"])
    out = tmp_path / "r.parquet"
    start_ms, end_ms = history.start_ms + 600_000, history.end_ms
    asked: list[str] = []
    real = importers_prometheus._fetch

    def failing(source: PrometheusSource, selector: str, low: int, high: int) -> Any:
        if len(asked) == 4:
            raise SourceError("the server went away")
        asked.append(selector)
        return real(source, selector, low, high)

    monkeypatch.setattr(importers_prometheus, "_fetch", failing)
    times = ("-1h", "now")
    with pytest.raises(SourceError, match="went away"):
        record(source, need, start_ms, end_ms, out, asked=times)
    assert not out.exists()
    monkeypatch.setattr(importers_prometheus, "_fetch", real)
    later_ms = 5_000
    summary = record(source, need, start_ms + later_ms, end_ms + later_ms, out, asked=times)
    assert summary.missing == ("nothing",)
    assert summary.meta.raw
    assert summary.meta.source_version.startswith("3.")
    save(tmp_path / "text.parquet", import_paths([history.text]))
    whole = samples_of(tmp_path / "text.parquet")
    low = start_ms - need.reach_ms
    wanted = {
        labels: [s for s in samples if low < s[0] <= end_ms]
        for labels, samples in whole.items()
        if dict(labels)["__name__"] == "requests_total"
        or (dict(labels)["__name__"], dict(labels)["model"]) == ("kv", "a")
    }
    assert samples_of(out) == wanted
    assert not (tmp_path / "r.parquet.parts").exists()


RULES = """\
apiVersion: resilience/v1
kind: Policy
metadata: {name: kv}
spec:
  interval: 15s
  on_missing_metric: warn
  trigger: {expr: 'max by (model) (kv) > 0.9', on_no_data: hold}
  actions: [{type: throttle, tier: best-effort, max_concurrency: 8}]
"""


def test_record_from_prometheus_on_the_command_line(
    history: Any, prometheus: Any, tmp_path: Path
) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "kv.yaml").write_text(RULES)
    out = tmp_path / "r.parquet"
    arguments = ["--prometheus", prometheus.url, str(tmp_path / "rules"), "--out", str(out)]
    times = ["--start", str(history.start_ms / 1000), "--end", str(history.end_ms / 1000)]
    result = CliRunner().invoke(record_command, [*arguments, *times, "-o", "json"])
    assert result.exception is None, result.output
    body = json.loads(result.stdout)
    assert (body["version"], body["series"], body["missing"]) == (1, 4, [])
    assert {dict(labels)["__name__"] for labels in samples_of(out)} == {"kv"}
