"""`resilience test`: what holds, what does not, and how it is said."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import Result
from jsonschema import Draft202012Validator

from resilience.errors import FindingsError, UsageError
from resilience.policy.contract_schemas import contract_schemas

Suite = Callable[..., Result]
Run = Callable[..., Result]

# Waiting is 9 from 20s to 65s: pending at 20s, firing at 30s, escalated at 60s, let go at 80s.
EVERYTHING = """
- {at: 15s, state: inactive, reason: clear, value: 0}
- {at: 15s, claims: [], actions: [], impulses: [], udf: []}
- {at: 25s, state: pending, reason: pending_for, claims: [], undone: false}
- at: 30s
  state: firing
  reason: breach
  claims:
    - {knob: throttle.max_concurrency, scope: {tier: best-effort}, value: 4}
    - {knob: cache.max_running, value: 16}
  actions: [throttle, reset_prefix_cache, udf_call]
  impulses: [{impulse: reset_prefix_cache, args: {preempt: true}}]
  udf: [{function: smaller, result: {note: smaller}}]
- at: 1m
  actions: ["0", "1", "2", e0.0]
  impulses: [{impulse: reset_prefix_cache}]
  effective:
    - {knob: throttle.max_concurrency, scope: {tier: elastic}, value: 8}
    - {knob: throttle.max_concurrency, scope: {tier: core}, value: none}
- {at: 1m20s, state: recovering, undone: false}
- {at: 1m30s, state: inactive, undone: true, claims: []}
"""


def test_everything_that_can_be_expected(suite: Suite) -> None:
    result = suite(EVERYTHING, "--coverage")
    assert result.return_value == 0, result.output
    assert "4/5      on_no_data: hold" in result.stdout
    assert result.stderr == "ran 1 test in 1 file: 1 passed, 0 failed; coverage 80 %\n"


@pytest.mark.parametrize(
    ("expectation", "lines"),
    [
        ("- {at: 30s, state: pending}", ["- pending", "+ firing (reason breach)"]),
        ("- {at: 30s, reason: clear}", ["- clear", "+ breach"]),
        ("- {at: 30s, value: 8}", ["- 8", "+ 9"]),
        ("- {at: 25s, claims: [{knob: cache.max_running, value: 16}]}",
         ["- cache.max_running = 16"]),
        ("- {at: 30s, claims: []}",
         ['+ throttle.max_concurrency{tier="best-effort"} = 4', "+ cache.max_running = 16"]),
        ("- {at: 30s, actions: [throttle, udf_call]}", ["+ reset_prefix_cache (key 1)"]),
        ("- {at: 30s, actions: [throttle, throttle, udf_call, reset_prefix_cache]}",
         ["- throttle"]),
        ("- {at: 30s, impulses: []}", ["- none", '+ reset_prefix_cache {"preempt":true}']),
        ("- {at: 30s, impulses: [{impulse: reset_prefix_cache, args: {preempt: false}}]}",
         ['- reset_prefix_cache {"preempt":false}', '+ reset_prefix_cache {"preempt":true}']),
        ("- {at: 30s, udf: [{function: smaller, outcome: TIMEOUT}]}", ["- smaller: TIMEOUT"]),
        ("- {at: 30s, undone: true}",
         ["- undone", "+ is firing (reason breach)", "+ holds cache.max_running = 16"]),
        ("- {at: 10s, undone: true}", ["- undone", "+ never fired"]),
        ("- {at: 2m, undone: false}", ["- not undone", "+ undone"]),
        ("- {at: 1m, effective: [{knob: cache.max_running, value: none}]}",
         ["- cache.max_running = none", "+ cache.max_running = 16 (by queue)"]),
    ],
)
def test_a_difference_is_shown_as_one(suite: Suite, expectation: str, lines: list[str]) -> None:
    quiet = "25s" in expectation or "10s" in expectation
    result = suite(expectation, sandbox=quiet)
    assert result.return_value == 4
    shown = [line.strip() for line in result.stdout.splitlines()]
    for line in lines:
        assert any(s.startswith(line) for s in shown), result.stdout
    assert f"rules/queue.test.yaml:{7 if quiet else 9}:" in shown[0]


def test_a_failure_says_where_and_what_led_there(suite: Suite, folder: Path) -> None:
    result = suite("- {at: 30s, state: inactive}")
    assert result.stdout.splitlines() == [
        f"{folder}/rules/queue.test.yaml:7:19: failed: all of it: at 30s: queue: state differs",
        "    - inactive",
        "    + firing (reason breach)",
        "    decisions so far:",
        "      20s  inactive -> pending (pending_for)",
        "      30s  pending -> firing (breach)  + cache.max_running = 16  "
        '+ throttle.max_concurrency{tier="best-effort"} = 4',
    ]


def test_an_instance_that_is_not_there(suite: Suite) -> None:
    result = suite("- {at: 30s, labels: {model_name: m}, state: firing}", sandbox=False)
    assert result.return_value == 4
    assert "no instance has these labels; there are {}" in result.stdout


@pytest.mark.parametrize(
    ("expectation", "message"),
    [
        ("- {at: 30s, policy: quue, state: firing}",
         "7:27: error: policy `quue` is not known here; did you mean `queue`? [test-name]"),
        ("- {at: 30s, state: fireing}", "expect[0].state is `fireing`, not one of"),
        ("- {at: 30s, claims: [{knob: throttle.max_concurency, value: 1}]}",
         "did you mean `throttle.max_concurrency`? [test-name]"),
        ("- {at: 30s, claims: [{knob: cache.max_running, scope: {tier: core}, value: 1}]}",
         "this can never be: knob `cache.max_running` has no scope `tier`"),
        ("- {at: 30s, claims: [{knob: throttle.max_concurrency, scope: {tier: gold}, value: 1}]}",
         "tier `gold` is not known here"),
        ("- {at: 30s, actions: [throtle]}", "did you mean `throttle`? [test-name]"),
        ("- {at: 30s, actions: [e1.0]}", "action `e1.0` is not known here"),
        ("- {at: 30s, udf: [{function: smaler}]}", "did you mean `smaller`? [test-name]"),
        ("- {at: 30s}", "nothing is expected here"),
        ("- {at: 30, state: firing}", "bare number 30"),
        ("- {at: 30s, sate: firing}", "unknown field `sate`"),
        ("- {eval_time: 30s, state: firing}", "did you mean `at`?"),
        ("- {at: 300d, state: firing}", "more than 200000 ticks"),
    ],
)
def test_unknown_names_fail(suite: Suite, expectation: str, message: str) -> None:
    result = suite(expectation)
    assert result.return_value == 4
    assert message in result.stdout
    assert result.stderr.startswith("no tests ran: ")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("input_series: [{series: 'vllm:num_request_waiting', values: 1x5}]",
         "4:29: error: no expression of the policies reads `vllm:num_request_waiting`; "
         "did you mean `vllm:num_requests_waiting`? [test-series]"),
        ("input_series: [{series: 'vllm:num_requests_waiting', values: 1 2 x}]",
         "4:70: error: values: `x` is not a value"),
        ("input_series: [{series: 'vllm:num_requests_waiting', values: 0x5}]",
         "quote it: the notation is text"),
        ("input_series: [{series: 'sum(up)', values: 1x5}]", "`sum(up)` is not one series"),
        ("udf_results: [{function: smaller}, {function: other}]",
         "function `other` is not known here"),
        ("operator: [{at: 5s, pause: quueue}]", "did you mean `queue`? [test-name]"),
        ("operator: [{at: 5s, pause: queue, resume: queue}]", "one `pause` or one `resume`"),
        ("capacities: {throttle.max: 8}", "knob `throttle.max` is not known here"),
    ],
)
def test_what_a_test_is_given_is_checked_too(suite: Suite, body: str, message: str) -> None:
    text = f"tests:\n  - name: t\n    interval: 5s\n    {body}\n    expect:\n"
    result = suite("- {at: 5s, state: inactive}", text=text)
    assert result.return_value == 4
    assert message in result.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tests: []\n", "1:1: error: no tests in the file; write at least one below `tests:`"),
        ("interval: 5s\n", "1:1: error: no tests in the file"),
        ("", "no tests in the file"),
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


def test_a_given_result_takes_the_place_of_the_function(suite: Suite) -> None:
    given = (
        "    udf_results:\n"
        "      - {function: smaller, result: {actions: [{type: cache_degrade, max_running: 5}]}}\n"
        "      - {function: smaller, from: 40s, outcome: CRASH}\n"
        "      - {function: smaller, from: 50s, result: {actions: [{type: nonsense}]}}\n"
    )
    head = "interval: 5s\ntests:\n  - name: t\n" + given
    text = head + (
        "    input_series: [{series: 'vllm:num_requests_waiting', values: 9x40}]\n    expect:\n"
    )
    result = suite(
        "- {at: 10s, udf: [{function: smaller}], claims: [{knob: cache.max_running, value: 5}, "
        "{knob: throttle.max_concurrency, scope: {tier: best-effort}, value: 4}]}\n"
        "- {at: 40s, reason: udf_error, udf: [{function: smaller, outcome: CRASH}]}\n"
        "- {at: 50s, udf: [{function: smaller, outcome: BAD_RESULT}]}", text=text,
    )
    assert result.return_value == 0, result.stdout


def test_a_given_result_that_nobody_asks_for(suite: Suite) -> None:
    text = ("tests:\n  - name: t\n    udf_results: [{function: smaller}]\n    expect:\n")
    result = suite("- {at: 30s, state: inactive}", text=text)
    assert result.return_value == 4
    assert "3:19: failed: t: nobody called `smaller`" in result.stdout


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


def test_coverage(suite: Suite) -> None:
    few = "- {at: 30s, state: firing}"
    result = suite(few, "--coverage", "--min-coverage", "60", sandbox=False)
    assert result.return_value == 4
    assert "1/5      escalation[0], recovery, undo, on_no_data: hold" in result.stdout
    assert "coverage 20 % is below the 60 % asked for" in result.stderr
    assert suite(few, "--min-coverage", "20", sandbox=False).return_value == 0


@pytest.mark.parametrize(
    ("rule", "values", "at", "state"),
    [("hold", "9x5 stale", "40s", "held"), ("resolve", "9x5 stale", "35s", "recovering"),
     ("fire", "stale", "40s", "firing")],
)
def test_each_no_data_rule_can_be_covered(
    folder: Path, suite: Suite, rule: str, values: str, at: str, state: str
) -> None:
    path = folder / "rules" / "queue.yaml"
    path.write_text(path.read_text().replace("on_no_data: hold", f"on_no_data: {rule}"))
    text = (
        "interval: 5s\ntests:\n  - name: t\n    input_series:\n"
        f"      - {{series: 'vllm:num_requests_waiting', values: {values}}}\n    expect:\n"
    )
    result = suite(f"- {{at: {at}, state: {state}}}", "-o", "json", text=text)
    assert result.return_value == 0, result.stdout
    (policy,) = json.loads(result.stdout)["coverage"]["policies"]
    assert f"on_no_data: {rule}" not in policy["missing"]


CHECKED = """
apiVersion: resilience/v1
kind: Policy
metadata: {name: queue}
spec:
  interval: 5s
  trigger:
    expr: vllm:num_requests_waiting > 4
    on_no_data: hold
    resolve: {expr: vllm:num_requests_waiting < 1}
  actions:
    - type: throttle
      tier: best-effort
      max_concurrency: 4
      guard: {expr: vllm:num_requests_waiting > 40}
  verify: {expr: vllm:num_requests_waiting, improves: down, within: 10s, quarantine: 20s}
  guard: {expr: vllm:num_requests_waiting > 80}
  probe: {after: 10s, share: 50%, for: 5s}
"""
# At 5s it fires; each of these is looked at in a test of its own.
LIVES = {
    "verify: met": ("0 9 6 6", "- {at: 15s, state: firing}"),
    "verify: failed": ("0 9x9", "- {at: 20s, state: pending}"),
    "guard": ("0 9 90 90", "- {at: 15s, state: pending}"),
    "actions[0].guard": ("0 9 50 50", "- {at: 10s, state: firing, claims: []}"),
    "probe": ("0 9 3 3 3 3", "- {at: 15s, state: recovering, reason: probe}"),
}


@pytest.mark.parametrize("part", LIVES)
def test_checks_and_probes_are_parts_that_a_test_has_to_look_at(
    folder: Path, suite: Suite, part: str
) -> None:
    (folder / "rules" / "queue.yaml").write_text(CHECKED)
    values, expectation = LIVES[part]
    text = (
        "interval: 5s\ntests:\n  - name: t\n    input_series:\n"
        f"      - {{series: 'vllm:num_requests_waiting', values: {values}}}\n    expect:\n"
    )
    before = suite("- {at: 0s, state: inactive}", "-o", "json", text=text)
    (policy,) = json.loads(before.stdout)["coverage"]["policies"]
    assert policy["missing"] == policy["parts"] and set(LIVES) < set(policy["parts"])
    result = suite(expectation, "-o", "json", text=text)
    assert result.return_value == 0, result.stdout
    (policy,) = json.loads(result.stdout)["coverage"]["policies"]
    assert part not in policy["missing"]
    assert set(LIVES) & set(policy["missing"]) >= set(LIVES) - {part, "verify: met"}
    assert "recovery" not in policy["parts"]


def test_json_fits_its_schema(suite: Suite) -> None:
    two = "- {at: 30s, state: held}\n- {at: 40s, state: firing}"
    result = suite(two, "-o", "json", sandbox=False)
    body = json.loads(result.stdout)
    Draft202012Validator(contract_schemas()["test-run"]).validate(body)
    assert (body["tests"], body["failed"]) == (1, 1)
    (failure,) = body["results"][0]["failures"]
    assert (failure["at_ms"], failure["field"], failure["expected"]) == (30_000, "state", ["held"])
    broken = json.loads(suite("- {at: 30s}", "-o", "json").stdout)
    Draft202012Validator(contract_schemas()["test-run"]).validate(broken)
    assert broken["findings"][0]["code"] == "test-case"


def test_junit(suite: Suite, tmp_path: Path) -> None:
    file = tmp_path / "report.xml"
    suite("- {at: 30s, state: held}", "--junit", str(file), sandbox=False)
    root = ElementTree.parse(file).getroot()
    assert root.attrib == {"tests": "1", "failures": "1", "errors": "0"}
    (case,) = root.iter("testcase")
    assert case.attrib["name"] == "all of it" and case.attrib["line"] == "3"
    (failure,) = root.iter("failure")
    assert failure.attrib["message"] == "at 30s: queue: state differs"
    assert "- held" in (failure.text or "")
    suite("- {at: 30s}", "--junit", str(file))
    assert [e.attrib["message"] for e in ElementTree.parse(file).getroot().iter("error")] == [
        "nothing is expected here"
    ]
    missing = suite("- {at: 30s, state: held}", "--junit", str(tmp_path / "no" / "r.xml"))
    assert isinstance(missing.exception, UsageError)


def test_a_sandbox_of_ones_own_for_each_test(folder: Path, run: Run) -> None:
    """Three failures put a UDF in quarantine; the next test must not find it there."""
    (folder / "udfs" / "smaller.py").write_text("def smaller(ctx):\n    return 1 / 0\n")
    one = (
        "    interval: 5s\n"
        "    input_series: [{series: 'vllm:num_requests_waiting', values: 9x20}]\n"
        "    expect: [{at: 10s, udf: [{function: smaller, outcome: RUNTIME_DENIED}]}, "
        "{at: 1m, udf: [{function: smaller, outcome: QUARANTINED}]}]\n"
    )
    text = "tests:\n" + "".join(f"  - name: t{i}\n{one}" for i in range(2))
    (folder / "rules" / "queue.test.yaml").write_text(text)
    result = run("test", folder / "rules")
    assert result.return_value == 0, result.stdout
