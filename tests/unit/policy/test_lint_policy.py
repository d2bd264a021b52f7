"""What is wrong with a policy as a whole, although each of its fields may be so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resilience.policy.check import CheckResult

Run = Callable[..., CheckResult]
BY_MODEL = "max by (model_name) (vllm:num_requests_waiting) > 5"
FALLBACK = "{type: fallback_model, to: small, lease: 30s}"


def policy(
    actions: str, *, expr: str = "vllm:num_requests_waiting > 5", no_data: str = "hold",
    resolve: str = "vllm:num_requests_waiting < 3", spec: str = "", name: str = "a",
) -> str:
    ending = f", resolve: {{expr: '{resolve}', for: 30s}}" if resolve else ""
    return (
        f"apiVersion: resilience/v1\nkind: Policy\nmetadata: {{name: {name}, annotations: "
        "{summary: s, runbook_url: 'https://x'}}\nspec:\n"
        f"  trigger: {{expr: '{expr}', on_no_data: {no_data}{ending}}}\n"
        f"  actions: [{actions}]\n{spec}"
    )


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        (policy(FALLBACK), []),
        (policy("{type: fallback_model, to: small}"), ["no-lease"]),
        (policy("{type: throttle, max_concurrency: 3}"), []),
        (policy("{type: reset_prefix_cache}"), []),
        (policy(FALLBACK, resolve=""), ["no-resolve"]),
        (policy(FALLBACK).replace("runbook_url", "other"), ["no-runbook"]),
        (policy(FALLBACK, no_data="fire"), ["no-data-fires"]),
        (policy(FALLBACK, no_data="resolve"), ["no-data-resolves"]),
        (policy("{type: cache_degrade, max_running: 4, lease: 30s}", no_data="resolve"), []),
        (policy("{type: throttle, max_concurrency: 3}", spec="  escalation: [{after: 1m, actions: "
                "[{type: fallback_model, to: small}]}]\n"), ["no-lease"]),
        # not only of the first of several
        (policy("{type: cache_degrade, max_running: 4, lease: 30s}, {type: fallback_model, to: "
                "small}"), ["no-lease"]),
        (policy("{type: cache_degrade, max_running: 4}, {type: fallback_model, to: small}"),
         ["no-lease", "no-lease"]),
        (policy(f"{{type: reset_prefix_cache}}, {FALLBACK}", no_data="resolve"),
         ["no-data-resolves"]),
        (policy(f"{{type: reset_prefix_cache}}, {FALLBACK}", no_data="fire"), ["no-data-fires"]),
        # the end of a firing overlaps its beginning
        (policy(FALLBACK, resolve="vllm:num_requests_waiting < 10"), ["resolve-overlaps"]),
        (policy(FALLBACK, resolve="vllm:num_requests_waiting > 3"), ["resolve-overlaps"]),
        (policy(FALLBACK, resolve="vllm:num_requests_waiting <= 5"), []),
        (policy(FALLBACK, expr="5 < vllm:num_requests_waiting", resolve="vllm:num_requests_waiting"
                " < 9"), ["resolve-overlaps"]),
        (policy(FALLBACK, resolve="vllm:num_requests_running < 10"), []),
        (policy(FALLBACK, expr="vllm:num_requests_waiting >= 5",
                resolve="vllm:num_requests_waiting <= 5"), ["resolve-overlaps"]),
        (policy(FALLBACK, expr="vllm:num_requests_waiting >= 5",
                resolve="vllm:num_requests_waiting < 5"), []),
        (policy(FALLBACK, resolve="vllm:num_requests_waiting   >  5"), ["contradiction"]),
        # conditions that speak of other series than those that fire
        (policy(FALLBACK, expr=BY_MODEL, resolve="vllm:num_requests_waiting < 3"),
         ["condition-cannot-match"]),
        (policy(FALLBACK, expr=BY_MODEL, resolve="max by (pod) (vllm:num_requests_waiting) < 3"),
         ["condition-cannot-match"]),
        (policy(FALLBACK, expr=BY_MODEL,
                resolve="max by (model_name) (vllm:num_requests_waiting) < 3"), []),
        (policy(FALLBACK, expr=BY_MODEL, resolve="sum(vllm:num_requests_waiting) < 3"), []),
        (policy(FALLBACK, expr=BY_MODEL, resolve="absent(vllm:num_requests_waiting)"), []),
        (policy(FALLBACK, resolve="max by (pod) (vllm:num_requests_waiting) < 3"), []),
        (policy(FALLBACK, expr="sum(vllm:num_requests_waiting) > 5", resolve="up == 1"),
         ["condition-cannot-match"]),
        (policy(FALLBACK, expr=BY_MODEL, resolve="max(vllm:num_requests_waiting) < 3", spec="  "
                "guard: {expr: vllm:num_requests_running > 99}\n"), ["condition-cannot-match"]),
        (policy(FALLBACK, expr=BY_MODEL, resolve="max(vllm:num_requests_waiting) < 3", spec="  "
                "verify: {expr: max(vllm:num_requests_running) < 9, within: 1m}\n"), []),
        # escalation
        (policy("{type: udf_call, function: fallback_to_cache, on_error: escalate}"),
         ["escalation-missing"]),
        (policy("{type: udf_call, function: fallback_to_cache, on_error: escalate}", spec="  "
                "escalation: [{after: 1m, actions: [{type: throttle, max_concurrency: 3}]}]\n"),
         []),
        (policy("{type: throttle, max_concurrency: 3}", spec="  escalation: [{after: 1m, actions: "
                "[{type: throttle, max_concurrency: 3}]}]\n"), ["escalation-no-effect"]),
        (policy("{type: throttle, max_concurrency: 8}", spec="  escalation: [{after: 1m, actions: "
                "[{type: throttle, max_concurrency: 4}]}, {after: 2m, actions: [{type: throttle, "
                "max_concurrency: 6}]}]\n"), ["escalation-no-effect"]),
        # what undoes itself, or holds nothing
        (policy("{type: pause, mode: wait}, {type: resume}"), ["conflicting-claims"]),
        (policy("{type: pause, mode: wait}"), []),
        # labels of templates
        (policy("{type: throttle, max_concurrency: 3, message: '{{ $labels.pod }}'}",
                expr=BY_MODEL, resolve="max(vllm:num_requests_waiting) < 3"), ["template-label"]),
        (policy("{type: throttle, max_concurrency: 3, message: '{{ $labels.model_name }}'}",
                expr=BY_MODEL, resolve="max(vllm:num_requests_waiting) < 3"), []),
        # ladders
        (policy(FALLBACK, expr='vllm:num_requests_waiting{model_name="small"} > 5'),
         ["fallback-to-itself"]),
        (policy(FALLBACK, expr='vllm:num_requests_waiting{model_name="large"} > 5'), []),
        (policy("{type: fallback_model, to: '{{ $labels.model_name }}', lease: 30s}"),
         ["fallback-to-itself"]),
    ],
)
def test_policies(run: Run, text: str, codes: list[str]) -> None:
    findings = run(text).findings
    assert [f.code for f in findings] == codes, findings
    assert {f.severity for f in findings} <= {"warning"} or codes == ["contradiction"]


def test_steps_of_what_happens_once_are_told(run: Run) -> None:
    steps = "  recovery: {steps: [50%, 100%], every: 30s}\n"
    (finding,) = run(policy("{type: reset_prefix_cache}", spec=steps)).findings
    assert (finding.severity, finding.code) == ("info", "no-effect")
    assert not run(policy("{type: throttle, max_concurrency: 3}", spec=steps)).findings
    called = "{type: udf_call, function: fallback_to_cache}"
    assert not run(policy(called, spec=steps)).findings


def test_one_trigger_written_in_two_ways_is_one_trigger(run: Run) -> None:
    one, other = (policy(f"{{type: throttle, max_concurrency: {n}}}", name=name, expr=expr)
                  for n, name, expr in ((8, "a", "vllm:num_requests_waiting > 5"),
                                        (9, "b", "vllm:num_requests_waiting  >  5")))
    assert [f.code for f in run(f"{one}---\n{other}").findings] == ["conflicting-claims"]


def test_an_overlap_says_which_escalation_is_never_reached(run: Run) -> None:
    text = policy(FALLBACK, resolve="vllm:num_requests_waiting > 3", spec="  escalation: "
                  "[{after: 1m, actions: [{type: throttle, max_concurrency: 3}]}]\n")
    (finding,) = run(text).findings
    assert finding.message.endswith("; no escalation is reached")


def ladder(name: str, source: str, to: str) -> str:
    return policy(f"{{type: fallback_model, to: {to}, lease: 30s}}", name=name,
                  expr=f'vllm:num_requests_waiting{{model_name="{source}"}} > 5')


def test_policies_that_fall_back_to_each_other(run: Run) -> None:
    circle = "---\n".join([ladder("a", "big", "mid"), ladder("b", "mid", "small"),
                           ladder("c", "small", "big")])
    assert lines_of_circles(run(circle)) == [6, 13, 20]
    down = "---\n".join([ladder("a", "big", "mid"), ladder("b", "mid", "small")])
    assert lines_of_circles(run(down)) == []


def lines_of_circles(result: CheckResult) -> list[int]:
    return [f.line for f in result.findings if f.code == "fallback-circle"]
