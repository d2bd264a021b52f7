"""Documents become a bundle: expansion, defaults, names, UDFs, the core's capabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from resilience.model import (
    BudgetSettings,
    Capabilities,
    EngineConfig,
    HealthSettings,
    KnobCapability,
    LimiterSettings,
    QueueSettings,
    Tenant,
    Tier,
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
    assert said("mode: stream") == [
        "error knob-missing: the core (vllm 0.33) has no knob `cache.mode`: method `f` of the "
        "scheduler has moved"
    ]


ENGINE = """\
apiVersion: resilience/v1
kind: Engine
metadata: {name: engine}
spec:
"""


def engine(run: Run, policy: Policy, spec: str) -> CheckResult:
    return run({"engine.yaml": ENGINE + spec, "p.yaml": policy()})


def test_an_engine_document(run: Run, policy: Policy) -> None:
    spec = (
        "  tiers:\n  - {name: gold, success: 99.9%, p99: 100ms, max_concurrency: 9}\n"
        "  - {name: rest, deadline: 7s}\n"
        "  tier_source: {header: X-Tier, trusted_peers: [10.0.0.0/8], default: rest}\n"
        "  scrape: {interval: 2s, retention: 10m, job: llm}\n"
        "  prometheus: {url: 'http://p:9090/', headers: {X-Scope-OrgID: a},"
        " auth: {bearer_token_file: /t}, timeout: 2s, scrape_interval: 30s}\n"
        "  sandbox: {require: [], allow_weak: true}\n"
        f"  tenants:\n  - {{name: acme, tier: gold, key_sha256: [{KEY}], share: 2, "
        "max_concurrency: 4}\n"
        "  queue: {max_waiting: 64, ageing: 0}\n"
        "  limiter: {queue_time: 200ms, kv_usage: 90%, max: 32}\n"
        "  budget: {deadline: 20s, attempts: 2, backoff: 50ms, attempt_timeout: 6s,"
        " request_id_header: Idempotency-Key, keep_results: 1m, results_mebibytes: 2}\n"
        "  limits: {series: 1000, claims: 9, instances: 8, udf_quarantine_after: 2}\n"
    )
    result = engine(run, policy, spec)
    assert not result.findings
    assert result.bundle is not None
    config = result.bundle.config
    assert config.tiers == (Tier("gold", 0.999, 100, 9), Tier("rest", deadline_ms=7_000))
    assert config.tier_source.header == "x-tier" and config.tier_source.default == "rest"
    assert (config.scrape_interval_ms, config.retention_ms, config.job) == (2_000, 600_000, "llm")
    assert config.prometheus is not None and config.prometheus.url == "http://p:9090"
    assert config.prometheus.bearer_token_file == "/t"
    assert (config.max_series, config.max_claims, config.max_instances) == (1000, 9, 8)
    assert (config.sandbox_require, config.sandbox_allow_weak) == ((), True)
    assert config.tenants == (Tenant("acme", "gold", (KEY,), 2.0, 4),)
    assert config.queue == QueueSettings(64, None)
    assert config.limiter == LimiterSettings(queue_time_ms=200, kv_usage=0.9, maximum=32)
    assert config.budget == BudgetSettings(
        20_000, 2, 50, 6_000, "idempotency-key", 60_000, 2 * 1024 * 1024)


def test_an_empty_budget_has_all_defaults(run: Run, policy: Policy) -> None:
    result = engine(run, policy, "  budget: {}\n")
    assert result.bundle is not None and result.bundle.config.budget == BudgetSettings()
    assert BudgetSettings().deadline_ms == 8_000 and BudgetSettings().attempts == 3


def test_limits_of_health_in_an_engine_document(run: Run) -> None:
    head = "apiVersion: resilience/v1\nkind: Engine\nmetadata: {name: e}\nspec: "
    health = ("{allocation_every: 10s, allocation_slow: 40ms, allocation_times: 3, "
              "stuck_after: 20s, blind_after: 6s}")
    bundle = run(f"{head}{{core: {{on_drift: leave, health: {health}}}}}\n").bundle
    assert bundle is not None and bundle.config.on_drift == "leave"
    assert bundle.config.health == HealthSettings(10_000, 40, 3, 20_000, 6_000)
    bundle = run(f"{head}{{core: {{health: {{allocation_times: 1}}}}}}\n").bundle
    assert bundle is not None and bundle.config.health == HealthSettings(times=1)
    said = [f.message for f in run(f"{head}{{core: {{health: {{blind_after: 5}}}}}}\n").errors]
    assert len(said) == 1 and "blind_after" in said[0]


def test_an_engine_document_alone_is_a_bundle(run: Run) -> None:
    bundle = run(ENGINE.replace("spec:", "spec: {}")).bundle
    assert bundle is not None and bundle.config == EngineConfig()


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("  tiers: [{name: a}]\n", "the default tier `best-effort` is not defined"),
        ("  tiers: [{name: a}, {name: a}]\n  tier_source: {default: a}\n", "is defined twice"),
        ("  tier_source: {default: gold}\n", "6:", ),
        ("  tier_source: {trusted_peers: [localhost]}\n", "`localhost` is not a network"),
        ("  tenants: [{name: a}, {name: a}]\n", "tenant `a` is given twice, first to `a`"),
        ("  tenants: [{name: a, key_sha256: [KEY]}]\n", "key_sha256[0]"),
        ("  tenants: [{name: a, tier: gold}]\n", "tier `gold` of tenant `a` is not defined"),
        ("  tenants: [{name: other}]\n", "tenant `other` is everybody who is not listed"),
        ("  limiter: {min: 9, max: 3}\n", "spec.limiter.min is 9, above its max of 3"),
        ("  limiter: {decrease: 100%}\n", "spec.limiter.decrease of 100% is above 90%"),
        ("  budget: {deadline: 2s, attempt_timeout: 2s}\n", "not below the shortest deadline, 2s"),
        ("  budget: {attempts: 4}\n", "must be <= 3"),
        ("  budget: {retries: 4}\n", "unknown field `retries`"),
        ("  tiers: [{name: best-effort, deadline: 9s}]\n", "but there is no spec.budget"),
        ("  tiers: [{name: best-effort, deadline: 1s}]\n  budget: {attempt_timeout: 3s}\n",
         "`3s` is not below the shortest deadline, 1s"),
        ("  ladder: [{name: a, kind: model}]\n", "rung `a` of kind `model` needs `model`"),
        ("  safety: {disruptive_per_hour: -1}\n", "must be >= 0"),
        ("  safety: {core_floor: 20}\n", "must be <= 1"),
        ("  safety: {max_removed: 20%}\n", "unknown field `max_removed`"),
        ("  prometheus: {url: 'p:9090'}\n", "`p:9090` is not a valid URL"),
        ("  prometheus: {url: 'http://u:p@p'}\n", "holds a user or password"),
        ("  prometheus: {url: 'http://p', headers: {Authorization: x}}\n", "is a secret in a"),
        ("  prometheus: {url: 'http://p', auth: {username: u}}\n", "together"),
        ("  sandbox: {require: [docker]}\n", "`docker`, not one of"),
        ("  scrape: {interval: 1}\n", "`1s` for seconds"),
        ("  limits: {claims: 1000}\n", "must be <= 256"),
    ],
)
def test_mistakes_in_an_engine_document(
    run: Run, policy: Policy, spec: str, expected: str
) -> None:
    result = engine(run, policy, spec)
    errors = [f"{f.line}:{f.column} {f.message}; {f.suggestion}" for f in result.errors]
    if expected == "6:":
        assert any(e.startswith("5:26 the default tier `gold`") for e in errors), errors
        return
    assert any(expected in e for e in errors), errors


def test_one_engine_document(run: Run) -> None:
    text = ENGINE.replace("spec:", "spec: {}")
    (finding,) = run({"a.yaml": text, "b.yaml": text}).findings
    assert (finding.file, finding.code) == ("b.yaml", "duplicate-engine")


def test_tiers_come_from_the_engine_document(run: Run, policy: Policy) -> None:
    spec = "  tiers: [{name: gold}, {name: rest}]\n  tier_source: {default: rest}\n"
    text = policy(actions="[{type: throttle, tier: gold, max_concurrency: 1}]")
    assert not run({"a.yaml": text, "z.yaml": ENGINE + spec}).findings
    assert run({"a.yaml": text}).errors[0].code == "unknown-tier"


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
