"""promtool's notation for series, value for value."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import yaml

from resilience.policy.notation import NotationError, is_stale, parse_labels, parse_values

N = None
CORPUS = Path(os.environ.get("RESILIENCE_CORPUS") or
              Path(__file__).resolve().parents[4] / "shared" / "corpus")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1 2 3", (1, 2, 3)),
        ("  1\t2\n3 ", (1, 2, 3)),
        ("1x3", (1, 1, 1, 1)),
        ("0x2", (0, 0, 0)),
        ("1x0", (1,)),
        ("_", (N,)),
        ("_x3", (N, N, N)),
        ("_x0 1", (1,)),
        ("1 _ 3", (1, N, 3)),
        ("0+10x3", (0, 10, 20, 30)),
        ("5-1x2", (5, 4, 3)),
        ("-2+4x3", (-2, 2, 6, 10)),
        ("-1-2x1", (-1, -3)),
        ("+1", (1,)),
        ("1.5e1+.5x1", (15, 15.5)),
        ("1e-3x1", (0.001, 0.001)),
        ("Inf -Inf +Inf", (math.inf, -math.inf, math.inf)),
        ("1+1x2 7", (1, 2, 3, 7)),
        ("1_000 1_0+1_0x1", (1000, 10, 20)),
        ("0+0.1x3", (0, 0.1, 0.2, 0.1 + 0.1 + 0.1)),       # by addition, as promtool rounds
    ],
)
def test_values(text: str, values: tuple[float | None, ...]) -> None:
    assert parse_values(text) == values


def test_nan_and_stale_are_two_things() -> None:
    nan, *stale = parse_values("NaN stalex1")
    assert nan is not None and math.isnan(nan) and not is_stale(nan)
    assert [is_stale(v) for v in stale] == [True, True]


@pytest.mark.parametrize(
    ("text", "offset", "message"),
    [
        ("1 1+1", 2, "says how to go on"),
        ("1,2", 0, "is not a value"),
        ("1 2 three", 4, "is not a value"),
        ("1*3", 0, "is not a value"),
        ("{{schema:0}}", 0, "native histograms"),
        ("", 0, "no values"),
        ("1x99999999", 0, "more than"),
        ("1x" + "9" * 5_000, 0, "more than"),
        ("1 1e400", 2, "larger than any float"),
        ("1+1e999x2", 0, "larger than any float"),
        ("1__0", 0, "is not a value"),
        ("1x", 0, "is not a value"),
        ("stale+1x2", 0, "is not a value"),
        ("_+1x2", 0, "is not a value"),
    ],
)
def test_what_is_no_value(text: str, offset: int, message: str) -> None:
    with pytest.raises(NotationError, match=message) as caught:
        parse_values(text)
    assert caught.value.offset == offset


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("up", {"__name__": "up"}),
        ('a:b{x="1", y="two"}', {"__name__": "a:b", "x": "1", "y": "two"}),
        ('{__name__="up", job="j"}', {"__name__": "up", "job": "j"}),
        ('up{job=""}', {"__name__": "up"}),
        ('up{path="a\\"b"}', {"__name__": "up", "path": 'a"b'}),
    ],
)
def test_labels(text: str, labels: dict[str, str]) -> None:
    assert dict(parse_labels(text)) == labels


@pytest.mark.skipif(not CORPUS.is_dir(), reason="no corpus: set RESILIENCE_CORPUS")
def test_every_series_of_published_rule_tests_is_read() -> None:
    found = 0
    for file in sorted((CORPUS / "yaml").glob("*test*.yaml")):
        for document in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            for test in (document.get("tests") or []) if isinstance(document, dict) else []:
                for item in test.get("input_series", []) if isinstance(test, dict) else []:
                    assert parse_labels(item["series"])
                    assert parse_values(str(item["values"]))
                    found += 1
    assert found > 50


@pytest.mark.parametrize(
    "text", ["up[5m]", "sum(up)", 'up{job=~"a"}', '{job="a"}', "up{", "up offset 5m", "1", ""]
)
def test_what_is_no_series(text: str) -> None:
    with pytest.raises(NotationError):
        parse_labels(text)
