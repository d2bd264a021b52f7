"""The files that `resilience init` writes: a policy, its test, a UDF, a recording, and CI's."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from resilience.errors import RecordingError, UsageError
from resilience.model import Json

_TEMPLATES = {
    "README.md": "README.md",
    "rules/engine.yaml": "engine.yaml",
    "rules/queue-limit.yaml": "queue-limit.yaml",
    "rules/queue-limit.test.yaml": "queue-limit.test.yaml",
    "udfs/limit_by_queue.py": "limit_by_queue.py.txt",   # data here: nothing imports or types it
    "recordings/queue.om.txt": "queue.om.txt",
    ".pre-commit-config.yaml": "pre-commit-config.yaml",
    ".github/workflows/resilience.yaml": "workflow.yaml",
}
# The incident as a text, which everybody can read, and the same as a recording for the dry run.
_TEXT, _RECORDING = "recordings/queue.om.txt", "recordings/queue.parquet"
SCHEMAS = ("policy", "test", "engine")


def starter_files() -> dict[str, str]:
    """Return path below the folder -> text; the schemas know the actions of this installation."""
    home = files("resilience.app") / "starter"
    texts = {path: (home / name).read_text(encoding="utf-8") for path, name in _TEMPLATES.items()}
    return {**texts, **{f".schemas/{name}.json": text for name, text in _schemas().items()}}


def _schemas() -> dict[str, str]:
    from resilience.policy.contract_schemas import all_schemas
    from resilience.registry import catalogue

    known: dict[str, Json] = all_schemas(catalogue("kinds"), catalogue("actions"))
    return {n: json.dumps(known[n], indent=2, ensure_ascii=False) + "\n" for n in SCHEMAS}


def write_starter(folder: Path) -> list[Path]:
    """Write the files into `folder`, all or none; returns their paths.

    Raises UsageError when one of them is there already, or the folder cannot be written.
    """
    wanted = {folder / path: text for path, text in starter_files().items()}
    recording = folder / _RECORDING
    there = [path for path in (*wanted, recording) if path.exists() or path.is_symlink()]
    if there:
        raise UsageError(
            f"`{there[0]}` exists already and is not overwritten; choose an empty folder"
        )
    written: list[Path] = []
    try:
        for path, text in wanted.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
        _record(folder / _TEXT, recording)
    except (OSError, RecordingError) as error:
        for path in written:
            path.unlink(missing_ok=True)
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise UsageError(f"`{folder}` cannot be written: {reason}") from error
    return [*written, recording]


def _record(text: Path, out: Path) -> None:
    """Make what `resilience record import TEXT --out OUT` makes."""
    from resilience.sources.importers import import_paths, save

    save(out, import_paths([text]))
