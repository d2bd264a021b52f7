"""`resilience init` and `resilience completion`: where a new user begins."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from jsonschema import Draft202012Validator

from resilience.app import starter
from resilience.errors import UsageError

Run = Callable[..., Result]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def started(tmp_path: Path, run: Run) -> Path:
    folder = tmp_path / "new" / "policies"
    assert run("init", folder).return_value is None
    return folder


def test_everything_is_there(started: Path) -> None:
    names = sorted(p.relative_to(started).as_posix() for p in started.rglob("*") if p.is_file())
    assert names == [
        ".github/workflows/resilience.yaml", ".pre-commit-config.yaml", ".schemas/engine.json",
        ".schemas/policy.json", ".schemas/test.json", "README.md", "recordings/queue.om.txt",
        "recordings/queue.parquet", "rules/engine.yaml", "rules/queue-limit.test.yaml",
        "rules/queue-limit.yaml", "udfs/limit_by_queue.py",
    ]


@pytest.mark.parametrize("where", ["", "rules"])
def test_it_passes_check_and_test_as_it_is(started: Path, run: Run, where: str) -> None:
    checked = run("check", started / where, "--strict")
    assert (checked.return_value, checked.stdout) == (0, "")
    tested = run("test", started / where, "--min-coverage", "100")
    assert (tested.return_value, tested.stdout) == (0, "")
    assert "2 passed, 0 failed; coverage 100 %" in tested.stderr
    assert run("udf", "check", started / "udfs").return_value == 0


def test_the_dry_run_over_its_recording_fires_once_and_is_blind_for_a_while(
    started: Path, run: Run
) -> None:
    done = run("apply", started / "rules", "--dry-run", "--recording",
               started / "recordings" / "queue.parquet", "-o", "json")
    assert done.exit_code == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])["summary"]
    policy = summary["report"]["policies"]["queue-limit"]
    assert (policy["firings"], policy["blind_ms"]) == (1, 30_000)
    assert summary["policies"]["queue-limit"]["firings"] == 1


def test_an_edit_that_breaks_it_is_seen(started: Path, run: Run) -> None:
    policy = started / "rules" / "queue-limit.yaml"
    policy.write_text(policy.read_text().replace("> 20", "> 60"))
    assert run("check", started, "--strict").return_value == 0
    assert run("test", started).return_value == 4


def test_the_editor_finds_schemas_that_the_files_fit(started: Path) -> None:
    for file in sorted((started / "rules").iterdir()):
        text = file.read_text(encoding="utf-8")
        modeline = text.splitlines()[0]
        schema = (file.parent / modeline.partition("$schema=")[2]).resolve()
        body: Any = json.loads(schema.read_text(encoding="utf-8"))
        Draft202012Validator(body).validate(yaml.safe_load(text))


def test_nothing_is_overwritten(started: Path, run: Run) -> None:
    policy = started / "rules" / "queue-limit.yaml"
    policy.write_text("mine")
    (started / "README.md").unlink()
    again = run("init", started)
    assert isinstance(again.exception, UsageError)
    assert "exists already and is not overwritten" in str(again.exception)
    assert policy.read_text() == "mine" and not (started / "README.md").exists()


@pytest.mark.parametrize("hooks", [False, True])
def test_below_a_repository_ci_lies_where_it_is_looked_for(
    tmp_path: Path, run: Run, hooks: bool
) -> None:
    """GitHub and pre-commit read the top of a repository and nothing below it."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    if hooks:
        (tmp_path / ".pre-commit-config.yaml").write_text("repos: []\n")
    folder = tmp_path / "team" / "our rules"
    done = run("init", folder)
    assert done.exit_code == 0, done.output
    assert f"resilience check '{folder}'" in done.stderr
    workflow = yaml.safe_load(
        (tmp_path / ".github/workflows/resilience-team-our-rules.yaml").read_text())
    assert workflow["defaults"] == {"run": {"working-directory": "team/our rules"}}
    assert workflow[True]["pull_request"]["paths"][0] == "team/our rules/rules/**"   # `on`
    mine = folder if hooks else tmp_path
    hook = yaml.safe_load((mine / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"][0]
    assert shlex.split(hook["entry"])[-1] == "team/our rules/rules"
    assert re.search(hook["files"], "team/our rules/udfs/x.py")
    assert ("copy those of" in done.stderr) is hooks
    assert not (folder / ".github").exists()
    readme = (folder / "README.md").read_text()
    assert "`../../.github/workflows/resilience-team-our-rules.yaml`" in readme
    again = run("init", tmp_path / "team" / "our-rules")
    assert "exists already and is not overwritten" in str(again.exception)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_what_ends_half_way_leaves_nothing_and_can_begin_again(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def ends(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(starter, "_record", ends)
        with pytest.raises((error, UsageError)):
            starter.write_starter(starter.Place.of(tmp_path / "new"))
    assert list(tmp_path.iterdir()) == []
    assert run("init", tmp_path / "new").exit_code == 0


def test_a_name_that_looks_like_an_option_is_written_as_a_path(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q", "."], check=True)
    done = run("init", "./-x")
    assert "`resilience check ./-x`" in done.stderr
    hooks = yaml.safe_load((tmp_path / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert [shlex.split(hook["entry"])[-1] for hook in hooks] == ["./-x/rules", "./-x/rules"]


def test_a_name_that_is_not_utf8_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not UTF-8; rename it"):
        starter.write_starter(starter.Place.of(tmp_path / "bad\udcff"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be(tmp_path: Path, run: Run) -> None:
    (tmp_path / "file").write_text("x")
    result = run("init", tmp_path / "file")
    assert isinstance(result.exception, UsageError)
    assert "cannot be written: " in str(result.exception)
    assert (tmp_path / "file").read_text() == "x"


def test_what_ci_runs_are_commands_that_exist(started: Path, run: Run) -> None:
    workflow = yaml.safe_load((started / ".github/workflows/resilience.yaml").read_text())
    hooks = yaml.safe_load((started / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    steps = workflow["jobs"]["policies"]["steps"]
    lines = [s["run"] for s in steps if s.get("run", "").startswith("resilience")]
    lines += [h["entry"] for h in hooks]
    assert len(lines) == 4
    for line in lines:
        words = line.split()[1:]
        words = [str(started / "rules") if w.strip("/") == "rules" else w for w in words]
        words = [str(started / "out.xml") if w.endswith(".xml") else w for w in words]
        assert run(*words).return_value == 0, line


def test_the_hooks_for_others_are_commands_that_exist(run: Run) -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert [h["id"] for h in hooks] == ["resilience-check", "resilience-test"]
    for hook in hooks:
        assert run(*hook["entry"].split()[1:], "--help").exit_code == 0
        assert hook["pass_filenames"] is False and hook["args"] == ["rules"]
        for name in ("rules/a.yaml", "rules/B.YML", "rules/c.json", "udfs/f.py"):
            assert re.search(hook["files"], name)
        assert not re.search(hook["files"], "README.md")


# --- completion ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(run: Run, shell_name: str) -> None:
    result = run("completion", shell_name)
    assert result.exit_code == 0
    assert "_RESILIENCE_COMPLETE" in result.stdout
    if shutil.which(shell_name):
        parsed = subprocess.run(
            [shell_name, "-n"], input=result.stdout, text=True, capture_output=True, check=False
        )
        assert (parsed.returncode, parsed.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "index", "expected"),
    [
        ("resilience te", "1", "plain,test"), ("resilience imp", "1", "plain,import"),
        ("resilience test --min", "2", "plain,--min-coverage"),
        ("resilience check -o sa", "3", "plain,sarif"), ("resilience nothing --x", "2", ""),
        ("resilience record im", "2", "plain,import"),
        ("resilience record --prom", "2", "plain,--prometheus"),
        ("resilience record rul", "2", "file,rul"),
        ("resilience record rules --prom", "3", "plain,--prometheus"),
        ("resilience plan rules --ht", "3", "plain,--html"),
    ],
)
def test_what_is_completed(
    shell: Callable[..., Any], words: str, index: str, expected: str
) -> None:
    ended = shell(env={
        "_RESILIENCE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": index
    })
    assert (ended.out.strip(), ended.err) == (expected, "")


def test_an_unknown_shell(run: Run) -> None:
    assert "is not one of" in str(run("completion", "tcsh").exception)
