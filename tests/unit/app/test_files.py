from __future__ import annotations

import stat
from pathlib import Path

import pytest

from resilience.app.files import (
    LINE_MAX_CHARS,
    LineFiles,
    StateFolder,
    StateLock,
    default_socket_path,
    default_state_path,
    read_token,
)
from resilience.errors import UsageError
from resilience.samples import canonical_json


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_state_folder_is_private(tmp_path: Path) -> None:
    folder = StateFolder.create(tmp_path / "a" / "state")
    assert (mode(folder.path), mode(folder.bundles)) == (0o700, 0o700)


def test_a_token_is_read_without_its_line_end(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("abc\n")
    assert read_token(tmp_path / "t") == "abc"


def test_where_state_and_socket_lie(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RESILIENCE_STATE", "RESILIENCE_SOCKET", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert default_state_path() == Path.home() / ".local/state/resilience"
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert default_state_path() == Path("/x/resilience")
    monkeypatch.setenv("RESILIENCE_STATE", "/s")
    assert default_socket_path() == Path("/s/engine.sock")
    assert default_socket_path(tmp_path) == tmp_path / "engine.sock"
    monkeypatch.setenv("RESILIENCE_SOCKET", "/run/e.sock")
    assert default_socket_path(tmp_path) == Path("/run/e.sock")


def test_a_state_folder_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made: not a directory; choose another"):
        StateFolder.create(tmp_path / "file" / "state")


def test_a_second_engine_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    folder = StateFolder.create(tmp_path)
    first = StateLock(folder)
    with pytest.raises(UsageError, match=r"another engine \(pid \d+\) uses the state folder"):
        StateLock(folder)
    first.release()
    StateLock(folder).release()


@pytest.mark.parametrize(("content", "message"), [
    (None, "cannot be read: no such file"),
    (b"", "must hold one token"),
    (b"two words", "must hold one token"),
    (b"\xff\xfe", "cannot be read: not utf-8 text"),
])
def test_a_bad_token_file_is_a_clear_error(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "t"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_token(path)


def test_lines_are_appended_rotated_and_bounded(tmp_path: Path) -> None:
    files = LineFiles(tmp_path, rotate_bytes=100, kept=3)
    for n in range(100):
        files.append_line("decisions.jsonl", f'{{"n":{n:06}}}')
    files.close()
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["decisions.jsonl", "decisions.jsonl.1", "decisions.jsonl.2"]
    assert all(p.stat().st_size <= 120 for p in tmp_path.iterdir())
    kept = "".join((tmp_path / n).read_text() for n in reversed(names))
    assert kept.splitlines()[-1] == '{"n":000099}'
    assert mode(tmp_path / "decisions.jsonl") == 0o600
    assert files.dropped == 0


def test_appending_goes_on_after_a_restart(tmp_path: Path) -> None:
    for n in range(2):
        files = LineFiles(tmp_path)
        files.append_line("decisions.jsonl", str(n))
        files.close()
    assert (tmp_path / "decisions.jsonl").read_text() == "0\n1\n"


def test_what_cannot_be_written_is_counted_not_raised(tmp_path: Path) -> None:
    files = LineFiles(tmp_path / "missing")
    files.append_line("decisions.jsonl", "{}")
    files.append_line("decisions.jsonl", "x" * (LINE_MAX_CHARS + 1))
    files.append_line("decisions.jsonl", "a\nb")
    assert files.dropped == 3


def test_half_a_character_is_written_as_its_escape(tmp_path: Path) -> None:
    """As a core's answer may hold one, and as the journal and the history keep it."""
    files = LineFiles(tmp_path)
    files.append_line("executions.jsonl", canonical_json({"a": "\udc80\u00e9"}))
    files.close()
    assert (tmp_path / "executions.jsonl").read_text("utf-8") == '{"a":"\\udc80\u00e9"}\n'
    assert files.dropped == 0


def test_a_stream_name_is_never_a_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not the name of a stream"):
        LineFiles(tmp_path).append_line("../evil.jsonl", "{}")


def test_a_line_that_an_engine_died_in_spoils_no_other(tmp_path: Path) -> None:
    (tmp_path / "decisions.jsonl").write_text('{"id": 1}\n{"id": 2')
    files = LineFiles(tmp_path)
    files.append_line("decisions.jsonl", '{"id": 3}')
    files.close()
    assert (tmp_path / "decisions.jsonl").read_text() == '{"id": 1}\n{"id": 2\n{"id": 3}\n'
