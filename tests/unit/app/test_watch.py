"""Following a rules folder: whole states only, and a bad one once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from resilience.app.bundles import Sources, check_sources, read_sources
from resilience.app.watch import QUIET_MS, RETRY_MAX_MS, RETRY_MS, Watch, stamp
from resilience.errors import ControlError, JournalError, ResilienceError, UsageError

GOOD = """
apiVersion: resilience/v1
kind: Policy
metadata: {name: p}
spec:
  trigger: {expr: up > LIMIT, on_no_data: hold}
  actions: [{type: throttle, max_concurrency: 4}]
"""


class Followed:
    """A folder, its watch, and what was applied and said."""

    def __init__(self, folder: Path) -> None:
        self.rules, self.now = folder / "rules", 0
        self.rules.mkdir()
        self.write("a.yaml", GOOD.replace("LIMIT", "1"))
        self.used: list[Sources] = []
        self.said: list[str] = []
        self.fail: list[ResilienceError] = []
        self.on_read: Any = lambda: None
        self.watch = Watch(
            lambda: stamp(self.rules), self.read, self.use, self.said.append,
            applied=stamp(self.rules))

    def write(self, name: str, text: str) -> None:
        (self.rules / name).write_text(text)

    def read(self) -> Sources:
        self.on_read()
        return read_sources(self.rules)

    def use(self, sources: Sources) -> None:
        check_sources(sources)
        if self.fail:
            raise self.fail.pop(0)
        self.used.append(sources)

    def polls(self, times: int) -> int:
        done = 0
        for _ in range(times):
            self.now += QUIET_MS // 2
            done += self.watch.poll(self.now)
        return done


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    return Followed(tmp_path)


def test_a_change_is_applied_once_when_the_folder_is_quiet(followed: Followed) -> None:
    assert followed.polls(5) == 0
    for n in range(6):                                  # somebody goes on saving
        followed.write("a.yaml", GOOD.replace("LIMIT", str(n + 10)))
        assert followed.polls(1) == 0
    assert followed.polls(10) == 1
    (used,) = followed.used
    assert b"up > 15" in used.files[0][1]


def test_what_is_saved_while_the_server_starts_is_a_change(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from contextlib import ExitStack

    from resilience.app import prepare as module
    from resilience.app.prepare import Settings, prepare

    def read_and_save(*args: Any, **more: Any) -> Sources:
        found = read_sources(*args, **more)
        followed.write("a.yaml", GOOD.replace("LIMIT", "77"))
        return found

    monkeypatch.setattr(module, "read_sources", read_and_save)
    state = tmp_path_factory.mktemp("s")
    with ExitStack() as stack:
        ready = prepare(Settings(followed.rules, state=state), stack, followed.said.append)
    assert b"up > 1," in ready.sources.files[0][1]
    followed.watch = Watch(
        lambda: stamp(followed.rules), followed.read, followed.use, followed.said.append,
        applied=ready.read_at)
    followed.polls(4)
    assert len(followed.used) == 1 and b"up > 77" in followed.used[0].files[0][1]


def test_new_removed_and_moved_files_are_changes(followed: Followed) -> None:
    followed.write("b.yaml", GOOD.replace("name: p", "name: q"))
    followed.polls(4)
    (followed.rules / "a.yaml").unlink()
    followed.polls(4)
    os.rename(followed.rules / "b.yaml", followed.rules / "c.yaml")
    followed.polls(4)
    assert [[path for path, _ in s.files] for s in followed.used] == [
        ["a.yaml", "b.yaml"], ["b.yaml"], ["c.yaml"]]


def test_a_bad_bundle_is_said_once_and_the_next_good_one_counts(followed: Followed) -> None:
    followed.write("a.yaml", GOOD.replace("LIMIT", "("))
    followed.polls(20)
    assert followed.used == [] and len(followed.said) == 1
    assert "refused, the active ones go on" in followed.said[0] and "a.yaml:6" in followed.said[0]
    followed.write("a.yaml", GOOD.replace("LIMIT", "7"))
    followed.polls(4)
    assert len(followed.used) == 1 and len(followed.said) == 1


def test_a_folder_that_vanishes_changes_nothing(followed: Followed) -> None:
    os.rename(followed.rules, followed.rules.with_name("away"))
    followed.polls(6)
    assert followed.used == [] and len(followed.said) == 1
    os.rename(followed.rules.with_name("away"), followed.rules)
    followed.polls(4)
    assert len(followed.used) == 1


def test_what_changes_while_it_is_read_is_not_applied(followed: Followed) -> None:
    followed.write("a.yaml", GOOD.replace("LIMIT", "5"))
    changes = [lambda: followed.write("b.yaml", GOOD.replace("name: p", "name: later"))]
    followed.on_read = lambda: changes and changes.pop()()
    followed.polls(3)
    assert followed.used == []
    followed.polls(6)
    assert [[path for path, _ in s.files] for s in followed.used] == [["a.yaml", "b.yaml"]]


@pytest.mark.parametrize("error", [
    ControlError("no engine listens", code="no_engine", status=0),
    ControlError("the bundle cannot be kept: no space left on device", code="failed", status=500),
    ControlError("the engine is stopping", code="stopping", status=503),
    JournalError("cannot write the journal: database or disk is full"),
], ids=["away", "no room", "stopping", "no journal"])
def test_what_does_not_lie_in_the_rules_is_tried_again_and_said_once(
    followed: Followed, error: ResilienceError
) -> None:
    followed.fail = [error] * 3
    followed.write("a.yaml", GOOD.replace("LIMIT", "5"))
    assert followed.polls(6 + (1 + 2 + 4) * 2 * RETRY_MS // QUIET_MS) == 4
    assert len(followed.used) == 1 and len(followed.said) == 1


def test_it_is_tried_less_often_the_longer_it_lasts_and_a_change_is_tried_soon(
    followed: Followed
) -> None:
    """Each try reads and checks everything; a full disk may stay so for days."""
    error = JournalError("cannot write the journal: database or disk is full")
    followed.fail = [error] * 1_000
    followed.write("a.yaml", GOOD.replace("LIMIT", "5"))
    assert 10 <= followed.polls(10 * 2 * RETRY_MAX_MS // QUIET_MS) <= 16
    followed.write("a.yaml", GOOD.replace("LIMIT", "60"))
    assert followed.polls(1 + 2 * RETRY_MS // QUIET_MS) == 1
    followed.fail = []
    assert followed.polls(2 * RETRY_MS // QUIET_MS) == 1
    assert len(followed.used) == 1


def test_a_mounted_config_map_is_swapped_by_its_links(tmp_path: Path) -> None:
    rules = tmp_path / "mounted"
    for name, limit in (("..one", "1"), ("..two", "2")):
        (rules / name).mkdir(parents=True)
        (rules / name / "a.yaml").write_text(GOOD.replace("LIMIT", limit))
    (rules / "..data").symlink_to("..one")
    (rules / "a.yaml").symlink_to("..data/a.yaml")
    before = stamp(rules)
    (rules / "..next").symlink_to("..two")
    os.replace(rules / "..next", rules / "..data")
    assert stamp(rules) != before


def test_a_folder_behind_a_link_is_followed_and_a_link_that_leads_back_is_not(
    tmp_path: Path
) -> None:
    rules, team = tmp_path / "rules", tmp_path / "team"
    rules.mkdir()
    team.mkdir()
    (rules / "team").symlink_to(team)
    (team / "back").symlink_to(rules)
    (team / "a.yaml").write_text(GOOD.replace("LIMIT", "1"))
    before = stamp(rules)
    (team / "a.yaml").write_text(GOOD.replace("LIMIT", "22"))
    assert stamp(rules) != before
    assert [path for path, *_ in before] == [str(rules / "team" / "a.yaml")]


def test_a_folder_that_vanishes_while_it_is_walked_is_refused_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.yaml").write_text(GOOD)
    stat = os.stat

    def gone(path: Any, *args: Any, **options: Any) -> Any:
        if str(path) == str(tmp_path / "a"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return stat(path, *args, **options)

    monkeypatch.setattr("resilience.app.rules_folders.os.stat", gone)
    assert [Path(s[0]).name for s in stamp(tmp_path)] == ["b.yaml"]
    with pytest.raises(UsageError, match="`.*a` cannot be read: no such file or directory"):
        read_sources(tmp_path)
