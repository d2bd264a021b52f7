from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from resilience.app import rules_folders
from resilience.app.bundle_store import STORED_MAX, BundleStore
from resilience.app.bundles import (
    Sources,
    check_sources,
    read_sources,
    shipped_udfs,
)
from resilience.app.repository import git_commit
from resilience.errors import ControlError, FindingsError, UsageError
from resilience.policy.encoding import FILE_MAX_BYTES


def names(sources: Sources) -> list[str]:
    return [path for path, _ in sources.files]


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    folder = tmp_path / "rules"
    (folder / "deep" / "er").mkdir(parents=True)
    for name in ("b.yaml", "a.yml", "deep/er/c.yaml"):
        (folder / name).write_text(f"# {name}\n")
    return folder


def test_documents_come_in_order_with_paths_relative_to_the_folder(rules: Path) -> None:
    sources = read_sources(rules)
    assert names(sources) == ["a.yml", "b.yaml", "deep/er/c.yaml"]
    assert sources.files[0][1] == b"# a.yml\n"


def test_where_one_stands_does_not_matter(rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absolute = read_sources(rules)
    monkeypatch.chdir(rules.parent)
    assert read_sources(Path("rules")).files == absolute.files


def test_backups_tests_and_hidden_files_are_left_out(rules: Path) -> None:
    for name in ("a.yml~", "a.yaml.bak", ".hidden.yaml", "#a.yaml#", "x.test.yaml", "note.txt"):
        (rules / name).write_text("never read")
    (rules / "#1-of-2.yaml").write_text("# an odd name, and no backup\n")
    assert names(read_sources(rules)) == ["#1-of-2.yaml", "a.yml", "b.yaml", "deep/er/c.yaml"]


def test_one_file_is_enough(rules: Path) -> None:
    assert names(read_sources(rules / "b.yaml")) == ["b.yaml"]


def test_a_configmap_mount_gives_each_file_once(tmp_path: Path) -> None:
    mount = tmp_path / "rules"
    data = mount / "..2026_01_01"
    data.mkdir(parents=True)
    (data / "p.yaml").write_text("x: 1\n")
    (mount / "..data").symlink_to("..2026_01_01")
    (mount / "p.yaml").symlink_to("..data/p.yaml")
    assert read_sources(mount).files == (("p.yaml", b"x: 1\n"),)


def test_a_loop_of_links_ends(rules: Path) -> None:
    (rules / "deep" / "again").symlink_to(rules)
    assert names(read_sources(rules)) == ["a.yml", "b.yaml", "deep/er/c.yaml"]


def test_a_dangling_link_is_named(rules: Path) -> None:
    (rules / "gone.yaml").symlink_to("nowhere.yaml")
    with pytest.raises(UsageError, match=r"`.*gone.yaml` is a link that points nowhere"):
        read_sources(rules)


@pytest.mark.parametrize("prepare", ["missing", "empty"])
def test_nothing_to_read_is_an_error(tmp_path: Path, prepare: str) -> None:
    folder = tmp_path / "rules"
    if prepare == "empty":
        folder.mkdir()
    with pytest.raises(UsageError, match=r"does not exist|no policy files"):
        read_sources(folder)


def test_a_huge_file_is_read_so_far_that_check_can_say_so(rules: Path) -> None:
    (rules / "big.yaml").write_bytes(b"#" * (FILE_MAX_BYTES + 100))
    found = read_sources(rules)
    assert max(len(body) for _, body in found.files) == FILE_MAX_BYTES + 1
    with pytest.raises(FindingsError) as caught:
        check_sources(found)
    assert [f.code for f in caught.value.findings if "big" in f.file] == ["file-too-large"]


def test_all_documents_together_have_a_limit(
    rules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules_folders, "BYTES_MAX", 10)
    (rules / "a.yaml").write_text("# 12 letters")
    with pytest.raises(UsageError, match="split the folder"):
        read_sources(rules)


def test_files_of_other_names_do_not_count(rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_folders, "FILES_MAX", 4)
    for number in range(20):
        (rules / f"{number}.txt").touch()
    assert len(read_sources(rules).files) == 3
    for number in range(2):
        (rules / f"{number}.yaml").touch()
    with pytest.raises(UsageError, match="holds more than 4 such files"):
        read_sources(rules)


def test_names_are_read_in_any_case_and_json_only_when_named(rules: Path) -> None:
    (rules / "C.YAML").write_text("x: 1\n")
    (rules / "d.json").write_text("{}")
    assert names(read_sources(rules)) == ["C.YAML", "a.yml", "b.yaml", "deep/er/c.yaml"]
    assert names(read_sources(rules / "d.json")) == ["d.json"]


def test_a_large_udf_is_refused(rules: Path) -> None:
    (rules / "udfs").mkdir()
    (rules / "udfs" / "u.py").write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(UsageError, match="larger than"):
        read_sources(rules)


def test_a_comment_that_has_ended_silences_nothing_at_apply(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "# resilience: ignore no-comparison until 2020-01-01: looked at\n"
        "on_alert: a\n"
        "trigger_if: vllm:num_requests_waiting  "
        "# resilience: ignore no-comparison until 2020-01-01: looked at\n"
        "actions: [{type: throttle, max_concurrency: 8}]\n"
    )
    codes = [f.code for f in check_sources(read_sources(file)).findings]
    assert "ignore-expired" in codes and "no-comparison" in codes


def test_a_pipe_in_the_folder_is_refused_and_nobody_waits_for_a_writer(rules: Path) -> None:
    os.mkfifo(rules / "other.sock")  # no name of a policy: not ours
    os.mkfifo(rules / "pipe")
    assert len(names(read_sources(rules))) == 3
    assert read_sources(rules / "pipe").files == (("pipe", b""),)
    (rules / "pipe").rename(rules / "pipe.yaml")
    with pytest.raises(UsageError, match=r"pipe\.yaml` is no regular file"):
        read_sources(rules)


def test_udfs_lie_inside_or_beside_the_rules_or_where_told(rules: Path) -> None:
    beside = rules.parent / "udfs"
    beside.mkdir()
    (beside / "u.py").write_text("def u(ctx): return {}\n")
    assert read_sources(rules).udf_roots == ((("udfs/u.py", "def u(ctx): return {}\n"),),)
    inside = rules / "udfs"
    inside.mkdir()
    (inside / "v.py").write_text("")
    assert read_sources(rules).udf_roots == ((("udfs/v.py", ""),),)
    told = read_sources(rules, [beside, inside])
    assert [[p for p, _ in root] for root in told.udf_roots] == [["udfs/u.py"], ["udfs.1/v.py"]]
    (rules / "a.yaml").write_text("")
    alone = read_sources(rules / "a.yaml")
    assert alone.udf_roots == ((("udfs/v.py", ""),),)
    shutil.rmtree(inside)
    alone = read_sources(rules / "a.yaml")
    assert alone.udf_roots == ((("udfs/u.py", "def u(ctx): return {}\n"),),)
    with pytest.raises(UsageError, match=r"the UDF folder `.*nope` does not exist"):
        read_sources(rules, [rules / "nope"])


def test_shipped_udfs_are_texts() -> None:
    assert all(path.startswith("shipped/") and text for path, text in shipped_udfs())


def test_a_config_file_joins_the_documents(rules: Path, tmp_path: Path) -> None:
    config = tmp_path / "engine.yaml"
    config.write_text("kind: Engine\n")
    assert names(read_sources(rules, config=config))[-1] == "config/engine.yaml"


def test_what_travels_comes_back(rules: Path) -> None:
    sources = read_sources(rules)
    assert Sources.from_json(sources.to_json()).files == sources.files


@pytest.mark.parametrize("body", [
    None, [], {}, {"documents": 1}, {"documents": [["a"]]}, {"documents": [], "evil": 1},
    {"documents": [], "udfs": 3}, {"documents": [], "udfs": [[1]]},
])
def test_a_strange_request_is_refused(body: object) -> None:
    with pytest.raises(ControlError):
        Sources.from_json(body)


def test_documents_that_are_no_text_do_not_travel(rules: Path) -> None:
    (rules / "b.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_sources(rules).to_json()


def test_the_git_commit_is_shown_and_says_when_dirty(rules: Path) -> None:
    assert git_commit(rules) is None
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "x"]):
        subprocess.run(["git", "-C", str(rules), *command], check=True, env=env)
    clean = git_commit(rules)
    assert clean is not None
    assert len(clean) == 12
    (rules / "b.yaml").write_text("changed\n")
    assert git_commit(rules) == f"{clean}-dirty"
    (rules / ".git" / "index").write_bytes(b"damaged")
    assert git_commit(rules) == f"{clean}-unchecked"


def test_bundles_are_kept_by_revision_and_bounded(tmp_path: Path) -> None:
    store = BundleStore(tmp_path)
    for n in range(STORED_MAX + 5):
        store.save(f"sha256:{n:012x}", Sources((("a.yaml", str(n).encode()),)))
        os.utime(tmp_path / f"{n:012x}.json", ns=(n, n))
    assert len(store.revisions()) == STORED_MAX
    last = f"sha256:{STORED_MAX + 4:012x}"
    assert store.load(last).files == (("a.yaml", str(STORED_MAX + 4).encode()),)
    assert store.revisions()[0] == last


def test_what_is_saved_and_what_is_active_never_give_way(tmp_path: Path) -> None:
    store, active, new = BundleStore(tmp_path), f"sha256:{0:012x}", f"sha256:{99:012x}"
    ahead_ns = time.time_ns() + 3_600_000_000_000  # the clock was set back by an hour since
    for n in range(STORED_MAX):
        store.save(f"sha256:{n:012x}", Sources((("a.yaml", b"1"),)))
        os.utime(tmp_path / f"{n:012x}.json", ns=(ahead_ns + n, ahead_ns + n))
    store.save(new, Sources((("a.yaml", b"2"),)), active=active)
    assert store.load(new).files == (("a.yaml", b"2"),)
    assert store.load(active).files == (("a.yaml", b"1"),)
    assert len(store.revisions()) == STORED_MAX


def test_a_revision_may_be_shortened_unless_it_fits_several(tmp_path: Path) -> None:
    store = BundleStore(tmp_path)
    store.save("sha256:aa0000000001", Sources((("a.yaml", b"1"),)))
    store.save("sha256:ab0000000001", Sources((("a.yaml", b"2"),)))
    assert store.load("ab").files[0][1] == b"2"
    with pytest.raises(ControlError, match="fits several"):
        store.load("a")


@pytest.mark.parametrize("revision", ["../../etc/passwd", "", "sha256:", "zz"])
def test_a_revision_is_never_a_path(tmp_path: Path, revision: str) -> None:
    with pytest.raises(ControlError, match="is not a revision"):
        BundleStore(tmp_path).load(revision)


def test_a_missing_or_damaged_bundle_is_clear(tmp_path: Path) -> None:
    store = BundleStore(tmp_path)
    with pytest.raises(ControlError, match="is not kept here"):
        store.load("sha256:000000000000")
    store.save("sha256:ab", Sources((("a.yaml", b"limit: 4"),)))
    whole = (tmp_path / "ab.json").read_bytes()
    for broken in (
        b"", b"{", b"[]", b'"x"', b"null", b'{"revision": "ab"}', b"\xff" * 9, b"[" * 100_000,
        whole[:-9], whole.replace(b"limit: 4", b"limit: 5"),
    ):
        (tmp_path / "ab.json").write_bytes(broken)
        with pytest.raises(ControlError, match="is damaged"):
            store.load("ab")
    (tmp_path / "ab.json").write_bytes(whole)
    assert store.load("ab").files == (("a.yaml", b"limit: 4"),)


@pytest.mark.parametrize("place", ["rules", "udfs"])
def test_a_name_that_is_not_utf8_is_refused(rules: Path, place: str) -> None:
    folder = rules if place == "rules" else rules / "udfs"
    folder.mkdir(exist_ok=True)
    ending = b".yaml" if place == "rules" else b".py"
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff" + ending)).write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match=r"xff\.\w+` is not UTF-8; rename it"):
        read_sources(rules)


def test_a_folder_that_cannot_be_listed_is_no_folder_without_policies(
    rules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (rules / "closed").mkdir()
    listed = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UsageError, match="closed` cannot be read: permission denied"):
        read_sources(rules)
