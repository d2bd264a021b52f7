"""`resilience import`: Prometheus alerting rules become shadow policies."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from resilience.cli.output import emit, emit_json, note, output_option
from resilience.cli.paths import FilePath
from resilience.errors import UsageError
from resilience.model import Json

if TYPE_CHECKING:
    from resilience.app.importing import Import, Imported

FILE_BYTES_MAX = 10 * 1024 * 1024


@click.command("import")
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...",
    type=FilePath(path_type=Path, allow_dash=True),
)
@click.option(
    "--write", "folder", type=FilePath(file_okay=False, path_type=Path), metavar="DIR",
    help="Write each policy to DIR/NAME.yaml; a file that exists is never overwritten.",
)
@output_option
def command(files: Sequence[Path], folder: Path | None, output: str) -> int:
    """Turn Prometheus alerting rules into shadow policies, on stdout or in DIR.

    FILE is a rule file (`groups:`) or a PrometheusRule; `-` reads stdin. Expression, `for`,
    `keep_firing_for`, labels and annotations are kept. What a human must decide (actions, resolve,
    on_no_data) stands above each policy. Exit code 3 when an alert could not be imported.
    """
    from resilience.app.importing import import_rules

    done = import_rules([(str(f), _read(f)) for f in dict.fromkeys(files)])
    for finding in done.skipped:
        note(str(finding))
    written = _write(done.policies, folder) if folder is not None else {}
    if output == "json":
        emit_json(_body(done, written))
    elif folder is None and done.policies:
        emit("---\n".join(p.text for p in done.policies), newline=False)
    note(_summary(done, folder))
    return 3 if done.errors else 0


def _read(path: Path) -> bytes:
    try:
        if str(path) == "-":
            body: bytes = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
        else:
            with path.open("rb") as file:
                body = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise UsageError(f"the rule file `{path}` does not exist") from None
    except OSError as error:
        raise UsageError(f"`{path}` cannot be read: {(error.strerror or '').lower()}") from error
    if len(body) > FILE_BYTES_MAX:
        raise UsageError(f"`{path}` is larger than {FILE_BYTES_MAX} bytes")
    return body


def _write(policies: Sequence[Imported], folder: Path) -> dict[str, str]:
    """Write every policy, or none when one of the files is there already."""
    paths = {p.name: folder / f"{p.name}.yaml" for p in policies}
    there = [str(path) for path in paths.values() if path.exists()]
    if there:
        raise UsageError(f"`{there[0]}` exists already and is not overwritten; choose another "
                         "folder with `--write`")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for policy in policies:
            with paths[policy.name].open("x", encoding="utf-8") as file:
                file.write(policy.text)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"`{folder}` cannot be written: {reason}") from error
    return {name: str(path) for name, path in paths.items()}


def _body(done: Import, written: dict[str, str]) -> Json:
    return {
        "policies": [
            {"name": p.name, "alert": p.alert, "group": p.group, "file": p.file, "line": p.line,
             "notes": list(p.notes), "written": written.get(p.name), "document": p.text}
            for p in done.policies
        ],
        "skipped": [
            {"file": f.file, "line": f.line, "column": f.column, "severity": f.severity,
             "message": f.message, "suggestion": f.suggestion}
            for f in done.skipped
        ],
    }


def _summary(done: Import, folder: Path | None) -> str:
    from resilience.policy.words import counted

    where = f" into `{folder}`" if folder is not None and done.policies else ""
    left = sum(f.severity == "info" for f in done.skipped)
    warned = sum(f.severity == "warning" for f in done.skipped)
    parts = [f"imported {counted(len(done.policies), 'policy')}{where}"]
    if left:
        parts.append(f"{left} left out")
    if warned:
        parts.append(counted(warned, "warning"))
    if done.errors:
        parts.append(counted(done.errors, "error"))
    return ", ".join(parts)
