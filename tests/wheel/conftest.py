"""The built wheel in an environment of its own, once for all tests here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.pip_settings import read_settings

ROOT = Path(__file__).resolve().parents[2]
STEP_S = 300


@dataclass(frozen=True, slots=True)
class Installed:
    """A fresh environment with the wheel, and an empty folder to run it from."""

    wheel: Path
    bin: Path
    elsewhere: Path

    def run(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, away from the checkout and without its variables."""
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RESILIENCE"))}
        keep |= {"HOME": str(self.elsewhere), "PATH": f"{self.bin}:/usr/bin:/bin"}
        return subprocess.run(
            [str(self.bin / words[0]), *words[1:]], cwd=cwd or self.elsewhere, env=keep, text=True,
            capture_output=True, timeout=STEP_S, check=False,
        )


def _uv(*words: str) -> None:
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("uv is not installed beside this Python: run `make setup`")
    settings = read_settings(Path(sys.executable))
    index = settings.uv_arguments() if words[:2] == ("pip", "install") else []
    command = [str(uv), *words, *index]
    answer = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **settings.variables}, text=True,
        capture_output=True, timeout=STEP_S, check=False,
    )
    assert answer.returncode == 0, f"{' '.join(command)}\n{answer.stderr}"


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build sdist and from it the wheel, install the wheel with its dependencies and no extra."""
    base = tmp_path_factory.mktemp("wheel")
    source = base / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
        capture_output=True, text=True, timeout=60, check=False,
    )
    if listed.returncode:
        pytest.skip("this is not a git checkout, so there is no saying what belongs to the project")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    _uv("build", "--quiet", str(source), "--out-dir", str(base / "dist"))
    wheel = next((base / "dist").glob("*.whl"))
    _uv("venv", "--quiet", "--python", sys.executable, str(base / "env"))
    python = base / "env" / "bin" / "python"
    _uv("pip", "install", "--quiet", "--python", str(python), str(wheel))
    elsewhere = base / "elsewhere"
    elsewhere.mkdir()
    return Installed(wheel, python.parent, elsewhere)
