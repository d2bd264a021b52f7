"""`resilience test`: which files it finds, what lies beside them, and which it cannot run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from resilience.errors import FindingsError

Suite = Callable[..., Result]
Run = Callable[..., Result]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tests: []\n", "1:1: error: no tests in the file; write at least one below `tests:`"),
        ("interval: 5s\n", "1:1: error: no tests in the file"),
        ("", "no tests in the file"),
        ("testz: [{name: x}]\n", "1:1: error: unknown field `testz`; did you mean `tests`?"),
        ("- a\n", "need a mapping"),
        ("tests: [\n", "yaml-syntax"),
        ("tests: [{name: a, expect: [{at: 1s, state: firing}]}]\n---\ntests: []\n",
         "a second document"),
        ("policy_files: [qeue.yaml]\ntests: [{name: a, expect: [{at: 1s, state: firing}]}]\n",
         "1:16: error: the policy file `qeue.yaml` is not there; did you mean `queue.yaml`?"),
        ("tests: [{name: a, expect: [{at: 1s, state: held}]}, {name: a, expect: "
         "[{at: 1s, state: held}]}]\n", "stands twice"),
    ],
)
def test_a_file_that_is_no_test(folder: Path, run: Run, text: str, message: str) -> None:
    (folder / "rules" / "queue.test.yaml").write_text(text)
    for path in (folder / "rules", folder / "rules" / "queue.test.yaml"):
        result = run("test", path)
        assert result.return_value == 4
        assert message in result.stdout


def test_zero_tests_fail(folder: Path, run: Run, suite: Suite) -> None:
    result = run("test", folder / "rules")
    assert (result.return_value, result.stderr) == (
        4, "no tests ran; write `NAME.test.yaml` beside `NAME.yaml`\n"
    )
    assert run("test", folder / "rules" / "queue.yaml").return_value == 4
    assert suite("- {at: 5s, state: inactive}", "--run", "nothing").return_value == 4
    assert suite("- {at: 5s, state: inactive}", "--run", "all").return_value == 0


def test_an_error_in_a_policy_is_an_error_of_check(folder: Path, suite: Suite) -> None:
    (folder / "rules" / "bad.yaml").write_text("kind: Policy\n")
    result = suite("- {at: 5s, state: inactive}")
    assert isinstance(result.exception, FindingsError)
    assert result.exception.exit_code == 3


def test_one_file_at_a_time(folder: Path, run: Run, suite: Suite) -> None:
    assert suite("- {at: 30s, state: firing}").return_value == 0
    (folder / "rules" / "bad.yaml").write_text("kind: Policy\n")          # not looked at
    (folder / "rules" / "engine.yaml").write_text(
        "apiVersion: resilience/v1\nkind: Engine\nmetadata: {name: e}\n"
        "spec: {tiers: [{name: best-effort}, {name: elastic}]}\n"
    )
    for name in ("queue.test.yaml", "queue.yaml"):
        assert run("test", folder / "rules" / name).return_value == 0
    both = run("test", folder / "rules" / "queue.yaml", folder / "rules" / "queue.test.yaml")
    assert both.stderr.startswith("ran 1 test in 1 file")
    alone = run("test", folder / "rules" / "bad.yaml")
    assert alone.return_value == 4 and alone.stderr.startswith("no tests ran")


def test_the_folders_own_tiers_count(folder: Path, run: Run, suite: Suite) -> None:
    (folder / "rules" / "engine.yaml").write_text(
        "apiVersion: resilience/v1\nkind: Engine\nmetadata: {name: e}\n"
        "spec: {tiers: [{name: best-effort}, {name: elastic}, {name: gold}]}\n"
    )
    scope = "knob: throttle.max_concurrency, scope: {tier: gold}"
    gold = f"- {{at: 9s, effective: [{{{scope}, value: none}}]}}"
    assert suite(gold).return_value == 0
    assert run("test", folder / "rules" / "queue.test.yaml").return_value == 0


def test_several_policies_and_the_fold(folder: Path, run: Run) -> None:
    other = (folder / "rules" / "queue.yaml").read_text().replace("name: queue", "name: other")
    other = other.replace("> 4", "> 8").replace("max_concurrency: 4", "max_concurrency: 2")
    (folder / "rules" / "other.yaml").write_text(other)
    scope = "knob: throttle.max_concurrency, scope: {tier: best-effort}"
    (folder / "rules" / "both.test.yaml").write_text(
        "policy_files: [queue.yaml, other.yaml]\ninterval: 5s\ntests:\n  - name: fold\n"
        "    input_series: [{series: 'vllm:num_requests_waiting', values: 9x9 1x3 6x30}]\n"
        "    expect:\n"
        f"      - {{at: 40s, policy: queue, effective: [{{{scope}, value: 2}}]}}\n"
        f"      - {{at: 40s, policy: other, state: firing, claims: [{{{scope}, value: 2}}, "
        "{knob: cache.max_running, value: 16}, "
        "{knob: throttle.max_concurrency, scope: {tier: elastic}, value: 8}]}\n"
        f"      - {{at: 2m, policy: other, undone: true, effective: [{{{scope}, value: 4}}]}}\n"
    )
    result = run("test", folder / "rules" / "both.test.yaml")
    assert result.return_value == 0, result.stdout
    text = (folder / "rules" / "both.test.yaml").read_text()
    (folder / "rules" / "both.test.yaml").write_text(text.replace("policy: queue, ", ""))
    result = run("test", folder / "rules" / "both.test.yaml")
    assert "`policy` is required: the file tests `queue` and `other`" in result.stdout


def test_a_policy_that_is_off_is_not_tested(folder: Path, suite: Suite) -> None:
    path = folder / "rules" / "queue.yaml"
    path.write_text(path.read_text().replace("interval: 5s", 'mode: "off"'))
    result = suite("- {at: 5s, state: inactive}")
    assert result.return_value == 4
    assert "`queue` is `mode: off`" in result.stdout


def test_tests_may_lie_in_a_folder_of_their_own(folder: Path, run: Run, suite: Suite) -> None:
    suite("- {at: 30s, state: firing, udf: [{function: smaller}]}")
    (folder / "tests").mkdir()
    test = folder / "tests" / "any.test.yaml"
    os.rename(folder / "rules" / "queue.test.yaml", test)
    test.write_text("policy_files: [../rules/queue.yaml]\n" + test.read_text())
    for path in (folder / "tests", test, folder):
        result = run("test", path)
        assert result.return_value == 0, result.stdout
        assert result.stderr == "ran 1 test in 1 file: 1 passed, 0 failed; coverage 20 %\n"


def test_run_that_finds_no_name_says_which_there_are(suite: Suite) -> None:
    result = suite("- {at: 5s, state: inactive}", "--run", "nothing")
    assert result.stderr == "no tests ran: `--run` finds none of 1 name: `all of it`\n"


def test_names_are_read_in_any_case(folder: Path, run: Run) -> None:
    rules = folder / "rules"
    (rules / "queue.yaml").rename(rules / "QUEUE.YAML")
    (rules / "QUEUE.TEST.YAML").write_text(
        "tests: [{name: t, expect: [{at: 5s, state: firing}]}]\n"
    )
    for path in (rules, rules / "QUEUE.TEST.YAML"):
        result = run("test", path)
        assert result.return_value == 4 and "state differs" in result.stdout
