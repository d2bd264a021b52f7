"""Every command that writes a file: what somebody else wrote stays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from resilience.sources.recording import RecordingMeta, write
from resilience.sources.store import MemoryStore

ALERTS = """groups:
  - name: g
    rules:
      - {alert: Queue, expr: 'vllm:num_requests_waiting > 5'}
"""


@pytest.fixture
def places(
    tmp_path: Path, rules: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """FILE is a policy, DIR holds a file of each name that a command would write there, and STATE
    is an engine's own."""
    recording, alerts = tmp_path / "r.parquet", tmp_path / "alerts.yaml"
    write(recording, MemoryStore.from_groups([]), [], RecordingMeta("test"))
    alerts.write_text(ALERTS)
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("policy.json", "queue.yaml", "README.md"):
        (folder / name).write_text("mine\n")
    page = folder / "page.html"
    page.write_text("<!doctype html><title>mine</title>\n")
    return {
        "PAGE": str(page),
        "RULES": str(rules), "FILE": str(rules / "queue.yaml"), "REC": str(recording),
        "ALERTS": str(alerts), "DIR": str(folder),
        "STATE": str(tmp_path_factory.mktemp("state")),
    }


@pytest.mark.parametrize("words", [
    "test RULES --junit FILE",
    "test RULES --junit PAGE",
    "apply RULES --dry-run --recording REC --html FILE",
    "plan RULES --recording REC --html FILE",
    "record --out FILE",
    "record RULES --prometheus http://127.0.0.1:1 --start -1h --end 0s --out FILE",
    "record import REC --out FILE",
    "schema --write DIR",
    "schema policy --write DIR",
    "import ALERTS --write DIR",
    "init DIR",
    "serve RULES --state STATE --record FILE -- m",
    "serve RULES --state STATE --socket FILE -- m",
])
def test_what_stands_there_stays(
    cli: Any, places: dict[str, str], tmp_path: Path, words: str
) -> None:
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    shown = cli(*(places.get(word, word) for word in words.split()))
    assert (shown.code, shown.out, shown.err.count("\n")) == (2, "", 1), shown.err
    assert any(said in shown.err for said in ("exists already", "would be lost", "not a socket"))
    after = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert after == before


def test_our_own_earlier_output_is_replaced(
    cli: Any, places: dict[str, str], tmp_path: Path
) -> None:
    schemas, report = tmp_path / "schemas", tmp_path / "report.xml"
    report.write_text("")
    for _ in range(2):
        assert cli("schema", "--write", schemas).code == 0
        assert cli("test", places["RULES"], "--junit", report).code == 4
    assert (schemas / "policy.json").read_text().startswith("{")
    assert report.read_text().startswith("<?xml")


def test_a_report_without_a_folder_is_said_before_the_tests_run(
    cli: Any, places: dict[str, str], tmp_path: Path
) -> None:
    shown = cli("test", places["RULES"], "--junit", tmp_path / "no" / "report.xml")
    assert (shown.code, shown.out, shown.err.count("\n")) == (2, "", 1)
    assert "there is no folder" in shown.err


@pytest.mark.parametrize("words", [
    "test RULES --junit PLACE",
    "apply RULES --dry-run --recording REC --html PLACE",
    "plan RULES --recording REC --html PLACE",
    "schema policy --write FOLDER",
])
@pytest.mark.parametrize(("place", "why"), [
    ("pipe", "it is no regular file"),
    ("unreadable", "cannot be read: permission denied"),
    ("read-only", "its folder is read-only"),
])
def test_a_place_that_cannot_be_written_is_said_before_the_work(
    cli: Any, places: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    words: str, place: str, why: str,
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    path = folder / "policy.json"
    if place == "pipe":
        os.mkfifo(path)
    elif place == "unreadable":
        path.write_text("mine\n")
    _forbid(monkeypatch, path if place == "unreadable" else None,
            folder if place == "read-only" else None)
    named = {**places, "PLACE": str(path), "FOLDER": str(folder)}
    shown = cli(*(named.get(word, word) for word in words.split()))
    assert (shown.code, shown.out) == (2, "") and why in shown.err, shown.err


def test_a_report_of_ours_in_a_read_only_folder_is_written_again_unless_it_is_read_only_too(
    cli: Any, places: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "report.xml"
    report.write_text("<testsuites/>")
    _forbid(monkeypatch, None, tmp_path)
    assert cli("test", places["RULES"], "--junit", report).code == 4
    assert report.read_text().startswith("<?xml")
    _forbid(monkeypatch, None, report)
    shown = cli("test", places["RULES"], "--junit", report)
    assert (shown.code, shown.out) == (2, "") and "it is read-only" in shown.err


def test_a_report_may_go_to_a_stream(cli: Any, places: dict[str, str]) -> None:
    """As `--junit /dev/stdout`."""
    ours, theirs = os.pipe()
    try:
        for stream in ("/dev/null", f"/dev/fd/{theirs}"):
            assert cli("test", places["RULES"], "--junit", stream).code == 4
        assert os.read(ours, 1_000).startswith(b"<?xml")
    finally:
        os.close(ours)
        os.close(theirs)


def _forbid(monkeypatch: pytest.MonkeyPatch, read: Path | None, write: Path | None) -> None:
    """Take the rights to a path away, from the superuser as well."""
    opened, access = Path.open, os.access

    def open_(path: Path, *args: Any, **options: Any) -> Any:
        if path == read:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *args, **options)

    monkeypatch.setattr(Path, "open", open_)
    monkeypatch.setattr(os, "access", lambda path, mode: path != write and access(path, mode))
