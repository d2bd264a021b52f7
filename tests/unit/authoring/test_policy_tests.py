"""`resilience test`: what holds, what does not, and how it is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

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


def test_a_given_result_that_nobody_asks_for_beside_one_that_is_asked_for(suite: Suite) -> None:
    """One function, two results: each has to be asked for."""
    text = ("interval: 5s\ntests:\n  - name: t\n"
            "    input_series: [{series: 'vllm:num_requests_waiting', values: 30x40}]\n"
            "    udf_results:\n      - {function: smaller, outcome: TIMEOUT}\n"
            "      - {function: smaller, from: 10m, outcome: CRASH}\n"
            "      - {function: smaller, outcome: MEMORY}\n    expect:\n")
    result = suite("- {at: 2m, udf: [{function: smaller, outcome: TIMEOUT}]}", text=text)
    assert result.return_value == 4
    for line, fault in ((6, False), (7, True), (8, True)):
        place = f":{line}:9: failed: t: nobody called `smaller` while this result stood"
        assert (place in result.stdout) is fault, result.stdout


@pytest.mark.parametrize(("event", "ran"), [
    ("{at: 20s, pause: queue, for: 1m}", True),
    ("{at: 21s, pause: queue, for: 1m}", False),
    ("{at: 1h, pause: queue, for: 1m}", False),
    ("{at: 1h, resume: '*'}", False),
])
def test_what_an_operator_does_too_late(suite: Suite, event: str, ran: bool) -> None:
    text = f"tests:\n  - name: t\n    operator: [{event}]\n    expect:\n"
    result = suite("- {at: 23s, actions: []}", text=text)
    assert result.return_value == (0 if ran else 4), result.stdout
    word = "pause" if "pause" in event else "resume"
    said = (f":3:16: failed: t: this `{word}` never ran: no tick follows it before the last "
            "expectation, which is at 23s")
    assert (said in result.stdout) is not ran


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
