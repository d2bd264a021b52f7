"""Documents become a bundle: expansion, defaults, names, UDFs, the core's capabilities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from resilience.model import (
    Capabilities,
    KnobCapability,
)
from resilience.policy.check import CheckResult

Run = Callable[..., CheckResult]
Policy = Callable[..., str]

KEY = "ab" * 32
COMPACT = """\
on_alert: high_latency_99th
trigger_if: rate(http_request_duration_seconds{job="api"}[5m]) > 2.0
actions:
  - type: udf_call
    function: fallback_to_cache
    timeout: 3000
  - type: metric_emit
    name: ft_strategy_active
    value: 1
"""
FULL = """\
apiVersion: resilience/v1
kind: Policy
metadata: {name: high_latency_99th}
spec:
  mode: enforce
  interval: 15s
  on_missing_metric: warn
  trigger:
    expr: rate(http_request_duration_seconds{job="api"}[5m]) > 2.0
    for: 0s
    on_no_data: hold
  actions:
    - {type: udf_call, function: fallback_to_cache, timeout: 3s, lease: 30s}
    - {type: metric_emit, name: ft_strategy_active, value: 1, lease: 30s}
"""
WHOLE = """\
apiVersion: resilience/v1
kind: Policy
metadata:
  name: kv-pressure
  labels: {team: serving}
  annotations: {summary: "KV cache nearly full", runbook_url: "docs"}
spec:
  mode: shadow
  interval: 5s
  trigger:
    expr: max by (model_name) (vllm:kv_cache_usage_perc) > 0.9
    for: 30s
    resolve: {expr: 'max by (model_name) (vllm:kv_cache_usage_perc) < 0.75', for: 1m}
    on_no_data: fire
    max_age: 15s
  actions:
    - {type: throttle, tier: best-effort, max_concurrency: 8, lease: 10s, message: "why"}
    - {type: fallback_model, to: small, share: 25%, on_core_loss: keep}
  escalation:
    - {after: 1m, actions: [{type: reset_prefix_cache, preempt: true}]}
  recovery: {steps: [60%, 0.8, 100%], every: 1m}
  limits: {cooldown: 3m, rate: [{max: 6, per: 1h}]}
  priority: 70
"""


def test_the_compact_form_is_its_expansion(run: Run) -> None:
    (short,), (full,) = run(COMPACT).policies, run(FULL).policies
    assert short.spec_hash == full.spec_hash
    assert [a.type for a in short.actions] == ["udf_call", "metric_emit"]
    assert short.actions[0].udf is not None and short.actions[0].udf.timeout_ms == 3000
    assert short.on_missing_metric == "warn"


def test_the_compact_form_is_warned_never_refused(run: Run) -> None:
    result = run(COMPACT, metric_names={"up"}, require_metrics=True)
    assert [f.severity for f in result.findings] == ["warning"]
    assert result.bundle is not None
    (finding,) = run(COMPACT).findings
    assert (finding.line, finding.column, finding.code) == (2, 18, "histogram-base")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("on_alert: high", "on_alert: High", "on_alert: `High_latency_99th` is not a valid name"),
        ("trigger_if: ", "trigger_iff: ", "trigger_if is required"),
        ("timeout: 3000", "timeout: 3001ms", ""),
        ("timeout: 3000", "timeout: -1", "actions[0].timeout"),
        ("timeout: 3000", "timeout: 3000000", "must be at least `10ms` and at most `30s`"),
        ("actions:\n", "mode: off\nactions:\n", "unknown field `mode`"),
        ("value: 1\n", "value: one\n", "must be a number, got string `one`"),
        ("[5m]) > 2.0", "[5m]) > ", "trigger_if: PromQL"),
    ],
)
def test_mistakes_in_the_compact_form(run: Run, old: str, new: str, expected: str) -> None:
    result = run(COMPACT.replace(old, new))
    errors = [f"{f.line} {f.message}; {f.suggestion}" for f in result.errors]
    assert any(expected in e for e in errors) if expected else not errors


def test_a_whole_policy(run: Run) -> None:
    result = run(WHOLE)
    assert not result.findings
    (policy,) = result.policies
    assert (policy.mode, policy.interval_ms, policy.priority) == ("shadow", 5_000, 70)
    assert policy.trigger.max_age_ms == 15_000 and policy.trigger.on_no_data == "fire"
    assert policy.trigger.resolve is not None and policy.trigger.resolve.for_ms == 60_000
    throttle, fallback = policy.actions
    assert (throttle.key, throttle.lease_ms, throttle.message) == ("0", 10_000, "why")
    assert throttle.claims[0].scope == (("tier", "best-effort"),)
    assert fallback.on_core_loss == "keep"
    assert fallback.claims[0].value == {"to": "small", "share": 0.25}
    assert policy.escalation[0].actions[0].key == "e0.0"
    assert policy.escalation[0].actions[0].impulses[0].args == {"preempt": True}
    assert policy.recovery is not None and policy.recovery.steps == (0.6, 0.8, 1.0)
    assert policy.limits.rate[0].per_ms == 3_600_000
    assert dict(policy.annotations)["runbook_url"] == "docs"


def test_the_spec_hash_covers_what_decides(run: Run) -> None:
    def digest(text: str) -> str:
        return run(text).policies[0].spec_hash

    same = [
        WHOLE.replace("nearly full", "filling"), "# note\n" + WHOLE,
        WHOLE.replace("1h}", "60m}").replace("25%", "0.25"), WHOLE.replace("serving", "other"),
    ]
    assert {digest(text) for text in same} == {digest(WHOLE)}
    for old, new in (("0.9", "0.91"), ("30s", "31s"), ("shadow", "enforce"), ("70", "71"),
                     ("concurrency: 8", "concurrency: 9"), ("to: small", "to: tiny")):
        assert digest(WHOLE.replace(old, new)) != digest(WHOLE)


def test_the_bundle_holds_documents_used_udfs_and_a_revision(run: Run, policy: Policy) -> None:
    body = "(ctx): return {}\n"
    udfs = {"a.py": f"def fallback_to_cache{body}", "b.py": f"def other{body}"}
    call = policy(actions="[{type: udf_call, function: fallback_to_cache}]")
    bundle = run(call, udfs).bundle
    assert bundle is not None
    assert bundle.documents == (("p.yaml", call),)
    assert [file for file, _ in bundle.udfs] == ["a.py"]
    again = run(call, {**udfs, "b.py": "def other(ctx): return 1\n"}).bundle
    changed = run(call, {**udfs, "a.py": "def fallback_to_cache(ctx): return 1\n"}).bundle
    assert again is not None and again.revision == bundle.revision
    assert changed is not None and changed.revision != bundle.revision


def test_udf_lookup(run: Run, policy: Policy) -> None:
    call = policy(actions="[{type: udf_call, function: f}]")
    one, two = {"a.py": "def f(ctx): return {}"}, {"b.py": "def f(ctx): return 1"}
    (twice,) = run(call, {**one, **two}).findings
    assert (twice.code, twice.severity) == ("udf-twice", "error")
    assert "`a.py` and `b.py`" in twice.message
    hidden = run(call, [one, two])
    assert [f.severity for f in hidden.findings] == ["info"]
    assert hidden.bundle is not None and dict(hidden.bundle.udfs) == one
    assert not run(call, [one, {"copy.py": one["a.py"]}]).findings
    assert not run(call, {**one, "c.py": "def helper(x): return x\n"}).findings
    assert run(call, {"a.py": "def f(ctx:\n"}).findings[0].code == "udf-missing"
    assert run(call, {"a.py": "class A:\n    def f(ctx): return {}\n"}).errors


def test_names_are_unique_across_files(run: Run, policy: Policy) -> None:
    (finding,) = run({"a.yaml": policy(), "sub/b.yaml": policy()}).findings
    assert (finding.file, finding.line, finding.code) == ("sub/b.yaml", 3, "duplicate-name")
    assert "a.yaml:3" in finding.message


def test_nothing_to_check_is_an_error(run: Run) -> None:
    assert [f.code for f in run({}).findings] == ["no-policy"]
    assert [f.code for f in run({"a.yaml": "", "b.yaml": "# x\n"}).findings] == ["no-policy"]


def test_an_empty_file_beside_others_is_a_warning(run: Run, policy: Policy) -> None:
    result = run({"a.yaml": policy(), "b.yaml": ""})
    assert [f.code for f in result.findings] == ["empty-file"]
    assert result.bundle is not None


def test_conflicting_claims(run: Run, policy: Policy) -> None:
    both = "[{type: throttle, max_concurrency: 8}, {type: throttle, max_concurrency: 4}]"
    (within,) = run(policy(actions=both)).findings
    assert (within.code, within.severity) == ("conflicting-claims", "warning")
    assert "the smaller wins" in within.message
    tiers = both.replace("throttle,", "throttle, tier: core,", 1)
    assert not run(policy(actions=tiers)).findings
    other = policy(name="q", actions="[{type: throttle, max_concurrency: 4}]")
    (between,) = run({"a.yaml": policy(), "b.yaml": other}).findings
    assert between.file == "b.yaml"
    assert not run({"a.yaml": policy(), "b.yaml": policy(name="q", expr="up == 1",
                    actions="[{type: throttle, max_concurrency: 4}]")}).findings


def test_what_the_core_lacks(run: Run, policy: Policy) -> None:
    core = Capabilities(
        "vllm", "0.32", {"throttle.max_concurrency": KnobCapability("gate"),
                         "route.model": KnobCapability("gate")}, models=("big", "small"),
    )

    def codes(actions: str) -> list[str]:
        return [f.code for f in run(policy(actions=actions), capabilities=core).errors]

    assert codes("[{type: throttle, max_concurrency: 8}]") == []
    assert codes("[{type: metric_emit, name: x}]") == []
    assert codes("[{type: cache_degrade, max_running: 8}]") == ["knob-missing"]
    assert codes("[{type: reset_prefix_cache}]") == ["knob-missing"]
    assert codes("[{type: fallback_model, to: small}]") == []
    assert codes("[{type: fallback_model, to: smal}]") == ["model-missing"]
    shadow = policy(actions="[{type: fallback_model, to: smal}]", spec="  mode: shadow\n")
    result = run(shadow, capabilities=core)          # it touches nothing: the shipped rules do so
    assert not result.errors
    assert ("warning", "model-missing") in [(f.severity, f.code) for f in result.findings]


def test_what_the_core_dropped_and_what_does_not_fit_it(run: Run, policy: Policy) -> None:
    core = Capabilities(
        "vllm", "0.33", {
            "cache.kv_blocks": KnobCapability("subclass", baseline=363, minimum=32.0),
            "cache.batching": KnobCapability("attribute", baseline="dynamic"),
        },
        dropped=({"knob": "cache.mode", "reason": "method `f` of the scheduler has moved"},),
    )

    def said(action: str) -> list[str]:
        result = run(policy(actions=f"[{{type: cache_degrade, {action}}}]"), capabilities=core)
        return [f"{f.severity} {f.code}: {f.message}" for f in result.findings
                if f.code.startswith("knob-")]

    assert said("kv_blocks: 32") == said("batching: static") == []
    assert said("kv_blocks: 31") == [
        "error knob-no-progress: knob `cache.kv_blocks` at `31` would stop all progress on this "
        "server"
    ]
    assert said("kv_blocks: 363") == [
        "warning knob-no-effect: knob `cache.kv_blocks` at `363` changes nothing on this server"
    ]
    tight = KnobCapability("subclass", baseline=363, minimum=32.0, fits=200.0)
    core = replace(core, knobs={**core.knobs, "cache.kv_blocks": tight})
    assert said("kv_blocks: 200") == []
    assert said("kv_blocks: 201") == [
        "warning knob-no-memory: knob `cache.kv_blocks` at `201` needs memory that is not free: "
        "200 fit now"
    ]
    assert said("mode: stream") == [
        "error knob-missing: the core (vllm 0.33) has no knob `cache.mode`: method `f` of the "
        "scheduler has moved"
    ]


def test_same_input_same_findings(run: Run, policy: Policy) -> None:
    files: dict[str, Any] = {f"{i}.yaml": policy(expr="sum(", name=f"p{i % 3}") for i in range(9)}
    assert run(files) == run(files)


def test_a_tie_of_priorities(run: Run, policy: Policy) -> None:
    action = "[{type: fallback_model, to: small}]"
    other = policy(name="q", expr="up == 1", actions=action.replace("small", "large"))
    findings = run({"a.yaml": policy(actions=action), "b.yaml": other}).findings
    assert [f.file for f in findings if f.code == "priority-tie"] == ["b.yaml"]
    assert not [f for f in run({"a.yaml": policy(actions=action)}).findings
                if f.code == "priority-tie"]
    (tie,) = [f for f in run({"a.yaml": policy(actions=action), "b.yaml": other.replace(
        "spec:\n", "spec:\n  mode: shadow\n", 1)}).findings if f.code == "priority-tie"]
    assert "the name decides, were `q` in enforce" in tie.message
