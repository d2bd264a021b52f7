"""What the search for reference servers does where they cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import reference_servers
from tools.reference_servers import UnavailableError, main, mirror, present

MIRROR = "http://a.example.org/debian"
LISTS = [
    (f"deb {MIRROR} bookworm main\n", MIRROR),
    (f"URIs: {MIRROR}/\nSuites: sid\n", MIRROR),
    ("# deb http://old.example.org/debian x main\ndeb http://b.example.org/debian x main\n",
     "http://b.example.org/debian"),
    ("deb http://security.example.org/debian-security x main\n", None),
    ("deb http://archive.example.org/ubuntu noble main\n", None),
    ("", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), LISTS)
def test_the_mirror_is_apt_s_own(
    text: str, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "debian.sources").write_text(text)
    monkeypatch.setattr(reference_servers, "SOURCES", tmp_path)
    if expected is not None:
        assert mirror() == expected
        return
    with pytest.raises(UnavailableError, match="no Debian mirror"):
        mirror()


def test_a_machine_without_apt_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([str(tmp_path / "servers")]) == 1
    assert "no apt-get on this machine; tests that need them are skipped" in capsys.readouterr().err


def test_a_filled_folder_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin").mkdir()
    for name in reference_servers.PROGRAMS:
        (tmp_path / "bin" / name).touch()
    monkeypatch.setenv("PATH", "")
    assert present(tmp_path) and main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "bin")


def test_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(reference_servers.VARIABLE, "/elsewhere")
    monkeypatch.setattr(reference_servers, "unpack", None)
    reference_servers.offer()
