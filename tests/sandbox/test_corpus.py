"""The shared corpus of attacks and benign UDFs, under the full lock."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import RestrictedPython


@pytest.fixture(scope="module")
def corpus_context(corpus: Path) -> Any:
    return json.loads((corpus / "udf_context.json").read_text())


@pytest.mark.parametrize("without", ["", "namespaces,empty_root,uid"], ids=["full", "pod"])
def test_every_attack_ends_as_its_header_expects(
    corpus: Path, corpus_context: Any, attacks: ModuleType, without: str
) -> None:
    files = [attacks.read_attack(p) for p in sorted((corpus / "udf_attacks").glob("*.py"))]
    assert len(files) > 100
    outcomes = attacks.run_all(files, corpus_context, frozenset(without.split(",")) - {""})
    wrong = {a.name: outcomes[a.name] for a in files
             if not attacks.as_expected(a, outcomes[a.name])}
    assert wrong == {}


def test_every_benign_udf_works_or_is_refused_with_help(
    corpus: Path, corpus_context: Any, attacks: ModuleType
) -> None:
    files = [attacks.read_attack(p) for p in sorted((corpus / "udf_benign").glob("*.py"))]
    assert len(files) > 40
    outcomes = attacks.run_all(files, corpus_context)
    assert {a.name: outcomes[a.name] for a in files
            if not attacks.as_expected(a, outcomes[a.name])} == {}
    assert "f-string" in (outcomes["42_str_format_method.py"].detail or "")
    assert "`if` and `elif`" in (outcomes["43_match_statement.py"].detail or "")


def _interpreters() -> list[str]:
    """Other Python versions of this machine, by their usual names and by pyenv's."""
    found = [p for v in ("3.12", "3.13", "3.14") for p in [shutil.which(f"python{v}")] if p]
    found += [str(p) for p in sorted(Path.home().glob(".pyenv/versions/3.1[234]*/bin/python"))]
    works: dict[str, str] = {}
    for path in found:
        asked = subprocess.run([path, "-c", "import sys; print(sys.version_info[:2])"],
                               capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            works.setdefault(asked.stdout.strip(), path)
    return list(works.values())


@pytest.mark.parametrize("python", _interpreters())
def test_the_corpus_holds_on_other_python_versions(
    corpus: Path, python: str, tmp_path: Path
) -> None:
    home = Path(str(RestrictedPython.__file__)).parent
    shutil.copytree(home, tmp_path / "RestrictedPython",
                    ignore=shutil.ignore_patterns("__pycache__"))
    files = sorted((corpus / "udf_attacks").glob("*.py")) + sorted(
        (corpus / "udf_benign").glob("*.py"))
    script = Path(__file__).resolve().with_name("run_attack.py")
    done = subprocess.run(
        [python, str(script), *map(str, files)], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        timeout=300,
    )
    lines = done.stdout.splitlines()
    assert [line for line in lines if "\theld\t" not in line] == [], done.stderr
    assert len(lines) == len(files)
