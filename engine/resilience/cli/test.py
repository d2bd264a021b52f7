"""`resilience test`: run the unit tests that lie beside the policies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from resilience.cli import test_reports
from resilience.cli.features import features_option
from resilience.cli.output import emit, note, output_option, paint, table
from resilience.cli.paths import FilePath
from resilience.errors import FindingsError, UsageError

if TYPE_CHECKING:
    from resilience.app.policy_tests import CaseResult, Report
    from resilience.app.policy_tests_compare import Failure
    from resilience.app.policy_tests_coverage import Coverage

FAILED = 4
NAMES_SHOWN = 5


@click.command("test")
@click.argument(
    "paths", nargs=-1, required=True, type=FilePath(path_type=Path), metavar="PATH..."
)
@click.option(
    "--udfs", "udf_dirs", multiple=True, type=FilePath(path_type=Path), metavar="DIR",
    help="Folder of UDFs; may be repeated. Default: `udfs/` inside or beside PATH.",
)
@click.option("--config", type=FilePath(path_type=Path), metavar="FILE",
              help="A `kind: Engine` document outside PATH.")
@features_option
@click.option("--run", "only", metavar="REGEX", help="Run only tests whose name REGEX finds.")
@click.option("--coverage", "show_coverage", is_flag=True,
              help="Show which parts of the policies no test looks at.")
@click.option("--min-coverage", type=click.FloatRange(0, 100), metavar="PERCENT",
              help="Fail when less of the policies is covered.")
@click.option("--junit", type=FilePath(dir_okay=False, path_type=Path), metavar="FILE",
              help="Also write the results as JUnit XML.")
@click.option("-v", "--verbose", is_flag=True, help="Show the tests that pass, too.")
@output_option
def command(
    paths: Sequence[Path], udf_dirs: Sequence[Path], config: Path | None,
    features: tuple[str, ...], only: str | None, show_coverage: bool, min_coverage: float | None,
    junit: Path | None, verbose: bool, output: str,
) -> int:
    """Run policy tests, `NAME.test.yaml` beside `NAME.yaml`.

    PATH is a folder, a test file or a policy file. Samples are written in promtool's notation and
    go through the engine's own tick in simulated time; no server is asked. Exit code 4 when a
    test fails, cannot be run, or there is none; 3 when a policy itself has errors.
    """
    from resilience.app.policy_tests import run_tests
    from resilience.app.replaceable import check_place

    if junit is not None:
        check_place(junit, lambda head: b"<testsuite" in head, "JUnit report", "--junit",
                    in_place=True)
    show = _printer(verbose) if output == "text" else _quiet
    try:
        report = run_tests(
            paths, udf_dirs, config=config, features=features, only=_pattern(only), on_result=show
        )
    except FindingsError as error:
        return _policies_are_wrong(error, junit, output)
    if junit is not None:
        _write(junit, test_reports.as_junit(report))
    if output == "json":
        emit(test_reports.as_json(report))
    else:
        for finding in report.findings:
            click.echo(str(finding))
        if show_coverage:
            click.echo("\n".join(coverage_lines(report.coverage)))
    short = min_coverage is not None and report.coverage.percent < min_coverage
    note(summary(report))
    if short:
        note(f"coverage {report.coverage.percent:g} % is below the {min_coverage:g} % asked for; "
             "`--coverage` shows what is missing")
    return 0 if report.passed and not short else FAILED


def _policies_are_wrong(error: FindingsError, junit: Path | None, output: str) -> int:
    """Tell what is wrong with the policies as it was asked for; without a form for programs, raise
    what the command line shows."""
    from resilience.app.policy_tests import Report
    from resilience.app.policy_tests_coverage import Coverage

    named = tuple(dict.fromkeys(f.file for f in error.findings))
    report = Report(named, (), tuple(error.findings), Coverage(()))
    if junit is not None:
        _write(junit, test_reports.as_junit(report))
    if output != "json":
        raise error
    emit(test_reports.as_json(report))
    return error.exit_code


def _pattern(text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"--run: `{text}` is not a regular expression: {error}") from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"--junit: `{path}` cannot be written: {reason}") from error


def _quiet(result: CaseResult) -> None:
    del result


def _printer(verbose: bool) -> Callable[[CaseResult], None]:
    def show(result: CaseResult) -> None:
        if result.failures:
            for failure in result.failures:
                click.echo("\n".join(failure_lines(result, failure)))
        elif verbose:
            click.echo(f"{paint('passed', 'green')}: {result.file}:{result.line}: {result.name}")

    return show


def failure_lines(result: CaseResult, failure: Failure) -> Iterator[str]:
    """Yield a failure as a place, what it is about, and a diff: `-` expected, `+` there."""
    place = f"{result.file}:{failure.place.line}:{failure.place.column}"
    yield f"{place}: {paint('failed', 'red')}: {result.name}: {failure.summary}"
    yield from (paint(f"    - {line}", "red") for line in failure.expected)
    yield from (paint(f"    + {line}", "green") for line in failure.got)
    if failure.history:
        yield "    decisions so far:"
        yield from (f"      {line}" for line in failure.history)


def coverage_lines(coverage: Coverage) -> list[str]:
    """Return the coverage as a table: policy, parts covered, parts missing, where it stands."""
    rows = [
        [p.policy, f"{len(p.parts) - len(p.missing)}/{len(p.parts)}",
         ", ".join(p.missing) or "-", f"{p.file}:{p.line}"]
        for p in coverage.policies
    ]
    lines = table(["POLICY", "COVERED", "NOT TESTED", "WHERE"], rows).splitlines()
    return [*lines, f"coverage: {coverage.percent:g} % ({coverage.covered} of {coverage.parts})"]


def summary(report: Report) -> str:
    """Return one line: how many tests passed and failed, and what could not be run."""
    from resilience.policy.words import counted, listed

    if not report.results and report.left_out and not report.findings:
        names = list(dict.fromkeys(report.left_out))
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        return (f"no tests ran: `--run` finds none of {counted(len(names), 'name')}: "
                f"{listed(names[:NAMES_SHOWN])}{more}")
    if not report.results:
        errors = sum(f.severity == "error" for f in report.findings)
        why = f": {counted(errors, 'error')} in the test files" if errors else \
            "; write `NAME.test.yaml` beside `NAME.yaml`"
        return f"no tests ran{why}"
    broken = len({f.file for f in report.findings})
    parts = [f"{len(report.results) - report.failed} passed", f"{report.failed} failed"]
    if broken:
        parts.append(f"{counted(broken, 'file')} could not be run")
    ran = f"{counted(len(report.results), 'test')} in {counted(len(report.files), 'file')}"
    return f"ran {ran}: {', '.join(parts)}; coverage {report.coverage.percent:g} %"
