"""Rules about the policy around its expressions: actions, stages, data rules, characters."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resilience.policy.check import CheckResult

Run = Callable[..., CheckResult]
Policy = Callable[..., str]


@pytest.mark.parametrize("character", ["\u202e", "\u00a0", "\u200b", "\u2066", "\u00ad"])
def test_deceptive_characters(run: Run, policy: Policy, character: str) -> None:
    (finding,) = run(policy(f"up {character}== 0")).findings
    assert finding.severity == "error"
    assert f"U+{ord(character):04X}" in finding.message
    assert finding.message.isprintable()


@pytest.mark.parametrize(
    ("spec", "codes"),
    [
        ("", ["no-lease", "no-resolve", "no-runbook"]),
        ("  mode: shadow\n", []),
        ("  mode: off\n", ["yaml-ambiguous"]),
        ("  mode: 'off'\n", []),
    ],
)
def test_disruptive_actions(run: Run, policy: Policy, spec: str, codes: list[str]) -> None:
    text = policy(actions="[{type: fallback_model, to: small}]", spec=spec)
    assert sorted(f.code for f in run(text).findings) == codes


def test_no_data_must_not_disrupt(run: Run, policy: Policy) -> None:
    text = policy(actions="[{type: reset_prefix_cache}]").replace("hold", "fire")
    assert "no-data-fires" in {f.code for f in run(text).findings}


def test_a_max_age_below_two_scrapes(run: Run, policy: Policy) -> None:
    text = policy().replace("hold,", "hold, max_age: 20s,")
    assert not run(text).findings
    (finding,) = run(text, scrape_interval_ms=15_000).findings
    assert (finding.code, finding.suggestion) == ("short-max-age", "use at least `45s`")


@pytest.mark.parametrize(
    ("stage", "weak"),
    [
        ("{type: throttle, max_concurrency: 9}", True),
        ("{type: throttle, max_concurrency: 8}", True),
        ("{type: throttle, max_concurrency: 4}", False),
        ("{type: throttle, tier: core, max_concurrency: 9}", False),
        ("{type: cache_degrade, max_running: 9}", False),
    ],
)
def test_a_stage_must_be_stronger(run: Run, policy: Policy, stage: str, weak: bool) -> None:
    text = policy(spec=f"  escalation: [{{after: 1m, actions: [{stage}]}}]\n")
    assert ("escalation-no-effect" in {f.code for f in run(text).findings}) is weak


def test_a_template_needs_its_label(run: Run, policy: Policy) -> None:
    notes = "metadata: {name: p, annotations: {summary: 'at {{ $labels.pod }}, {{ $value }}'}}"
    text = policy("sum by (job) (up) == 0").replace("metadata: {name: p}", notes)
    (finding,) = run(text).findings
    assert finding.code == "template-label"
    assert not run(text.replace("by (job)", "by (pod)")).findings
    assert not run(text.replace("sum by (job) (up)", "up")).findings
