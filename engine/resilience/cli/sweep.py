"""`--set …`: a table of what each combination of values would have done over a recording."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from resilience.cli.output import emit_json, note, table

if TYPE_CHECKING:
    from resilience.app.bundles import Sources
    from resilience.app.sweep import Combination, Sweep, Tried
    from resilience.model import Bundle, Finding

FIGURES = ("FIRINGS", "ACTIVE", "FLAPS", "BLIND", "SHED AT MOST", "FIRST FIRING")


def show_sweep(
    sources: Sources, path: Path, sets: Sequence[str], output: str,
    findings: Sequence[Finding], before: tuple[str, Bundle] | None = None,
) -> None:
    """Run every combination, and `before` (what it is called, and the rules), and print it.

    `findings` are those of the rules as written. Raises UsageError for a place or value that
    cannot be.
    """
    from resilience.app.reporting import unlike_live
    from resilience.app.sweep import sweep

    found = sweep(
        sources, path, sets, before=before, on_row=_progress, warnings=unlike_live(findings))
    for warning in (*found.warnings, *found.failures):
        note(f"warning: {warning}")
    if output == "json":
        emit_json({"recording": str(path), **found.to_json()})
        return
    click.echo(as_table(found))
    for caveat in found.caveats:
        click.echo(f"note: {caveat}")


def _progress(done: int, total: int) -> None:
    if done and done % 10 == 0:
        note(f"{done} of {total} combinations")


def as_table(found: Sweep) -> str:
    """Return one line for each combination and policy."""
    targets = [target for target, _ in found.rows[-1].chosen]
    named = len(found.rows[0].policies) > 1
    header = [*targets, *(["POLICY"] if named else []), *FIGURES]
    rows = [line for row in found.rows for line in _lines(row, len(targets), named, found.span_ms)]
    return table(header, rows)


def _lines(row: Combination, targets: int, named: bool, span_ms: int) -> list[list[str]]:
    from resilience.report.values import share, stamp

    chosen = [text for _, text in row.chosen] or [f"({row.label})"] * targets
    return [
        [
            *chosen, *([name] if named else []), str(tried.figures.firings),
            share(tried.figures.active_ms, span_ms), str(tried.figures.flaps),
            share(tried.figures.blind_ms, span_ms), _shed(tried),
            stamp(tried.figures.first_firing_ms),
        ]
        for name, tried in row.policies.items()
    ]


def _shed(tried: Tried) -> str:
    from resilience.report.shed import total

    if not tried.shed:
        return "-"
    bound = total(tried.shed)
    return "unknown" if bound is None else str(bound)
