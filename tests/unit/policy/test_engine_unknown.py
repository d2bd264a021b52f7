"""What nobody can say while the Engine document has errors of its own is not said."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resilience.model import Capabilities, KnobCapability
from resilience.policy.check import CheckResult

Run = Callable[..., CheckResult]
Policy = Callable[..., str]
HEAD = "apiVersion: resilience/v1\nkind: Engine\nmetadata: {name: e}\nspec: "
SPEC = "{enable_features: [promql-experimental-functions], scrape: {interval: 5s%s}}"
ENGINE = f"{HEAD}{SPEC}\n---\n"
FINE, BROKEN = ENGINE % "", ENGINE % ", jb: x"
EXPERIMENTAL = "mad_over_time(vllm:num_requests_waiting[5m]) > 5"


def codes(result: CheckResult) -> list[str]:
    return sorted(f.code for f in result.findings)


def test_a_broken_engine_document_may_allow_experimental_functions(
    run: Run, policy: Policy
) -> None:
    assert codes(run(policy(EXPERIMENTAL))) == ["promql-unsupported"]
    assert codes(run(FINE + policy(EXPERIMENTAL))) == []
    assert codes(run(BROKEN + policy(EXPERIMENTAL))) == ["unknown-field"]


@pytest.mark.parametrize("engine", [FINE, BROKEN])
def test_a_policy_with_errors_is_read_with_what_the_engine_document_enables(
    run: Run, policy: Policy, engine: str
) -> None:
    """Wherever the Engine document stands: here it is the last."""
    text = policy(EXPERIMENTAL, spec="  modee: enforce\n")
    found = codes(run({"a.yaml": text, "b.yaml": engine}))
    assert found == ["unknown-field"] * (1 if engine == FINE else 2)


def test_how_often_a_broken_engine_document_scrapes_is_not_known(
    run: Run, policy: Policy
) -> None:
    text = policy("rate(vllm:num_preemptions_total[3s]) > 5")
    aged = text.replace("on_no_data: hold", "on_no_data: hold, max_age: 1s")
    assert codes(run(FINE + aged)) == ["short-max-age", "short-window"]
    assert codes(run(BROKEN + aged)) == ["unknown-field"]


def test_the_belts_of_a_broken_engine_document_are_not_known(run: Run, policy: Policy) -> None:
    knobs = {"throttle.max_concurrency": KnobCapability("gate", capacity=64.0)}
    server = Capabilities("vllm", "0.32", knobs)
    text = policy(actions="[{type: throttle, max_concurrency: 1}]")
    assert codes(run(FINE + text, capabilities=server)) == ["safety-clip"]
    assert codes(run(BROKEN + text, capabilities=server)) == ["unknown-field"]


def test_a_broken_engine_document_may_scrape_often_enough_for_an_objective(run: Run) -> None:
    text = (
        "apiVersion: resilience/v1\nkind: SLO\nmetadata: {name: s}\nspec:\n  objective: 99%\n"
        "  window: 3h\n  indicator: {latency: {histogram: vllm:time_to_first_token_seconds,"
        " threshold: 500ms, measures: first_token}}\n  load: {rate: {max: 10}}\n"
        "  alerts: {fast: {actions: [{type: throttle, max_concurrency: 8}]}}\n"
    )
    assert "slo-window" in codes(run(FINE.replace("5s", "60s") + text))
    assert codes(run(BROKEN.replace("5s", "60s") + text)) == ["slo-policy", "unknown-field"]
