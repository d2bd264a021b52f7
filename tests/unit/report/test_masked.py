"""What a report shows of values that the configuration masks."""

from __future__ import annotations

import pytest

from resilience.model import Labels
from resilience.report.history import Holding
from resilience.report.masked import Shown


def shown(*values: str) -> Shown:
    made = Shown(labels=("tenant",))
    for value in values:
        made.of((("tenant", value),))
    return made


def held(scope: Labels) -> Holding:
    return Holding("p", "i", "0", "throttle.max_concurrency", scope, 4, 100, 0, 1)


@pytest.mark.parametrize(("values", "text", "expected"), [
    ((), "tenant=a1", "tenant=a1"),
    (("a1", "1"), "tenant=a1", "tenant=***1"),
    (("1", "a1"), "a1 and 1", "***2 and ***1"),
    (("a", "ab"), "ab a", "***2 ***1"),
    (("***", "2"), "*** of 2", "***1 of ***2"),
    (("a.c", "(x"), "abc a.c (x", "abc ***1 ***2"),
])
def test_values_in_a_text_are_masked_once(
    values: tuple[str, ...], text: str, expected: str
) -> None:
    assert shown(*values).text(text) == expected


def test_a_scope_is_masked_once_whether_by_its_axis_or_by_its_value() -> None:
    scope = (("model", "m-a1"), ("tenant", "a1"), ("tier", "core"))
    assert shown("a1", "1").holding(held(scope)).scope == (
        ("model", "m-***1"), ("tenant", "***1"), ("tier", "core"))
    assert shown().holding(held(scope)).scope == scope
