"""`resilience resume`: end a pause, or let a released core take claims again."""

from __future__ import annotations

from pathlib import Path

import click

from resilience.cli.connect import connect, engine_options
from resilience.cli.output import emit_json, output_option
from resilience.cli.pause import chosen


@click.command("resume")
@click.argument("policy", required=False)
@click.option("--all", "everything", is_flag=True, help="End the pause of all policies.")
@click.option("--reason", default="", help="Why; it is kept with the decisions.")
@output_option
@engine_options
def command(
    policy: str | None, everything: bool, reason: str, output: str, socket: Path | None,
    state: Path | None,
) -> None:
    """End the pause of POLICY, or of all."""
    name = chosen(policy, everything)
    with connect(socket, state) as engine:
        body = engine.post(f"policies/{name}/resume", {"reason": reason})
    if output == "json":
        emit_json(body)
    else:
        click.echo(f"resumed {'all policies' if everything else policy}, from the next tick on")
