"""`resilience release`: free a core of all claims, without an engine."""

from __future__ import annotations

from pathlib import Path

import click

from resilience.cli.output import emit_json, output_option

DEADLINE_MS = 5_000


@click.command("release")
@click.option("--attach", "url", required=True, metavar="URL", help="Address of the server.")
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE",
              help="Token of the server; default: core.token in the state folder.")
@click.option("--state", type=click.Path(path_type=Path), metavar="DIR",
              help="State folder. [env: RESILIENCE_STATE]")
@output_option
def command(url: str, token_file: Path | None, state: Path | None, output: str) -> None:
    """Clear all claims of the server at URL, and shut out the engine that made them.

    The server is back at its own configuration. An engine that drives it stops acting, says so,
    and acts again after `resilience resume --all` or a restart.
    """
    from resilience.app.release import release

    actual = release(url, token_file, state, deadline_ms=DEADLINE_MS)
    if output == "json":
        emit_json(actual.to_json())
    else:
        click.echo(f"released: no claims at {url}, epoch {actual.epoch}; engines before it are out")
