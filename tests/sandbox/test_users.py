"""The sandbox where the engine is not root, in a pod, installed, with closed descriptors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import RestrictedPython

import resilience

OK = ["ok", {"actions": [], "state": [2, "Thursday", 2], "note": "é ü"}]
SOMEBODY = 1000


@pytest.fixture(scope="module")
def site_packages() -> Iterator[Path]:
    """A folder as pip leaves it, that every user can read."""
    with TemporaryDirectory() as name:
        home = Path(name) / "site-packages"
        for module in (resilience, RestrictedPython):
            source = Path(next(iter(module.__path__)))
            shutil.copytree(source, home / source.name,
                            ignore=shutil.ignore_patterns("__pycache__"))
        script = Path(__file__).resolve().with_name("as_user.py")
        shutil.copy(script, Path(name) / "as_user.py")
        Path(name).chmod(0o755)
        yield home


def readable_python() -> str | None:
    """An interpreter of at least 3.11 that another user may start."""
    for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        asked = subprocess.run(
            [path, "-c", "import sys; print(sys.version_info >= (3, 11))"], capture_output=True,
            text=True, check=False, **_as(SOMEBODY)) if _may_start(path) else None
        if asked is not None and asked.stdout.strip() == "True":
            return path
    return None


def _may_start(path: str) -> bool:
    real = Path(os.path.realpath(path))
    return real.exists() and all(p.stat().st_mode & 0o005 == 0o005 for p in (real, *real.parents))


def _as(user: int | None) -> dict[str, Any]:
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


def run(home: Path, mode: str, user: int | None = None, python: str = sys.executable) -> Any:
    done = subprocess.run(
        [python, "-S", "-B", str(home.parent / "as_user.py"), json.dumps([str(home)]), mode],
        capture_output=True, text=True, check=False, cwd="/", timeout=300, **_as(user))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(body: Any) -> None:
    assert body["outcomes"] == [OK, ["TIMEOUT", None], OK]
    for layer in ("seccomp", "no_new_privs", "rlimits", "non_dumpable"):
        assert body["layers"][layer], layer


def test_installed_in_site_packages(site_packages: Path) -> None:
    check(run(site_packages, "plain"))


def test_with_closed_standard_descriptors(site_packages: Path) -> None:
    check(run(site_packages, "closed"))


def test_in_a_pod_without_namespaces(site_packages: Path) -> None:
    body = run(site_packages, "pod")
    check(body)
    assert not body["layers"]["namespaces"] and not body["layers"]["empty_root"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("mode", ["plain", "pod"])
def test_as_a_normal_user(site_packages: Path, mode: str) -> None:
    python = readable_python()
    if python is None:
        pytest.skip("no interpreter that another user may start")
    body = run(site_packages, mode, SOMEBODY, python)
    check(body)
    assert body["uid"] == SOMEBODY
    assert body["layers"]["uid"] is (mode == "plain" and body["layers"]["namespaces"])
