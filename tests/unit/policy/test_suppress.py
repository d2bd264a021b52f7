"""Comments that silence a warning need a code, an end and a reason."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from resilience.policy import suppress
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


BUCKET = GOOD.replace("no-comparison", "no-bucket")
RENAMED = GOOD.replace("no-comparison", "metric-renamed")


@pytest.mark.parametrize(
    ("lines", "codes"),
    [
        ([GOOD, RENAMED], []),
        ([RENAMED, GOOD], []),
        ([RENAMED, "a word of explanation", GOOD], []),
        ([RENAMED, "a word", "and another"], ["no-comparison"]),
        ([GOOD, RENAMED, BUCKET], ["ignore-unused"]),
        ([RENAMED.replace("ignore ", "ignore no-comparison, ")], []),
    ],
)
def test_all_comments_above_a_place_count(run: Run, lines: list[str], codes: list[str]) -> None:
    above = "\n".join(f"    # {line}" for line in lines)
    text = POLICY.replace("    # ABOVE", above).replace("  # BESIDE", "")
    text = text.replace("vllm:num_requests_waiting", "vllm:gpu_cache_usage_perc")
    assert sorted(f.code for f in run(text, today=TODAY).findings) == codes


def test_a_line_between_ends_what_stands_above(run: Run) -> None:
    text = POLICY.replace("# ABOVE", f"# {GOOD}\n\n    # x").replace("  # BESIDE", "")
    assert sorted(f.code for f in run(text).findings) == ["ignore-unused", "no-comparison"]


@pytest.mark.parametrize(
    "text",
    [
        'description: "a # resilience: ignore nothing"',
        "'a # resilience: ignore nothing': b",
        "description: |\n    # resilience: ignore nothing",
        "description: >-\n    first\n    # resilience: ignore no-bucket until 2030-12-31: x",
    ],
)
def test_what_stands_in_a_text_is_no_comment(run: Run, text: str) -> None:
    whole = POLICY.replace("{name: p}", f"\n  name: p\n  annotations:\n   {text}")
    bare = whole.replace("  # BESIDE", "")
    assert [f.code for f in run(bare).findings] == ["no-comparison"]
    beside = whole.replace("# BESIDE", f"# {GOOD}")
    assert not run(beside).findings


@pytest.mark.parametrize(
    ("expr", "codes"),
    [
        ("'x{a=\"# resilience: ignore what\"}'", ["metric-unknown", "no-comparison"]),
        (f"|\n      x{{a=\"# {GOOD}\"}}", ["metric-unknown", "no-comparison"]),
        (f"|\n      x  # {GOOD}", ["metric-unknown"]),
        (f"|\n      # {GOOD}\n      x", ["metric-unknown"]),
        (f"|  # {GOOD}\n      x", ["metric-unknown"]),
        (f"'x{{a=\"# {GOOD}\"}}'  # {GOOD}", ["metric-unknown"]),
    ],
)
def test_in_an_expression_only_comments_of_promql_count(
    run: Run, expr: str, codes: list[str]
) -> None:
    text = POLICY.replace("vllm:num_requests_waiting  # BESIDE", expr)
    assert sorted(f.code for f in run(text).findings) == codes


def test_many_documents_of_one_file_are_looked_at_once(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each document holds the text of its whole file."""
    read, files = suppress._read, list[str]()

    def counting(file: str, *more: Any) -> Any:
        files.append(file)
        return read(file, *more)

    monkeypatch.setattr(suppress, "_read", counting)
    small = "---\n".join(POLICY.replace("{name: p}", f"{{name: p{i}}}").replace("# ABOVE", "# x")
                          .replace("waiting  #", f"waiting{{a='{i}'}}  #") for i in range(300))
    found = run(small.replace("# BESIDE", f"# {GOOD}"), today=TODAY)
    assert len(found.policies) == 300 and not found.findings
    assert len(files) == 1


def test_errors_are_never_silenced(run: Run) -> None:
    text = POLICY.replace("ABOVE", "resilience: ignore promql-syntax until 2026-12-31: x").replace(
        "vllm:num_requests_waiting", "sum(")
    assert {f.code for f in run(text).findings} == {"promql-syntax", "ignore-unused"}


def test_without_a_date_nothing_expires(run: Run) -> None:
    text = POLICY.replace("ABOVE", GOOD.replace("2026", "2001")).replace("  # BESIDE", "")
    assert not run(text).findings
