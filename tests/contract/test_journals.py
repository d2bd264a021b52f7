"""One suite over every journal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from resilience.app.journal import KEEP_MS, KEEP_ROWS, MemoryJournal, SqliteJournal
from resilience.errors import JournalError
from resilience.model import Journal, JournalEntry


@pytest.fixture(params=["sqlite", "memory"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Journal:
    made = SqliteJournal(tmp_path / "journal.db") if request.param == "sqlite" else MemoryJournal()
    request.addfinalizer(made.close)
    return made


def test_what_was_appended_is_loaded_by_kind_oldest_first(journal: Journal) -> None:
    journal.append([JournalEntry("state", "b", {"n": 1}), JournalEntry("state", "a", {"n": 2})])
    journal.append([JournalEntry("intent", "desired", [1, 2.5, None])])
    assert list(journal.load("state").items()) == [("b", {"n": 1}), ("a", {"n": 2})]
    assert journal.load("intent") == {"desired": [1, 2.5, None]}
    assert journal.load("nothing") == {}


def test_the_newest_body_of_a_key_rules_and_moves_to_the_end(journal: Journal) -> None:
    journal.append([JournalEntry("state", "a", {"n": 1}), JournalEntry("state", "b", {"n": 1})])
    journal.append([JournalEntry("state", "a", {"n": 2})])
    assert list(journal.load("state").items()) == [("b", {"n": 1}), ("a", {"n": 2})]


def test_a_body_of_none_deletes(journal: Journal) -> None:
    journal.append([JournalEntry("state", "a", {"n": 1}), JournalEntry("state", "b", {"n": 1})])
    journal.append([JournalEntry("state", "a", None), JournalEntry("state", "never", None)])
    assert list(journal.load("state")) == ["b"]


def test_a_batch_is_all_or_nothing(journal: Journal) -> None:
    journal.append([JournalEntry("state", "a", {"n": 1})])
    with pytest.raises(TypeError):
        journal.append(
            [JournalEntry("state", "a", {"n": 2}), JournalEntry("state", "b", object())]
        )
    assert journal.load("state") == {"a": {"n": 1}}


def test_compaction_bounds_what_grows_and_keeps_what_lives(journal: Journal) -> None:
    limit = KEEP_ROWS["operator"]
    journal.append([JournalEntry("operator", str(n), {"n": n}) for n in range(limit + 7)])
    journal.append([JournalEntry("state", str(n), {"n": n}) for n in range(limit + 7)])
    journal.compact(now_ms=0)
    kept = list(journal.load("operator"))
    assert (len(kept), kept[0], kept[-1]) == (limit, "7", str(limit + 6))
    assert len(journal.load("state")) == limit + 7


def test_an_oversized_entry_is_refused_and_nothing_is_written(journal: Journal) -> None:
    with pytest.raises(JournalError, match="more than the limit"):
        journal.append(
            [JournalEntry("state", "a", {}), JournalEntry("state", "b", "x" * 5_000_000)]
        )
    assert journal.load("state") == {}


def test_half_a_character_comes_back_as_it_was(journal: Journal) -> None:
    """A core may answer with one; a row that is refused would hold up all behind it."""
    body = {"t_ms": 1, "\udc80": ["a\\\ud800", "\ud83d\ude00 is whole"]}
    journal.append([JournalEntry("execution", "a", body)])
    assert list(journal.load("execution")) == ["a"]
    [found] = journal.load("execution").values()
    assert found == json.loads(json.dumps(body))
    if isinstance(journal, SqliteJournal):
        assert journal.recent("execution", limit=1, since_ms=1) == [found]


def test_a_second_open_sees_what_the_first_wrote(tmp_path: Path) -> None:
    first = SqliteJournal(tmp_path / "journal.db")
    first.append([JournalEntry("state", "a", {"n": 1})])
    second = SqliteJournal(tmp_path / "journal.db")  # the first is still open, as after kill -9
    assert second.load("state") == {"a": {"n": 1}}
    assert second.get("state", "a") == {"n": 1}
    assert second.get("state", "b") is None
    first.close()
    second.close()


def test_the_journal_is_private(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    journal.append([JournalEntry("state", "a", 1)])
    assert {p.stat().st_mode & 0o777 for p in tmp_path.iterdir()} == {0o600}
    journal.close()


def test_old_decisions_go_with_age(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    journal.append([JournalEntry("decision", "old", {"t_ms": 1}),
                    JournalEntry("decision", "new", {"t_ms": KEEP_MS}),
                    JournalEntry("bundle", "old", {"t_ms": 1})])
    journal.compact(now_ms=KEEP_MS + 2)
    assert list(journal.load("decision")) == ["new"]
    assert list(journal.load("bundle")) == ["old"]
    journal.close()


def test_the_newest_rows_are_found_without_reading_all(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    journal.append([
        JournalEntry("decision", f"{p}/{t}", {"t_ms": t, "policy": p})
        for t in range(5) for p in ("a", "b")
    ])
    assert [d["t_ms"] for d in journal.recent("decision", limit=3)] == [3, 4, 4]
    assert journal.recent("decision", limit=9, since_ms=4, policy="a") == [
        {"t_ms": 4, "policy": "a"}
    ]
    assert len(journal.recent("decision", limit=9, key_prefix="b/")) == 5
    journal.close()


def test_a_damaged_file_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"this was never a database" * 100)
    with pytest.raises(JournalError, match="is damaged .*move it away"):
        SqliteJournal(path)


def test_damaged_pages_are_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    journal.append([JournalEntry("state", str(n), {"text": "x" * 500}) for n in range(200)])
    journal.compact(now_ms=0)
    journal.close()
    body = bytearray(path.read_bytes())
    body[4096:] = b"\xff" * (len(body) - 4096)
    path.write_bytes(bytes(body))
    with pytest.raises(JournalError, match="is damaged"):
        SqliteJournal(path)


def _flipped(path: Path, key: str) -> None:
    """Break the body of one row, as a bit of the disk would."""
    import sqlite3

    other = sqlite3.connect(path)
    other.execute("UPDATE entries SET body = '{\x01' || body WHERE key = ?", (key,))
    other.commit()
    other.close()


def test_a_rotten_row_is_said_and_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    for kind in ("decision", "impulse"):
        journal.append([JournalEntry(kind, f"{kind}-{n}", {"t_ms": n}) for n in range(3)])
        _flipped(path, f"{kind}-1")
    for kind in ("decision", "impulse"):
        with pytest.raises(JournalError, match=rf"damaged \(a row of kind `{kind}` is not JSON\)"):
            journal.load(kind)
        with pytest.raises(JournalError, match="is not JSON"):
            journal.get(kind, f"{kind}-1")
    assert journal.recent("decision", limit=9) == [{"t_ms": 0}, {"t_ms": 2}]
    journal.compact(now_ms=1)
    assert list(journal.load("decision").values()) == [{"t_ms": 0}, {"t_ms": 2}]
    with pytest.raises(JournalError, match="is not JSON"):
        journal.load("impulse")         # what was done once must not be forgotten
    journal.close()


def test_an_error_about_pages_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    journal.append([JournalEntry("state", str(n), {"text": "x" * 500}) for n in range(200)])
    journal.compact(now_ms=0)
    journal.close()
    whole = path.read_bytes()
    said: set[str] = set()
    for start in range(4096, len(whole), 4096):
        path.write_bytes(whole[:start] + bytes(4096) + whole[start + 4096 :])
        try:
            SqliteJournal(path).close()
        except JournalError as error:
            said.add(str(error))
    assert said and not [text for text in said if "\n" in text]


def test_somebody_elses_database_is_refused(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "journal.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE t (x)")
    other.close()
    with pytest.raises(JournalError, match="not a journal of this engine"):
        SqliteJournal(path)


def test_a_newer_journal_is_refused(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "journal.db"
    SqliteJournal(path).close()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version=99")
    newer.close()
    with pytest.raises(JournalError, match="newer engine"):
        SqliteJournal(path)


def test_a_path_that_cannot_be_opened_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be opened"):
        SqliteJournal(tmp_path / "nowhere" / "journal.db")


def test_a_full_disk_is_an_error_and_the_journal_stays_whole(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    journal.append([JournalEntry("state", "a", {"n": 1})])
    journal._db.execute("PRAGMA max_page_count=1")  # SQLite's own way of a full disk
    with pytest.raises(JournalError, match="cannot write"):
        journal.append([JournalEntry("state", str(n), "x" * 4000) for n in range(50)])
    assert journal.load("state") == {"a": {"n": 1}}
    journal.close()
