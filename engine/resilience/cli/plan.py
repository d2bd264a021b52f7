"""`resilience plan`: what applying rules would change, before it does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from resilience.cli import dry_run, timeline
from resilience.cli.connect import connect, engine_options
from resilience.cli.output import emit_json, note, output_option, paint
from resilience.cli.paths import FilePath
from resilience.cli.sweep import show_sweep
from resilience.model import Json

if TYPE_CHECKING:
    from resilience.app.bundles import Sources
    from resilience.app.plan import Plan
    from resilience.model import Bundle
    from resilience.report.differ import DecisionChanges, DocumentChange
    from resilience.report.summary import Compared, Report

DIFFERS = 5
LISTED = 20
MARKS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}
DIFFERS_IN = "differs in"
LIMITS = ("predicted from recorded metrics, which do not react: what an action would have done to "
          "the load is not in them")


@click.command("plan")
@click.argument("rules", type=FilePath(path_type=Path))
@click.option("--against", metavar="REV", help="What to compare with: a folder, a revision that "
              "the engine keeps (`sha256:…`), or a git revision of RULES such as `origin/main`. "
              "Default: what the running engine has, else the bundle applied last.")
@dry_run.recording_options
@click.option("--detailed-exitcode", is_flag=True,
              help="Exit with 5 when there is a difference, for CI.")
@click.option(
    "--udfs", "udf_dirs", multiple=True, type=FilePath(path_type=Path), metavar="DIR",
    help="Folder of UDFs; default: `udfs/` in or beside RULES, then the shipped ones.",
)
@click.option("--config", type=FilePath(path_type=Path), metavar="FILE",
              help="A `kind: Engine` document outside RULES.")
@output_option
@engine_options
def command(
    rules: Path, against: str | None, recording: Path | None, html: Path | None,
    sets: tuple[str, ...], features: tuple[str, ...], detailed_exitcode: bool,
    udf_dirs: tuple[Path, ...], config: Path | None, output: str, socket: Path | None,
    state: Path | None,
) -> int:
    """Show what applying RULES would change: documents field by field, conflicts, and with
    --recording the decisions that would be other ones, in the report of a dry run.

    Nothing is applied and no engine is needed.
    """
    from resilience.app.against import resolve
    from resilience.app.bundles import read_sources
    from resilience.app.files import default_state_path
    from resilience.app.plan import plan
    from resilience.app.reporting import unlike_live
    from resilience.errors import UsageError

    dry_run.check_options(recording, html, sets, features)
    if sets and detailed_exitcode:
        raise UsageError("`--detailed-exitcode` is for one plan: leave out `--set`, or write the "
                         "value down")
    sources = replace(
        read_sources(rules, udf_dirs, config=config), enable_features=features)
    new = dry_run.checked(sources, recording)
    other = resolve(
        against, rules, udf_dirs, state=state or default_state_path(),
        active=lambda: _active(socket, state),
    )
    old = _checked(other.sources, other.label, features)
    if recording is not None and sets:
        show_sweep(sources, recording, sets, output, new.findings,
                   None if old is None else (other.label, old))
        return 0
    found = plan(
        old, new.bundle, other.label, recording, dry_run.progress, plots=html is not None,
        warnings=unlike_live(new.findings),
    )
    if html is not None and found.report is not None:
        dry_run.write(html, found.report)
    if output == "json":
        emit_json(found.to_json())
    else:
        click.echo("\n".join(lines(found)))
    return DIFFERS if detailed_exitcode and found.differs else 0


def _active(socket: Path | None, state: Path | None) -> Json | None:
    """Return the running engine's bundle, or None when none runs."""
    from resilience.errors import ControlError

    try:
        with connect(socket, state) as engine:
            return engine.get("bundle")
    except ControlError as error:
        if error.code == "no_engine":
            return None
        raise


def _checked(sources: Sources | None, label: str, features: tuple[str, ...]) -> Bundle | None:
    """Return the other side, or None: with a note where this version refuses it. What is switched
    on here is on there too: a command line compares two rules, not two installations."""
    from resilience.app.bundles import check_sources
    from resilience.errors import FindingsError

    if sources is None:
        return None
    try:
        return check_sources(replace(sources, enable_features=features)).bundle
    except FindingsError as error:
        note(f"warning: {label} has errors, so everything counts as added: {error}")
        return None


# --- text ---------------------------------------------------------------------------------------


def lines(found: Plan) -> Iterator[str]:
    """Yield a plan for people; unified marks, so that a code block of kind `diff` colours it."""
    yield f"against {found.against}"
    yield ""
    for change in found.changes:
        yield from _change(change)
    counts = {kind: sum(c.kind == kind for c in found.changes) for kind in MARKS}
    yield (f"Plan: {counts['added']} to add, {counts['changed']} to change, "
           f"{counts['removed']} to remove")
    yield from _conflicts(found)
    if found.report is not None and found.report.compared is not None:
        yield ""
        yield from _prediction(found.report, found.report.compared)
    if not found.differs:
        yield ""
        yield "no difference"


def _change(change: DocumentChange) -> Iterator[str]:
    from resilience.report.differ import value_line

    mark, shade = MARKS[change.kind]
    what = {"Policy": "policy", "Engine": "engine", "UDF": "udf"}.get(
        change.document, change.document)
    yield paint(f"{mark} {what} {change.name}".rstrip(), shade)
    for part in change.fields:
        mark, shade = MARKS[part.kind]
        if part.kind == "changed":
            text = f"{value_line(part.before)} -> {value_line(part.after)}"
        else:
            text = value_line(part.after if part.kind == "added" else part.before)
        yield paint(f"{mark}     {part.path}: {text}", shade)


def _conflicts(found: Plan) -> Iterator[str]:
    from resilience.report.text import conflict_text

    fresh = {str(c) for c in found.new_conflicts}
    if not found.conflicts:
        yield "conflicts: none"
        return
    yield f"conflicts: {len(found.conflicts)}, {len(fresh)} of them new"
    for conflict in found.new_conflicts[:LISTED]:
        yield f"!     {conflict_text(conflict)}"
    if len(fresh) > LISTED:
        yield f"      and {len(fresh) - LISTED} more; `-o json` has them"


def _prediction(report: Report, compared: Compared) -> Iterator[str]:
    yield f"decisions over {report.recording}"
    yield compared.decisions.counted("after")
    yield from _decisions(compared.decisions)
    yield ""
    yield from dry_run.report_lines(report)
    yield ""
    yield LIMITS


def _decisions(found: DecisionChanges) -> Iterator[str]:
    marked = [
        *(((d["t_ms"], 0), "removed", d) for d in found.only_before),
        *(((d["t_ms"], 2), "added", d) for d in found.only_after),
        *(((a["t_ms"], 1), "changed", {**a, DIFFERS_IN: _differing(b, a)})
          for b, a in found.changed),
    ]
    for _, kind, decision in sorted(marked, key=lambda m: m[0])[:LISTED]:
        mark, shade = MARKS[kind]
        fields = f"  (other {decision[DIFFERS_IN]})" if DIFFERS_IN in decision else ""
        yield paint(mark, shade) + " " + timeline.decision(decision) + fields
    if len(marked) > LISTED:
        yield f"and {len(marked) - LISTED} more; `-o json` has them"


def _differing(before: Json, after: Json) -> str:
    """Return which parts of a decision differ that both sides took; what a line does not show of
    one are the times that it counts from, and what it read."""
    names = [name.replace("_", " ") for name, value in after.items() if before[name] != value]
    return ", ".join(names) or "clocks or inputs"
