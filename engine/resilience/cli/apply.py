"""`resilience apply`: make a bundle the active one, or see what it would have decided."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from resilience.cli import timeline
from resilience.cli.connect import connect, engine_options
from resilience.cli.output import emit_json, emit_line, note, output_option, paint
from resilience.model import VERSION, Decision, Finding, Json

if TYPE_CHECKING:
    from resilience.app.bundles import Sources
    from resilience.app.dryrun import Outcome

PROGRESS_TICKS = 10_000


@click.command("apply")
@click.argument("rules", type=click.Path(path_type=Path))
@click.option(
    "--udfs", "udf_dirs", multiple=True, type=click.Path(path_type=Path), metavar="DIR",
    help="Folder of UDFs; default: `udfs/` in or beside RULES, then the shipped ones.",
)
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE",
              help="A `kind: Engine` document outside RULES.")
@click.option("--dry-run", is_flag=True, help="Change nothing: show the difference, or with "
              "--recording the decisions.")
@click.option("--recording", type=click.Path(path_type=Path), metavar="FILE",
              help="With --dry-run: evaluate over this recording, without any engine.")
@click.option("--if-match", metavar="REVISION", help="Refuse unless this revision is active.")
@click.option("--allow-missing-metrics", is_flag=True,
              help="Accept policies whose metrics the server does not export.")
@output_option
@engine_options
def command(
    rules: Path, udf_dirs: tuple[Path, ...], config: Path | None, dry_run: bool,
    recording: Path | None, if_match: str | None, allow_missing_metrics: bool, output: str,
    socket: Path | None, state: Path | None,
) -> None:
    """Check RULES and swap them, as a whole, into the running engine.

    With `--dry-run --recording FILE` the rules are evaluated over recorded metrics instead: it
    prints the decisions, and how they differ from the live ones if the recording holds any.
    """
    from resilience.app.bundles import read_sources
    from resilience.errors import UsageError

    if recording is not None and not dry_run:
        raise UsageError("`--recording` evaluates only: add `--dry-run`")
    sources = read_sources(rules, udf_dirs, config=config)
    _check_here(sources)
    if recording is not None:
        _evaluate(sources, recording, output)
        return
    with connect(socket, state) as engine:
        body = engine.put(
            "bundle", sources.to_json(),
            headers={"If-Match": f'"{if_match}"'} if if_match else None,
            dry_run=1 if dry_run else None,
            allow_missing_metrics=1 if allow_missing_metrics else None,
        )
    shown = sources.shown or {}
    body["findings"] = [{**f, "file": shown.get(f["file"], f["file"])} for f in body["findings"]]
    if output == "json":
        emit_json(body)
    else:
        show_difference(body)


def _check_here(sources: Sources) -> None:
    """Find errors before the engine is asked, with paths that the user can open."""
    from resilience.app.bundles import check_sources, shipped_udfs
    from resilience.app.udfs import check_udfs
    from resilience.errors import FindingsError

    policies = check_sources(sources).bundle.policies
    roots = [dict(root) for root in (*sources.udf_roots, shipped_udfs())]
    findings = [sources.display(f) for f in check_udfs(policies, roots)]
    if findings:
        raise FindingsError(findings)


def show_difference(body: Json) -> None:
    """Print what a swap changed, or would change."""
    for finding in body["findings"]:
        note(str(Finding(**finding)))
    for word, mark, shade in (
        ("added", "+", "green"), ("changed", "~", "yellow"), ("removed", "-", "red"),
    ):
        for name in body[word]:
            click.echo(paint(f"{mark} {name}", shade))
    if body["config_changed"]:
        click.echo(paint("~ kind: Engine", "yellow"))
    if body["from"] == body["to"]:
        click.echo(f"{body['to']} is active already")
        return
    verb = "applied" if body["applied"] else "would apply"
    click.echo(f"{verb} {body['to']}" + (f", was {body['from']}" if body["from"] else ""))


# --- over a recording ---------------------------------------------------------------------------


def _evaluate(sources: Sources, path: Path, output: str) -> None:
    from resilience.app.bundles import check_sources
    from resilience.app.dryrun import open_recording, run
    from resilience.sources.recording import metrics_of

    bundle = check_sources(sources).bundle
    recording = open_recording(path, bundle)
    for warning in recording.warnings:
        note(f"warning: {warning}")
    checked = check_sources(
        sources, metric_names=frozenset(metrics_of(recording.store)),
        scrape_interval_ms=recording.meta.scrape_interval_ms,
    )
    for finding in checked.findings:
        if finding.severity == "warning":
            note(str(finding))
    show = _json_decision if output == "json" else _text_decision
    outcome = run(bundle, recording, on_decision=show, on_progress=_progress)
    if output == "json":
        emit_line({"version": VERSION, "summary": {"recording": str(path), **outcome.to_json()}})
    else:
        click.echo("\n".join(summary(outcome)))


def _json_decision(decision: Decision) -> None:
    emit_line(decision.to_json())


def _text_decision(decision: Decision) -> None:
    click.echo(timeline.decision(decision.to_json()))


def _progress(done: int, total: int) -> None:
    if done % PROGRESS_TICKS == 0 and done < total:
        note(f"{done} of {total} ticks")


def summary(outcome: Outcome) -> list[str]:
    """Return the end of a dry run for people."""
    body = asdict(outcome)
    lines = [
        f"{name}: {counts['firings']} firings, {counts['decisions']} decisions"
        for name, counts in sorted(body["policies"].items())
    ]
    lines += [f"{name}: no answer: {why}" for name, why in sorted(body["failures"].items())]
    lines.append(
        f"{outcome.ticks} ticks from {timeline.stamp(outcome.start_ms)} to "
        f"{timeline.stamp(outcome.end_ms)}, rules {outcome.revision}"
    )
    if outcome.comparison is None:
        lines.append(f"{outcome.decisions} decisions")
        return lines
    lines += [
        f"only {'live' if d['only_in'] == 'live' else 'here'}: {timeline.decision(d['decision'])}"
        for d in outcome.comparison.shown
    ]
    lines.append(f"{outcome.decisions} decisions, {outcome.comparison.differ} differ")
    return lines
