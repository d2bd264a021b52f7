"""`resilience history`: what was applied, paused and resumed, what breakers did, and what can be
gone back to."""

from __future__ import annotations

from pathlib import Path

import click

from resilience.cli import timeline
from resilience.cli.connect import connect, engine_options
from resilience.cli.output import emit_json, output_option, table
from resilience.model import Json
from resilience.policy.words import counted


@click.command("history")
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True,
              help="Most entries, the newest ones.")
@output_option
@engine_options
def command(limit: int, output: str, socket: Path | None, state: Path | None) -> None:
    """List what was applied, paused and resumed, and what breakers did, newest last."""
    with connect(socket, state) as engine:
        body = engine.get("history", limit=limit)
    if output == "json":
        emit_json(body)
        return
    kept = set(body["kept"])
    rows = [[timeline.stamp(e["t_ms"]), e["action"], *_what(e, kept)] for e in body["events"]]
    click.echo(table(["TIME", "ACTION", "WHAT", ""], rows))


def _what(event: Json, kept: set[str]) -> list[str]:
    if "revision" in event:
        commit = f"commit {event['git_commit']}, " if event["git_commit"] else ""
        note = "" if event["revision"] in kept else ", not kept any more"
        return [event["revision"], f"{commit}{counted(event['policies'], 'policy')}{note}"]
    if event["action"] == "breaker":
        return [timeline.breaker(event), f"by policy `{event['policy']}`"]
    until = f", until {timeline.stamp(event['until_ms'])}" if event["until_ms"] else ""
    return [event["policy"] or "all policies", f"{event['reason']}{until}"]
