"""`resilience udf`: check UDF files, and run one function exactly as the engine runs it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from resilience.cli import manual, report_formats
from resilience.cli.output import emit, emit_json, note, output_option, paint
from resilience.cli.paths import FilePath
from resilience.errors import UsageError
from resilience.model import Action, Finding, Json, UdfCall, UdfOutcome, parse_duration

FILE_BYTES_MAX = 16 * 1024 * 1024
FILES_MAX = 1_000


@click.group("udf", cls=manual.Group)
def command() -> None:
    """Check and try UDFs: the Python functions that policies call in the sandbox."""


# --- check ---------------------------------------------------------------------------------------


@command.command("check")
@click.argument(
    "paths", nargs=-1, required=True, type=FilePath(path_type=Path), metavar="FILE..."
)
@click.option(
    "-o", "--output", type=click.Choice(sorted(report_formats.FORMATS) + ["text"]), default="text",
    show_default=True, help="How findings are written to stdout.",
)
def check(paths: Sequence[Path], output: str) -> int:
    """Check UDF files without running them; a folder stands for the `.py` files in it.

    Exit code 3 when an error is found.
    """
    files = [file for path in paths for file in _files(path)]
    findings = [finding for file in files for finding in _check_file(file)]
    if output != "text":
        emit(report_formats.FORMATS[output](
            [str(f) for f in files], 0, findings, {"error"}
        ))
    else:
        for finding in findings:
            click.echo(_line(finding))
        note(f"checked {len(files)} UDF file{'' if len(files) == 1 else 's'}: "
             + (f"{len(findings)} found" if findings else "no errors"))
    return 3 if any(f.severity == "error" for f in findings) else 0


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise UsageError(f"the UDF file `{path}` does not exist")
    found = sorted(path.glob("*.py")) if path.is_dir() else [path]
    if not found:
        raise UsageError(f"no UDF files (`*.py`) in `{path}`")
    if len(found) > FILES_MAX:
        raise UsageError(f"`{path}` holds more than {FILES_MAX} UDF files")
    return found


def _check_file(path: Path) -> list[Finding]:
    from resilience.sandbox.compile import check_source

    try:
        return check_source(str(path), _read(path).decode("utf-8"))
    except UnicodeDecodeError as error:
        return [Finding(str(path), 1, 1, "error", "udf-syntax",
                        f"not UTF-8 text at byte {error.start}", "save the file as UTF-8")]


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            body = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise UsageError(f"`{path}` cannot be read: {reason}") from error
    if len(body) > FILE_BYTES_MAX:
        raise UsageError(f"`{path}` is larger than {FILE_BYTES_MAX:,} bytes")
    return body


def _line(finding: Finding) -> str:
    hint = f"; {finding.suggestion}" if finding.suggestion else ""
    severity = paint(finding.severity, "red")
    place = f"{finding.file}:{finding.line}:{finding.column}"
    return f"{place}: {severity}: {finding.message}{hint} [{finding.code}]"


# --- run -----------------------------------------------------------------------------------------


@command.command("run")
@click.argument("file", type=FilePath(path_type=Path), metavar="FILE")
@click.argument("function", metavar="FUNCTION")
@click.option(
    "--context", "context_file", required=True, type=FilePath(path_type=Path, allow_dash=True),
    metavar="CTX.JSON", help="The JSON mapping that the function gets; `-` reads stdin.",
)
@click.option(
    "--allow-actions", default="", metavar="A,B",
    help="Action types that the result may have besides the registered ones; their parameters "
         "are not checked.",
)
@click.option("--timeout", default="3s", show_default=True, metavar="DURATION",
              help="When the function is ended, as `timeout` of a `udf_call`.")
@click.option("--allow-weak", is_flag=True,
              help="Run even where a required sandbox layer is missing.")
@output_option
def run(
    file: Path, function: str, context_file: Path, allow_actions: str, timeout: str,
    allow_weak: bool, output: str,
) -> int:
    """Run FUNCTION of a UDF file in the sandbox, as the engine would.

    Exit code 0 when its outcome is `ok`, else 1.
    """
    text, context = _source(file), _context(context_file)
    extra = frozenset(a.strip() for a in allow_actions.split(",") if a.strip())
    call = UdfCall("udf-run", "", "0", function, _timeout_ms(timeout), context)
    outcome = _run(str(file), text, call, extra, allow_weak)
    if output == "json":
        _write_json(outcome)
    else:
        _write(outcome)
    return 0 if outcome.outcome == "ok" else 1


def _source(file: Path) -> str:
    """Return the text; bytes that are no UTF-8 become a character that the sandbox refuses."""
    if file.is_dir():
        raise UsageError(f"`{file}` is a folder: name the UDF file in it")
    if not file.exists():
        raise UsageError(f"the UDF file `{file}` does not exist")
    return _read(file).decode("utf-8", "surrogateescape")


def _context(path: Path) -> Json:
    body = sys.stdin.buffer.read(FILE_BYTES_MAX) if str(path) == "-" else _read(path)
    if not body.strip():
        raise UsageError(f"the context `{path}` is empty: write a JSON mapping, at least `{{}}`")
    try:
        context = json.loads(body)
    except json.JSONDecodeError as error:
        raise UsageError(f"the context `{path}` is not JSON, at {error.lineno}:{error.colno}: "
                         f"{error.msg.lower()}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the context `{path}` is not JSON: {error}") from error
    if not isinstance(context, dict):
        raise UsageError(f"the context `{path}` is not a JSON mapping")
    return context


def _timeout_ms(text: str) -> int:
    from resilience.sandbox.limits import TIMEOUT_MS_MAX

    try:
        timeout_ms = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}") from error
    if not 0 < timeout_ms <= TIMEOUT_MS_MAX:
        raise UsageError(f"--timeout `{text}` is not between 1ms and {TIMEOUT_MS_MAX // 1000}s")
    return timeout_ms


def _run(
    file: str, text: str, call: UdfCall, extra: frozenset[str], allow_weak: bool
) -> UdfOutcome:
    from resilience.model import EngineConfig
    from resilience.registry import catalogue
    from resilience.sandbox.answer import Rules
    from resilience.sandbox.runner import SandboxRunner, Settings

    types = frozenset(catalogue("actions")) - {"udf_call"} | extra
    settings = Settings(Rules(types, judge=lambda result: _judge(result, extra)), spares=1)
    config = EngineConfig(sandbox_allow_weak=allow_weak)
    runner = SandboxRunner({file: text}, config, settings)
    try:
        return runner.run([call], deadline_ms=call.timeout_ms + 5_000)[0]
    finally:
        runner.close()


def _judge(result: Json, extra: frozenset[str]) -> None:
    """Check what the result proposes as the engine does, but for the types named by hand."""
    from resilience.policy.check import proposed_actions
    from resilience.registry import catalogue

    registered = [a for a in result["actions"] if a["type"] not in extra]
    proposed_actions({"actions": registered}, Action("0", "udf_call"), catalogue("actions"))


def _write_json(outcome: UdfOutcome) -> None:
    """Why a call failed is the last line of its log, and a note for who looks at a terminal."""
    log = outcome.log
    if outcome.detail:
        log += ("" if not log or log.endswith("\n") else "\n") + f"{outcome.detail}\n"
        note(f"{outcome.outcome}: {outcome.detail}")
    emit_json({
        "outcome": outcome.outcome, "result": outcome.result, "log": log,
        "duration_ms": outcome.duration_ms,
    })


def _write(outcome: UdfOutcome) -> None:
    for line in outcome.log.splitlines():
        note(f"log: {line}")
    shade = "green" if outcome.outcome == "ok" else "red"
    detail = f": {outcome.detail}" if outcome.detail else ""
    click.echo(f"{paint(outcome.outcome, shade)}{detail}")
    if outcome.outcome == "ok":
        click.echo(json.dumps(outcome.result, indent=2, ensure_ascii=False))
    note(f"took {outcome.duration_ms:.1f} ms")
