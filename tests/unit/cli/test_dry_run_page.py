"""The page of a dry run: written whole, and over nothing but a page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from resilience.app.bundles import check_sources, read_sources
from resilience.app.reporting import run_over
from resilience.errors import RecordingError
from resilience.sources.recording import Recording, RecordingMeta, write
from resilience.sources.store import MemoryStore
from tests.unit.cli.dry_run_rig import QUEUE


def test_the_page_is_written_whole(over: Any, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert over("--html", str(page)).code == 0
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert text.rstrip().endswith("</html>")
    assert list(tmp_path.glob("*.new")) == []


def test_a_recording_of_answers_has_curves_too(rules: Path) -> None:
    expr = "max by (model_name) (vllm:num_requests_waiting)"
    answer: Any = {"kind": "vector", "ranges": [], "text": None, "error": None, "warnings": []}
    events: list[Any] = []
    for second, waiting in enumerate(QUEUE):
        t_ms = 1_700_000_000_000 + second * 1_000
        events.append({"type": "tick", "t_ms": t_ms, "interval_ms": 1_000, "seq": 0, "missed": 0})
        events.append({"type": "query", "t_ms": t_ms, "results": [
            {"expr": expr, "samples": [[{"model_name": "m"}, waiting]], **answer},
        ]})
    meta = RecordingMeta("prometheus", scrape_interval_ms=1_000)
    recording = Recording(MemoryStore.from_groups([]), tuple(events), meta)
    bundle = check_sources(read_sources(rules)).bundle
    (plot,) = run_over(bundle, recording, "answers", plots=True).report.plots["queue"]
    assert plot.threshold == 10
    assert [(line.label, line.low.tolist()) for line in plot.lines] == [('{model_name="m"}', QUEUE)]


@pytest.mark.parametrize("limit", ["+Inf", "NaN", "-Inf", "scalar(nothing)", "1e300"])
def test_thresholds_that_are_no_numbers_break_no_page(
    over: Any, rules: Path, tmp_path: Path, limit: str
) -> None:
    path = rules / "queue.yaml"
    path.write_text(path.read_text().replace("> 10", f"> {limit}").replace("< 2", f"< {limit}"))
    page = tmp_path / "report.html"
    shown = over("--html", str(page))
    assert (shown.code, "internal" in shown.err) == (0, False)
    assert page.read_text().rstrip().endswith("</html>")


def test_a_page_that_cannot_be_written_is_told_before_the_run(over: Any, tmp_path: Path) -> None:
    shown = over("--html", str(tmp_path / "no" / "report.html"))
    assert (shown.code, shown.out) == (2, "")
    assert f"--html: there is no folder `{tmp_path / 'no'}`; make it" in shown.err


def test_a_pipe_or_device_is_not_replaced_by_a_page_or_a_recording(
    over: Any, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    shown = over("--html", str(pipe))
    assert (shown.code, shown.out) == (2, "") and "it is no regular file" in shown.err
    with pytest.raises(RecordingError, match="it is no regular file"):
        write(pipe, MemoryStore(), [], RecordingMeta("test", scrape_interval_ms=1_000))
    assert pipe.is_fifo()


@pytest.mark.parametrize("name", ["rules/queue.yaml", "run.parquet"])
def test_only_a_page_is_replaced_by_a_page(over: Any, tmp_path: Path, name: str) -> None:
    other = tmp_path / name
    other.parent.mkdir(exist_ok=True)
    before = other.read_bytes() if other.exists() else b"PAR1"
    other.write_bytes(before)
    shown = over("--html", str(other))
    assert (shown.code, shown.out) == (2, "") and "would be lost" in shown.err
    assert other.read_bytes() == before
    page = tmp_path / "report.html"
    assert (over("--html", str(page)).code, over("--html", str(page)).code) == (0, 0)
