"""A dry run over a recording: decisions and report, for people and for programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from resilience.cli import timeline
from resilience.cli.output import emit_line, note, paint, unicode_wanted, width
from resilience.model import VERSION, Decision

if TYPE_CHECKING:
    from resilience.app.bundles import Sources
    from resilience.app.dryrun import Outcome
    from resilience.app.mask import Mask
    from resilience.model import Bundle
    from resilience.report.text import Terminal

PROGRESS_TICKS = 10_000
DECISIONS_SHOWN = 200
# Decisions that differ from the recorded ones: what ran live is not what runs here.
DIFFERS = 1


def evaluate(sources: Sources, path: Path, output: str, html: Path | None = None) -> int:
    """Run and report; return the exit code."""
    from resilience.app.page_file import check_place, write_page
    from resilience.app.reporting import run

    if html is not None:
        check_place(html)
    bundle = checked(sources, path)
    listing = _Json(bundle) if output == "json" else _Text(bundle)
    found = run(
        bundle, path, plots=html is not None, on_decision=listing.decision, on_progress=progress
    )
    if html is not None:
        size = write_page(html, found.report)
        note(f"{html}: " + (f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"))
    if output == "json":
        body = {"recording": str(path), **found.outcome.to_json(),
                "report": found.report.to_json()}
        emit_line({"version": VERSION, "summary": body})
    else:
        from resilience.report.text import lines

        listing.end()
        click.echo("\n".join(lines(found.report, terminal())))
        click.echo("\n" + "\n".join(summary(found.outcome)))
    compared = found.outcome.comparison
    return DIFFERS if compared is not None and compared.differ else 0


def checked(sources: Sources, path: Path) -> Bundle:
    """Check against what the recording holds, and say what is worth a warning."""
    from resilience.app.bundles import check_sources
    from resilience.app.dryrun import open_recording
    from resilience.sources.recording import metrics_of

    bundle = check_sources(sources).bundle
    recording = open_recording(path, bundle)
    for warning in recording.warnings:
        note(f"warning: {warning}")
    found = check_sources(
        sources, metric_names=frozenset(metrics_of(recording.store)),
        scrape_interval_ms=recording.meta.scrape_interval_ms,
    )
    for finding in found.findings:
        if finding.severity == "warning":
            note(str(finding))
    return bundle


def terminal() -> Terminal:
    from resilience.report.text import Terminal

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
        f"{outcome.ticks} ticks from {timeline.stamp(outcome.start_ms)} to "
        f"{timeline.stamp(outcome.end_ms)}, rules {outcome.revision}"
    ]
    if outcome.comparison is None:
        lines.append(f"{outcome.decisions} decisions")
        return lines
    lines += [
        f"only {'live' if d['only_in'] == 'live' else 'here'}: {timeline.decision(d['decision'])}"
        for d in outcome.comparison.shown
    ]
    lines.append(f"{outcome.decisions} decisions, {outcome.comparison.differ} differ")
    return lines
