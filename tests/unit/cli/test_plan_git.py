"""`resilience plan --against REVISION` where git cannot answer, or not from here."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest


def _git(folder: Path, *args: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(folder), *args],
        check=True, capture_output=True,
    )


@pytest.fixture
def committed(rules: Path) -> Path:
    """The rules in a repository of two commits."""
    top = rules.parent
    _git(top, "init", "-q", "-b", "main")
    _git(top, "add", "rules")
    _git(top, "commit", "-qm", "first")
    _git(top, "commit", "-qm", "second", "--allow-empty")
    return rules


def test_a_folder_outside_git_is_said(cli: Any, rules: Path) -> None:
    refused = cli("plan", rules, "--against", "HEAD")
    assert refused.code == 2
    assert "no git revision of `" in refused.err and "is in no git repository" in refused.err


def test_a_machine_without_git_is_said(
    cli: Any, committed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    refused = cli("plan", committed, "--against", "HEAD")
    assert refused.code == 2 and "`git` is not on the PATH: install it" in refused.err


def test_a_shallow_clone_says_how_to_get_the_rest(
    cli: Any, committed: Path, tmp_path: Path
) -> None:
    """As CI has it: actions/checkout takes the newest commit only."""
    clone = tmp_path / "clone"
    _git(tmp_path, "clone", "-q", "--depth", "1", f"file://{committed.parent}", str(clone))
    refused = cli("plan", clone / "rules", "--against", "HEAD~1")
    assert refused.code == 2
    assert "the clone is shallow: `git fetch --unshallow`" in refused.err
    assert cli("plan", clone / "rules", "--against", "HEAD").code == 0


def test_a_repository_that_git_refuses_says_how_to_ask(cli: Any, rules: Path) -> None:
    """As that of another owner in a container."""
    (rules.parent / ".git").mkdir()
    refused = cli("plan", rules, "--against", "HEAD")
    assert refused.code == 2 and "rev-parse HEAD` says why git cannot read it" in refused.err


def test_a_name_that_is_not_there_is_only_that(cli: Any, committed: Path) -> None:
    refused = cli("plan", committed, "--against", "v1")
    assert refused.code == 2
    assert refused.err.endswith("is no folder, no kept revision (`resilience history` lists them) "
                                f"and no git revision of `{committed}`\n")


def test_a_link_that_leads_out_of_the_repository_is_not_of_it(
    cli: Any, committed: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "elsewhere.yaml"
    (committed / "queue.yaml").rename(outside)
    (committed / "queue.yaml").symlink_to(outside)
    refused = cli("plan", committed / "queue.yaml", "--against", "HEAD")
    assert refused.code == 2 and "no git revision of `" in refused.err


def test_udfs_of_nobody_are_not_taken_for_those_of_then(
    cli: Any, committed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules are the top of the repository, and something else lies where we unpack them."""
    temporary = tmp_path / "tmp"
    (temporary / "udfs").mkdir(parents=True)
    (temporary / "udfs" / "other.py").write_text("def other(ctx):\n    return {}\n")
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    _git(committed.parent, "mv", "rules/queue.yaml", "queue.yaml")
    _git(committed.parent, "commit", "-qm", "third")
    shown = cli("plan", committed.parent, "--against", "HEAD")
    assert (shown.code, "no difference" in shown.out) == (0, True), shown.out
