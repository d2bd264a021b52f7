"""`resilience udf check` and `udf run`, as an author uses them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from resilience.cli.udf import command
from resilience.errors import UsageError

GOOD = """
def f(ctx):
    print("saw", ctx["value"])
    return {"actions": [{"type": "throttle", "tier": "best-effort", "max_concurrency": 8}]}
"""
PATIENT = ("--timeout", "30s")
OWN = "def f(ctx):\n    return {'actions': [{'type': 'defragment', 'target': 'a'}]}\n"


def invoke(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(command, arguments, input=stdin, standalone_mode=False)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "bad.py").write_text("import os\ndef f(ctx):\n    return '{}'.format(1)\n")
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n")
    (tmp_path / "ctx.json").write_text(json.dumps({"value": 0.5, "metrics": {}}))
    return tmp_path


def run_json(files: Path, name: str, *more: str) -> tuple[int, Any]:
    result = invoke("run", str(files / name), "f", "--context", str(files / "ctx.json"),
                    "-o", "json", *PATIENT, *more)
    assert result.exception is None, result.exception
    body = json.loads(result.stdout)
    assert set(body) == {"version", "outcome", "result", "log", "duration_ms"}
    return result.return_value, body


def test_run_prints_outcome_result_log_and_duration(files: Path) -> None:
    code, body = run_json(files, "good.py")
    assert (code, body["outcome"], body["log"], body["version"]) == (0, "ok", "saw 0.5\n", 1)
    assert body["result"]["actions"][0]["max_concurrency"] == 8
    assert body["duration_ms"] > 0


def test_run_takes_the_context_from_stdin(files: Path) -> None:
    result = invoke("run", str(files / "good.py"), "f", "--context", "-", *PATIENT,
                    stdin='{"value": 1}')
    assert result.return_value == 0 and "max_concurrency" in result.output


def test_an_action_type_must_be_registered_or_named(files: Path) -> None:
    code, body = run_json(files, "own.py")
    assert (code, body["outcome"]) == (1, "BAD_RESULT")
    assert "unknown type `defragment`" in body["log"]
    code, body = run_json(files, "own.py", "--allow-actions", "noop,defragment")
    assert (code, body["outcome"]) == (0, "ok")


def test_a_registered_action_is_checked_as_in_yaml(files: Path) -> None:
    (files / "wrong.py").write_text(GOOD.replace("best-effort", "").replace(": 8", ": -8"))
    code, body = run_json(files, "wrong.py")
    assert (code, body["outcome"], body["result"]) == (1, "BAD_RESULT", None)
    assert "max_concurrency" in body["log"]


def test_a_refused_file_ends_with_1_and_the_place(files: Path) -> None:
    code, body = run_json(files, "bad.py")
    assert (code, body["outcome"]) == (1, "COMPILE_DENIED")
    assert body["log"].startswith(f"{files / 'bad.py'}:1:1: the module `os`")
    code, body = run_json(files, "latin.py")
    assert (code, body["outcome"]) == (1, "COMPILE_DENIED")


def test_text_says_the_outcome_and_keeps_the_log_off_stdout(files: Path) -> None:
    result = invoke("run", str(files / "good.py"), "f", "--context", str(files / "ctx.json"),
                    *PATIENT)
    assert result.stdout.startswith("ok\n{")
    assert "log: saw 0.5" in result.stderr


def test_check_gives_place_and_help(files: Path) -> None:
    result = invoke("check", str(files / "bad.py"))
    assert result.return_value == 3
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"{files / 'bad.py'}:1:1: error: the module `os` is not available")
    assert ":3:12: error: `format`" in lines[1] and "f-string" in lines[1]


def test_check_of_a_folder_and_as_json(files: Path) -> None:
    result = invoke("check", str(files), "-o", "json")
    body = json.loads(result.stdout)
    assert (result.return_value, body["version"], body["files"]) == (3, 1, 4)
    assert {Path(f["file"]).name for f in body["findings"]} == {"bad.py", "latin.py"}
    assert set(body["findings"][0]) >= {"file", "line", "column", "severity", "code", "message"}
    assert invoke("check", str(files / "good.py"), str(files / "own.py")).return_value == 0


@pytest.mark.parametrize(("arguments", "message"), [
    (["check", "nowhere.py"], "does not exist"),
    (["run", "nowhere.py", "f", "--context", "ctx.json"], "does not exist"),
    (["run", "good.py", "f", "--context", "nowhere.json"], "cannot be read"),
    (["run", "good.py", "f", "--context", "good.py"], "is not JSON, at "),
    (["run", "good.py", "f", "--context", "/dev/null"], "is empty: write a JSON mapping"),
    (["run", ".", "f", "--context", "/dev/null"], "is a folder: name the UDF file in it"),
    (["run", "good.py", "f", "--context", "list.json"], "is not a JSON mapping"),
    (["run", "good.py", "f", "--context", "ctx.json", "--timeout", "soon"], "not a duration"),
    (["run", "good.py", "f", "--context", "ctx.json", "--timeout", "1h"], "is not between"),
])
def test_bad_usage_is_one_clear_error(
    files: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(files)
    (files / "list.json").write_text("[]")
    result = invoke(*arguments)
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)
