"""The report of a dry run on the command line: text, JSON, sweep, and exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resilience.app.bundles import check_sources, read_sources
from resilience.app.reporting import run_over
from resilience.errors import RecordingError
from resilience.model import labels_of
from resilience.sources.recording import Recording, RecordingMeta, read, write
from resilience.sources.store import Group, MemoryStore

QUEUE = [0, 0, 20, 20, 20, 0, 0, 0, 0, 30, 30, 0]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Twelve seconds of a queue that is too long twice."""
    return write_recording(tmp_path / "week.parquet", {"vllm:num_requests_waiting": QUEUE})


def write_recording(path: Path, series: dict[str, list[int]], *, raw: bool = True) -> Path:
    columns = len(next(iter(series.values())))
    times = 1_700_000_000_000 + np.arange(columns, dtype=np.int64) * 1_000
    labels = tuple(labels_of({"__name__": name, "job": "vllm"}) for name in series)
    values = np.array(list(series.values()), dtype=float)
    seqs = np.arange(1, columns + 1, dtype=np.int64)
    store = MemoryStore.from_groups([Group(times, seqs, labels, values)])
    write(path, store, [], RecordingMeta("test", scrape_interval_ms=1_000, raw=raw))
    return path


@pytest.fixture
def over(cli: Any, rules: Path, recording: Path) -> Any:
    def run(*options: str) -> Any:
        return cli("apply", rules, "--dry-run", "--recording", recording, *options)

    return run


def test_people_get_timeline_figures_and_the_end_as_before(over: Any) -> None:
    shown = over()
    assert shown.code == 0
    text = shown.out
    assert "POLICY  FIRINGS" in text
    assert "firing" in text
    assert "claimed throttle.max_concurrency" in text
    assert text.splitlines()[-1].endswith(" decisions")


def test_programs_get_the_report_in_the_summary(over: Any) -> None:
    *_, last = over("-o", "json").out.splitlines()
    found = json.loads(last)["summary"]["report"]
    queue = found["policies"]["queue"]
    assert queue["firings"] == 2
    assert queue["flaps"] == 1
    assert queue["claims"][0]["knob"] == "throttle.max_concurrency"
    assert found["would_have_shed"][0]["refused_max"] is None
    assert "vllm:num_requests_running" in found["would_have_shed"][0]["why"]
    assert found["resampled"] is False


def test_the_bound_of_what_would_have_been_shed(cli: Any, rules: Path, tmp_path: Path) -> None:
    path = write_recording(tmp_path / "load.parquet", {
        "vllm:num_requests_waiting": [50] * 120,
        "vllm:num_requests_running": [50] * 120,
        "vllm:request_success_total": list(range(0, 1_200, 10)),
    })
    shown = cli("apply", rules, "--dry-run", "--recording", path, "-o", "json")
    (shed,) = json.loads(shown.out.splitlines()[-1])["summary"]["report"]["would_have_shed"]
    assert 0 < shed["refused_max"] <= shed["arrived"] <= 1_200
    assert any("between 0 and this" in c for c in shed["caveats"])


def test_a_metric_that_is_missing_is_blind_and_never_quiet(
    cli: Any, rules: Path, tmp_path: Path
) -> None:
    path = write_recording(tmp_path / "other.parquet", {"vllm:num_requests_running": [1] * 30})
    shown = cli("apply", rules, "--dry-run", "--recording", path)
    assert "blind: the recording has no `vllm:num_requests_waiting`" in shown.out
    assert "(100.0%)" in shown.out


def test_a_resampled_recording_is_said_first(cli: Any, rules: Path, tmp_path: Path) -> None:
    path = write_recording(
        tmp_path / "thin.parquet", {"vllm:num_requests_waiting": QUEUE}, raw=False
    )
    shown = cli("apply", rules, "--dry-run", "--recording", path)
    assert "warning: this recording is resampled" in shown.out
    assert shown.code == 0


@pytest.mark.parametrize(("name", "value", "ascii_only"), [
    ("LC_ALL", "C", True), ("LC_ALL", "en_US.UTF-8", False), ("LANG", "C", True),
])
def test_locale_c_gets_ascii(
    over: Any, monkeypatch: pytest.MonkeyPatch, name: str, value: str, ascii_only: bool
) -> None:
    for other in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, value)
    shown = over()
    assert shown.out.isascii() is ascii_only
    assert "\x1b" not in shown.out


def test_live_decisions_that_differ_are_exit_code_1(
    cli: Any, rules: Path, rig: Any, tmp_path: Path
) -> None:
    path = tmp_path / "run.parquet"
    rig.second(0)
    rig.ask("POST", "recordings", {"action": "start", "path": str(path)})
    for waiting in (0, 20, 20, 5, 0, 0):
        rig.second(waiting)
    rig.ask("POST", "recordings", {"action": "stop"})
    assert cli("apply", rules, "--dry-run", "--recording", path).code == 0
    found = read(path)
    events = [e for e in found.events if e["type"] != "decision"]
    other = [e for e in found.events if e["type"] == "decision"][:-1]
    changed = tmp_path / "changed.parquet"
    write(changed, found.store, [*events, *other], found.meta)
    shown = cli("apply", rules, "--dry-run", "--recording", changed)
    assert (shown.code, shown.out.splitlines()[-1]) == (1, "2 decisions, 1 differ")


# --- sweep ---------------------------------------------------------------------------------------


def test_a_sweep_is_a_table_with_the_rules_as_written_first(over: Any) -> None:
    shown = over("--set", "queue.trigger.for=0s,2s,10s")
    assert shown.code == 0
    header, *rows = [line.split("  ") for line in shown.out.splitlines()]
    assert header[0] == "queue.trigger.for"
    assert [row[0] for row in rows] == ["(as written)", "0s", "2s", "10s"]
    assert [next(c for c in row[1:] if c.strip()).strip() for row in rows] == ["2", "2", "1", "0"]


def test_several_sets_are_a_grid_in_json(over: Any) -> None:
    shown = over("--set", "policy.trigger.for=0s,2s", "--set", "queue.limits.cooldown=0s,1h",
                 "-o", "json")
    body = shown.json()
    assert body["version"] == 1
    firings = {
        tuple(row["set"].values()): row["policies"]["queue"]["firings"]
        for row in body["combinations"]
    }
    assert firings == {
        (): 2, ("0s", "0s"): 2, ("0s", "1h"): 1, ("2s", "0s"): 1, ("2s", "1h"): 1,
    }


def test_an_expression_may_be_tried(over: Any) -> None:
    metric = "vllm:num_requests_waiting"
    shown = over("--set", f"queue.spec.trigger.expr='{metric} > 25',{metric} > 99", "-o", "json")
    assert [r["policies"]["queue"]["firings"] for r in shown.json()["combinations"]] == [2, 1, 0]


@pytest.mark.parametrize(("text", "part"), [
    ("queue.trigger.fro=1s", "did you mean `for`?"),
    ("queue.triger.for=1s", "did you mean `trigger`?"),
    ("queu.trigger.for=1s", "did you mean `queue`"),
    ("queue.trigger.for=30", "write the unit"),
    ("queue.trigger.for=", "has no value"),
    ("queue.trigger.for", "has no value"),
    ("queue=1", "has no place"),
    ("queue.actions[3].max_concurrency=1", "there is no item 3 in a list of 1"),
    ("queue.actions.max_concurrency=1", "write its number"),
    ("queue.interval.x=1", "nothing stands below"),
    ("queue.actions[0].max_concurrency=-1", "max_concurrency"),
    ("queue.trigger.for=" + ",".join(f"{n}s" for n in range(1, 103)), "more than 100"),
    ("queue.trigger.on_no_data=yes", "quote it"),
])
def test_a_place_or_value_that_cannot_be_is_one_line(over: Any, text: str, part: str) -> None:
    shown = over("--set", text)
    assert (shown.code, shown.out, shown.err.count("\n")) == (2, "", 1)
    assert part in shown.err


@pytest.mark.parametrize("options", [
    ("--set", "queue.trigger.for=1s", "--html", "x.html"),
])
def test_options_that_do_not_go_together(over: Any, options: tuple[str, ...]) -> None:
    assert over(*options).code == 2


@pytest.mark.parametrize("option", ["--html", "--set"])
def test_a_report_needs_a_recording(cli: Any, rules: Path, option: str) -> None:
    shown = cli("apply", rules, "--dry-run", option, "x")
    assert shown.code == 2
    assert f"`{option}` needs" in shown.err


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
    assert f"there is no folder `{tmp_path / 'no'}` for the page `report.html`" in shown.err


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
