"""`resilience resume`: end a pause, or let a released core take claims again."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import click

from resilience.cli import timeline
from resilience.cli.connect import connect, engine_options, one_line
from resilience.cli.output import emit_json, output_option
from resilience.cli.paths import FilePath
from resilience.cli.pause import chosen
from resilience.model import Json

DEADLINE_MS = 5_000


@click.command("resume")
@click.argument("policy", required=False)
@click.option("--all", "everything", is_flag=True, help="End the pause of all policies.")
@click.option("--attach", "url", metavar="URL",
              help="Let the released server at URL take claims again; needs no engine.")
@click.option("--token-file", type=FilePath(path_type=Path), metavar="FILE",
              help="With --attach: token of the server; default: core.token in the state folder.")
@click.option("--reason", default="", callback=one_line, help="Why; it is kept with the decisions.")
@output_option
@engine_options
def command(
    policy: str | None, everything: bool, url: str | None, token_file: Path | None, reason: str,
    output: str, socket: Path | None, state: Path | None,
) -> None:
    """End the pause of POLICY, or of all; with --attach, end the release of a server."""
    if url is not None:
        _resume_core(policy, everything, url, token_file, state, output)
        return
    name = chosen(policy, everything)
    with connect(socket, state) as engine:
        body = engine.post(f"policies/{quote(name, safe='')}/resume", {"reason": reason})
    if output == "json":
        emit_json(body)
        return
    click.echo(_told(body, "all policies" if everything else f"{policy}"))
    if body.get("released"):
        click.echo("the server is released still: `resilience resume --attach URL` ends that")


def _told(body: Json, who: str) -> str:
    if body.get("taken_back"):
        return f"took the core back, and resumed {who}, from the next tick on"
    if body.get("paused"):
        until = f" until {timeline.stamp(body['until_ms'])}" if body["until_ms"] else ""
        return f"{who} stays paused: all policies are{until}; `resilience resume --all` ends that"
    if not body.get("was_paused", True):
        return "no policy was paused" if who == "all policies" else f"{who} was not paused"
    return f"resumed {who}, from the next tick on"


def _resume_core(
    policy: str | None, everything: bool, url: str, token_file: Path | None, state: Path | None,
    output: str,
) -> None:
    from resilience.app.release import core_at
    from resilience.errors import UsageError

    if policy is not None or everything:
        raise UsageError("`--attach` resumes a server as a whole: leave POLICY and `--all` out")
    with core_at(url, token_file, state) as core:
        actual = core.resume(deadline_ms=DEADLINE_MS)
    if output == "json":
        emit_json(actual.to_json())
    else:
        click.echo(f"resumed: the server at {url} takes claims again, an engine sends its own "
                   "within seconds")
