"""The files that `resilience init` writes: a policy, its test, a UDF, a recording, and CI's."""

from __future__ import annotations

import json
import os
import posixpath
import re
import shlex
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from resilience.app.repository import top_of
from resilience.app.rules_folders import readable_name
from resilience.errors import RecordingError, UsageError
from resilience.model import Json

_NOT_A_NAME = re.compile("[^A-Za-z0-9._]+")
_TEMPLATES = {
    "rules/engine.yaml": "engine.yaml",
    "rules/queue-limit.yaml": "queue-limit.yaml",
    "rules/queue-limit.test.yaml": "queue-limit.test.yaml",
    "udfs/limit_by_queue.py": "limit_by_queue.py.txt",   # data here: nothing imports or types it
    "recordings/queue.om.txt": "queue.om.txt",
}
# The incident as a text, which everybody can read, and the same as a recording for the dry run.
_TEXT, _RECORDING = "recordings/queue.om.txt", "recordings/queue.parquet"
_HOOKS = ".pre-commit-config.yaml"
SCHEMAS = ("policy", "test", "engine")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the folder lies: `top` is where GitHub and pre-commit look, `below` the way from there
    to the folder, empty where it is the top itself. `has_hooks`: the repository has hooks of its
    own, so these are written into the folder."""

    folder: Path
    top: Path
    below: str
    has_hooks: bool

    @classmethod
    def of(cls, folder: Path) -> Place:
        """Find the repository that `folder` lies in, or will."""
        home = folder.resolve()
        top = top_of(home) or home
        below = "" if top == home else home.relative_to(top).as_posix()
        has_hooks = bool(below) and (top / _HOOKS).exists()
        return cls(folder, folder if top == home else top, below, has_hooks)

    @property
    def workflow(self) -> Path:
        name = "-".join(filter(None, ("resilience", _NOT_A_NAME.sub("-", self.below))))
        return self.top / ".github" / "workflows" / f"{name}.yaml"

    @property
    def hooks(self) -> Path:
        return (self.folder if self.has_hooks else self.top) / _HOOKS

    def way(self, path: str) -> str:
        """Return a path in the folder as seen from the top."""
        return posixpath.join(self.below, path)


def starter_files(place: Place) -> dict[Path, str]:
    """Return path -> text; the schemas know the actions of this installation."""
    home = files("resilience.app") / "starter"

    def text(name: str) -> str:
        return (home / name).read_text(encoding="utf-8")

    texts = {place.folder / path: text(name) for path, name in _TEMPLATES.items()}
    schemas = {place.folder / f".schemas/{name}.json": body for name, body in _schemas().items()}
    return {
        place.folder / "README.md": _filled(text("README.md"), place), **texts,
        place.hooks: _filled(text("pre-commit-config.yaml"), place),
        place.workflow: _filled(text("workflow.yaml"), place), **schemas,
    }


def _filled(text: str, place: Place) -> str:
    """Put into a template what depends on where the folder lies; JSON is YAML too."""
    workflow = place.workflow.relative_to(place.top).as_posix()
    rules = as_argument(place.way("rules"))
    defaults = f"defaults:\n  run: {{working-directory: {json.dumps(place.below)}}}\n"
    words = {
        "paths": json.dumps([place.way("rules/**"), place.way("udfs/**"), workflow]),
        "defaults": defaults if place.below else "",
        "results": json.dumps(place.way("policy-tests.xml")),
        "page": json.dumps(place.way("plan.html")),
        "check": json.dumps(f"resilience check --strict {rules}"),
        "test": json.dumps(f"resilience test {rules}"),
        "files": json.dumps(f"^{re.escape(place.way(''))}(rules|udfs)/"),
        "workflow": os.path.relpath(place.workflow, place.folder),
        "hooks": os.path.relpath(place.hooks, place.folder),
    }
    return re.sub("<<([a-z]+)>>", lambda found: words[found[1]], text)


def as_argument(path: str) -> str:
    """Return a path as a shell's word that no program takes for an option."""
    return shlex.quote(f"./{path}" if path.startswith("-") else path)


def _schemas() -> dict[str, str]:
    from resilience.policy.contract_schemas import all_schemas
    from resilience.registry import catalogue

    known: dict[str, Json] = all_schemas(catalogue("kinds"), catalogue("actions"))
    return {n: json.dumps(known[n], indent=2, ensure_ascii=False) + "\n" for n in SCHEMAS}


def write_starter(place: Place) -> list[Path]:
    """Write the files, all or none; returns their paths.

    Raises UsageError when one of them is there already, or the folder cannot be written.
    """
    folder, wanted = readable_name(place.folder), starter_files(place)
    recording = folder / _RECORDING
    there = [path for path in (*wanted, recording) if path.exists() or path.is_symlink()]
    if there:
        raise UsageError(
            f"`{there[0]}` exists already and is not overwritten; choose an empty folder"
        )
    written: list[Path] = []
    made: list[Path] = []
    try:
        for path, text in wanted.items():
            made += [p for p in reversed(path.parents) if not p.exists()]
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
        written.append(recording)
        _record(folder / _TEXT, recording)
    except BaseException as error:                   # Ctrl-C too leaves nothing behind
        for path in written:
            path.unlink(missing_ok=True)
        for path in reversed(made):
            with suppress(OSError):                  # somebody else's file lies there by now
                path.rmdir()
        if not isinstance(error, OSError | RecordingError):
            raise
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise UsageError(f"`{folder}` cannot be written: {reason}") from error
    return written


def _record(text: Path, out: Path) -> None:
    """Make what `resilience record import TEXT --out OUT` makes."""
    from resilience.sources.importers import import_paths, save

    save(out, import_paths([text]))
