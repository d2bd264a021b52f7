"""`resilience release`: free a core of all claims, without an engine."""

from __future__ import annotations

import time
from pathlib import Path

import click

from resilience.cli.connect import one_line
from resilience.cli.output import emit_json, output_option
from resilience.cli.paths import FilePath

DEADLINE_MS = 5_000


@click.command("release")
@click.option("--attach", "url", required=True, metavar="URL", help="Address of the server.")
@click.option("--token-file", type=FilePath(path_type=Path), metavar="FILE",
              help="Token of the server; default: core.token in the state folder.")
@click.option("--state", type=FilePath(path_type=Path), metavar="DIR",
              help="State folder. [env: RESILIENCE_STATE]")
@click.option("--reason", default="", callback=one_line,
              help="Why; the server and every engine show it.")
@output_option
def command(
    url: str, token_file: Path | None, state: Path | None, reason: str, output: str
) -> None:
    """Clear all claims of the server at URL, and let it take no others until it is resumed.

    The server is back at its own configuration at once. An engine that drives it, or that is
    started later, says so and waits for `resilience resume --attach URL`.
    """
    from resilience.app.release import core_at, release

    with core_at(url, token_file, state) as core:
        actual = release(core, reason, t_ms=time.time_ns() // 1_000_000, deadline_ms=DEADLINE_MS)
    if output == "json":
        emit_json(actual.to_json())
    else:
        click.echo(f"released: no claims at {url}, and none are taken until "
                   f"`resilience resume --attach {url}`")
