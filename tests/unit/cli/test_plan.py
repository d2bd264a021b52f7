"""`resilience plan`: against a folder, a git revision, a kept bundle and the running engine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resilience.app.bundle_store import BundleStore
from resilience.app.bundles import check_sources, read_sources
from resilience.model import labels_of
from resilience.sources.recording import RecordingMeta, write
from resilience.sources.store import Group, MemoryStore


@pytest.fixture
def old(rules: Path, tmp_path: Path) -> Path:
    """The rules as they were: another threshold, and a policy that is gone now."""
    folder = tmp_path / "old"
    folder.mkdir()
    text = (rules / "queue.yaml").read_text()
    (folder / "queue.yaml").write_text(text.replace("> 10", "> 25"))
    (folder / "gone.yaml").write_text(text.replace("name: queue", "name: gone"))
    return folder


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "run.parquet"
    queue = np.array([[0, 0, 20, 20, 0, 0, 30, 30, 0, 0]], dtype=float)
    times = 1_700_000_000_000 + np.arange(queue.shape[1], dtype=np.int64) * 1_000
    seqs = np.arange(1, queue.shape[1] + 1, dtype=np.int64)
    labels = labels_of({"__name__": "vllm:num_requests_waiting", "job": "vllm"})
    store = MemoryStore.from_groups([Group(times, seqs, (labels,), queue)])
    write(path, store, [], RecordingMeta("test", scrape_interval_ms=1_000))
    return path


def _git(folder: Path, *args: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(folder), *args],
        check=True, capture_output=True,
    )


def test_fields_are_shown_as_a_diff(cli: Any, rules: Path, old: Path) -> None:
    shown = cli("plan", rules, "--against", old)
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert lines[0] == f"against {old}"
    assert "- policy gone" in lines
    assert "~ policy queue" in lines
    assert any(x.startswith("~     spec.trigger.expr: ") and "> 25 -> " in x for x in lines)
    assert "Plan: 0 to add, 1 to change, 1 to remove" in lines


def test_decisions_are_predicted(cli: Any, rules: Path, old: Path, recording: Path) -> None:
    (old / "gone.yaml").unlink()
    body = cli("plan", rules, "--against", old, "--recording", recording, "-o", "json").json()
    assert body["version"] == 1
    found = body["prediction"]
    assert found["policies"]["queue"]["before"]["firings"] == 1
    assert found["policies"]["queue"]["after"]["firings"] == 2
    decisions = found["decisions"]
    assert (decisions["before"], decisions["after"]) == (2, 4)
    assert decisions["only_before_count"] == 0
    assert decisions["only_after"][0]["to"] == "firing"
    text = cli("plan", rules, "--against", old, "--recording", recording).out
    assert "2 before, 4 after" in text
    assert "1 -> 2" in text
    assert "\n+ 22:13:22" in text


def test_the_prediction_is_the_report_of_a_dry_run(
    cli: Any, rules: Path, old: Path, recording: Path, tmp_path: Path
) -> None:
    """What `apply --dry-run` tells, `plan` tells as well: one report for both."""
    page = tmp_path / "plan.html"
    shown = cli("plan", rules, "--against", old, "--recording", recording, "--html", page)
    dry = cli("apply", rules, "--dry-run", "--recording", recording).out
    assert shown.code == 0
    for part in ("claimed throttle.max_concurrency", "fired 20", "would have shed", "one column"):
        assert part in dry and part in shown.out
    bars = [line[:8] for line in shown.out.splitlines() if line.startswith(("- ", "+ ", "  "))]
    assert "- gone  " in bars and "- queue " in bars and "+ queue " in bars
    assert "Changes" in page.read_text() and '"before":[[' in page.read_text()
    body = cli("plan", rules, "--against", old, "--recording", recording, "-o", "json").json()
    assert body["prediction"]["report"]["policies"]["queue"]["claims"]
    assert body["prediction"]["would_have_shed_before"]


def test_a_sweep_begins_with_the_other_side(
    cli: Any, rules: Path, old: Path, recording: Path
) -> None:
    shown = cli("plan", rules, "--against", old, "--recording", recording,
                "--set", "queue.trigger.for=0s,1h")
    assert shown.code == 0
    assert [line.split("  ")[0] for line in shown.out.splitlines()[1:5]] == [
        f"({old})", "(as written)", "0s", "1h",
    ]
    body = cli("plan", rules, "--against", old, "--recording", recording,
               "--set", "queue.trigger.for=0s,1h", "-o", "json").json()
    assert [(c["label"], c["policies"]["queue"]["firings"]) for c in body["combinations"]] == [
        (str(old), 1), ("as written", 2), (None, 2), (None, 0),
    ]


@pytest.mark.parametrize("option", ["--html", "--set"])
def test_a_report_needs_a_recording(cli: Any, rules: Path, option: str) -> None:
    shown = cli("plan", rules, option, "x")
    assert (shown.code, shown.out) == (2, "")
    assert f"`{option}` needs `--recording FILE`" in shown.err


def test_what_is_switched_on_is_on_for_the_other_side_too(
    cli: Any, rules: Path, old: Path, recording: Path
) -> None:
    for folder in (rules, old):
        path = folder / "queue.yaml"
        text = path.read_text()
        start, end = text.index("expr: ") + 6, text.index("\n", text.index("expr: "))
        path.write_text(
            text[:start] + "'mad_over_time(vllm:num_requests_waiting[1m]) > 10'" + text[end:])
    (old / "gone.yaml").unlink()
    asked = ("plan", rules, "--against", old, "--recording", recording)
    feature = "--enable-feature=promql-experimental-functions"
    assert cli(*asked).code == 3
    shown = cli(*asked, feature, "--detailed-exitcode")
    assert (shown.code, "warning" in shown.err) == (0, False), shown.err
    assert "0 to add, 0 to change, 0 to remove" in shown.out


def test_a_sweep_has_no_detailed_exit_code(cli: Any, rules: Path, recording: Path) -> None:
    refused = cli("plan", rules, "--recording", recording, "--set", "queue.trigger.for=0s",
                  "--detailed-exitcode")
    assert (refused.code, refused.out) == (2, "")
    assert "`--detailed-exitcode` is for one plan" in refused.err


def test_an_empty_name_is_no_revision(cli: Any, rules: Path) -> None:
    """As an unset variable of a pipeline gives it."""
    refused = cli("plan", rules, "--against", "")
    assert refused.code == 2 and "`--against` is empty" in refused.err


@pytest.mark.parametrize(("same", "flag", "code"), [
    (True, True, 0), (False, True, 5), (False, False, 0),
])
def test_exit_codes_for_ci(
    cli: Any, rules: Path, old: Path, same: bool, flag: bool, code: int
) -> None:
    against = rules if same else old
    options = ["--detailed-exitcode"] if flag else []
    shown = cli("plan", rules, "--against", against, *options)
    assert shown.code == code
    assert ("no difference" in shown.out) is same


def test_a_git_revision_with_the_udfs_of_then(cli: Any, rules: Path) -> None:
    top = rules.parent
    (top / "udfs").mkdir()
    (top / "udfs" / "mine.py").write_text("def mine(ctx):\n    return {'actions': []}\n")
    path = rules / "queue.yaml"
    path.write_text(path.read_text().replace(
        "actions:", "actions:\n    - {type: udf_call, function: mine, timeout: 1s}"))
    _git(top, "init", "-q")
    _git(top, "add", "rules", "udfs")
    _git(top, "commit", "-qm", "first")
    assert cli("plan", rules, "--against", "HEAD", "--detailed-exitcode").code == 0
    (top / "udfs" / "mine.py").write_text("def mine(ctx):\n    return {'actions': [], 'x': 1}\n")
    for asked in (rules, path):
        shown = cli("plan", asked, "--against", "HEAD")
        assert "~ udf udfs/mine.py" in shown.out
        assert shown.out.startswith("against git HEAD (")


def test_rules_that_git_did_not_have_are_all_new(cli: Any, rules: Path) -> None:
    _git(rules.parent, "init", "-q")
    _git(rules.parent, "commit", "-qm", "first", "--allow-empty")
    shown = cli("plan", rules, "--against", "HEAD")
    assert "+ policy queue" in shown.out
    assert "has no `rules`" in shown.out


def test_a_kept_revision_and_the_newest_one(
    cli: Any, rules: Path, old: Path, tmp_path: Path
) -> None:
    sources = read_sources(old)
    revision = check_sources(sources).bundle.revision
    state = tmp_path / "state"
    (state / "bundles").mkdir(parents=True)
    BundleStore(state / "bundles").save(revision, sources)
    by_name = cli("plan", rules, "--against", revision, "--state", state, "-o", "json").json()
    newest = cli("plan", rules, "--state", state, "-o", "json").json()
    assert by_name["from"] == newest["from"] == revision
    assert by_name["changes"] == newest["changes"] != []


def test_without_anything_to_compare_all_is_added(cli: Any, rules: Path, recording: Path) -> None:
    shown = cli("plan", rules, "--recording", recording, "-o", "json")
    assert shown.code == 0
    body = shown.json()
    assert (body["from"], [c["kind"] for c in body["changes"]]) == (None, ["added"])
    assert body["prediction"]["policies"]["queue"]["before"] is None
    assert body["prediction"]["decisions"]["after"] == 4


def test_the_running_engine_is_the_default(cli: Any, engine: Any, rules: Path) -> None:
    del engine
    body = cli("plan", rules, "-o", "json").json()
    assert body["against"].startswith("the running engine (")
    assert (body["differs"], body["changes"]) == (False, [])
    path = rules / "queue.yaml"
    path.write_text(path.read_text().replace("> 10", "> 11"))
    assert cli("plan", rules, "-o", "json").json()["differs"] is True


def test_nothing_by_that_name_is_one_line(cli: Any, rules: Path) -> None:
    shown = cli("plan", rules, "--against", "nowhere")
    assert (shown.code, shown.out, shown.err.count("\n")) == (2, "", 1)
    assert "no folder, no kept revision" in shown.err


def test_conflicts_that_are_new_are_marked(cli: Any, rules: Path, old: Path) -> None:
    text = (rules / "queue.yaml").read_text()
    (rules / "other.yaml").write_text(
        text.replace("name: queue", "name: other").replace("max_concurrency: 4",
                                                           "max_concurrency: 9")
    )
    shown = cli("plan", rules, "--against", old)
    assert "of them new" in shown.out
    body = cli("plan", rules, "--against", old, "-o", "json").json()
    assert json.dumps(body["new_conflicts"]) != "[]"
