"""Over all commands: no traceback without `--debug`, Ctrl-C, NO_COLOR, narrow, locale C, pipes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pytest

from resilience import cli
from resilience.cli import main, resilience

MAIN = "from resilience.__main__ import main; main()"
NOWHERE = "/nonexistent/place"
HELP_OF_ALL = """
import sys
from resilience import cli
for name in cli.resilience.list_commands(None):
    try:
        cli.main([name, "--help"])
    except SystemExit as end:
        if end.code:
            sys.exit(f"{name}: {end.code}")
"""
# Words that get past the parser, so that the command itself has to say what is wrong.
WORDS: dict[str, list[str]] = {
    "apply": [NOWHERE], "check": [NOWHERE], "test": [NOWHERE], "import": [NOWHERE],
    "serve": [NOWHERE, "--", "model"], "query": ["up", "--recording", NOWHERE],
    "explain": ["0123456789abcdef"], "get": ["policies"], "pause": ["p"], "resume": ["p"],
    "completion": ["tcsh"], "schema": ["nothing"], "init": ["/proc/nothing/here"],
    "udf": ["check", NOWHERE], "record": ["import", NOWHERE],
    "release": ["--token-file", NOWHERE],
}
MAY_SUCCEED = {"doctor"}                         # it reports what it finds, whatever that is


def commands() -> list[str]:
    with click.Context(resilience) as context:
        return resilience.list_commands(context)


def leaves() -> Iterator[tuple[str, ...]]:
    """Yield every command and subcommand as words."""
    with click.Context(resilience) as context:
        for name in resilience.list_commands(context):
            yield (name,)
            found = resilience.get_command(context, name)
            if isinstance(found, click.Group):
                yield from ((name, sub) for sub in found.list_commands(context))


@pytest.fixture
def ends(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """Return `ends(*words)`: the exit code and both streams of the command line."""
    monkeypatch.setenv("RESILIENCE_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("RESILIENCE_DEBUG", raising=False)

    def go(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(list(words))
        out, err = capfd.readouterr()
        return int(end.value.code or 0), out, err

    return go


Ends = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("words", list(leaves()), ids=" ".join)
@pytest.mark.parametrize("columns", ["20", "80", "300"])
def test_help_on_any_terminal(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    code, out, err = ends(*words, "--help")
    assert (code, err) == (0, "")
    assert out.startswith("Usage: resilience")
    assert "\x1b" not in out


@pytest.mark.parametrize("words", list(leaves()), ids=" ".join)
def test_an_unknown_option_is_one_line(ends: Ends, words: tuple[str, ...]) -> None:
    code, out, err = ends(*words, "--no-such-option")
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1


@pytest.mark.parametrize("name", commands())
def test_what_cannot_be_done_is_said_and_no_traceback(ends: Ends, name: str) -> None:
    code, _, err = ends(name, *WORDS.get(name, []))
    assert "Traceback" not in err and "internal" not in err
    if name not in MAY_SUCCEED:
        assert code in (1, 2, 3, 4), err
        assert "error: " in err
        assert err.splitlines()[-1].strip()


def test_a_mistyped_command(ends: Ends) -> None:
    code, _, err = ends("chekc")
    assert (code, err) == (
        2, "error: no command `chekc`, did you mean `check`; see `resilience --help`\n"
    )


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("a\nb."), "error: internal: a b; run it again with `--debug`"),
        (RecursionError(), "error: internal: RecursionError"),
        (PermissionError(13, "Permission denied", "x"), "error: `x`: permission denied"),
        (UnicodeEncodeError("utf-8", "a\udcffb", 1, 2, "no"), "a path or text is not UTF-8"),
        (MemoryError(), "error: internal: MemoryError"),
    ],
)
def test_a_bug_has_a_traceback_only_with_debug(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, error: Exception, line: str
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(cli.resilience, "invoke", broken)
    code, out, err = ends("schema")
    assert code in (1, 2) and out == ""
    assert line in err and "Traceback" not in err and err.count("\n") == 1
    _, _, err = ends("schema", "--debug")
    assert "Traceback" in err and line in err


# --- Ctrl-C --------------------------------------------------------------------------------------


def started(*words: str) -> subprocess.Popen[bytes]:
    """Start a process group of its own, as a terminal does. A shell that runs the tests in its
    background has them ignore SIGINT, which a child inherits."""
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def interrupted(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Press Ctrl-C, and again where the first came in the instant before a call that blocks:
    CPython notes such a signal but wakes only at the next one."""
    for _ in range(6):
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            _, err = process.communicate(timeout=10)
            return process.returncode, err.decode().strip()
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    raise AssertionError("the command did not end at Ctrl-C")


def test_ctrl_c_while_it_reads(tmp_path: Path) -> None:
    pipe = tmp_path / "rules.yaml"
    os.mkfifo(pipe)
    process = started("import", str(pipe))
    with pipe.open("wb"):                         # returns once the command has opened it
        assert interrupted(process) == (130, "interrupted")


def test_ctrl_c_while_it_is_still_imported() -> None:
    program = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'click': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n" + MAIN
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "check", "."], capture_output=True, text=True, timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), check=False,
    )
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize("words", [("schema", "policy"), ("check", "."), ("--help",)])
@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_stream_is_no_traceback(
    folder: Path, words: tuple[str, ...], closed: int
) -> None:
    line = f'exec "$0" -c "$1" {" ".join(words)} {closed}>&-'
    done = subprocess.run(
        ["/bin/sh", "-c", line, sys.executable, MAIN], cwd=folder, capture_output=True, text=True,
        timeout=60, check=False,
    )
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == (1 if closed == 1 else 0)
    assert ("error: stdout is closed, so the output is lost" in done.stderr) is (closed == 1)


def test_ctrl_c_while_udfs_run(folder: Path) -> None:
    one = ("    interval: 5s\n"
           "    input_series: [{series: 'vllm:num_requests_waiting', values: 9x90}]\n"
           "    expect: [{at: 5m, state: firing}]\n")
    # More lines than the pipe and everybody's buffers hold: it cannot end before it is interrupted.
    text = "tests:\n" + "".join(f"  - name: t{i} {'x' * 190}\n{one}" for i in range(200))
    (folder / "rules" / "queue.test.yaml").write_text(text)
    process = started("test", "--verbose", str(folder / "rules"))
    assert process.stdout is not None
    fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4_096)
    assert process.stdout.readline().startswith(b"passed")
    assert interrupted(process) == (130, "interrupted")


# --- terminals, pipes and locales ----------------------------------------------------------------


def on_a_terminal(env: dict[str, str], *words: str) -> str:
    """Run with stdout and stderr on a terminal and return what it shows."""
    ours, theirs = pty.openpty()
    kept = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, *words], stdin=subprocess.DEVNULL, stdout=theirs,
        stderr=theirs, env={**kept, "TERM": "xterm-256color", **env},
    ):
        os.close(theirs)
        shown = b""
        while True:
            try:
                chunk = os.read(ours, 65_536)
            except OSError:                       # the other end is closed
                break
            if not chunk:
                break
            shown += chunk
    os.close(ours)
    return shown.decode()


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}, {"COLUMNS": "20"}])
def test_colour_only_where_it_is_wanted(folder: Path, env: dict[str, str]) -> None:
    (folder / "rules" / "queue.test.yaml").write_text(
        "tests: [{name: t, expect: [{at: 5s, state: firing}]}]\n"
    )
    shown = on_a_terminal(env, "test", str(folder / "rules"))
    assert ("\x1b[31m" in shown) == ("NO_COLOR" not in env and "TERM" not in env)
    assert "state differs" in shown


INCIDENT = ("--recording", "recordings/queue.parquet")


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `init` writes, with a recorded incident."""
    folder = tmp_path_factory.mktemp("begun")
    done = subprocess.run([sys.executable, "-c", MAIN, "init", str(folder / "r")], check=False,
                          capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder / "r"


@pytest.mark.parametrize(
    "words",
    [
        ("check", "rules"), ("test", "rules", "--verbose", "--coverage"),
        ("apply", "rules", "--dry-run", *INCIDENT),
        ("apply", "rules", "--dry-run", *INCIDENT, "--set", "queue-limit.trigger.for=30s,1m"),
        ("plan", "rules", *INCIDENT), ("query", "vllm:num_requests_waiting", *INCIDENT),
        ("udf", "check", "udfs"), ("schema",), ("check", "--codes"), ("doctor",), ("--help",),
    ],
    ids=" ".join,
)
def test_on_a_terminal_it_says_what_it_says_in_a_pipe(
    begun: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Colours are the only difference; nothing is written that only a terminal would trip over."""
    monkeypatch.chdir(begun)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("RESILIENCE_STATE", str(begun / "state"))
    piped = subprocess.run([sys.executable, "-c", MAIN, *words], check=False, timeout=120,
                           stdin=subprocess.DEVNULL, capture_output=True, text=True)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal({}, *words)).replace("\r\n", "\n")
    assert "\x1b" not in piped.stdout
    for line in (*piped.stdout.splitlines(), *piped.stderr.splitlines()):
        assert line in shown, shown


@pytest.mark.parametrize(
    "env",
    [
        {"LC_ALL": "C"}, {"LC_ALL": "POSIX", "LANG": ""},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
    ],
    ids=["C", "POSIX", "ascii", "ioencoding"],
)
def test_locale_c(shell: Callable[..., Any], folder: Path, env: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELP_OF_ALL], env={**os.environ, **env}, capture_output=True,
        check=False, timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    (folder / "rules" / "bad.yaml").write_text(
        "ALERT Grün IF vllm:x > 1\n", encoding="utf-8"
    )
    ended = shell("check", folder / "rules", env=env)
    assert ended.code == 3
    assert "ALERT ... IF ..." in ended.out and "Traceback" not in ended.err


def test_a_reader_that_goes_away_ends_it_quietly(folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "schema", "policy"], stdout=writer, stderr=subprocess.PIPE,
        check=False, timeout=60,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("name", ["check", "test", "import"])
def test_a_file_name_that_is_no_text(shell: Callable[..., Any], folder: Path, name: str) -> None:
    rules = folder / "rules"
    os.rename(rules / "queue.yaml", os.fsencode(rules) + b"/\xff.yaml")
    path = os.fsdecode(os.fsencode(rules) + b"/\xff.yaml") if name == "import" else str(rules)
    ended = shell(name, path)
    assert ended.code in (2, 3)
    assert "Traceback" not in ended.err and "internal" not in ended.err
