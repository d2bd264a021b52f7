"""`resilience check` and `resilience schema` as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from resilience.cli.check import command as check
from resilience.cli.schema import command as schema
from resilience.policy.contract_schemas import contract_schemas

Policy = Callable[..., str]


def invoke(command: Any, *args: str) -> Result:
    return CliRunner().invoke(command, args, standalone_mode=False)


@pytest.fixture
def folder(tmp_path: Path, policy: Policy) -> Path:
    """Return a folder with one good policy, one with a warning, one with an error."""
    (tmp_path / "good.yaml").write_text(policy(name="good"))
    (tmp_path / "warn.yaml").write_text(policy(name="warn", expr="vllm:num_requests_waiting"))
    (tmp_path / "bad.yaml").write_text(policy(name="bad", actions="[]"))
    return tmp_path


def test_text(folder: Path) -> None:
    result = invoke(check, str(folder))
    assert result.return_value == 3
    assert result.stdout.splitlines() == [
        f"{folder}/bad.yaml:6:12: error: spec.actions must not be empty [empty]",
        f"{folder}/warn.yaml:5:38: warning: spec.trigger.expr: no comparison: true whenever a "
        "series exists, also at value 0; compare it, as in `… > 0` [no-comparison]",
    ]
    assert result.stderr == "checked 2 policies in 3 files: 1 error, 1 warning\n"


@pytest.mark.parametrize(
    ("names", "strict", "code"),
    [
        (["good.yaml"], False, 0), (["good.yaml"], True, 0), (["warn.yaml"], False, 0),
        (["warn.yaml"], True, 3), (["bad.yaml"], False, 3), (["good.yaml", "bad.yaml"], False, 3),
    ],
)
def test_exit_codes(folder: Path, names: list[str], strict: bool, code: int) -> None:
    args = [str(folder / name) for name in names] + (["--strict"] if strict else [])
    assert invoke(check, *args).return_value == code


def test_json(folder: Path) -> None:
    from jsonschema import validate

    body = json.loads(invoke(check, str(folder), "-o", "json").stdout)
    validate(body, contract_schemas()["check"])
    assert (body["files"], body["policies"]) == (3, 2)
    assert body["findings"][0] == {
        "file": f"{folder}/bad.yaml", "line": 6, "column": 12, "severity": "error",
        "code": "empty", "message": "spec.actions must not be empty", "suggestion": None,
    }


def test_github(folder: Path) -> None:
    first = invoke(check, str(folder / "bad.yaml"), "-o", "github").stdout.splitlines()[0]
    assert first == (
        f"::error file={folder}/bad.yaml,line=6,col=12,title=empty::spec.actions must not be empty"
    )


def test_sarif(folder: Path) -> None:
    body = json.loads(invoke(check, str(folder), "-o", "sarif").stdout)
    run = body["runs"][0]
    assert body["version"] == "2.1.0"
    assert [r["ruleId"] for r in run["results"]] == ["empty", "no-comparison"]
    assert {r["id"] for r in run["tool"]["driver"]["rules"]} == {"empty", "no-comparison"}
    region = run["results"][0]["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 6, "startColumn": 12}


@pytest.mark.parametrize(("here", "given"), [(".", "a/rules"), ("a", "rules"), ("a/rules", ".")])
@pytest.mark.parametrize("known_by", ["git", "worktree", "workspace"])
def test_github_and_sarif_count_from_the_top_of_the_repository(
    tmp_path: Path, here: str, given: str, known_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = tmp_path / "a" / "rules"
    rules.mkdir(parents=True)
    (rules / "bad.yaml").write_text("a: [")
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    if known_by == "git":
        (tmp_path / ".git").mkdir()
    elif known_by == "worktree":
        (tmp_path / ".git").write_text("gitdir: /elsewhere")
    else:
        monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    monkeypatch.chdir(tmp_path / here)
    for path in (given, str(rules)):
        assert "file=a/rules/bad.yaml,line" in invoke(check, path, "-o", "github").stdout
        body = json.loads(invoke(check, path, "-o", "sarif").stdout)
        place = body["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "a/rules/bad.yaml"


def test_without_a_repository_paths_are_as_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.yaml").write_text("a: [")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path)
    assert "file=bad.yaml,line" in invoke(check, "bad.yaml", "-o", "github").stdout


def test_junit(folder: Path) -> None:
    (folder / "odd.yaml").write_text('a: "\\x01<&>"\n')
    root = ElementTree.fromstring(invoke(check, str(folder), "-o", "junit").stdout)
    suite = root[0]
    assert (suite.get("tests"), suite.get("failures")) == ("4", "2")
    assert [len(case.findall("failure")) for case in suite] == [1, 0, 1, 0]


@pytest.mark.parametrize("kind", ["link", "pipe", "name", "udf"])
@pytest.mark.parametrize("alone", [False, True])
def test_what_cannot_be_read_is_a_finding_and_the_rest_is_checked(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, kind: str, alone: bool
) -> None:
    rules = tmp_path_factory.mktemp("alone") if alone else folder
    odd = os.fsencode(rules) + (b"/\xff.yaml" if kind == "name" else b"/odd.yaml")
    if kind == "link":
        os.symlink("nowhere", odd)
    elif kind == "pipe":
        os.mkfifo(odd)
    elif kind == "name":
        Path(os.fsdecode(odd)).write_bytes(b"")
    else:
        (rules / "udfs").mkdir()
        (rules / "udfs" / "odd.py").write_bytes(b"# \xff")
        if alone:
            (rules / "a.yaml").symlink_to("nowhere")
    said = "odd" if kind != "name" else "xff"
    for output in ("text", "json", "github", "sarif", "junit"):
        result = invoke(check, str(rules), "-o", output)
        assert result.return_value == 3
        assert said in result.stdout and ("no-comparison" in result.stdout) != alone
    found = json.loads(invoke(check, str(rules), "-o", "json").stdout)["findings"]
    (finding,) = [f for f in found if f["code"] == "unreadable" and said in f["file"]]
    assert (finding["severity"], finding["line"], finding["column"]) == ("error", 1, 1)
    assert {f["code"] for f in found} == ({"unreadable"} if alone else
                                          {"unreadable", "empty", "no-comparison"})


def test_junit_fails_where_the_check_does(folder: Path, policy: Policy) -> None:
    (folder / "warned.yaml").write_text(policy(expr="up"))          # no comparison
    for words, code, failures in (([], 0, "0"), (["--strict"], 3, "1")):
        result = invoke(check, str(folder / "warned.yaml"), "-o", "junit", *words)
        suite = ElementTree.fromstring(result.stdout)[0]
        assert (result.return_value, suite.get("failures")) == (code, failures)


def test_sarif_says_what_each_rule_means(folder: Path) -> None:
    run = json.loads(invoke(check, str(folder), "-o", "sarif").stdout)["runs"][0]
    rules = {rule["id"]: rule for rule in run["tool"]["driver"]["rules"]}
    assert {result["ruleId"] for result in run["results"]} == set(rules)
    for rule in rules.values():
        assert rule["shortDescription"]["text"].endswith(".")
        assert rule["defaultConfiguration"]["level"] in ("error", "warning", "note")
    assert run["columnKind"] == "unicodeCodePoints"


def test_sarif_addresses_are_uris(tmp_path: Path) -> None:
    (tmp_path / "a b%,ü.yaml").write_text("a: [")
    body = json.loads(invoke(check, str(tmp_path), "-o", "sarif").stdout)
    place = body["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"].endswith("/a%20b%25%2C%C3%BC.yaml")


def test_several_paths_are_one_bundle(folder: Path, policy: Policy) -> None:
    other = folder / "more" / "good.yaml"
    other.parent.mkdir()
    other.write_text(policy(name="good"))
    result = invoke(check, str(folder / "good.yaml"), str(other))
    assert result.return_value == 3
    assert "is used twice" in result.stdout
    assert invoke(check, str(other), str(other)).return_value == 0


def test_udfs_beside_the_rules_are_found(tmp_path: Path, policy: Policy) -> None:
    call = policy(actions="[{type: udf_call, function: mine}]")
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "p.yaml").write_text(call)
    assert invoke(check, str(rules)).return_value == 3
    (tmp_path / "udfs").mkdir()
    (tmp_path / "udfs" / "mine.py").write_text("def mine(ctx):\n    return {}\n")
    assert invoke(check, str(rules)).return_value == 0


def test_a_recording_knows_its_metrics(tmp_path: Path, policy: Policy) -> None:
    import numpy as np

    from resilience.model import labels_of
    from resilience.sources.recording import write
    from resilience.sources.recording_format import RecordingMeta
    from resilience.sources.store import MemoryStore

    store = MemoryStore()
    for t_ms in (0, 15_000, 30_000):
        store.append(t_ms, [labels_of({"__name__": "vllm:kv_cache_usage_perc"})], np.array([0.5]))
    write(tmp_path / "r.parquet", store, [], RecordingMeta("scrape"))
    (tmp_path / "p.yaml").write_text(policy("vllm:gpu_cache_usage_perc > 0.9"))
    args = [str(tmp_path / "p.yaml"), "--recording", str(tmp_path / "r.parquet")]
    assert "is not exported by the target; use `vllm:kv_cache" in invoke(check, *args).stdout
    (tmp_path / "p.yaml").write_text(policy("deriv(vllm:kv_cache_usage_perc[30s]) > 0.9"))
    assert "[short-window]" in invoke(check, *args).stdout


def test_schema_prints_and_lists() -> None:
    names = [line.split()[0] for line in invoke(schema).stdout.splitlines()]
    assert {"policy", "engine", "decision", "check"} <= set(names)
    assert json.loads(invoke(schema, "policy").stdout)["title"] == "resilience policy"


def test_schema_writes_all(tmp_path: Path) -> None:
    invoke(schema, "--write", str(tmp_path / "s"))
    assert len(list((tmp_path / "s").glob("*.json"))) == len(invoke(schema).stdout.splitlines())
    invoke(schema, "policy", "--write", str(tmp_path / "one"))
    assert [p.name for p in (tmp_path / "one").iterdir()] == ["policy.json"]


def test_as_a_process(folder: Path) -> None:
    launcher = Path(__file__).resolve().parents[3] / "cli.py"
    done = subprocess.run(
        [sys.executable, str(launcher), "check", "nowhere.yaml"], cwd=folder, check=False,
        capture_output=True, text=True, timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: the rules folder or file `nowhere.yaml` does not exist\n"
    unknown = subprocess.run(
        [sys.executable, str(launcher), "schema", "polic"], check=False, capture_output=True,
        text=True, timeout=60,
    )
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)
