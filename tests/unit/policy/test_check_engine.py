"""The Engine document: what it holds, its mistakes, and what policies take from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from resilience.model import (
    BudgetSettings,
    EngineConfig,
    HealthSettings,
    LimiterSettings,
    QueueSettings,
    Tenant,
    Tier,
)
from resilience.policy.check import CheckResult

Run = Callable[..., CheckResult]
Policy = Callable[..., str]
KEY = "ab" * 32
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
        ("  limiter: {increase: 0.01%}\n", "spec.limiter.increase of 0.01% is below 0.1%"),
        ("  limiter: {kv_usage: 0.5%}\n", "spec.limiter.kv_usage of 0.5% is below 1%"),
        ("  limiter: {headroom: 0.00001}\n", "spec.limiter.headroom of 0.001% is below 0.1%"),
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
        ("  prometheus: {url: 'p:9090'}\n", "spec.prometheus.url: this is not a valid URL"),
        ("  prometheus: {url: 'http://u:p@p'}\n", "holds a user or password"),
        ("  prometheus: {url: 'http://[::1'}\n",
         "spec.prometheus.url: the address has no valid host"),
        ("  prometheus: {url: 'http://p:abc'}\n", "the address has no valid port"),
        ("  prometheus: {url: 'http://p?token=x'}\n", "the address holds a query or a fragment"),
        ("  ladder: [{name: a, kind: url, url: 'http://a..b'}]\n",
         "spec.ladder[0].url: the address has no valid host"),
        ("  receivers: [{name: a, type: alertmanager, url: 'http://a:b'}]\n",
         "spec.receivers[0].url: the address has no valid port"),
        ("  receivers: [{name: a, type: alertmanager, url: 'http://a?b=c'}]\n",
         "spec.receivers[0].url: the address holds a query or a fragment"),
        ("  receivers: [{name: a, type: webhook, url: 'http://a?b=c', proxy_url: 'http://[a]'}]\n",
         "spec.receivers[0].proxy_url: the address has no valid host"),
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


@pytest.mark.parametrize(("url", "secret"), [
    ("http://h?to=ops@example.com", False), ("http://h/x@y", False), ("http://u:p@h?x=1", True),
])
def test_a_user_stands_before_the_host_and_nowhere_else(run: Any, url: str, secret: bool) -> None:
    text = ("apiVersion: resilience/v1\nkind: Engine\nmetadata: {name: e}\nspec:\n"
            f"  receivers: [{{name: a, type: webhook, url: '{url}'}}]\n")
    assert [f.code for f in run(text).findings] == ["secret"] * secret


@pytest.mark.parametrize("field", [
    "ladder: [{name: a, kind: url, url: 'http://u:hunter2@h:80'}]",
    "prometheus: {url: 'htp://u:hunter2@h:9090'}",
    "receivers: [{name: a, type: webhook, url: 'htps://h/T?token=hunter2'}]",
])
def test_no_secret_of_an_address_is_repeated(run: Any, field: str) -> None:
    text = f"apiVersion: resilience/v1\nkind: Engine\nmetadata: {{name: e}}\nspec:\n  {field}\n"
    found = run(text).findings
    assert [f.code for f in found] == ["format"]
    assert not any("hunter2" in f"{f.message} {f.suggestion}" for f in found)
