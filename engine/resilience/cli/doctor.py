"""`resilience doctor`: is this machine fit, and what does the engine say."""

from __future__ import annotations

from pathlib import Path

import click

from resilience.cli.connect import engine_options
from resilience.cli.output import emit_json, output_option, paint
from resilience.cli.paths import FilePath

MARKS = {"ok": ("ok", "green"), "warning": ("warn", "yellow"), "error": ("fail", "red")}


@click.command("doctor")
@click.option("--attach", metavar="URL",
              help="Also ask the server at URL: its core's levers and its metrics.")
@click.option("--token-file", type=FilePath(path_type=Path), metavar="FILE",
              help="With --attach: token of the server. Default: core.token in the state folder.")
@click.option("--prometheus", metavar="URL", help="Also ask this Prometheus for its metrics.")
@click.option("--config", type=FilePath(path_type=Path), metavar="FILE",
              help="A `kind: Engine` document: is it right, and does its Prometheus answer.")
@output_option
@engine_options
def command(
    attach: str | None, token_file: Path | None, prometheus: str | None, config: Path | None,
    output: str, socket: Path | None, state: Path | None,
) -> int:
    """Look at what the engine needs on this machine; exit code 1 if something is broken.

    Versions, vLLM's extension points, the layers of the sandbox, the state folder, a running
    engine with its core's levers, and the servers that are named.
    """
    from resilience.addresses import server_address
    from resilience.app.doctor import Reach, examine

    for url, what in ((attach, "a server"), (prometheus, "Prometheus")):
        if url is not None:
            server_address(url, what)
    found = examine(socket, state, Reach(attach, token_file, prometheus, config))
    if output == "json":
        emit_json({"checks": [
            {"name": c.name, "status": c.status, "detail": c.detail, "advice": c.advice}
            for c in found
        ]})
    else:
        for check in found:
            word, shade = MARKS[check.status]
            advice = f"; {check.advice}" if check.advice else ""
            click.echo(f"{paint(word.ljust(5), shade)} {check.name}: {check.detail}{advice}")
    return 1 if any(c.status == "error" for c in found) else 0
