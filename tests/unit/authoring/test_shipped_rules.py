"""Every shipped rule has a test, and nothing of it is left untested."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.app.policy_tests import Report, run_tests
from resilience.app.policy_tests_compare import Failure
from resilience.shipped import shipped

RULES = Path(str(shipped("rules")))


@pytest.fixture(scope="module")
def report() -> Report:
    return run_tests([RULES])


def test_all_hold(report: Report) -> None:
    failed: list[tuple[str, Failure]] = [(r.name, f) for r in report.results for f in r.failures]
    assert failed == []
    assert report.findings == ()
    assert report.passed


def test_nothing_is_left_untested(report: Report) -> None:
    assert {p.policy: p.missing for p in report.coverage.policies if p.missing} == {}
    assert report.coverage.percent == 100


def test_a_test_lies_beside_each_policy(report: Report) -> None:
    policies = {Path(p.file).name for p in report.coverage.policies}
    tests = {Path(f).name for f in report.files}
    assert tests == {name.replace(".yaml", ".test.yaml") for name in policies}
