"""The git repository that a folder lies in: where it begins, at which commit it is."""

from __future__ import annotations

import os
from pathlib import Path

TIMEOUT_S = 30.0
COMMIT_TIMEOUT_S = 5.0    # a start waits for it


def top_of(folder: Path) -> Path | None:
    """Return the nearest of an absolute folder and those above it that holds a repository or a
    worktree, None for none."""
    return next((path for path in (folder, *folder.parents) if (path / ".git").exists()), None)


def git_commit(path: Path) -> str | None:
    """Return the commit that `path` is at, with `-dirty` when it differs, with `-unchecked` where
    git did not say so in time; None outside git."""
    folder = path if path.is_dir() else path.absolute().parent
    head = git(folder, "rev-parse", "--short=12", "HEAD", timeout_s=COMMIT_TIMEOUT_S)
    if not head:
        return None
    here = path.name if path.is_file() else "."
    changes = git(folder, "status", "--porcelain", "--", here, timeout_s=COMMIT_TIMEOUT_S)
    commit = head.decode().strip()
    if changes is None:
        return f"{commit}-unchecked"
    return f"{commit}-dirty" if changes else commit


def git(folder: Path, *args: str, timeout_s: float = TIMEOUT_S) -> bytes | None:
    """Return what git prints about a folder, None where it fails, is not there or takes longer.

    It only looks: no lock is taken that a git command of somebody else would trip over.
    """
    import subprocess

    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *args], capture_output=True, timeout=timeout_s,
            check=False, stdin=subprocess.DEVNULL, env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
