"""Finding a Chromium, and saying why there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import browser


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing on its path."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(browser.VARIABLE, raising=False)
    return tmp_path


def _program(path: Path, script: str = "#!/bin/sh\n") -> Path:
    path.write_text(script)
    path.chmod(0o755)
    return path


def test_the_named_one_goes_before_the_path(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert browser.find() is None
    usual = _program(bare / "chromium")
    assert browser.find() == usual
    other = _program(bare / "mine")
    monkeypatch.setenv(browser.VARIABLE, str(other))
    assert browser.find() == other


@pytest.mark.parametrize(("root", "apt", "why"), [
    (True, None, "no apt-get"),
    (False, "#!/bin/sh\nexit 0\n", "takes root"),
    (True, "#!/bin/sh\necho 'no mirror' >&2\nexit 100\n", "apt-get update failed: no mirror"),
    (True, "#!/bin/sh\nexit 0\n", None),
])
def test_why_none_can_be_installed(
    bare: Path, monkeypatch: pytest.MonkeyPatch, root: bool, apt: str | None, why: str | None
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0 if root else 1000)
    if apt is not None:
        _program(bare / "apt-get", apt)
    found = browser.install()
    assert (found is None) if why is None else (found is not None and why in found)


def test_no_browser_is_a_message_and_exit_code_1(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(browser, "install", lambda: "there is none")
    assert browser.main() == 1
    assert "tests of the report's page are skipped" in capsys.readouterr().err
    _program(bare / "chromium")
    assert browser.main() == 0
