"""Extensions of third parties are found, and looked for cheaply."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience import registry

LIST = "[resilience.actions]\nextra = resilience_extra:EXTRA\n\n[console_scripts]\nx = y:z\n"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    def forget() -> None:
        registry.provided.cache_clear()
        registry._may_extend.cache_clear()

    forget()
    yield
    forget()


def installed(folder: Path, name: str, entry_points: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def test_an_installed_extension_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, "resilience_extra", LIST)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [p.value for p in registry.provided("resilience.actions")] == ["resilience_extra:EXTRA"]
    assert registry.provided("resilience.cores") == ()


def test_other_packages_cost_no_look_at_their_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, "other", "[console_scripts]\nother = other:main\n")
    monkeypatch.setattr("sys.path", [str(tmp_path), str(tmp_path / "missing")])
    assert registry.provided("resilience.actions") == ()
    assert not registry._may_extend(str(tmp_path))


def test_an_archive_on_the_path_is_left_to_importlib(tmp_path: Path) -> None:
    archive = tmp_path / "some.zip"
    archive.write_bytes(b"PK\x05\x06" + b"\0" * 18)
    assert registry._may_extend(str(archive))
