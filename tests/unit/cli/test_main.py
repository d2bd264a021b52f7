"""The frame of the command line: names, exit codes, errors without tracebacks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from resilience.cli import COMMANDS, report
from resilience.errors import ControlError, FindingsError, PromQLError, UsageError
from resilience.model import Finding
from resilience.registry import load

ROOT = Path(__file__).resolve().parents[3]
POLICY = """\
apiVersion: resilience/v1
kind: Policy
metadata: {name: p}
spec:
  trigger: {expr: 'vllm:num_requests_waiting', on_no_data: hold}
  actions: [{type: throttle, max_concurrency: 8}]
"""


@pytest.mark.parametrize("dotted", COMMANDS)
def test_every_command_loads_and_explains_itself(dotted: str, cli: Any) -> None:
    name = dotted.partition(":")[0].rpartition(".")[2].rstrip("_")
    assert load(dotted).name == name
    shown = cli(name, "--help")
    assert shown.code == 0
    assert shown.out.startswith("Usage: resilience " + name)


def _parameters(command: click.Command) -> Iterator[click.Parameter]:
    yield from command.params
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            assert found is not None
            yield from _parameters(found)


@pytest.mark.parametrize("dotted", COMMANDS)
def test_an_empty_text_is_no_path_anywhere(dotted: str) -> None:
    """As an unset variable of a pipeline gives it: it would be the current folder."""
    for parameter in _parameters(load(dotted)):
        if isinstance(parameter.type, click.Path):
            with pytest.raises(click.BadParameter, match="names no file or folder"):
                parameter.type.convert("", parameter, None)


def test_an_unset_variable_applies_nothing(
    cli: Any, rules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(rules)
    for words in (("check", ""), ("apply", ""), ("apply", rules, "--state", "")):
        shown = cli(*words)
        assert (shown.code, shown.out, shown.err.count("\n")) == (2, "", 1)
        assert "an empty text names no file or folder" in shown.err


def test_help_lists_all_commands(cli: Any) -> None:
    shown = cli("--help")
    assert shown.code == 0
    for dotted in COMMANDS:
        assert dotted.partition(":")[0].rpartition(".")[2].rstrip("_") in shown.out


def test_the_version_is_shown(cli: Any) -> None:
    assert cli("--version").out == "resilience 0.1.0\n"


@pytest.mark.parametrize(("args", "message"), [
    (["serv"], "error: no command `serv`, did you mean `serve`; see `resilience --help`"),
    (["get"], "error: missing argument `{status|policies|"),
    (["get", "nothing"], "error: invalid value for"),
    (["get", "status", "--wrong"], "error: no such option"),
    (["get", "status", "--outptu", "x"],
     "error: no such option `--outptu`, did you mean `--output`; see `resilience get --help`"),
    (["check", ".", "--server", "http://a:b"], "error: the address of a server has no valid port"),
    (["check", ".", "--server", "http://u:p@a"],
     "error: the address of a server holds credentials"),
    (["check", ".", "--prometheus", "http://[::1"],
     "error: the address of Prometheus has no valid host"),
    (["query", "up", "--prometheus", "http://[::1"],
     "error: the address of Prometheus has no valid host"),
    (["doctor", "--prometheus", "http://[::1"],
     "error: the address of Prometheus has no valid host"),
    (["doctor", "--attach", "http://a..b"], "error: the address of a server has no valid host"),
    (["release", "--attach", "http://a..b", "--reason", "x"],
     "error: the address of a server has no valid host"),
    (["pause"], "error: missing option `--reason`; see `resilience pause --help`"),
    (["pause", "--reason", "x"], "error: name one POLICY, or say `--all`"),
    (["pause", "p", "--all", "--reason", "x"], "error: name one POLICY, or say `--all`"),
    (["pause", "p", "--for", "1 hour", "--reason", "x"], "error: `--for`: `1 hour` is not a dur"),
    (["explain", "not-an-id"], "error: `not-an-id` is no decision"),
    (["apply", "rules", "--recording", "x"], "error: `--recording` evaluates only"),
    (["apply", "missing"], "error: the rules folder or file `missing` does not exist"),
])
def test_usage_errors_are_one_line_and_exit_2(cli: Any, args: list[str], message: str) -> None:
    shown = cli(*args)
    assert (shown.code, shown.out) == (2, "")
    assert shown.err.startswith(message)
    assert shown.err.count("\n") == 1


def test_no_engine_running_is_one_line(cli: Any) -> None:
    shown = cli("get", "status")
    assert shown.code == 1
    assert shown.err.startswith("error: no engine listens on")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(("error", "code", "text"), [
    (UsageError("bad `x`"), 2, "error: bad `x`\n"),
    (ControlError("refused"), 1, "error: refused\n"),
    (PromQLError("no `foo`", line=2, column=5, suggestion="write `bar`"), 1,
     "error: 2:5: no `foo`; write `bar`\n"),
    (FindingsError([Finding("a.yaml", 1, 2, "error", "c", "wrong")]), 3,
     "a.yaml:1:2: error: wrong [c]\n"),
    (FileNotFoundError(2, "No such file or directory", "x"), 1,
     "error: `x`: no such file or directory\n"),
    (RuntimeError("Odd\nthing."), 1,
     "error: internal: odd thing; run it again with `--debug` and report it\n"),
])
def test_errors_become_lines_and_codes(
    error: Exception, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(error) == code
    assert capsys.readouterr().err == text


def test_findings_of_the_engine_are_shown_as_findings(
    capsys: pytest.CaptureFixture[str]
) -> None:
    finding = Finding("a.yaml", 1, 2, "error", "c", "wrong")
    code = report(ControlError("a.yaml:1:2", code="findings", status=422, findings=[finding]))
    assert code == 3
    assert capsys.readouterr().err == "a.yaml:1:2: error: wrong [c]\n"


def test_debug_shows_the_traceback_anywhere(cli: Any) -> None:
    for args in (["--debug", "get", "status"], ["get", "status", "--debug"]):
        shown = cli(*args)
        assert shown.code == 1
        assert "Traceback" in shown.err


def run(*args: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), *args], capture_output=True, text=True, timeout=60,
        check=False, **more,
    )


def test_the_launcher_of_a_checkout_works_from_anywhere(tmp_path: Path) -> None:
    done = run("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "resilience 0.1.0\n")


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), "doctor"], stdout=write, stderr=subprocess.PIPE,
        text=True, timeout=60, check=False, env={**os.environ, "RESILIENCE_STATE": str(tmp_path)},
    )
    os.close(write)
    assert done.stderr == ""


@pytest.mark.parametrize("words", ["--help", "check rules/queue-growth.yaml"])
def test_what_runs_often_does_not_import_what_is_heavy(words: str) -> None:
    code = (
        "import sys, resilience.cli as c\n"
        f"try: c.main({words.split()!r})\n"
        "except SystemExit as end: assert end.code == 0\n"
        "print(sorted({'numpy','pyarrow','apscheduler','vllm','torch','httpx'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "engine")}, cwd=ROOT,
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def _alone(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command line in a process of its own, with this locale."""
    kept = {name: value for name, value in os.environ.items()
            if name != "LANG" and not name.startswith(("LC_", "PYTHON"))}
    return subprocess.run(
        [sys.executable, "-c", "from resilience.cli import main; main()", *args],
        cwd=cwd, env={**kept, **env}, capture_output=True, timeout=120, check=False,
    )


@pytest.mark.parametrize("env", [
    {"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}, {"LANG": "POSIX"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"},
])
def test_in_locale_c_our_own_signs_are_ascii(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "p.yaml").write_text(POLICY, encoding="utf-8")
    (tmp_path / "ü.yaml").write_text("a: …\n", encoding="utf-8")
    shown = _alone("check", "p.yaml", cwd=tmp_path, **env)
    assert b"compare it, as in `... > 0`" in shown.stdout
    assert shown.stdout.isascii() and shown.stderr.isascii()
    assert "`… > 0`" in _alone("check", "p.yaml", "-o", "json", cwd=tmp_path, **env).stdout.decode()
    assert "ü.yaml:1:1" in _alone("check", "ü.yaml", cwd=tmp_path, **env).stdout.decode()


def test_another_encoding_gets_escapes(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(POLICY.replace("expr: 'v", "expr: 'ü"), encoding="utf-8")
    shown = _alone("check", "p.yaml", cwd=tmp_path, LC_ALL="C.UTF-8", PYTHONIOENCODING="latin-1")
    assert shown.returncode == 3 and b"error: a path" not in shown.stderr
    assert shown.stdout.decode("latin-1").startswith("p.yaml:5:20: error:")


def test_in_a_utf8_locale_signs_stay(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(POLICY, encoding="utf-8")
    shown = _alone("check", "p.yaml", cwd=tmp_path, LC_ALL="C.UTF-8")
    assert "`… > 0`" in shown.stdout.decode()
