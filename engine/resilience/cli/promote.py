"""`resilience promote`: the candidate becomes the active bundle."""

from __future__ import annotations

from pathlib import Path

import click

from resilience.cli.apply import show_difference
from resilience.cli.connect import connect, engine_options
from resilience.cli.output import emit_json, output_option


@click.command("promote")
@click.option("--revision", metavar="REVISION", help="Refuse unless this is the candidate.")
@output_option
@engine_options
def command(
    revision: str | None, output: str, socket: Path | None, state: Path | None
) -> None:
    """Make the candidate that `apply --shadow` started the active bundle.

    It is an apply: policies whose trigger is the same go on from the active state.
    """
    with connect(socket, state) as engine:
        body = engine.post("canary/promote", {"revision": revision} if revision else {})
    if output == "json":
        emit_json(body)
    else:
        show_difference(body)
