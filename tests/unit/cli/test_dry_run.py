"""`apply --dry-run --recording`: the decisions, byte for byte, and how they differ."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def recording(rig: Any, tmp_path: Path) -> Path:
    path = tmp_path / "run.parquet"
    rig.second(0)
    rig.ask("POST", "recordings", {"action": "start", "path": str(path)})
    for waiting in (0, 20, 20, 5, 0, 0, 30, 0):
        rig.second(waiting)
    rig.ask("POST", "recordings", {"action": "stop"})
    return path


def test_json_lines_of_decisions_then_a_summary(
    cli: Any, rules: Path, recording: Path, rig: Any
) -> None:
    shown = cli("apply", rules, "--dry-run", "--recording", recording, "-o", "json")
    assert shown.code == 0
    *decisions, summary = shown.out.splitlines()
    live = (rig.journal.path.parent / "decisions.jsonl").read_text().splitlines()
    assert decisions == live
    assert len(live) == 4
    body = json.loads(summary)
    assert body["version"] == 1
    assert (body["summary"]["decisions"], body["summary"]["differ"]) == (4, 0)


def test_people_get_a_timeline_and_a_verdict(cli: Any, rules: Path, recording: Path) -> None:
    shown = cli("apply", rules, "--dry-run", "--recording", recording)
    lines = shown.out.splitlines()
    assert "queue  inactive -> firing  breach  value 20" in lines[0]
    assert lines[-1] == "4 decisions, 0 differ"
    (row,) = (line.split() for line in lines if re.match(r"queue +\d", line))
    assert row[1] == "2"


def test_other_rules_are_not_compared(cli: Any, rules: Path, recording: Path) -> None:
    path = rules / "queue.yaml"
    path.write_text(path.read_text().replace("> 10", "> 25"))
    shown = cli("apply", rules, "--dry-run", "--recording", recording)
    assert shown.out.splitlines()[-1] == "2 decisions"


def test_where_the_rules_lie_does_not_matter(
    cli: Any, rules: Path, recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(rules)
    shown = cli("apply", ".", "--dry-run", "--recording", recording)
    assert shown.out.splitlines()[-1] == "4 decisions, 0 differ"


@pytest.mark.parametrize("content", [None, b"", b"PAR1 nonsense PAR1"])
def test_a_bad_recording_is_one_line(
    cli: Any, rules: Path, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "bad.parquet"
    if content is not None:
        path.write_bytes(content)
    shown = cli("apply", rules, "--dry-run", "--recording", path)
    assert (shown.code, shown.out, shown.err.count("\n")) == (1, "", 1)
    assert "bad.parquet" in shown.err
