"""`resilience init`: a small folder of policies to start from."""

from __future__ import annotations

from pathlib import Path

import click

from resilience.cli.output import note


@click.command("init")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
def command(folder: Path) -> None:
    """Write a small working folder into DIR: a policy, its test, a UDF, CI and pre-commit.

    It passes `check` and `test` as it is. Nothing that exists is overwritten. The names of the
    files go to stdout.
    """
    from resilience.app.starter import write_starter

    for path in write_starter(folder):
        click.echo(str(path))
    note(f"now try `resilience check {folder}` and `resilience test {folder} --coverage`")
