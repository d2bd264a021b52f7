"""The command line: one file a command, imported when it is used.

A command is a module here with a `click.Command` named `command`, plus its line in `COMMANDS`;
third parties use the entry-point group `resilience.commands`. Data goes to stdout, everything else
to stderr. Exit codes: 0 ok, 1 failed, 2 usage, 3 errors found by `check`, 4 failed tests.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, NoReturn

import click

from resilience import __version__
from resilience.cli import manual
from resilience.cli.output import plain_streams
from resilience.errors import ControlError, FindingsError, PromQLError, ResilienceError, UsageError
from resilience.registry import load, provided

COMMANDS: tuple[str, ...] = (
    "resilience.cli.check:command",
    "resilience.cli.test:command",
    "resilience.cli.plan:command",
    "resilience.cli.apply:command",
    "resilience.cli.promote:command",
    "resilience.cli.discard:command",
    "resilience.cli.serve:command",
    "resilience.cli.record:command",
    "resilience.cli.query:command",
    "resilience.cli.get:command",
    "resilience.cli.explain:command",
    "resilience.cli.replay:command",
    "resilience.cli.history:command",
    "resilience.cli.rollback:command",
    "resilience.cli.pause:command",
    "resilience.cli.resume:command",
    "resilience.cli.release:command",
    "resilience.cli.udf:command",
    "resilience.cli.init:command",
    "resilience.cli.import_:command",
    "resilience.cli.schema:command",
    "resilience.cli.doctor:command",
    "resilience.cli.completion:command",
)
LASTING = frozenset({"serve", "record"})
GROUP = "resilience.commands"
INTERRUPTED = 130
HELP = frozenset({"-h", "--help"})
HELP_WANTED = "resilience.help"              # the sections below the options cost time to make
_QUOTED = re.compile(r"'([^'`]*)'")          # click's own quotes around what the user wrote


@cache
def _own() -> dict[str, str]:
    # `import_.py` is the command `import`: a keyword cannot name a module.
    return {d.partition(":")[0].rpartition(".")[2].rstrip("_"): d for d in COMMANDS}


@cache
def _origins() -> dict[str, str]:
    """Return command name -> dotted name; raises UsageError when two providers claim one."""
    found = dict(_own())
    for point in provided(GROUP):
        if point.name in found:
            raise UsageError(f"two providers claim the command `{point.name}`")
        found[point.name] = point.value
    return found


def _loads(name: str) -> bool:
    try:
        load(_origins()[name])
    except (ImportError, AttributeError) as error:
        click.echo(f"warning: command `{name}` cannot be loaded: {error}", err=True)
        return False
    return True


class _Lazy(manual.Group):
    """A group that knows its commands by name and imports one when it is asked for."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write examples, exit status and environment of the whole program."""
        self.epilog = manual.of_all(ctx.terminal_width)
        super().format_epilog(ctx, formatter)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands that load; one broken plug-in must not take the help away."""
        return [name for name in _origins() if _loads(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        dotted = _origins().get(cmd_name)
        if dotted is None:
            return None
        if cmd_name not in LASTING:
            # What a short process makes is mostly kept: looking for garbage costs a tenth of it.
            gc.set_threshold(100_000, 20, 100)
        gc.enable()
        command: click.Command = load(dotted)
        if ctx.meta.get(HELP_WANTED, True):
            manual.attach(cmd_name, command, ctx.terminal_width)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Say which command was meant; click's own message only says that there is none."""
        name = args[0]
        ctx.meta[HELP_WANTED] = len(args) == 1 or not HELP.isdisjoint(args)
        if name not in _origins() and not name.startswith("-") and not ctx.resilient_parsing:
            raise UsageError(f"no command `{name}`{_nearest(name)}; see `resilience --help`")
        return super().resolve_command(ctx, args)


def _nearest(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, _origins(), n=1)
    return f", did you mean `{close[0]}`" if close else ""


@click.group(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": manual.WIDTH_MAX},
)
@click.version_option(__version__, message="resilience %(version)s")
def resilience() -> None:
    """Resilience as code for LLM serving: policies in git, PromQL triggers, actions that undo
    themselves.

    `--debug` anywhere before `--` shows the traceback of an error.
    """


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code; without `--debug` no traceback is shown."""
    _open_closed_streams()
    arguments, debug = _without_debug(list(sys.argv[1:] if args is None else args))
    with plain_streams():
        code = _run(arguments, debug)
    if isinstance(sys.stdout, _Nowhere) and sys.stdout.written:
        click.echo("error: stdout is closed, so the output is lost", err=True)
        code = code or 1
    with contextlib.suppress(BrokenPipeError, ValueError):
        sys.stdout.flush()
        sys.exit(code)
    _silence_stdout()
    sys.exit(code or 1)


class _Nowhere(io.TextIOWrapper):
    """Stands for a stream that the caller closed (`>&-`); remembers whether something is lost."""

    written = False

    def write(self, text: str) -> int:
        self.written = self.written or bool(text)
        return super().write(text)


def _open_closed_streams() -> None:
    """Let what is written to a closed stream go nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            file = open(os.devnull, "wb")  # noqa: SIM115
            setattr(sys, name, _Nowhere(file, encoding="utf-8"))


def _without_debug(args: list[str]) -> tuple[list[str], bool]:
    """Take `--debug` out of our own arguments; what follows `--` belongs to the server."""
    end = args.index("--") if "--" in args else len(args)
    own = [a for a in args[:end] if a != "--debug"]
    return own + args[end:], len(own) < end or bool(os.environ.get("RESILIENCE_DEBUG"))


def _run(args: list[str], debug: bool) -> int:
    try:
        result: Any = resilience.main(args, prog_name="resilience", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except BrokenPipeError:
        _silence_stdout()
        return 1
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except Exception as error:
        if debug:
            import traceback

            traceback.print_exc()
        return report(error)


def report(error: Exception) -> int:
    """Write `error` to stderr as the user should see it and return the exit code."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return 2
    if isinstance(error, click.ClickException):
        hint = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else ""
        tail = f"; see `{hint} --help`" if hint else ""
        message = _QUOTED.sub(r"`\1`", _one_line(error.format_message()))
        message = message.replace(". Did you mean ", ", did you mean ").rstrip("?")
        message = message.replace(". Choose from: ", ", choose from ")
        click.echo(f"error: {message}{tail}", err=True)
        return 2
    if isinstance(error, FindingsError | ControlError) and error.findings:
        for finding in error.findings:
            click.echo(str(finding), err=True)
        return FindingsError.exit_code
    if isinstance(error, PromQLError):
        hint = f"; {error.suggestion}" if error.suggestion else ""
        click.echo(f"error: {error.line}:{error.column}: {error.message}{hint}", err=True)
    elif isinstance(error, ResilienceError):
        click.echo(f"error: {error}", err=True)
    else:
        return _report_surprise(error)
    return error.exit_code


def _report_surprise(error: Exception) -> int:
    if isinstance(error, OSError) and error.strerror:
        where = f"`{error.filename}`: " if error.filename else ""
        click.echo(f"error: {where}{error.strerror.lower()}", err=True)
        return 1
    if isinstance(error, UnicodeEncodeError):
        near = error.object[max(0, error.start - 30) : error.end + 30]
        click.echo(f"error: a path or text is not UTF-8, near {near!a}; rename it", err=True)
        return 2
    text = _one_line(str(error)) or type(error).__name__
    click.echo(f"error: internal: {text}; run it again with `--debug` and report it", err=True)
    return 1


def _one_line(text: str) -> str:
    line = " ".join(text.split()).rstrip(".")
    return line[:1].lower() + line[1:]


def _silence_stdout() -> None:
    """Keep the interpreter's last flush from failing on a pipe that nobody reads."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
