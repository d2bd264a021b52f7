"""`resilience rollback`: go back to a bundle that ran before."""

from __future__ import annotations

from pathlib import Path

import click

from resilience.cli.apply import show_difference
from resilience.cli.connect import connect, engine_options
from resilience.cli.output import emit_json, output_option


@click.command("rollback")
@click.option("--to", "revision", metavar="REVISION", help="Default: the one before the active.")
@output_option
@engine_options
def command(revision: str | None, output: str, socket: Path | None, state: Path | None) -> None:
    """Make an earlier bundle the active one; `resilience history` lists them."""
    from resilience.errors import UsageError

    if revision == "":
        raise UsageError("`--to` is empty: name a revision; `resilience history` lists them")
    with connect(socket, state) as engine:
        body = engine.post("bundle/rollback", {"revision": revision} if revision else {})
    if output == "json":
        emit_json(body)
    else:
        show_difference(body)
