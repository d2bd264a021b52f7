"""`serve` refuses everything that cannot work in one line, before any server starts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience.app.files import StateFolder, StateLock
from resilience.app.journal import SqliteJournal
from resilience.model import JournalEntry
from tools.ports import free_port


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield int(listener.getsockname()[1])


@pytest.fixture
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s")


def refused(shown: Any, code: int, *words: str) -> None:
    assert (shown.code, shown.out) == (code, "")
    assert shown.err.count("\n") == 1, shown.err
    for word in words:
        assert word in shown.err


def test_neither_model_nor_attach(cli: Any, rules: Path) -> None:
    refused(cli("serve", rules), 2, "say what to serve: `-- MODEL ARGS")
    refused(cli("serve", rules, "--attach", "http://x", "--", "m"), 2, "say what to serve")


def test_rules_that_are_missing_or_wrong(cli: Any, rules: Path, state: Path) -> None:
    refused(cli("serve", rules / "no", "--state", state, "--", "m"), 2, "does not exist")
    (rules / "queue.yaml").write_text("spec: [")
    shown = cli("serve", rules, "--state", state, "--", "m")
    assert shown.code == 3
    assert "queue.yaml:1:" in shown.err


def test_no_rules_and_nothing_applied_before(cli: Any, state: Path) -> None:
    refused(cli("serve", "--state", state, "--", "m"), 2, "no RULES given, and no bundle")


def test_no_rules_and_the_last_bundle_is_lost(cli: Any, state: Path) -> None:
    journal = SqliteJournal(StateFolder.create(state).journal)
    row = {"t_ms": 1, "revision": "sha256:0123456789ab"}
    journal.append([JournalEntry("bundle", "1", row)])
    journal.close()
    refused(cli("serve", "--state", state, "--", "m"), 2,
            "no RULES given, and of the last ones applied: revision `sha256:0123456789ab` is not")


def test_a_state_folder_in_use(cli: Any, rules: Path, state: Path) -> None:
    lock = StateLock(StateFolder.create(state))
    refused(cli("serve", rules, "--state", state, "--", "m"), 2, "another engine (pid ")
    lock.release()


def test_a_damaged_journal(cli: Any, rules: Path, state: Path) -> None:
    (state / "journal.db").write_bytes(b"junk" * 2000)
    refused(cli("serve", rules, "--state", state, "--", "m"), 1, "is damaged", "move it away")


def test_a_taken_or_strange_listen_address(
    cli: Any, rules: Path, state: Path, taken: int
) -> None:
    args = ("serve", rules, "--state", state)
    refused(cli(*args, "--listen", f"127.0.0.1:{taken}", "--", "m"), 2, "address already in use",
            "choose another port with `--listen`")
    refused(cli(*args, "--listen", "nonsense", "--", "m"), 2, "is not an address")


def test_a_source_or_a_recording_that_cannot_be(
    cli: Any, rules: Path, state: Path, tmp_path: Path
) -> None:
    args = ("serve", rules, "--state", state)
    for url in ("nonsense", "ftp://x", "http://"):
        refused(cli(*args, "--prometheus", url, "--", "m"), 2, "address of Prometheus", url)
    taken = tmp_path / "taken.parquet"
    taken.write_text("")
    refused(cli(*args, "--record", taken, "--", "m"), 2, "exists already")
    refused(cli(*args, "--record", taken / "x", "--", "m"), 2, "no folder that can be written")
    (tmp_path / "new.parquet.parts").mkdir()
    (tmp_path / "new.parquet.parts" / "part-000000.tail").write_text("")
    refused(cli(*args, "--record", tmp_path / "new.parquet", "--", "m"), 2, "unfinished recording")


def test_a_model_path_that_is_missing(cli: Any, rules: Path, state: Path) -> None:
    pytest.importorskip("vllm", reason="needs vLLM", exc_type=ImportError)
    refused(cli("serve", rules, "--state", state, "--", "/nowhere/model"), 2, "/nowhere/model")


def test_a_server_port_that_is_taken(
    cli: Any, rules: Path, state: Path, taken: int, tmp_path: Path
) -> None:
    pytest.importorskip("vllm", reason="needs vLLM", exc_type=ImportError)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    shown = cli(
        "serve", rules, "--state", state, "--", tmp_path / "model", "--host", "127.0.0.1",
        "--port", str(taken),
    )
    refused(shown, 2, f"port `{taken}`")


def test_attaching_to_nobody(cli: Any, rules: Path, state: Path, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    args = ("serve", rules, "--state", state, "--attach")
    refused(cli(*args, url, "--token-file", tmp_path / "no"), 2, "the token file", "cannot be read")
    (tmp_path / "token").write_text("t" * 32)
    refused(cli(*args, url, "--token-file", tmp_path / "token"), 1, url)
    refused(cli(*args, "localhost", "--token-file", tmp_path / "token"), 2, "http://HOST:PORT")


def test_nothing_is_left_held_after_a_refusal(cli: Any, rules: Path, state: Path) -> None:
    cli("serve", rules, "--state", state, "--listen", "nonsense", "--", "m")
    StateLock(StateFolder.create(state)).release()
    assert not (state / "engine.sock").exists()


def test_release_without_a_server_or_token(cli: Any, tmp_path: Path) -> None:
    refused(cli("release", "--attach", "localhost", "--token-file", tmp_path / "t"), 2, "address")
    refused(cli("release", "--attach", "http://127.0.0.1:9", "--token-file", tmp_path / "t"), 2,
            "the token file")
