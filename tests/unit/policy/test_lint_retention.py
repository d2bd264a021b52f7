"""What the engine's own store forgets before an expression asks for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resilience.policy.check import CheckResult
from resilience.promql.parser import parse
from resilience.promql.reach import spans

Run = Callable[..., CheckResult]
Policy = Callable[..., str]
CODE = "beyond-retention"
ENGINE = (
    "apiVersion: resilience/v1\nkind: Engine\nmetadata: {{name: engine}}\nspec:\n  {spec}\n"
)
WAITING = "vllm:num_requests_waiting"
HALF = f"{WAITING} < 0.5 * ({WAITING} offset 90m)"


def codes(result: CheckResult) -> list[str]:
    return [f.code for f in result.findings if f.code == CODE]


@pytest.mark.parametrize(
    ("expr", "said"),
    [
        (HALF, "reads samples from 1h30m ago, and without a Prometheus the engine keeps them for "
         "1h: it finds nothing"),
        (f"{WAITING} < 0.5 * ({WAITING} offset 1h)", "from 1h ago"),
        ("rate(vllm:prompt_tokens_total[1h] offset 2d) > 5", "from 2d ago"),
        (f"avg_over_time({WAITING}[2w]) > 5", "reads 14d back, and without a Prometheus the engine "
         "keeps samples for 1h: it is judged over less"),
        (f"max_over_time(avg_over_time({WAITING}[40m])[30m:1m]) > 5", "reads 1h10m back"),
        (f"max_over_time(({WAITING} offset 40m)[30m:1m] offset 10m) > 5", "reads 1h20m back"),
        (f"{WAITING} > ({WAITING} @ 1700000000)", "reads a fixed time"),
        (f"avg_over_time({WAITING}[1h]) > 5", None),
        ("avg_over_time(rate(vllm:prompt_tokens_total[5m])[1h:1m]) > 5", None),
        (f"{WAITING} < 0.5 * ({WAITING} offset 55m)", None),
        (f"max_over_time(({WAITING} offset -10m)[65m:1m] offset 10m) > 5", None),
        (f"max_over_time(({WAITING} offset -10m)[65m:1m]) > 5", "reads 10m ahead of its time"),
        (f"{WAITING} offset -5m > 5", "reads 5m ahead of its time: there is nothing yet"),
        (f"{WAITING} > avg_over_time({WAITING}[30m] @ end())", None),
    ],
)
def test_reaching_back(run: Run, policy: Policy, expr: str, said: str | None) -> None:
    found = [f for f in run(policy(expr)).findings if f.code == CODE]
    assert [f.severity for f in found] == (["warning"] if said else [])
    assert all(said in f.message for f in found if said)


@pytest.mark.parametrize(
    ("spec", "warned"),
    [
        ("scrape: {retention: 10m}", True),
        ("scrape: {retention: 2h}", False),
        ("prometheus: {url: 'http://127.0.0.1:9090'}", False),
        ("prometheus: {url: 'http://127.0.0.1:9090'}\n  scrape: {retention: 10m}", False),
        ("scrape: {retentoin: 2h}", False),                  # nobody can say yet
    ],
)
def test_it_depends_on_who_keeps_the_samples(
    run: Run, policy: Policy, spec: str, warned: bool
) -> None:
    files = {"p.yaml": policy(HALF), "engine.yaml": ENGINE.format(spec=spec)}
    assert codes(run(files)) == ([CODE] if warned else [])
    assert codes(run(files, remote=True)) == []


@pytest.mark.parametrize(
    "spec",
    [
        f"  verify: {{within: 2m, expr: '{HALF}'}}\n",
        f"  guard: {{expr: '{HALF}'}}\n",
    ],
)
def test_every_condition_is_looked_at(run: Run, policy: Policy, spec: str) -> None:
    assert codes(run(policy(f"{WAITING} > 20", spec=spec))) == [CODE]


def test_resolve_and_the_queries_of_a_function_are_looked_at(run: Run, policy: Policy) -> None:
    text = policy(f"{WAITING} > 20", f"[{{type: udf_call, function: fallback_to_cache, metrics: "
                  f"{{old: '{WAITING} offset 2h'}}}}]")
    assert codes(run(text)) == [CODE]
    resolve = f"on_no_data: hold, resolve: {{expr: '{HALF}'}}"
    assert codes(run(policy(f"{WAITING} > 20").replace("on_no_data: hold", resolve))) == [CODE]


def test_spans_add_up_and_a_fixed_time_begins_anew() -> None:
    plan = parse("max_over_time((x[1m] offset 2m)[10m:1m] offset 5m) > x @ start()"
                 .replace("(x[1m] offset 2m)", "rate(x[1m] offset 2m)"))
    assert [(s.near_ms // 60_000, s.far_ms // 60_000, s.fixed) for s in spans(plan)] == [
        (7, 18, False), (0, 0, False)]
    assert [s.fixed for s in spans(parse("max_over_time(x[5m:1m] @ 100)"))] == [True]
