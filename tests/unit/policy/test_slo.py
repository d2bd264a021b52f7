"""kind: SLO: what it expands to, for any window, and every objective that no metric can prove."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from resilience.gate.metrics import (
    QUEUE_BUCKETS_S,
    REQUEST_BUCKETS_S,
    TOKEN_BUCKETS_S,
    TTFT_BUCKETS_S,
)
from resilience.model import Policy, format_duration
from resilience.policy import histograms
from resilience.policy.check import CheckResult
from resilience.policy.codes import CODES
from resilience.policy.slo_burn import Burn, burn_of
from resilience.promql.parser import parse

Run = Callable[..., CheckResult]
DAY_MS = 86_400_000
ACTIONS = [{"type": "throttle", "tier": "best-effort", "max_concurrency": 4}]
RATIO = {"ratio": {"bad": 'resilience_gate_requests_total{outcome="error"}',
                   "total": "resilience_gate_requests_total"}}
LATENCY = {"latency": {"histogram": "resilience_gate_ttft_seconds", "measures": "first_token",
                       "threshold": "1s"}}


def slo(**changes: Any) -> str:
    """Return an SLO that is fine, with `changes` to its spec; None takes a field out."""
    spec: dict[str, Any] = {
        "objective": "99.9%", "window": "30d", "indicator": RATIO, "exclusions": [],
        "load": {"rate": {"min": 0.1, "max": 50}}, "alerts": {"fast": {"actions": ACTIONS}},
        **changes,
    }
    document = {
        "apiVersion": "resilience/v1", "kind": "SLO",
        "metadata": {"name": "answers", "annotations": {"runbook_url": "docs/slo.md"}},
        "spec": {k: v for k, v in spec.items() if v is not None},
    }
    return yaml.safe_dump(document, sort_keys=False)


def policies(result: CheckResult) -> dict[str, Policy]:
    assert result.bundle is not None, result.findings
    return {p.name: p for p in result.policies}


# --- burn rates ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window_ms", "severity", "expected"),
    [
        (30 * DAY_MS, "fast", Burn(14.4, 3_600_000, 300_000)),
        (30 * DAY_MS, "medium", Burn(6.0, 21_600_000, 1_800_000)),
        (30 * DAY_MS, "slow", Burn(1.0, 259_200_000, 21_600_000)),
        (7 * DAY_MS, "fast", Burn(14.4, 840_000, 70_000)),
        (28 * DAY_MS, "medium", Burn(6.0, 20_160_000, 1_680_000)),
        (DAY_MS, "slow", Burn(1.0, 8_640_000, 720_000)),
    ],
)
def test_the_paces_of_the_workbook_at_any_window(
    window_ms: int, severity: str, expected: Burn
) -> None:
    assert burn_of(severity, {}, window_ms) == expected


def test_a_pace_can_be_said_in_three_ways() -> None:
    assert burn_of("fast", {"long": "2h"}, 30 * DAY_MS) == Burn(7.2, 7_200_000, 600_000)
    assert burn_of("page", {"long": "1h", "budget": "5%", "short": "10m"}, 30 * DAY_MS) == Burn(
        36.0, 3_600_000, 600_000
    )
    assert burn_of("floor", {"long": "10m", "burn": 5}, 30 * DAY_MS) == Burn(5.0, 600_000, 50_000)


@pytest.mark.parametrize(
    ("severity", "raw", "lacks"),
    [
        ("page", {"burn": 5}, "needs `long`"),
        ("page", {"long": "1h"}, "needs `budget` or `burn`"),
        ("fast", {"burn": 5, "budget": "2%"}, "not both"),
        ("fast", {"long": "40d"}, "above the objective's own window"),
        ("fast", {"short": "2h"}, "not below `long`"),
    ],
)
def test_what_a_pace_may_lack(severity: str, raw: dict[str, Any], lacks: str) -> None:
    assert lacks in str(burn_of(severity, raw, 30 * DAY_MS))


# --- what it expands to --------------------------------------------------------------------------


def test_each_alert_is_a_policy_that_says_where_it_comes_from(run: Run) -> None:
    recovery = {"steps": ["50%", "100%"], "every": "1m"}
    alerts = {"fast": {"actions": ACTIONS, "priority": 80, "recovery": recovery},
              "floor": {"long": "10m", "burn": 5, "actions": ACTIONS, "mode": "shadow"}}
    result = run(slo(alerts=alerts, tier="core", on_missing_metric="warn"))
    assert [f.code for f in result.findings] == ["slo-policy"] * 2
    fast, floor = policies(result)["answers-fast"], policies(result)["answers-floor"]
    assert (fast.priority, fast.mode, floor.mode, fast.on_missing_metric) == (
        80, "enforce", "shadow", "warn"
    )
    assert fast.recovery is not None and fast.recovery.every_ms == 60_000
    assert fast.slo is not None and fast.slo.to_json() == {
        "name": "answers", "objective": "99.9%", "window_ms": 30 * DAY_MS, "severity": "fast",
        "burn": 14.4, "long_ms": 3_600_000, "short_ms": 300_000,
    }
    assert dict(fast.annotations)["summary"].startswith("SLO answers: {{ $value }}")
    assert (fast.interval_ms, floor.interval_ms) == (15_000, 5_000)
    assert fast.line < floor.line


def test_both_windows_burn_at_a_load_that_is_promised(run: Run) -> None:
    fast = policies(run(slo()))["answers-fast"]
    total = "sum by (instance) (rate(resilience_gate_requests_total[{}]))"
    bad = 'sum by (instance) (rate(resilience_gate_requests_total{{outcome="error"}}[{}]))'
    share = f"({bad} or 0 * {total}) / {total}".replace("{}", "{0}")
    expected = (
        f"{share.format('1h')} > 14.4 * 0.001 and on (instance) {share.format('5m')} > "
        f"14.4 * 0.001 and on (instance) {total.format('5m')} >= 0.1 and on (instance) "
        f"{total.format('5m')} <= 50"
    )
    assert parse(fast.trigger.expr).text == parse(expected).text
    assert fast.trigger.resolve is not None
    assert parse(fast.trigger.resolve.expr).text == parse(
        f"{share.format('5m')} < 0.001 or on (instance) {total.format('5m')} == 0"
    ).text
    assert fast.trigger.on_no_data == "hold"


def test_a_latency_reads_the_bucket_whoever_wrote_its_bound(run: Run) -> None:
    fast = policies(run(slo(indicator=LATENCY, tier="core")))["answers-fast"]
    assert 'resilience_gate_ttft_seconds_bucket{tier="core", le=~"1|1\\\\.0"}' in fast.trigger.expr
    assert "sum by (instance, tier)" in fast.trigger.expr
    half = {"latency": {**LATENCY["latency"], "threshold": "500ms"}}
    fast = policies(run(slo(indicator=half, by=["job", "tier"])))["answers-fast"]
    assert 'le="0.5"' in fast.trigger.expr and "sum by (job, tier)" in fast.trigger.expr


def test_exclusions_last_until_the_short_window_has_forgotten_them(run: Run) -> None:
    exclusions = [
        {"type": "warm_start", "for": "3m"}, {"type": "weight_reload"},
        {"type": "when", "expr": "vllm:num_requests_running > 90"},
    ]
    expr = policies(run(slo(exclusions=exclusions)))["answers-fast"].trigger.expr
    assert "unless on (instance) time() - max by (instance) (process_start_time_seconds) < 480" \
        in expr
    assert '(min_over_time(vllm:engine_sleep_state{sleep_state="awake"}[7m])) < 1' in expr
    assert "count(count_over_time((vllm:num_requests_running > 90)[5m:1m])) > 0" in expr


def test_the_size_of_the_input_is_a_load_condition(run: Run) -> None:
    load = {"prompt_tokens": {"max": 2000}}
    expr = policies(run(slo(indicator=LATENCY, load=load)))["answers-fast"].trigger.expr
    assert "rate(vllm:request_prompt_tokens_sum[5m])" in expr and "<= 2000" in expr


def test_a_good_counter_and_an_escalation(run: Run) -> None:
    indicator = {"ratio": {"good": 'resilience_gate_requests_total{outcome="ok"}',
                           "total": "resilience_gate_requests_total"}}
    alerts = {"fast": {"actions": ACTIONS, "escalation": [
        {"after": "5m", "actions": [{"type": "cache_degrade", "max_running": 8}]}]}}
    fast = policies(run(slo(indicator=indicator, alerts=alerts)))["answers-fast"]
    assert fast.trigger.expr.startswith("1 - (sum by")
    assert fast.escalation[0].actions[0].key == "e0.0"


# --- what no metric can prove --------------------------------------------------------------------

CPU = {"latency": {"histogram": "process_cpu_seconds", "measures": "end_to_end",
                   "threshold": "150ms", "buckets": [0.15]}}
QUEUE = {"latency": {"histogram": "vllm:request_queue_time_seconds", "measures": "end_to_end",
                     "threshold": "500ms"}}
GAUGE = {"latency": {"histogram": "vllm:kv_cache_usage_perc", "measures": "queue",
                     "threshold": "1s", "buckets": [1]}}
ODD = {"latency": {**LATENCY["latency"], "threshold": "1200ms"}}
OWN = {"latency": {"histogram": "my_seconds", "measures": "queue", "threshold": "1s"}}
NO_TIER = {"latency": {"histogram": "vllm:e2e_request_latency_seconds", "measures": "end_to_end",
                       "threshold": "1s"}}
BOTH = {**RATIO, **LATENCY}


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"objective": "100%"}, "slo-objective", "not between 0 and 100 %"),
        ({"objective": 1}, "slo-objective", "`1`"),
        ({"objective": 0}, "slo-objective", "missed at once or never"),
        ({"objective": "99.9999999999%"}, "slo-objective", "in a thousand million"),
        ({"objective": 0.9999999999999999}, "slo-objective", "in a thousand million"),
        ({"objective": "-5%"}, "slo-objective", "`-5%`"),
        ({"objective": "three nines"}, "slo-objective", "write a share below 1"),
        ({"window": None}, "slo-no-window", "spec.window is missing"),
        ({"indicator": LATENCY, "load": None}, "slo-no-load", "at which rate or input size"),
        ({"indicator": LATENCY, "load": {"rate": {}}}, "slo-no-load", "load condition"),
        ({"load": {"rate": {"min": 9, "max": 2}}}, "slo-no-load", "no rate is both"),
        ({"exclusions": None}, "slo-no-exclusions", "whether starts and reloads count"),
        ({"exclusions": [{"type": "when"}]}, "slo-exclusion", "spec.exclusions[0]"),
        ({"exclusions": [{"type": "warm_start", "expr": "up"}]}, "slo-exclusion", "`type: when`"),
        ({"indicator": CPU}, "slo-measure", "is CPU time"),
        ({"indicator": QUEUE}, "slo-measure", "measures the time in the queue"),
        ({"indicator": GAUGE}, "slo-measure", "is a gauge"),
        ({"indicator": ODD}, "slo-bucket", "the nearest end at 1s and 1s500ms"),
        ({"indicator": OWN}, "slo-bucket", "buckets of `my_seconds` end"),
        ({"indicator": NO_TIER, "tier": "core"}, "slo-no-tier", "does not tell tiers apart"),
        ({"tier": "cores"}, "unknown-tier", "did you mean `core`?"),
        ({"indicator": BOTH}, "slo-indicator", "one of `ratio` and `latency`"),
        ({"indicator": {}}, "slo-indicator", "one of `ratio` and `latency`"),
        ({"indicator": {"ratio": {"total": "up"}}}, "slo-indicator", "one of `good` and `bad`"),
        ({"indicator": {"ratio": {"bad": "rate(up[1m])", "total": "up"}}}, "slo-indicator",
         "no plain selector"),
        ({"indicator": {"ratio": {"bad": "up{", "total": "up"}}}, "promql-syntax", "ratio.bad"),
        ({"alerts": {}}, "slo-alert", "nothing is ever done"),
        ({"alerts": {"page": {"actions": ACTIONS}}}, "slo-alert", "spec.alerts.page needs `long`"),
        ({"objective": "90%"}, "slo-burn", "only 10 times too fast, and it waits for 14.4"),
        ({"window": "10m"}, "slo-window", "holds fewer than 4 scrapes of 1s"),
        ({"exclusions": [{"type": "when", "expr": "up ="}]}, "promql-syntax", "exclusions[0].expr"),
        ({"alerts": {"fast": {"actions": [{"type": "throtle"}]}}}, "unknown-action",
         "did you mean `throttle`?"),
    ],
)
def test_it_is_an_error(run: Run, changes: dict[str, Any], code: str, says: str) -> None:
    result = run(slo(**changes))
    assert result.bundle is None and not result.policies
    errors = [f for f in result.errors if f.code == code]
    assert errors, result.findings
    assert any(says in f"{f.message}; {f.suggestion}" for f in errors), errors
    assert all(f.line > 1 for f in errors if code != "slo-no-window")


def test_findings_stand_where_the_mistake_is(run: Run) -> None:
    text = slo(indicator=ODD, alerts={"fast": {"actions": [
        {"type": "throttle", "tier": "gold", "max_concurrency": 4}]}})
    lines = text.splitlines()
    places = {f.code: lines[f.line - 1].strip() for f in run(text).errors}
    assert places["slo-bucket"] == "threshold: 1200ms"
    right = run(text.replace("1200ms", "1500ms"))
    (finding,) = right.errors
    assert (finding.code, lines[finding.line - 1].strip()) == ("unknown-tier", "tier: gold")


def test_the_scrape_of_the_source_decides_which_window_is_too_short(run: Run) -> None:
    day = slo(window="2d")
    assert policies(run(day))["answers-fast"].interval_ms == 1_000 * 5
    (finding,) = run(day, scrape_interval_ms=15_000).errors
    assert finding.code == "slo-window"


@pytest.mark.parametrize(("pace", "codes"), [
    ({"budget": "3%", "long": "3d"}, ["slo-early"]), ({"burn": 0.5, "long": "1h"}, ["slo-early"]),
    ({"burn": 1, "long": "1h"}, []), ({"budget": "10%", "long": "3d"}, []),
])  # fmt: skip
def test_an_alert_that_fires_within_the_objective_is_a_warning(
    run: Run, pace: dict[str, Any], codes: list[str]
) -> None:
    result = run(slo(alerts={"slow": {"actions": ACTIONS, "short": "5m", **pace}}))
    assert result.bundle is not None
    assert [f.code for f in result.findings if f.code == "slo-early"] == codes


@pytest.mark.parametrize("objective", ["99.9999999%", "99.999%", "50%"])
def test_a_strict_objective_can_be_met_again(run: Run, objective: str) -> None:
    alerts = {"own": {"actions": ACTIONS, "burn": 1, "long": "1h"}}
    found = policies(run(slo(objective=objective, alerts=alerts)))["answers-own"]
    assert found.trigger.resolve is not None and "< 0\n" not in found.trigger.resolve.expr


def test_a_window_beyond_the_embedded_store_is_a_warning(run: Run) -> None:
    result = run(slo(alerts={"slow": {"actions": ACTIONS}}))
    assert [f.code for f in result.findings if f.severity == "warning"] == ["slo-retention"]
    engine = "---\napiVersion: resilience/v1\nkind: Engine\nmetadata: {name: e}\nspec:\n" \
        "  prometheus: {url: 'http://127.0.0.1:9090'}\n"
    result = run(slo(alerts={"slow": {"actions": ACTIONS}}) + engine)
    assert [f.severity for f in result.findings] == ["info"]


def test_a_policy_of_the_same_name_is_an_error(run: Run, policy: Callable[..., str]) -> None:
    result = run({"a.yaml": slo(), "b.yaml": policy(name="answers-fast")})
    assert [f.code for f in result.errors] == ["duplicate-name"]
    twice = run({"a.yaml": slo(), "b.yaml": slo(alerts={"medium": {"actions": ACTIONS}})})
    assert "SLO name `answers` is used twice, first at a.yaml:4" in twice.errors[0].message


def test_the_pages_say_what_is_so(run: Run) -> None:
    docs = Path(__file__).resolve().parents[3] / "docs"
    page = (docs / "slo.md").read_text(encoding="utf-8")
    shown = page.split("```yaml\n")[1].split("```")[0]
    assert {f.severity for f in run(shown).findings} == {"info"}
    for name, budget in (("fast", "2 %"), ("medium", "5 %"), ("slow", "10 %")):
        burn = burn_of(name, {}, 30 * DAY_MS)
        assert isinstance(burn, Burn)
        row = (f"| `{name}` | {budget} | {format_duration(burn.long_ms)} | "
               f"{format_duration(burn.short_ms)} | {burn.factor:g} |")
        assert row in page
    runbooks = (docs / "runbooks.md").read_text(encoding="utf-8")
    for anchor in re.findall(r"runbooks\.md#([a-z0-9-]+)", (docs / "incidents.md").read_text()):
        assert f"\n## {anchor}\n" in runbooks
    assert {c for c in CODES if c.startswith("slo-")} - {"slo-policy"} <= set(
        re.findall(r"slo-[a-z-]+", page))


def test_the_bounds_are_those_of_the_gate() -> None:
    known = histograms.known()
    assert known["resilience_gate_ttft_seconds"].bounds_s == TTFT_BUCKETS_S
    assert known["resilience_gate_request_seconds"].bounds_s == REQUEST_BUCKETS_S
    assert known["resilience_gate_queue_seconds"].bounds_s == QUEUE_BUCKETS_S
    assert known["resilience_gate_time_per_token_seconds"].bounds_s == TOKEN_BUCKETS_S


def test_the_bounds_are_those_of_the_vllm_that_is_here() -> None:
    known = histograms.known()
    spec = importlib.util.find_spec("vllm")
    file = Path(next(iter((spec and spec.submodule_search_locations) or ["/nowhere"])),
                "v1/metrics/buckets.py")
    if not file.is_file():
        pytest.skip("no vLLM with a table of buckets is installed")
    there: dict[str, Any] = {}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), there)  # imports no vLLM
    assert known["vllm:time_to_first_token_seconds"].bounds_s == \
        there["TIME_TO_FIRST_TOKEN_BUCKETS"]
    assert known["vllm:inter_token_latency_seconds"].bounds_s == \
        there["INTER_TOKEN_LATENCY_BUCKETS"]
    assert known["vllm:e2e_request_latency_seconds"].bounds_s == there["REQUEST_LATENCY_BUCKETS"]
