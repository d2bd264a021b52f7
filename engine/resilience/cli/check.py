"""`resilience check`: read policies as `apply` would, and say what is wrong with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from resilience.cli.features import features_option
from resilience.cli.output import emit, note, paint
from resilience.cli.paths import FilePath
from resilience.errors import UsageError
from resilience.model import Finding

if TYPE_CHECKING:
    from resilience.app.targets import Seen

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
    "paths", nargs=-1, required=True, type=FilePath(path_type=Path), metavar="PATH..."
)
@click.option(
    "--udfs", "udf_dirs", multiple=True, type=FilePath(path_type=Path), metavar="DIR",
    help="Folder of UDFs; may be repeated. Default: `udfs/` inside or beside PATH.",
)
@click.option(
    "-o", "--output", type=click.Choice(OUTPUTS), default="text", show_default=True,
    help="How findings are written to stdout.",
)
@click.option(
    "--recording", type=FilePath(path_type=Path), metavar="FILE",
    help="Judge metrics, labels and windows by what this recording holds.",
)
@click.option(
    "--server", metavar="URL",
    help="Judge metrics and labels by what this server exports; it is asked once.",
)
@click.option(
    "--prometheus", metavar="URL", help="Judge metrics by the names that this Prometheus knows.",
)
@click.option(
    "--target", metavar="STACK[@VERSION]",
    help="Judge metrics by what is known of this server, such as `vllm@0.11`. Stacks: vllm, "
    "sglang, triton, tgi. Default: current vLLM, and no stack is wrong.",
)
@features_option
@click.option("--strict", is_flag=True, help="Fail on warnings too.")
@click.option(
    "--codes", is_flag=True, is_eager=True, expose_value=False, callback=_list_codes,
    help="List the codes of findings, what they mean, and exit.",
)
def command(
    paths: Sequence[Path], udf_dirs: Sequence[Path], output: str, recording: Path | None,
    server: str | None, prometheus: str | None, target: str | None, features: tuple[str, ...],
    strict: bool,
) -> int:
    """Check policy files and folders: YAML, schema, PromQL, UDFs, names, conflicts.

    Nothing is started, and only a server that you name is asked. Exit code 3 when an error is
    found, with --strict also on a warning. A comment silences a warning that somebody has looked
    at: `# resilience: ignore CODE until 2030-12-31: REASON`.
    """
    seen = _asked(recording, server, prometheus, target)
    checked = check_paths(paths, udf_dirs, seen, features)
    failing = {"error", "warning"} if strict else {"error"}
    if output == "text":
        _write_text(checked)
    else:
        from resilience.cli.report_formats import FORMATS

        emit(FORMATS[output](checked.files, checked.policies, checked.findings, failing))
    outside = seen.target.outside() if seen is not None and seen.target is not None else None
    if outside is not None:
        note(f"warning: {outside}")
    return 3 if any(f.severity in failing for f in checked.findings) else 0


def _asked(
    recording: Path | None, server: str | None, prometheus: str | None, target: str | None
) -> Seen | None:
    """Return what is known of the one target that was named."""
    named = [recording, server, prometheus, target]
    if sum(name is not None for name in named) > 1:
        raise UsageError("`--recording`, `--server`, `--prometheus` and `--target` exclude each "
                         "other: name one")
    if named == [None] * len(named):
        return None
    from resilience.app import targets

    if recording is not None:
        return targets.of_recording(recording)
    if server is not None:
        return targets.of_server(server)
    return targets.of_prometheus(prometheus) if prometheus else targets.of_text(target or "")


def check_paths(
    paths: Sequence[Path], udf_dirs: Sequence[Path] = (), seen: Seen | None = None,
    features: Sequence[str] = (),
) -> Checked:
    """Check everything under `paths` as one bundle; raises UsageError for what cannot be read."""
    from resilience.app.bundles import read_sources, shipped_udfs
    from resilience.app.udfs import check_udfs, unreadable
    from resilience.policy.check import check
    from resilience.registry import catalogue

    documents: dict[str, bytes] = {}
    roots: dict[str, dict[str, str]] = {}
    unread: list[Finding] = []
    for path in dict.fromkeys(paths):
        sources = read_sources(path, udf_dirs, with_commit=False, unread=unread)
        shown = sources.shown or {}
        documents.update((shown.get(name, name), body) for name, body in sources.files)
        for root in sources.udf_roots:
            texts = {shown.get(name, name): text for name, text in root}
            roots.setdefault(min(texts, default=""), texts)
    if unread and not documents:
        return Checked((), 0, tuple(dict.fromkeys(unread)))
    udfs = [*roots.values(), dict(shipped_udfs())]
    result = check(
        list(documents.items()), udfs, catalogue("actions"),
        today=datetime.now(UTC).date(), enable_features=features,
        **({} if seen is None else seen.options()),
    )
    findings = (
        *dict.fromkeys(unread), *result.findings, *unreadable(result.findings, udfs),
        *check_udfs(result.policies, udfs),
    )
    return Checked(tuple(documents), len(result.policies), findings)


def _write_text(checked: Checked) -> None:
    from resilience.samples import plain

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
