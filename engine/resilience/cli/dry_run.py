"""A dry run over a recording: decisions and report, for people and for programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from resilience.cli import timeline
from resilience.cli.features import features_option
from resilience.cli.output import emit_line, note, paint, unicode_wanted, width
from resilience.cli.paths import FilePath
from resilience.errors import UsageError
from resilience.model import VERSION, Decision
from resilience.policy.words import counted

if TYPE_CHECKING:
    from resilience.app.bundles import Checked, Sources
    from resilience.app.dryrun import Outcome
    from resilience.app.mask import Mask
    from resilience.model import Bundle
    from resilience.report.bars import Terminal
    from resilience.report.summary import Report

F = TypeVar("F", bound=Callable[..., Any])
PROGRESS_TICKS = 10_000
DECISIONS_SHOWN = 200
# Decisions that differ from the recorded ones: what ran live is not what runs here.
DIFFERS = 1


def recording_options(function: F) -> F:
    """Add what `apply --dry-run` and `plan` both do with a recording: `--recording`, `--html`,
    `--set` and `--enable-feature`; the command gets `recording`, `html`, `sets`, `features`."""
    for option in (
        click.option(
            "--set", "sets", multiple=True, metavar="POLICY.PATH=VALUE,…",
            help="With --recording: try each value and print a table; several --set try all "
            "combinations. For example `queue-growth.trigger.for=30s,1m,2m`; `policy` as the name "
            "means every policy.",
        ),
        click.option(
            "--html", type=FilePath(path_type=Path), metavar="FILE",
            help="With --recording: also write the report as one page for a browser.",
        ),
        click.option(
            "--recording", type=FilePath(path_type=Path), metavar="FILE",
            help="Evaluate over these recorded metrics and report what would have been decided.",
        ),
    ):
        function = option(function)
    return features_option(function)


def check_options(
    recording: Path | None, html: Path | None, sets: Sequence[str], features: Sequence[str]
) -> None:
    """Raise UsageError for options that do not go together, or a page that cannot be written."""
    from resilience.app.page_file import check_page

    if recording is None and (html is not None or sets):
        option = "--html" if html is not None else "--set"
        raise UsageError(f"`{option}` needs `--recording FILE`")
    if recording is None and features:
        raise UsageError("`--enable-feature` is for a dry run with `--recording`: a running engine "
                         "takes `enable_features` from its `kind: Engine` document")
    if html is not None and sets:
        raise UsageError("`--html` shows one run: leave out `--set`, or write the value down")
    if html is not None:
        check_page(html)


def evaluate(rules: Checked, path: Path, output: str, html: Path | None = None) -> int:
    """Run and report; return the exit code."""
    from resilience.app.reporting import run, unlike_live

    listing = _Json(rules.bundle) if output == "json" else _Text(rules.bundle)
    found = run(
        rules.bundle, path, warnings=unlike_live(rules.findings), plots=html is not None,
        on_decision=listing.decision, on_progress=progress,
    )
    if html is not None:
        write(html, found.report)
    if output == "json":
        body = {"recording": str(path), **found.outcome.to_json(),
                "report": found.report.to_json()}
        emit_line({"version": VERSION, "summary": body})
    else:
        listing.end()
        click.echo("\n".join(report_lines(found.report)))
        click.echo("\n" + "\n".join(summary(found.outcome)))
    compared = found.outcome.comparison
    return DIFFERS if compared is not None and compared.differ else 0


def write(html: Path, report: Report) -> None:
    """Write the page and say how large it is; raises UsageError."""
    from resilience.app.page_file import write_page

    size = write_page(html, report)
    note(f"{html}: " + (f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"))


def report_lines(report: Report) -> list[str]:
    """Return the report as this terminal can show it."""
    from resilience.report.text import lines

    return lines(report, terminal())


def checked(sources: Sources, path: Path | None) -> Checked:
    """Check, against what the recording at `path` holds, and say what is worth a warning: but what
    the report of a recording says itself."""
    from resilience.app.bundles import check_sources
    from resilience.app.reporting import UNLIKE_LIVE

    if path is None:
        found = check_sources(sources)
    else:
        from resilience.sources.recording import outline

        seen = outline(path)
        found = check_sources(
            sources, metric_names=seen.names, scrape_interval_ms=seen.meta.scrape_interval_ms,
        )
    check_functions(sources, found.bundle)
    for finding in found.findings:
        if finding.severity == "warning" and (path is None or finding.code not in UNLIKE_LIVE):
            note(str(finding))
    return found


def check_functions(sources: Sources, bundle: Bundle) -> None:
    """Raise FindingsError for what the sandbox would refuse of the UDFs that `bundle` uses."""
    from resilience.app.bundles import shipped_udfs
    from resilience.app.udfs import check_udfs
    from resilience.errors import FindingsError

    roots = [dict(root) for root in (*sources.udf_roots, shipped_udfs())]
    findings = [sources.display(f) for f in check_udfs(bundle.policies, roots)]
    if findings:
        raise FindingsError(findings)


def terminal() -> Terminal:
    from resilience.report.bars import Terminal

    return Terminal(width(), unicode_wanted(), paint)


def _mask_of(bundle: Bundle) -> Mask:
    from resilience.app.mask import Mask

    return Mask.configured(bundle.config)


class _Json:
    def __init__(self, bundle: Bundle) -> None:
        self._mask = _mask_of(bundle)

    def decision(self, decision: Decision) -> None:
        emit_line(self._mask.of(decision.to_json()))

    def end(self) -> None:
        return


class _Text:
    """The first decisions as a list: of a long run the report says more than all of them."""

    def __init__(self, bundle: Bundle) -> None:
        self._mask = _mask_of(bundle)
        self._count = 0

    def decision(self, decision: Decision) -> None:
        self._count += 1
        if self._count <= DECISIONS_SHOWN:
            click.echo(timeline.decision(self._mask.of(decision.to_json())))

    def end(self) -> None:
        if self._count > DECISIONS_SHOWN:
            rest = self._count - DECISIONS_SHOWN
            click.echo(f"and {rest} more decisions; `-o json` lists all")
        if self._count:
            click.echo()


def progress(done: int, total: int) -> None:
    if done % PROGRESS_TICKS == 0 and done < total:
        note(f"{done} of {total} ticks")


def summary(outcome: Outcome) -> list[str]:
    """Return the end of a dry run for people; the report above it has the figures of policies."""
    lines = [
        f"{counted(outcome.ticks, 'tick')} from {timeline.stamp(outcome.start_ms)} to "
        f"{timeline.stamp(outcome.end_ms)}, rules {outcome.revision}"
    ]
    if outcome.comparison is None:
        lines.append(counted(outcome.decisions, "decision"))
        return lines
    lines += [
        f"only {'live' if d['only_in'] == 'live' else 'here'}: {timeline.decision(d['decision'])}"
        for d in outcome.comparison.shown
    ]
    lines.append(f"{counted(outcome.decisions, 'decision')}, {outcome.comparison.differ} differ")
    return lines
