"""`resilience schema`: the JSON Schemas of policies, configuration and outputs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from resilience.cli.output import emit, note
from resilience.cli.paths import FilePath
from resilience.errors import UsageError
from resilience.model import Json
from resilience.policy.words import counted

OURS = b'"$id": "urn:resilience:schemas:'


def text_of(schema: Json) -> str:
    """Return the file text of a schema."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


@click.command("schema")
@click.argument("name", required=False)
@click.option(
    "--write", "folder", type=FilePath(file_okay=False, path_type=Path), metavar="DIR",
    help="Write the schema, or without NAME every one, to DIR/NAME.json.",
)
def command(name: str | None, folder: Path | None) -> None:
    """Print the JSON Schema NAME, or the names that there are.

    Editors find it through the first line of a policy:
    `# yaml-language-server: $schema=PATH/policy.json`.
    """
    from resilience.policy.contract_schemas import all_schemas
    from resilience.registry import catalogue

    schemas = all_schemas(catalogue("kinds"), catalogue("actions"))
    if name is not None and name not in schemas:
        raise UsageError(f"no schema `{name}`; see `resilience schema`")
    if folder is not None:
        _write(schemas if name is None else {name: schemas[name]}, folder)
    elif name is None:
        for known, schema in schemas.items():
            click.echo(f"{known:14} {schema['title']}")
    else:
        emit(text_of(schemas[name]), newline=False)


def _write(schemas: dict[str, Json], folder: Path) -> None:
    from resilience.app.replaceable import check_place

    folder.mkdir(parents=True, exist_ok=True)
    for name in schemas:
        check_place(folder / f"{name}.json", lambda head: OURS in head, "schema of ours", "--write",
                    in_place=True)
    for name, schema in schemas.items():
        (folder / f"{name}.json").write_text(text_of(schema), encoding="utf-8")
    note(f"wrote {counted(len(schemas), 'schema')} to {folder}")
