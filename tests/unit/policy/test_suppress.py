"""Comments that silence a warning need a code, an end and a reason."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date

import pytest

from resilience.policy.check import CheckResult

Run = Callable[..., CheckResult]
TODAY = date(2026, 11, 29)
POLICY = """\
apiVersion: resilience/v1
kind: Policy
metadata: {name: p}
spec:
  trigger:
    # ABOVE
    expr: vllm:num_requests_waiting  # BESIDE
    on_no_data: hold
  actions: [{type: throttle, max_concurrency: 8}]
"""
GOOD = "resilience: ignore no-comparison until 2026-12-31: any waiting request counts"


@pytest.mark.parametrize(
    ("above", "beside", "codes"),
    [
        ("", "", ["no-comparison"]),
        (GOOD, "", []),
        ("", GOOD, []),
        ("resilience: ignore no-bucket, no-comparison until 2026-12-31: x", "", []),
        (GOOD.replace("comparison", "bucket"), "", ["ignore-unused", "no-comparison"]),
        (GOOD.replace("2026-12-31", "2026-11-28"), "", ["ignore-expired", "no-comparison"]),
        (GOOD.replace("2026-12-31", "2026-11-29"), "", []),
        (GOOD.replace("2026-12-31", "2026-13-31"), "", ["ignore-malformed", "no-comparison"]),
        ("resilience: ignore no-comparison", "", ["ignore-malformed", "no-comparison"]),
        ("resilience: ignore no-comparison until 2026-12-31", "", ["ignore-malformed",
                                                                   "no-comparison"]),
        ("resilience: ignore no-comparision until 2026-12-31: x", "", ["ignore-malformed",
                                                                       "no-comparison"]),
    ],
)
def test_comments(run: Run, above: str, beside: str, codes: list[str]) -> None:
    text = POLICY.replace("ABOVE", above).replace(
        "# BESIDE", f"# {beside}" if beside else "")
    assert sorted(f.code for f in run(text, today=TODAY).findings) == codes


def test_errors_are_never_silenced(run: Run) -> None:
    text = POLICY.replace("ABOVE", "resilience: ignore promql-syntax until 2026-12-31: x").replace(
        "vllm:num_requests_waiting", "sum(")
    assert {f.code for f in run(text).findings} == {"promql-syntax", "ignore-unused"}


def test_without_a_date_nothing_expires(run: Run) -> None:
    text = POLICY.replace("ABOVE", GOOD.replace("2026", "2001")).replace("  # BESIDE", "")
    assert not run(text).findings
