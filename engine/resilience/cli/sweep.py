"""`apply --dry-run --set …`: a table of what each combination of values would have done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from resilience.cli.output import emit_json, note, table

if TYPE_CHECKING:
    from resilience.app.bundles import Sources
    from resilience.app.sweep import Combination, Sweep

FIGURES = ("FIRINGS", "ACTIVE", "FLAPS", "BLIND", "FIRST FIRING")


def show_sweep(sources: Sources, path: Path, sets: Sequence[str], output: str) -> None:
    """Run every combination and print it; raises UsageError for a place or value that cannot be."""
    from resilience.app.sweep import sweep

    found = sweep(sources, path, sets, on_row=_progress)
    for warning in found.warnings:
        note(f"warning: {warning}")
    if output == "json":
        emit_json({"recording": str(path), **found.to_json()})
    else:
        click.echo(as_table(found))


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
    from resilience.app.sweep import AS_WRITTEN
    from resilience.report.text import share, stamp

    chosen = [text for _, text in row.chosen] or [AS_WRITTEN] * targets
    return [
        [
            *chosen, *([name] if named else []), str(found.firings),
            share(found.active_ms, span_ms), str(found.flaps), share(found.blind_ms, span_ms),
            stamp(found.first_firing_ms),
        ]
        for name, found in row.policies.items()
    ]
