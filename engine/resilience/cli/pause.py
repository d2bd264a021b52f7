"""`resilience pause`: break glass."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import click

from resilience.cli import timeline
from resilience.cli.connect import connect, duration_ms, engine_options, one_line
from resilience.cli.output import emit_json, output_option


@click.command("pause")
@click.argument("policy", required=False)
@click.option("--all", "everything", is_flag=True, help="Pause every policy.")
@click.option("--for", "length", metavar="DURATION", help="End by itself after this, as in `1h`.")
@click.option("--reason", required=True, callback=one_line,
              help="Why; it is kept with the decisions.")
@output_option
@engine_options
def command(
    policy: str | None, everything: bool, length: str | None, reason: str, output: str,
    socket: Path | None, state: Path | None,
) -> None:
    """Suspend POLICY, or all: its claims are dropped and it does nothing until resumed."""
    name = chosen(policy, everything)
    for_ms = None if length is None else duration_ms(length, "`--for`")
    with connect(socket, state) as engine:
        path = f"policies/{quote(name, safe='')}/pause"
        body = engine.post(path, {"for_ms": for_ms, "reason": reason})
    if output == "json":
        emit_json(body)
        return
    until = f"until {timeline.stamp(body['until_ms'])}" if body["until_ms"] else "until resumed"
    click.echo(f"paused {'all policies' if everything else policy} {until}, from the next tick on")


def chosen(policy: str | None, everything: bool) -> str:
    """Return the policy's name as the control API wants it; raises UsageError."""
    from resilience.errors import UsageError

    if everything == bool(policy) or policy == "":
        raise UsageError("name one POLICY, or say `--all`")
    return "*" if policy is None else policy
