"""How labels are written for people: as PromQL reads them, whatever their values hold."""

from __future__ import annotations

import pytest

from resilience.cli import timeline
from resilience.model import Finding
from resilience.promql.parser import parse


@pytest.mark.parametrize(("number", "text"), [
    (float("inf"), "+Inf"), (float("-inf"), "-Inf"), (float("nan"), "NaN"), (0.25, "0.25"),
    (12.0, "12"), (None, "-"), (3, "3"),
])
def test_values_are_written_as_in_prometheus(number: float | None, text: str) -> None:
    assert timeline.value(number) == text


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ({}, "{}"),
        ({"b": "2", "a": "1"}, '{a="1", b="2"}'),
        ({"a": 'q"u\\o\nte'}, r'{a="q\"u\\o\nte"}'),
        ({"a": "\x1b]0;title\x07red\x1b[31m"}, r'{a="\u001b]0;title\u0007red\u001b[31m"}'),
        ({"a": "\x9b31m\u202eb\u2028c\x85"}, r'{a="\u009b31m\u202eb\u2028c\u0085"}'),
        ({"service.name": "größe"}, '{"service.name"="größe"}'),
    ],
)
def test_labels_are_one_line_that_promql_reads(labels: dict[str, str], text: str) -> None:
    assert timeline.labels(labels) == text
    if labels:
        parse("m" + text)


def test_a_finding_names_a_file_without_what_a_terminal_obeys() -> None:
    found = Finding("a\x1b[31m\n\u202eb.yaml", 1, 2, "error", "type", "wrong")
    assert str(found) == r"a\x1b[31m\n\u202eb.yaml:1:2: error: wrong [type]"
