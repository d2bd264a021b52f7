"""The shipped rules: checked without errors, awake at 1 s and at 15 s scrapes, quiet when all is
well, and let go afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from resilience.model import Labels, Policy, Reason, Truth, labels_of
from resilience.policy.check import CheckResult
from resilience.promql.truth import compile_trigger, observe
from resilience.shipped import shipped
from resilience.sources.embedded import EmbeddedSource
from resilience.sources.store import MemoryStore

FILES = {
    item.name: item.read_bytes()
    for item in shipped("rules").iterdir()
    if item.name.endswith((".yaml", ".yml")) and not item.name.endswith(".test.yaml")
}
START_S, END_S = 600, 750            # the incident
VLLM = {"job": "vllm", "instance": "127.0.0.1:8000", "model_name": "m", "engine": "0"}
GATE = {"job": "vllm", "instance": "127.0.0.1:8000", "tier": "core"}


@pytest.fixture(scope="module")
def rules(run: Callable[..., CheckResult]) -> CheckResult:
    return run(FILES)


def test_they_check_with_one_warning(rules: CheckResult) -> None:
    assert [(f.file, f.code) for f in rules.findings if f.severity != "info"] == [
        ("fault_tolerant_policy.yaml", "histogram-base")
    ]
    assert {f.code for f in rules.findings if f.severity == "info"} == {"slo-policy"}
    assert rules.bundle is not None
    assert len(rules.policies) >= 18


def test_each_says_what_it_is_and_where_to_look(rules: CheckResult) -> None:
    runbooks = (shipped("rules") / ".." / "docs" / "runbooks.md")
    for policy in rules.policies:
        if policy.name.startswith("high_latency"):
            continue                                     # the compact form has no annotations
        notes = dict(policy.annotations)
        assert notes["summary"] and notes["description"]
        written = policy.slo.name if policy.slo else policy.name
        assert notes["runbook_url"] == f"docs/runbooks.md#{written}"
        if runbooks.is_file():                           # a checkout; the wheel has no docs
            assert f"## {written}\n" in runbooks.read_text(encoding="utf-8")


def test_the_compact_file_is_the_published_one(rules: CheckResult) -> None:
    policy = named(rules, "high_latency_99th")
    assert policy.trigger.expr == 'rate(http_request_duration_seconds{job="api"}[5m]) > 2.0'
    assert [a.type for a in policy.actions] == ["udf_call", "metric_emit"]
    assert policy.actions[0].udf is not None
    assert (policy.actions[0].udf.function, policy.actions[0].udf.timeout_ms) == (
        "fallback_to_cache", 3000
    )
    twin = named(rules, "high_latency_99th_corrected")
    assert "_bucket" in twin.trigger.expr
    assert [a.claims for a in twin.actions] == [a.claims for a in policy.actions]


def named(rules: CheckResult, name: str) -> Policy:
    return next(p for p in rules.policies if p.name == name)


# --- behaviour ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """A server's metrics over time; during the incident `bad` says what differs."""

    bad: dict[str, Callable[[int], float]]

    def at(self, t: int) -> dict[Labels, float]:
        """Return every series at second `t`."""
        values = {name: normal(t) for name, normal in NORMAL.items()}
        if t >= START_S:
            for name, course in self.bad.items():
                gauge = "_total" not in name and not name.startswith(TTFT)
                values[name] = NORMAL[name](t) if gauge and t >= END_S else course(t)
        return {_series(name): value for name, value in values.items()}


def _series(name: str) -> Labels:
    name, _, le = name.partition(" ")
    scope = GATE if name.startswith("resilience_gate") else VLLM
    return labels_of({**scope, "__name__": name, **({"le": le} if le else {})})


TTFT = "resilience_gate_ttft_seconds"
NORMAL: dict[str, Callable[[int], float]] = {
    "vllm:num_requests_running": lambda t: 3 + t % 2,
    "vllm:num_requests_waiting": lambda t: t % 2,
    "vllm:kv_cache_usage_perc": lambda t: 0.3 + t % 5 / 100,
    "vllm:generation_tokens_total": lambda t: 100.0 * t,
    "vllm:prompt_tokens_total": lambda t: 40.0 * t,
    "vllm:num_preemptions_total": lambda t: 2.0,
    f"{TTFT}_bucket 1.0": lambda t: 2.0 * t,
    f"{TTFT}_bucket +Inf": lambda t: 2.0 * t,
    f"{TTFT}_count": lambda t: 2.0 * t,
}
INCIDENTS: dict[str, tuple[World, int, int]] = {
    # policy: the world, seconds until it is true when scraped every second, and every 15 s
    "queue-growth": (
        World({"vllm:num_requests_waiting": lambda t: 4.0 * (t - START_S),
               "vllm:num_requests_running": lambda t: 16.0}), 4, 31,
    ),
    "kv-pressure": (World({"vllm:kv_cache_usage_perc": lambda t: 0.95}), 2, 16),
    "core-ttft-burn": (
        World({f"{TTFT}_bucket 1.0": lambda t: 2.0 * START_S,
               f"{TTFT}_bucket +Inf": lambda t: 2.0 * t, f"{TTFT}_count": lambda t: 2.0 * t}),
        11, 31,
    ),
    "stalled-engine": (
        World({"vllm:generation_tokens_total": lambda t: 100.0 * START_S,
               "vllm:prompt_tokens_total": lambda t: 40.0 * START_S}), 61, 76,
    ),
    "wedged-queue": (
        World({"vllm:num_requests_waiting": lambda t: 14.0,
               "vllm:prompt_tokens_total": lambda t: 40.0 * START_S}), 121, 136,
    ),
    "preemption-storm": (
        World({"vllm:num_preemptions_total": lambda t: 2.0 + 3.0 * (t - START_S)}), 12, 46,
    ),
}


def observed(
    expr: str, world: World, scrape_s: int, seconds: range, max_age_ms: int | None
) -> Iterator[tuple[int, list[tuple[Truth, Reason]]]]:
    """Yield second -> truths of the trigger, with samples scraped every `scrape_s` seconds."""
    store = MemoryStore(retention_ms=3_600_000)
    source = EmbeddedSource(store, scrape_s * 1000)
    plan = compile_trigger(expr)
    age_ms = max_age_ms or 3 * scrape_s * 1000
    for t in range(seconds.start - 240, seconds.stop):
        if t % scrape_s == 0:
            series = world.at(t)
            store.append(t * 1000, list(series), np.array(list(series.values())))
        if t in seconds:
            results = source.query(plan.queries, t * 1000, seq=store.seq, deadline_ms=1000)
            seen = observe(plan, results, t * 1000, age_ms)
            yield t, [(s.truth, s.reason) for s in seen.series]


@pytest.mark.parametrize("scrape_s", [1, 15])
@pytest.mark.parametrize("name", sorted(INCIDENTS))
def test_a_rule_sees_its_incident(rules: CheckResult, name: str, scrape_s: int) -> None:
    policy = named(rules, name)
    world, quick, slow = INCIDENTS[name]
    seconds = range(START_S - 30, END_S)
    first: int | None = None
    for t, truths in observed(
        policy.trigger.expr, world, scrape_s, seconds, policy.trigger.max_age_ms
    ):
        assert truths and Truth.UNKNOWN not in {truth for truth, _ in truths}, (t, truths)
        if any(truth is Truth.TRUE for truth, _ in truths):
            first = t if first is None else first
            assert t >= START_S
    assert first is not None
    assert first - START_S <= (quick if scrape_s == 1 else slow)


@pytest.mark.parametrize("scrape_s", [1, 15])
@pytest.mark.parametrize("name", sorted(INCIDENTS))
def test_a_rule_lets_go(rules: CheckResult, name: str, scrape_s: int) -> None:
    policy = named(rules, name)
    assert policy.trigger.resolve is not None
    world = INCIDENTS[name][0]
    if name not in ("queue-growth", "kv-pressure"):
        counters = {n: c for n, c in world.bad.items() if "total" in n or n.startswith(TTFT)}
        world = World({**world.bad, **{n: _after(n, c) for n, c in counters.items()}})
    last = END_S + 100
    truths = dict(observed(policy.trigger.resolve.expr, world, scrape_s, range(END_S, last), None))
    assert all(truth is Truth.TRUE for truth, _ in truths[last - 1])


def _after(name: str, course: Callable[[int], float]) -> Callable[[int], float]:
    """Return a counter that goes on at its normal pace from the end of the incident."""
    pace = NORMAL[name](1) - NORMAL[name](0)
    return lambda t: course(min(t, END_S)) + pace * max(0, t - END_S)


def test_no_traffic_ends_the_burn_and_silence_does_not(rules: CheckResult) -> None:
    policy = named(rules, "core-ttft-burn")
    assert policy.trigger.resolve is not None
    still = World({n: _constant(NORMAL[n](START_S)) for n in NORMAL if n.startswith(TTFT)})
    seen: dict[int, Any] = dict(
        observed(policy.trigger.resolve.expr, still, 1, range(START_S + 70, START_S + 75), None)
    )
    assert all(truth is Truth.TRUE for truths in seen.values() for truth, _ in truths)
    idle = dict(observed(policy.trigger.expr, still, 1, range(START_S + 70, START_S + 75), None))
    # No share can be told of no requests, but that none was slow can.
    assert {r for truths in idle.values() for _, r in truths} == {Reason.CLEAR}


def _constant(value: float) -> Callable[[int], float]:
    return lambda t: value
