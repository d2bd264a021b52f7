"""`resilience check`: read policies as `apply` would, and say what is wrong with them."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from resilience.cli.output import note, paint
from resilience.model import Finding

OUTPUTS = ("text", "json", "github", "sarif", "junit")
SHADES = {"error": "red", "warning": "yellow", "info": "cyan"}


@dataclass(frozen=True, slots=True)
class Checked:
    """What one run of `check` has read and found."""

    files: tuple[str, ...]
    policies: int
    findings: tuple[Finding, ...]


def _list_codes(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from resilience.policy.codes import CODES

    for name, code in CODES.items():
        click.echo(f"{name:22} {code.severity:8} {code.meaning}")
    ctx.exit()


@click.command("check")
@click.argument(
    "paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PATH..."
)
@click.option(
    "--udfs", "udf_dirs", multiple=True, type=click.Path(path_type=Path), metavar="DIR",
    help="Folder of UDFs; may be repeated. Default: `udfs/` inside or beside PATH.",
)
@click.option(
    "-o", "--output", type=click.Choice(OUTPUTS), default="text", show_default=True,
    help="How findings are written to stdout.",
)
@click.option(
    "--recording", type=click.Path(path_type=Path), metavar="FILE",
    help="Judge metric names and windows by what this recording holds.",
)
@click.option("--strict", is_flag=True, help="Fail on warnings too.")
@click.option(
    "--codes", is_flag=True, is_eager=True, expose_value=False, callback=_list_codes,
    help="List the codes of findings, what they mean, and exit.",
)
def command(
    paths: Sequence[Path], udf_dirs: Sequence[Path], output: str, recording: Path | None,
    strict: bool,
) -> int:
    """Check policy files and folders: YAML, schema, PromQL, UDFs, names, conflicts.

    Nothing is started and no server is asked. Exit code 3 when an error is found, with --strict
    also on a warning. A comment silences a warning that somebody has looked at:
    `# resilience: ignore CODE until 2030-12-31: REASON`.
    """
    # Documents are trees: collecting them again and again while they grow only costs time.
    gc.set_threshold(100_000, 20, 100)
    checked = check_paths(paths, udf_dirs, recording)
    if output == "text":
        _write_text(checked)
    else:
        from resilience.cli.report_formats import FORMATS

        click.echo(FORMATS[output](checked.files, checked.policies, checked.findings))
    failing = {"error", "warning"} if strict else {"error"}
    return 3 if any(f.severity in failing for f in checked.findings) else 0


def check_paths(
    paths: Sequence[Path], udf_dirs: Sequence[Path] = (), recording: Path | None = None
) -> Checked:
    """Check everything under `paths` as one bundle; raises UsageError for what cannot be read."""
    from resilience.app.bundles import read_sources, shipped_udfs
    from resilience.app.udfs import check_udfs, unreadable
    from resilience.policy.check import check
    from resilience.registry import catalogue

    documents: dict[str, bytes] = {}
    roots: dict[str, dict[str, str]] = {}
    for path in dict.fromkeys(paths):
        sources = read_sources(path, udf_dirs, with_commit=False)
        shown = sources.shown or {}
        documents.update((shown.get(name, name), body) for name, body in sources.files)
        for root in sources.udf_roots:
            texts = {shown.get(name, name): text for name, text in root}
            roots.setdefault(min(texts, default=""), texts)
    udfs = [*roots.values(), dict(shipped_udfs())]
    result = check(
        list(documents.items()), udfs, catalogue("actions"),
        today=datetime.now(UTC).date(), **({} if recording is None else _target(recording)),
    )
    findings = (
        *result.findings, *unreadable(result.findings, udfs), *check_udfs(result.policies, udfs),
    )
    return Checked(tuple(documents), len(result.policies), findings)


def _target(recording: Path) -> dict[str, Any]:
    """Return what a recording says of its server: the metrics, and how often it was scraped."""
    from resilience.sources.recording import RecordingSource, read

    source = RecordingSource(read(recording))
    return {
        "metric_names": source.metric_names(deadline_ms=60_000),
        "scrape_interval_ms": source.scrape_interval_ms,
    }


def _write_text(checked: Checked) -> None:
    from resilience.policy.words import plain

    for finding in checked.findings:
        place = f"{plain(finding.file)}:{finding.line}:{finding.column}"
        hint = f"; {finding.suggestion}" if finding.suggestion else ""
        severity = paint(finding.severity, SHADES[finding.severity])
        click.echo(f"{place}: {severity}: {finding.message}{hint} [{finding.code}]")
    note(summary(checked))


def summary(checked: Checked) -> str:
    """Return one line: what was read and how many findings there are."""
    from resilience.policy.words import counted

    counts = Counter(f.severity for f in checked.findings)
    found = [counted(counts[s], s) for s in ("error", "warning") if counts[s]]
    read = f"{counted(checked.policies, 'policy')} in {counted(len(checked.files), 'file')}"
    return f"checked {read}: {', '.join(found) or 'no errors'}"
