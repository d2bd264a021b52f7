"""`resilience replay`: make a recorded decision again, from what it was made from."""

from __future__ import annotations

from pathlib import Path

import click

from resilience.cli import timeline
from resilience.cli.connect import decision_id
from resilience.cli.output import emit_json, output_option
from resilience.cli.paths import FilePath
from resilience.model import VERSION, Json


@click.command("replay")
@click.argument("name", metavar="ID")
@click.option("--state", type=FilePath(path_type=Path), metavar="DIR",
              help="State folder of the engine. [env: RESILIENCE_STATE]")
@click.option("--rules", type=FilePath(path_type=Path), metavar="RULES",
              help="Compare the policy with these rules, not with the last applied ones.")
@click.option("--udfs", "udf_dirs", multiple=True, type=FilePath(path_type=Path), metavar="DIR",
              help="With --rules: folder of UDFs.")
@output_option
def command(
    name: str, state: Path | None, rules: Path | None, udf_dirs: tuple[Path, ...],
    output: str,
) -> int:
    """Recompute the decision ID offline, byte for byte, and say if code or policy changed since.

    It reads the state folder and needs no engine. Exit code 0: the same decision; 1: another.
    """
    body = _replayed(decision_id(name), state, rules, udf_dirs)
    if output == "json":
        emit_json({"version": VERSION, **body})
    else:
        click.echo("\n".join(told(body)))
    return 0 if body["same"] else 1


def _replayed(
    name: str, state: Path | None, rules: Path | None, udf_dirs: tuple[Path, ...]
) -> Json:
    from resilience.app.bundle_store import BundleStore
    from resilience.app.bundles import read_sources
    from resilience.app.files import StateFolder, default_state_path
    from resilience.app.journal import SqliteJournal
    from resilience.app.replay import replay
    from resilience.errors import UsageError

    if udf_dirs and rules is None:
        raise UsageError("`--udfs` belongs to `--rules`")
    folder = StateFolder(state or default_state_path())
    if not folder.journal.is_file():
        raise UsageError(f"`{folder.path}` holds no journal; name the state folder with `--state`")
    now = read_sources(rules, udf_dirs) if rules is not None else None
    journal = SqliteJournal(folder.journal)
    try:
        return replay(name, journal, BundleStore(folder.bundles), now=now).to_json()
    finally:
        journal.close()


def told(body: Json) -> list[str]:
    """Return the outcome for people."""
    lines = [timeline.decision(body["recorded"])]
    if body["same"]:
        lines.append("the same decision, byte for byte")
    elif body["recomputed"] is None:
        lines.append("the same inputs lead to no such decision now")
    else:
        lines.append(f"it differs in {', '.join(body['differences'])}:")
        lines += [
            f"  {name}: {body['recorded'].get(name)!r} then, {body['recomputed'].get(name)!r} now"
            for name in body["differences"]
        ]
    code, policy = body["code"], body["policy"]
    then, now = code["engine_version"], code["engine_version_now"]
    versions = f"{then} then, {now} now"
    if then == now:
        versions = f"both {now}, by other files" if code["changed"] else now
    lines.append(f"code: {'changed since' if code['changed'] else 'the same'} ({versions})")
    word = {"same": "the same", "changed": "changed since", "removed": "no longer there"}
    lines.append(
        f"policy: {word[policy['state']]} ({policy['revision']} then, "
        f"{policy['revision_now'] or 'none'} now)"
    )
    return lines
