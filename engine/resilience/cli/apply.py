"""`resilience apply`: make a bundle the active one, or see what it would have decided."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from resilience.cli import dry_run as over_recording
from resilience.cli.connect import connect, engine_options
from resilience.cli.output import emit_json, note, output_option, paint
from resilience.cli.paths import FilePath
from resilience.cli.sweep import show_sweep
from resilience.model import Finding, Json

if TYPE_CHECKING:
    from resilience.app.bundles import Sources
    from resilience.app.watch import Stamp


@click.command("apply")
@click.argument("rules", type=FilePath(path_type=Path))
@click.option(
    "--udfs", "udf_dirs", multiple=True, type=FilePath(path_type=Path), metavar="DIR",
    help="Folder of UDFs; default: `udfs/` in or beside RULES, then the shipped ones.",
)
@click.option("--config", type=FilePath(path_type=Path), metavar="FILE",
              help="A `kind: Engine` document outside RULES.")
@click.option("--dry-run", is_flag=True, help="Change nothing: show the difference, or with "
              "--recording the decisions.")
@over_recording.recording_options
@click.option("--if-match", metavar="REVISION", help="Refuse unless this revision is active.")
@click.option("--allow-missing-metrics", is_flag=True,
              help="Accept policies whose metrics the server does not export.")
@click.option("--shadow", is_flag=True, help="Let RULES decide beside the active ones, without "
              "effect: `get canary` compares, `promote` or `discard` ends it.")
@click.option("--watch", is_flag=True,
              help="Go on and apply every change of RULES, each as a whole, until interrupted.")
@output_option
@engine_options
def command(
    rules: Path, udf_dirs: tuple[Path, ...], config: Path | None, dry_run: bool,
    recording: Path | None, html: Path | None, sets: tuple[str, ...],
    features: tuple[str, ...], if_match: str | None, allow_missing_metrics: bool, shadow: bool,
    watch: bool, output: str, socket: Path | None, state: Path | None,
) -> int:
    """Check RULES and swap them, as a whole, into the running engine.

    With `--dry-run --recording FILE` the rules are evaluated over recorded metrics instead, and no
    engine is asked: it prints the decisions and a report of each policy (when it fired, for how
    long, when it was blind, what it claimed), and how the decisions differ from the live ones if
    the recording holds decisions of these rules.
    """
    from resilience.app.bundles import read_sources

    if not dry_run:
        _check_no_dry_run(recording, html, sets)
    over_recording.check_options(recording, html, sets, features)
    _check_live_options(if_match, shadow, watch, dry_run)

    def read() -> Sources:
        return read_sources(rules, udf_dirs, config=config)

    def put(sources: Sources) -> None:
        _check_here(sources)
        with connect(socket, state) as engine:
            body = engine.put(
                "bundle", sources.to_json(),
                headers={"If-Match": f'"{if_match}"'} if if_match else None,
                dry_run=1 if dry_run else None, shadow=1 if shadow else None,
                allow_missing_metrics=1 if allow_missing_metrics else None,
            )
        _show(body, sources, output)

    if recording is not None:
        given = replace(read(), enable_features=features)
        return _over_recording(given, recording, html, sets, output)
    if watch:
        _follow(rules, udf_dirs, config, read, put)
    put(read())
    return 0


def _check_no_dry_run(
    recording: Path | None, html: Path | None, sets: tuple[str, ...]
) -> None:
    from resilience.errors import UsageError

    also = "" if recording is not None else " --recording FILE"
    for option, given in (("--recording", recording), ("--html", html), ("--set", sets)):
        if given:
            raise UsageError(f"`{option}` evaluates only: add `--dry-run{also}`")


def _check_live_options(
    if_match: str | None, shadow: bool, watch: bool, dry_run: bool
) -> None:
    from resilience.errors import UsageError

    if if_match and (shadow or watch):
        raise UsageError("`--if-match` is for one swap: leave `--shadow` and `--watch` out")
    if watch and dry_run:
        raise UsageError("`--watch` applies: leave `--dry-run` out")


def _over_recording(
    sources: Sources, recording: Path, html: Path | None, sets: tuple[str, ...], output: str
) -> int:
    rules = over_recording.checked(sources, recording)
    if sets:
        show_sweep(sources, recording, sets, output, rules.findings)
        return 0
    return over_recording.evaluate(rules, recording, output, html)


def _show(body: Json, sources: Sources, output: str) -> None:
    shown = sources.shown or {}
    body["findings"] = [{**f, "file": shown.get(f["file"], f["file"])} for f in body["findings"]]
    if output == "json":
        emit_json(body)
    else:
        show_difference(body)


def _follow(
    rules: Path, udf_dirs: tuple[Path, ...], config: Path | None, read: Callable[[], Sources],
    put: Callable[[Sources], None],
) -> NoReturn:
    """Apply now and after every change; what is refused now ends the command."""
    from resilience.app.watch import POLL_MS, Watch, stamp

    def look() -> Stamp:
        return stamp(rules, udf_dirs, config)

    watch = Watch(look, read, put, note, applied=look())
    put(read())
    while True:
        time.sleep(POLL_MS / 1000)
        watch.poll(time.monotonic_ns() // 1_000_000)


def _check_here(sources: Sources) -> None:
    """Find errors before the engine is asked, with paths that the user can open."""
    from resilience.app.bundles import check_sources

    over_recording.check_functions(sources, check_sources(sources).bundle)


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
    if body.get("shadow"):
        click.echo(f"runs in shadow beside {body['from']}: {body['to']}; compare with "
                   "`resilience get canary`, then `promote` or `discard` it")
        return
    click.echo(f"{verb} {body['to']}" + (f", was {body['from']}" if body["from"] else ""))
