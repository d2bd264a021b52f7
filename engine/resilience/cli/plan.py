"""`resilience plan`: what applying rules would change, before it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from resilience.cli import timeline
from resilience.cli.connect import connect, engine_options
from resilience.cli.dry_run import progress
from resilience.cli.output import emit_json, note, output_option, paint, table
from resilience.model import Json

if TYPE_CHECKING:
    from resilience.app.bundles import Sources
    from resilience.app.plan import Plan, Prediction
    from resilience.model import Bundle
    from resilience.report.differ import DecisionChanges, DocumentChange
    from resilience.report.figures import Figures

DIFFERS = 5
LISTED = 20
MARKS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}
LIMITS = ("predicted from recorded metrics, which do not react: what an action would have done to "
          "the load is not in them")


@click.command("plan")
@click.argument("rules", type=click.Path(path_type=Path))
@click.option("--against", metavar="REV", help="What to compare with: a folder, a revision that "
              "the engine keeps (`sha256:…`), or a git revision of RULES such as `origin/main`. "
              "Default: what the running engine has, else the bundle applied last.")
@click.option("--recording", type=click.Path(path_type=Path), metavar="FILE",
              help="Also run both over this recording and compare what they decide.")
@click.option("--detailed-exitcode", is_flag=True,
              help="Exit with 5 when there is a difference, for CI.")
@click.option(
    "--udfs", "udf_dirs", multiple=True, type=click.Path(path_type=Path), metavar="DIR",
    help="Folder of UDFs; default: `udfs/` in or beside RULES, then the shipped ones.",
)
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE",
              help="A `kind: Engine` document outside RULES.")
@output_option
@engine_options
def command(
    rules: Path, against: str | None, recording: Path | None, detailed_exitcode: bool,
    udf_dirs: tuple[Path, ...], config: Path | None, output: str, socket: Path | None,
    state: Path | None,
) -> int:
    """Show what applying RULES would change: documents field by field, conflicts, and with
    --recording the decisions that would be other ones.

    Nothing is applied and no engine is needed.
    """
    from resilience.app.against import resolve
    from resilience.app.bundles import check_sources, read_sources
    from resilience.app.files import default_state_path
    from resilience.app.plan import plan

    sources = read_sources(rules, udf_dirs, config=config)
    new = check_sources(sources)
    for finding in new.findings:
        if finding.severity == "warning":
            note(str(finding))
    other = resolve(
        against, rules, udf_dirs, state=state or default_state_path(),
        active=lambda: _active(socket, state),
    )
    old = _checked(other.sources, other.label) if other.sources is not None else None
    found = plan(old, new.bundle, other.label, recording, progress)
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


def _checked(sources: Sources, label: str) -> Bundle | None:
    """Return the other side, or None with a note where this version refuses it."""
    from resilience.app.bundles import check_sources
    from resilience.errors import FindingsError

    try:
        return check_sources(sources).bundle
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
    if found.prediction is not None:
        yield ""
        yield from _prediction(found.prediction)
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


def _prediction(found: Prediction) -> Iterator[str]:
    for warning in found.warnings:
        yield f"warning: {warning}"
    for policy, metrics in found.missing.items():
        after = found.figures[policy][1]
        if after is not None and after.blind_ms:
            names = ", ".join(f"`{m}`" for m in metrics)
            yield f"warning: {policy} is blind in this recording: it has no {names}"
    yield f"decisions over {found.recording}"
    yield _counts(found.decisions)
    yield table(
        ["POLICY", "FIRINGS", "ACTIVE", "FLAPS", "BLIND"],
        [_row(name, *pair, found.span_ms) for name, pair in found.figures.items()],
    )
    yield from _decisions(found.decisions)
    yield LIMITS


def _counts(found: DecisionChanges) -> str:
    text = (f"{found.before} before, {found.after} after: {found.same} the same, "
            f"{len(found.only_before)} only before, {len(found.only_after)} only after, "
            f"{len(found.changed)} changed")
    return text + (f"; {found.dropped} not compared" if found.dropped else "")


def _row(name: str, before: Figures | None, after: Figures | None, span_ms: int) -> list[str]:
    from resilience.report.text import share

    def cells(one: Figures | None) -> list[str]:
        if one is None:
            return ["absent"] * 4
        return [str(one.firings), share(one.active_ms, span_ms), str(one.flaps),
                share(one.blind_ms, span_ms)]

    pairs = zip(cells(before), cells(after), strict=True)
    return [name, *(old if old == new else f"{old} -> {new}" for old, new in pairs)]


def _decisions(found: DecisionChanges) -> Iterator[str]:
    marked = [
        *(((d["t_ms"], 0), "removed", d) for d in found.only_before),
        *(((d["t_ms"], 2), "added", d) for d in found.only_after),
        *(((a["t_ms"], 1), "changed", a) for _, a in found.changed),
    ]
    for _, kind, decision in sorted(marked, key=lambda m: m[0])[:LISTED]:
        mark, shade = MARKS[kind]
        yield paint(mark, shade) + " " + timeline.decision(decision)
    if len(marked) > LISTED:
        yield f"and {len(marked) - LISTED} more; `-o json` has them"
