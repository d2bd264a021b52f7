"""Every in-scope eval of the promqltest corpus passes; own scripts of the same format too."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).resolve().parent
OWN = sorted((HERE / "scripts").glob("*.test"))
CORPUS = Path(
    os.environ.get("RESILIENCE_CORPUS", HERE.parents[2] / "shared" / "corpus")
) / "promqltest"


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    if "run_promqltest" not in sys.modules:
        path = HERE / "run_promqltest.py"
        spec = importlib.util.spec_from_file_location("run_promqltest", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["run_promqltest"] = module
        spec.loader.exec_module(module)
    return sys.modules["run_promqltest"]


@pytest.mark.parametrize("path", OWN, ids=lambda p: p.stem)
def test_own_scripts_pass(runner: ModuleType, path: Path) -> None:
    tally = runner.Tally()
    runner.run_file(path, tally)
    assert tally.failed == []
    assert tally.passed > 0


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.test")), ids=lambda p: p.stem)
def test_corpus_scripts_pass(runner: ModuleType, path: Path) -> None:
    tally = runner.Tally()
    runner.run_file(path, tally)
    assert tally.failed == []


def test_corpus_is_there() -> None:
    if not CORPUS.is_dir():
        pytest.skip("no promqltest corpus: set RESILIENCE_CORPUS")
    assert list(CORPUS.glob("*.test"))


def test_failures_set_the_exit_code(
    runner: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "wrong.test"
    script.write_text("load 1m\n  a 1 2\n\neval instant at 1m a\n  a 3\n", encoding="utf-8")
    assert runner.main([str(script)]) == 1
    assert "passed 0, out of scope 0, failed 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("eval instant at 0 1\n  {} 1\n", "expected a vector, got a scalar"),
        ("eval instant at 0 vector(1)\n  1\n", "expected a scalar, got a vector"),
        ("eval instant at 0 1\n", "expected a vector, got a scalar"),
        ("eval instant at 0 1\n  1\n  1\n", "a scalar stands alone"),
        ("eval instant at 0 1\n  1\n  a 1\n", "it stands alone"),
        ("load 1m\n  a 1\neval instant at 0 a\n  a 1\n", "`instant` is no value"),
        ("load 1m\n  a 1\n\neval instant at 0 a\n  a 1\neval instant at 0 a\n  a 2\n",
         "`instant` is no value"),
        ("load 1m\n  a 1 x y\n\neval instant at 0 a\n  a 1\n", "`x` is no value"),
        ("load 1m\n  a 1\n\neval instant at 0 a\n  a 1 2\n", "one value for each series"),
        ("evil instant at 0 a\n  a 1\n", "cannot read|unknown command"),
    ],
)
def test_a_script_that_upstream_fails_fails(
    runner: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], script: str,
    reason: str,
) -> None:
    path = tmp_path / "odd.test"
    path.write_text(script, encoding="utf-8")
    assert runner.main([str(path)]) == 1
    shown = capsys.readouterr().out
    assert "failed 1" in shown
    assert re.search(reason, shown)
