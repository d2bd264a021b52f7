"""`resilience discard`: the candidate is no longer run."""

from __future__ import annotations

from pathlib import Path

import click

from resilience.cli.connect import connect, engine_options
from resilience.cli.output import emit_json, output_option


@click.command("discard")
@click.option("--revision", metavar="REVISION", help="Refuse unless this is the candidate.")
@output_option
@engine_options
def command(
    revision: str | None, output: str, socket: Path | None, state: Path | None
) -> None:
    """Stop the candidate that `apply --shadow` started; the active bundle goes on untouched."""
    with connect(socket, state) as engine:
        body = engine.post("canary/discard", {"revision": revision} if revision else {})
    if output == "json":
        emit_json(body)
    else:
        click.echo(f"discarded {body['discarded']}")
