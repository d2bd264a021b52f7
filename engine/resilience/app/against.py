"""What a plan compares with: the active bundle, a stored revision, a folder, or a git revision."""

from __future__ import annotations

import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from resilience.app.bundle_store import BundleStore
from resilience.app.bundles import Sources, read_sources, split_roots
from resilience.app.repository import git, top_of
from resilience.errors import ControlError, UsageError
from resilience.model import Json

ARCHIVE_MAX = 64 * 1024 * 1024
_REVISION = re.compile(r"(sha256:)?[0-9a-f]{6,12}")


@dataclass(frozen=True, slots=True)
class Against:
    """The sources to compare with, and how to name them. None: there is nothing yet."""

    label: str
    sources: Sources | None


def resolve(
    text: str | None,
    rules: Path,
    udf_dirs: Sequence[Path],
    *,
    state: Path,
    active: Callable[[], Json | None],
) -> Against:
    """Find what `text` names; raises UsageError when it is none of the four.

    Without `text`: what the running engine has (`active`), else the newest kept bundle, else
    nothing. A folder goes before a stored revision, and that before a git revision.
    """
    store = BundleStore(state / "bundles")
    if text is None:
        return _current(store, active)
    if not text.strip():
        raise UsageError("`--against` is empty: name a folder, a kept revision or a git revision")
    if Path(text).exists():
        return Against(text, read_sources(Path(text), udf_dirs))
    if _REVISION.fullmatch(text):
        with suppress(ControlError):
            return Against(text, store.load(text))
    found = _from_git(text, rules)
    if found is None:
        raise UsageError(
            f"`--against {text}` is no folder, no kept revision (`resilience history` lists them) "
            f"and no git revision of `{rules}`{_why_git_is_silent(rules)}"
        )
    return found


def _current(store: BundleStore, active: Callable[[], Json | None]) -> Against:
    body = active()
    if body is not None:
        documents = tuple((path, text.encode()) for path, text in body["documents"])
        # The shipped UDFs of this product are looked up again, so only the user's own travel.
        own = [(path, text) for path, text in body["udfs"] if not path.startswith("shipped/")]
        label = f"the running engine ({body['revision']})"
        return Against(label, Sources(documents, split_roots(own)))
    kept = store.revisions()
    if kept:
        return Against(f"the bundle applied last ({kept[0]})", store.load(kept[0]))
    return Against("nothing: no engine runs and no bundle is kept", None)


# --- git -----------------------------------------------------------------------------------------


def _from_git(revision: str, rules: Path) -> Against | None:
    """Return the rules, and the UDFs in or beside them, as they were at a git revision."""
    folder = _folder_of(rules)
    top = git(folder, "rev-parse", "--show-toplevel")
    commit = git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options",
                 f"{revision}^{{commit}}")
    if top is None or commit is None:
        return None
    root, here = Path(top.decode().strip()), rules.absolute().resolve()
    if not here.is_relative_to(root.resolve()):       # a link to a file elsewhere
        return None
    inside = here.relative_to(root.resolve())
    sha = commit.decode().strip()
    label = f"git {revision} ({sha[:12]})"
    with tempfile.TemporaryDirectory(prefix="resilience-plan-") as scratch:
        tree = Path(scratch) / "tree"      # nothing lies beside it that could be taken for UDFs
        if not _unpack(root, sha, inside, tree):
            return Against(f"{label}, which has no `{inside}`", None)
        old = read_sources(tree / inside)
        return Against(label, Sources(old.files, old.udf_roots, sha[:12]))


def _unpack(root: Path, commit: str, inside: Path, target: Path) -> bool:
    """Write the rules and the UDFs near them as they were; return whether the rules were."""
    wanted = [inside, inside.parent / "udfs", inside.parent.parent / "udfs"]
    there = [
        path.as_posix() for path in dict.fromkeys(wanted)
        if git(root, "cat-file", "-e", f"{commit}:{_in_tree(path)}") is not None
    ]
    if inside.as_posix() not in there:
        return False
    archive = git(root, "archive", "--format=tar", commit, "--", *there)
    if archive is None or len(archive) > ARCHIVE_MAX:
        raise UsageError(f"git cannot give `{inside}` of {commit[:12]}")
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(target, filter="data")
    return True


def _why_git_is_silent(rules: Path) -> str:
    """Return why git knows no revision of the rules, and what to do; nothing where it might be the
    name alone."""
    folder = _folder_of(rules)
    if shutil.which("git") is None:
        return "; `git` is not on the PATH: install it, or name a folder"
    if top_of(folder.absolute()) is None:
        return f"; `{folder}` is in no git repository"
    if git(folder, "rev-parse", "--git-dir") is None:
        return f"; `git -C {folder} rev-parse HEAD` says why git cannot read it"
    if (git(folder, "rev-parse", "--is-shallow-repository") or b"").strip() == b"true":
        return ("; the clone is shallow: `git fetch --unshallow` gets the rest, as "
                "`fetch-depth: 0` does in GitHub Actions")
    return ""


def _folder_of(rules: Path) -> Path:
    return rules if rules.is_dir() else rules.absolute().parent


def _in_tree(path: Path) -> str:
    return "" if path == Path(".") else path.as_posix()
