"""Where bundles come from and where they are kept: rules folders, UDF folders, the state folder.

Paths inside a bundle are relative to the rules folder, so that the revision does not depend on
where somebody stood. Messages show the path as the user wrote it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from resilience.errors import ControlError, FindingsError, UsageError
from resilience.model import Action, Bundle, Capabilities, Finding, Json
from resilience.policy.document import is_policy_file
from resilience.policy.encoding import FILE_MAX_BYTES
from resilience.shipped import shipped

FILES_MAX = 20_000
BYTES_MAX = 64 * 1024 * 1024  # all documents together; of one that is too large `check` says so
UDF_BYTES_MAX = 1024 * 1024
DEPTH_MAX = 16
GIT_TIMEOUT_S = 5.0
LEFT_BEHIND = ("~", ".bak", ".orig", ".rej", ".swp", ".tmp")
TEST_ENDINGS = (".test.yaml", ".test.yml")

Texts = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Sources:
    """What a bundle is made from. `files` holds (path, bytes) of the documents; `udf_roots` one
    tuple of (path, text) for each UDF folder, in the order of lookup, without the shipped ones."""

    files: tuple[tuple[str, bytes], ...]
    udf_roots: tuple[Texts, ...] = ()
    git_commit: str | None = None
    shown: Mapping[str, str] | None = None

    def display(self, finding: Finding) -> Finding:
        """Return `finding` with the path that the user can open from here."""
        return replace(finding, file=(self.shown or {}).get(finding.file, finding.file))

    def to_json(self) -> Json:
        """Return what travels to a running engine; raises UsageError for bytes that are no text."""
        return {
            "documents": [[path, _text(path, body)] for path, body in self.files],
            "udfs": [[list(pair) for pair in root] for root in self.udf_roots],
            "git_commit": self.git_commit,
        }

    @classmethod
    def from_json(cls, body: Json) -> Sources:
        """Read a request's body; raises ControlError when it is something else."""
        if not isinstance(body, Mapping) or not {"documents"} <= set(body) <= {
            "documents", "udfs", "git_commit"
        }:
            raise ControlError(
                "a bundle has `documents`, `udfs` and `git_commit`", code="bad_request"
            )
        documents = _pairs(body["documents"], "documents")
        roots = body.get("udfs") or []
        if not isinstance(roots, list):
            raise ControlError("`udfs` is a list of folders", code="bad_request")
        commit = body.get("git_commit")
        return cls(
            tuple((path, text.encode()) for path, text in documents),
            tuple(_pairs(root, "udfs") for root in roots),
            commit if isinstance(commit, str) else None,
        )


def _pairs(value: Json, what: str) -> Texts:
    if not isinstance(value, list) or len(value) > FILES_MAX or not all(
        isinstance(p, list) and len(p) == 2 and all(isinstance(s, str) for s in p) for p in value
    ):
        raise ControlError(f"`{what}` is a list of [path, text]", code="bad_request")
    return tuple((path, text) for path, text in value)


def _text(path: str, body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"`{path}` is not UTF-8 text: {error.reason}") from error


# --- reading folders -----------------------------------------------------------------------------


def read_sources(
    rules: Path, udf_dirs: Sequence[Path] = (), *, config: Path | None = None,
    with_commit: bool = True,
) -> Sources:
    """Read a rules folder or file, and its UDFs; raises UsageError for what cannot be read.

    Without `udf_dirs` the UDFs are those in `udfs/` inside or beside the rules folder.
    `with_commit`: ask git at which commit the folder is.
    """
    files, shown = _read_documents(_readable_name(rules))
    if config is not None:
        name = f"config/{config.name}"
        files.append((name, _read(config)))
        shown[name] = str(config)
    roots = list(udf_dirs) or udfs_near(rules)
    texts: list[Texts] = []
    for index, root in enumerate(roots):
        texts.append(_read_udfs(root, "udfs" if index == 0 else f"udfs.{index}", shown))
    commit = git_commit(rules) if with_commit else None
    return Sources(tuple(files), tuple(texts), commit, shown)


def policy_tests(folder: Path) -> list[Path]:
    """Return the policy tests under `folder`, in order; raises UsageError."""
    return _walk(_readable_name(folder), lambda name: name.endswith(TEST_ENDINGS))


def shipped_udfs() -> Texts:
    """Return the UDFs that come with the product, as the last root of the lookup."""
    return tuple(
        (f"shipped/{item.name}", item.read_text(encoding="utf-8"))
        for item in sorted(shipped("udfs").iterdir(), key=lambda i: i.name)
        if item.name.endswith(".py")
    )


def split_roots(udfs: Iterable[tuple[str, str]]) -> tuple[Texts, ...]:
    """Return the UDF files of a bundle by their roots again, in the order of lookup: a helper of
    one root may have the name of a function of another."""
    roots: dict[str, list[tuple[str, str]]] = {}
    for path, text in udfs:
        roots.setdefault(path.partition("/")[0], []).append((path, text))
    order = sorted(roots, key=lambda root: (root == "shipped", len(root), root))
    return tuple(tuple(roots[root]) for root in order)


def _read_documents(rules: Path) -> tuple[list[tuple[str, bytes]], dict[str, str]]:
    if not rules.exists():
        raise UsageError(_missing(rules, "rules folder or file"))
    if not rules.is_dir():
        return [(rules.name, _read(rules))], {rules.name: str(rules)}
    found = [
        path for path in _walk(rules, is_policy_file)
        if "udfs" not in path.relative_to(rules).parts[:-1]
    ]
    if not found:
        raise UsageError(f"no policy files (`*.yaml`, `*.yml`) in `{rules}`")
    shown = {path.relative_to(rules).as_posix(): str(path) for path in found}
    return _read_all(rules, shown), shown


def _read_all(rules: Path, shown: Mapping[str, str]) -> list[tuple[str, bytes]]:
    read: list[tuple[str, bytes]] = []
    left = BYTES_MAX
    for name, path in shown.items():
        read.append((name, _read(Path(path))))
        left -= len(read[-1][1])
        if left < 0:
            raise UsageError(f"the policy files in `{rules}` have more than {BYTES_MAX >> 20} MiB "
                             "together; split the folder")
    return read


def _missing(path: Path, what: str) -> str:
    if path.is_symlink():
        return f"`{path}` is a link that points nowhere"
    return f"the {what} `{path}` does not exist"


def udfs_near(rules: Path) -> list[Path]:
    """Return the UDF folder inside or beside `rules`, if there is one."""
    inside = [rules / "udfs"] if rules.is_dir() else []
    beside = rules.absolute().parent / "udfs"
    candidates = [*inside, beside]
    return [path for path in candidates if path.is_dir()][:1]


def _read_udfs(root: Path, prefix: str, shown: dict[str, str]) -> Texts:
    if not root.is_dir():
        raise UsageError(_missing(root, "UDF folder"))
    texts: list[tuple[str, str]] = []
    for path in _walk(root, _is_udf_file):
        name = f"{prefix}/{path.relative_to(root).as_posix()}"
        shown[name] = str(path)
        body = _read(path, UDF_BYTES_MAX)
        if len(body) > UDF_BYTES_MAX:
            raise UsageError(f"`{path}` is larger than {UDF_BYTES_MAX} bytes")
        texts.append((name, _text(str(path), body)))
    return tuple(texts)


def _is_udf_file(name: str) -> bool:
    return name.endswith(".py") and not name.endswith((".test.py", "_test.py"))


def _walk(root: Path, wanted: Callable[[str], bool]) -> list[Path]:
    """Return the files under `root` with wanted names, in order: links are followed once, hidden
    ones skipped. Raises UsageError for a pipe or device of such a name.

    A ConfigMap mount is a hidden folder of files and a link to each, so every file comes once.
    """
    found: list[Path] = []
    seen: set[tuple[int, int]] = set()
    for folder, names, files in os.walk(root, followlinks=True, onerror=_unreadable):
        here = Path(folder)
        status = here.stat()
        if (status.st_dev, status.st_ino) in seen:
            names.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        if len(here.relative_to(root).parts) > DEPTH_MAX:
            raise UsageError(f"`{here}` lies deeper than {DEPTH_MAX} folders")
        names[:] = sorted(n for n in names if not _ignored(n) and n != "__pycache__")
        found += [here / n for n in files if not _ignored(n) and wanted(n)]
        if len(found) > FILES_MAX:
            raise UsageError(f"`{root}` holds more than {FILES_MAX} such files")
    return [_regular(path) for path in sorted(found)]


def _unreadable(error: OSError) -> None:
    """Say which folder cannot be listed: left out, its policies would be missing silently."""
    raise UsageError(
        f"`{error.filename}` cannot be read: {(error.strerror or '').lower()}"
    ) from error


def _readable_name(path: Path) -> Path:
    """Return `path`; raises UsageError for a name that no message, JSON or journal can hold."""
    try:
        os.fsencode(path).decode("utf-8")
    except UnicodeDecodeError:
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise UsageError(f"the name of `{shown}` is not UTF-8; rename it") from None
    return path


def _regular(path: Path) -> Path:
    _readable_name(path)
    if path.exists() and not path.is_file():
        raise UsageError(f"`{path}` is no regular file; move it out of the folder")
    return path


def _ignored(name: str) -> bool:
    """Whether `name` is hidden or what an editor left behind."""
    return name.startswith((".", "#")) or name.endswith(LEFT_BEHIND)


def _read(path: Path, most: int = FILE_MAX_BYTES) -> bytes:
    """Return the file, or its first `most` bytes and one more: who checks it says that it is too
    large. Raises UsageError for what cannot be read."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            return file.read(most + 1)
    except FileNotFoundError as error:
        raise UsageError(_missing(path, "file")) from error
    except OSError as error:
        raise UsageError(f"`{path}` cannot be read: {(error.strerror or '').lower()}") from error


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for somebody to write into a named pipe: without one it is empty."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor


def git_commit(path: Path) -> str | None:
    """Return the commit that `path` is at, with `-dirty` when it differs; None outside git."""
    folder = path if path.is_dir() else path.absolute().parent
    head = _git(folder, "rev-parse", "--short=12", "HEAD")
    if not head:
        return None
    changes = _git(folder, "status", "--porcelain", "--", path.name if path.is_file() else ".")
    return f"{head}-dirty" if changes else head


def _git(folder: Path, *args: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *args], capture_output=True, text=True,
            timeout=GIT_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


# --- checking ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Checked:
    """A bundle that may run, and what is worth saying about it."""

    bundle: Bundle
    findings: tuple[Finding, ...]


def check_sources(
    sources: Sources,
    *,
    metric_names: frozenset[str] | None = None,
    capabilities: Capabilities | None = None,
    require_metrics: bool = False,
    scrape_interval_ms: int | None = None,
) -> Checked:
    """Check the documents with everything that is known; raises FindingsError on any error.

    `require_metrics`: a metric that the target does not export is an error, not a warning.
    """
    from resilience.app.udfs import unreadable
    from resilience.policy.check import check
    from resilience.registry import catalogue

    roots = [dict(root) for root in (*sources.udf_roots, shipped_udfs())]
    result = check(
        sources.files,
        roots,
        catalogue("actions"),
        metric_names=metric_names,
        capabilities=capabilities,
        require_metrics=require_metrics,
        scrape_interval_ms=scrape_interval_ms,
        git_commit=sources.git_commit,
        today=datetime.now(UTC).date(),
    )
    found = (*result.findings, *unreadable(result.findings, roots))
    findings = tuple(sources.display(f) for f in found)
    if result.bundle is None or any(f.severity == "error" for f in findings):
        raise FindingsError(findings)
    return Checked(result.bundle, findings)


def differences(old: Bundle | None, new: Bundle) -> Json:
    """Return which policies `new` adds, changes and removes, by what decides."""
    before: dict[str, str] = {p.name: p.spec_hash for p in old.policies} if old else {}
    after = {p.name: p.spec_hash for p in new.policies}
    return {
        "from": old.revision if old else None,
        "to": new.revision,
        "added": sorted(after.keys() - before.keys()),
        "removed": sorted(before.keys() - after.keys()),
        "changed": sorted(n for n in after.keys() & before.keys() if after[n] != before[n]),
        "unchanged": sorted(n for n in after.keys() & before.keys() if after[n] == before[n]),
        "config_changed": old is not None and old.config != new.config,
    }


def intervals(bundle: Bundle) -> list[int]:
    """Return the intervals at which policies that are not off want their ticks."""
    return sorted({p.interval_ms for p in bundle.policies if p.mode != "off"})


def propose(result: Json, action: Action) -> tuple[Action, ...]:
    """Return the actions in a UDF's result after the same checks as YAML's; raises ValueError."""
    from resilience.policy.check import proposed_actions
    from resilience.registry import catalogue

    return proposed_actions(result, action, catalogue("actions"))
