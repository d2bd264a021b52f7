"""A disk that fills up or becomes read-only under a running engine: nothing begins that a restart
would not know of, what ends may end, people are told once, and afterwards all goes on."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from resilience.app.files import LineFiles
from resilience.app.journal import BODY_MAX_CHARS, SqliteJournal
from resilience.app.saved_state import SavedState
from resilience.errors import JournalError
from resilience.model import JournalEntry, labels_of

kit = sys.modules["app_rig"]  # loaded by conftest.py
Fault = Callable[[Path], AbstractContextManager[None]]


@contextmanager
def no_space(state: Path) -> Generator[None]:
    """Fill the file system, to the last byte."""
    with open(state / "fill", "wb", buffering=0) as file:
        for size in (65_536, 4_096, 1):
            with suppress(OSError):
                while file.write(b"x" * size):
                    pass
    try:
        yield
    finally:
        os.unlink(state / "fill")


@contextmanager
def no_room_in_files(state: Path) -> Generator[None]:
    """What a quota does, for whoever may not mount: no file of this process grows past a byte."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def read_only_files(state: Path) -> Generator[None]:
    files = [str(f) for f in state.iterdir() if f.is_file()]
    if _fails("chattr", "+i", *files):
        pytest.skip("this user or file system has no immutable files")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", *files], check=True)


@contextmanager
def moved_away(state: Path) -> Generator[None]:
    os.rename(state / "journal.db", state / "elsewhere")
    try:
        yield
    finally:
        os.rename(state / "elsewhere", state / "journal.db")


def _fails(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode != 0
    except FileNotFoundError:
        return True


@contextmanager
def small_disk(folder: Path) -> Generator[Path]:
    folder.mkdir()
    if _fails("mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(folder)):
        pytest.skip("only who may mount has a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


FAULTS: tuple[tuple[Fault, str], ...] = (
    (no_space, "database or disk is full; make room on its disk"),
    (no_room_in_files, "disk I/O error; its disk may be full, read-only or failing"),
    (read_only_files, "its file or file system has become read-only; make it writable"),
    (moved_away, "was removed or replaced while the engine runs; restart the engine"),
)


@pytest.fixture(params=FAULTS, ids=lambda fault: fault[0].__name__)
def case(request: pytest.FixtureRequest, tmp_path: Path, core: Any, clock: Any) -> Iterator[Any]:
    """Return (rig, fault, why): two series, of which `m` fires."""
    fault, why = request.param
    disk = small_disk(tmp_path / "disk") if fault is no_space else nullcontext(tmp_path)
    with disk as folder:
        rig = kit.Rig(folder / "state", core, clock)
        try:
            rig.labels = tuple(
                labels_of({"__name__": kit.WAITING, "model_name": m}) for m in "mn")
            for waiting in ([0, 0], [20, 0], [20, 0]):
                rig.second(waiting)
            assert firing(rig) == ["m"]
            yield rig, fault, why
        finally:
            rig.close()


def firing(rig: Any) -> list[str]:
    return [
        dict(body.labels)["model_name"]
        for _, body in rig.runtime.overview.snapshot().state.items() if body.claims
    ]


def state_of(rig: Any) -> Path:
    path: Path = rig.journal.path.parent
    return path


def test_nothing_begins_what_ends_may_end_and_all_goes_on_afterwards(case: Any) -> None:
    rig, fault, why = case
    with fault(state_of(rig)):
        for _ in range(3):
            rig.second([20, 20])
            rig.runtime.renew()
        assert firing(rig) == ["m"], "`n` may not begin"
        assert rig.core.values() == {"throttle.max_concurrency": {"tier=best-effort": 4}}
        rig.second([0, 20])
        assert firing(rig) == [] and rig.core.values() == {}
        assert why in rig.ask("GET", "status")["errors"]["journal"]
        assert rig.public("/-/healthy").status == 200
        ready = rig.public("/-/ready")
        assert (ready.status, why in ready.body.decode()) == (503, True)
        assert b"\nresilience_journal_failing 1.0\n" in rig.public("/metrics").body
        assert [why in text for text in rig.said] == [True], rig.said
    rig.second([0, 20])
    assert firing(rig) == ["n"]
    assert rig.ask("GET", "status")["errors"] == {} and rig.public("/-/ready").status == 200
    assert rig.said[1:] == ["the journal can be written again"]
    saved = SavedState(rig.journal, drives=True, keep_inputs=True)
    assert saved.restore() == rig.runtime.parts.engine.state


def test_what_was_done_meanwhile_is_told_later(case: Any) -> None:
    rig, fault, _ = case
    with fault(state_of(rig)):
        rig.second([0, 0])
        rig.ask("POST", "policies/queue/pause", {"reason": "at night"})
        rig.second([20, 20])
        assert rig.core.values() == {}
        assert rig.ask("GET", "status")["paused"]
    rig.clock.forward(3_000)
    rig.second([0, 0])
    rig.runtime.renew()
    found = rig.ask("GET", "decisions")["decisions"]
    undone = next(d for d in found if (d["from"], d["to"]) == ("firing", "inactive"))
    told = rig.ask("GET", f"decisions/{undone['id']}")
    assert [e["decision_id"] for e in told["executions"]] == [undone["id"]]
    assert rig.ask("GET", "history")["events"][-1]["reason"] == "at night"
    assert rig.ask("GET", "status")["history_dropped"] == 0


def test_when_there_is_nothing_to_write_the_engine_looks_whether_there_is_room(case: Any) -> None:
    rig, fault, _ = case
    with fault(state_of(rig)):
        rig.second([20, 20])
    rig.clock.forward(10_000)
    rig.runtime.renew()
    assert (rig.ask("GET", "status")["errors"], len(rig.said)) == ({}, 2)


def test_a_row_that_is_too_large_is_dropped_and_holds_up_no_other(rig: Any) -> None:
    records = rig.runtime.records
    records.write([
        JournalEntry("execution", "large", "x" * BODY_MAX_CHARS), JournalEntry("execution", "a", {})
    ])
    records.write([JournalEntry("execution", "b", {})])
    assert list(rig.journal.load("execution")) == ["a", "b"]
    status = rig.ask("GET", "status")
    assert (status["errors"], status["history_dropped"]) == ({}, 1)


@pytest.mark.parametrize(("limit", "value"), [("saved_state.OWED_MAX", 0),
                                              ("journal.BODY_MAX_CHARS", 100)])
def test_decisions_that_cannot_be_written_later_are_counted(
    rig: Any, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    rig.second(20)
    rig.second(20)
    with moved_away(state_of(rig)), monkeypatch.context() as patch:
        patch.setattr(f"resilience.app.{limit}", value)
        rig.second(0)
        assert rig.core.values() == {}
        status = rig.ask("GET", "status")
        assert rig.runtime.parts.engine.owed_dropped == 1
        assert status["history_dropped"] >= 1
        dropped = rig.public("/metrics").body
        assert b'\nresilience_records_dropped_total{record="history"} 0.0\n' not in dropped
    rig.second(20)
    rig.second(20)
    assert rig.ask("GET", "status")["errors"] == {} and rig.core.values()


def test_a_line_that_the_full_disk_cut_spoils_no_other(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        files = LineFiles(disk)
        files.append_line("decisions.jsonl", '"first"')
        with no_space(disk):
            files.append_line("decisions.jsonl", f'"{"x" * 5_000}"')
        files.append_line("decisions.jsonl", '"last"')
        files.close()
        lines = (disk / "decisions.jsonl").read_text().splitlines()
        assert (lines[0], lines[-1], len(lines)) == ('"first"', '"last"', 3)
        assert files.dropped == 1


@pytest.mark.parametrize("fresh", [True, False], ids=["new", "kept"])
def test_a_journal_on_a_full_disk_is_not_called_damaged(tmp_path: Path, fresh: bool) -> None:
    """Who follows that advice and moves it away loses what fires, and every cooldown."""
    path = tmp_path / "journal.db"
    if not fresh:
        kept = SqliteJournal(path)
        kept.append([JournalEntry("state", "a", {"n": 1})])
        kept.close()
    with (
        no_room_in_files(tmp_path),
        pytest.raises(JournalError, match=r"cannot be opened: disk I/O error; its disk may be"),
    ):
        SqliteJournal(path)
    again = SqliteJournal(path)
    assert again.load("state") == ({} if fresh else {"a": {"n": 1}})
    again.close()
