"""`resilience init`: a small folder of policies to start from."""

from __future__ import annotations

from pathlib import Path

import click

from resilience.cli.output import note
from resilience.cli.paths import FilePath


@click.command("init")
@click.argument("folder", type=FilePath(path_type=Path), metavar="DIR")
def command(folder: Path) -> None:
    """Write a small working folder into DIR: a policy, its test, a UDF, CI and pre-commit.

    It passes `check` and `test` as it is. Nothing that exists is overwritten. Below the top of a
    git repository the workflow and the hooks go where GitHub and pre-commit look: to its top. The
    names of the files go to stdout.
    """
    from resilience.app.starter import Place, as_argument, write_starter

    place = Place.of(folder)
    for path in write_starter(place):
        click.echo(str(path))
    if place.has_hooks:
        note(f"the repository has hooks already: copy those of `{place.hooks}` into "
             f"`{place.top / place.hooks.name}`")
    name = as_argument(str(folder))
    note(f"now try `resilience check {name}` and `resilience test {name} --coverage`")
