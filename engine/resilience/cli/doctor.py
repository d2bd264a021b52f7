"""`resilience doctor`: is this machine fit, and what does the engine say."""

from __future__ import annotations

from pathlib import Path

import click

from resilience.cli.connect import engine_options
from resilience.cli.output import emit_json, output_option, paint

MARKS = {"ok": ("ok", "green"), "warning": ("warn", "yellow"), "error": ("fail", "red")}


@click.command("doctor")
@output_option
@engine_options
def command(output: str, socket: Path | None, state: Path | None) -> int:
    """Look at what the engine needs on this machine; exit code 1 if something is broken."""
    from resilience.app.doctor import examine

    found = examine(socket, state)
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
