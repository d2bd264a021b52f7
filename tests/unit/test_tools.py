"""Setting up, preparing and staging: the parts that decide something."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import prepare_model
from tools.pip_settings import parse_settings
from tools.run_stages import Outcome, main


def test_pip_settings_become_the_same_words_for_uv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    limits = tmp_path / "limits.txt"
    limits.touch()
    settings = parse_settings(
        "global.index-url='https://pypi.example/simple'\n"
        "global.extra-index-url='https://one.example\\nhttps://two.example'\n"
        "global.find-links='/global/wheels'\n"
        f"global.constraint='{limits} /is/not/there.txt'\n"
        "install.trusted-host='pypi.example'\n"
        ":env:.find-links='/my/wheels'\n"
        ":env:.cert='/etc/ca.pem'\n"
        "a line of some later pip\n"
    )
    assert settings.uv_arguments() == [
        "--default-index", "https://pypi.example/simple",
        "--index", "https://one.example", "--index", "https://two.example",
        "--find-links", "/my/wheels", "--constraint", str(limits),
        "--allow-insecure-host", "pypi.example", "--index-strategy", "unsafe-best-match",
    ]
    assert settings.variables["SSL_CERT_FILE"] == "/etc/ca.pem"
    assert "PyPI" not in settings.sources()


def test_credentials_of_an_index_are_not_shown() -> None:
    settings = parse_settings(
        "global.index-url='https://me:secret@pypi.example/simple'\n"
        "global.extra-index-url='https://token@one.example'\n"
        "global.find-links='/my/wheels@home'\n"
    )
    assert settings.sources() == \
        "/my/wheels@home, https://one.example, https://pypi.example/simple"
    assert "https://me:secret@pypi.example/simple" in settings.uv_arguments()


def test_unconfigured_pip_says_nothing() -> None:
    settings = parse_settings("")
    assert settings.uv_arguments() == []
    assert settings.sources() == "PyPI"


def test_what_the_user_set_for_uv_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://mine.example")
    monkeypatch.setenv("SSL_CERT_FILE", "/mine.pem")
    settings = parse_settings("global.index-url='https://x.example'\nglobal.cert='/other.pem'\n")
    assert settings.uv_arguments() == []
    assert settings.variables == {}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, a model file, and a conversion that only writes names."""
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"weights")
    monkeypatch.setattr(prepare_model, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(prepare_model, "_gguf_file", lambda: gguf)
    return tmp_path / "cache"


def _convert(source: Path, folder: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_bytes(source.read_bytes())


def test_model_is_made_once_and_again_when_it_is_damaged(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def convert(source: Path, folder: Path) -> None:
        made.append(folder)
        _convert(source, folder)

    monkeypatch.setattr(prepare_model, "_convert", convert)
    folder = prepare_model.prepare()
    assert prepare_model.prepare() == folder
    assert len(made) == 1
    (folder / "model.safetensors").write_bytes(b"half")
    prepare_model.prepare()
    assert len(made) == 2
    assert (folder / "model.safetensors").read_bytes() == b"weights"


def test_model_that_failed_half_way_is_not_taken_for_whole(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare_model, "_convert", lambda s, f: (f / "config.json").touch())
    with pytest.raises(prepare_model.ModelError, match=r"wrote no `model\.safetensors`"):
        prepare_model.prepare()
    assert not (cache / prepare_model.NAME).exists()


def test_stage_line_shows_budget_and_time() -> None:
    assert Outcome("unit", 6, 90.0, ok=True).line().split() == [
        "unit", "1.5", "of", "6", "min", "ok",
    ]
    assert Outcome("live", 1, 90.0, ok=False).line().endswith("FAILED  over budget")


def test_unknown_stage_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nonsense"]) == 2
    assert "no stage `nonsense`; choose from test, static" in capsys.readouterr().err


def test_note_beside_the_model_is_json(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_model, "_convert", _convert)
    note = json.loads((prepare_model.prepare() / prepare_model.MADE_OF).read_text())
    assert set(note) == {"recipe", "gguf_bytes", "sha256", "sizes"}
