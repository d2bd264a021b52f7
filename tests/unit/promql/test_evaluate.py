"""The evaluator's calls: many plans at once, errors apart, limits, explanations."""

from __future__ import annotations

import numpy as np
import pytest

from resilience.errors import PromQLError
from resilience.model import labels_of
from resilience.promql import vector
from resilience.promql.evaluate import instant, range_query
from resilience.promql.evaluation import Options
from resilience.promql.failing import located, place_of
from resilience.promql.parser import parse
from resilience.promql.plan import Node
from resilience.promql.rewrite import at_time
from resilience.promql.signatures import SIGNATURES
from resilience.promql.storage import Storage
from resilience.promql.streaming import OPERATIONS
from resilience.promql.vector import Grid, Value
from resilience.sources.store import MemoryStore


@pytest.fixture(scope="module")
def view() -> Storage:
    store = MemoryStore()
    labels = tuple(
        labels_of({"__name__": "c_total", "i": str(i), "le": le})
        for i in range(3) for le in ("1", "2", "+Inf")
    )
    for k in range(400):
        values = [float(k * (i + 1) * j) for i in range(3) for j in (1, 2, 3)]
        store.append(k * 1_000, labels, np.array(values))
    return store.view()


def test_one_failing_plan_leaves_the_others(view: Storage) -> None:
    bad, good = instant([parse("topk(NaN, c_total)"), parse("sum(c_total)")], view, 399_000)
    assert bad.error == "Parameter value is NaN" and bad.samples == ()
    assert good.error is None and good.samples[0].value == 399.0 * 6 * 6


FAILURES = [
    # (expression, line, column, what the message holds)
    ("topk(NaN, c_total)", 1, 1, "NaN"),
    ("sum(c_total) + sum(topk(NaN, c_total))", 1, 20, "NaN"),
    ("c_total + on () c_total", 1, 9, "many-to-many"),
    ("sum(c_total) and\n  sum(c_total * ignoring (i, le) c_total)", 2, 15, "many-to-many"),
    ("1 + (2 * (c_total == on (i) c_total))", 1, 19, "many-to-many"),
    ("c_total / on (i) group_left () c_total", 1, 9, "many-to-many"),
    ('sum(label_replace(c_total, "i", "x", "", ""))', 1, 5, "same labelset"),
    ('-label_join(c_total, "i", "", "le")', 1, 2, "same labelset"),
    ('abs(c_total) or abs(label_replace({i="1"}, "le", "", "", ""))', 1, 21, "same labelset"),
    ("max_over_time((c_total + on () c_total)[1m:10s])", 1, 24, "many-to-many"),
    ('c_total + on () c_total{i="0"} > 0 or topk(NaN, c_total)', 1, 9, "many-to-many"),
    ("sum_over_time(vector(1)[1h:1ms])", 1, 1, "subquery has more than"),
]


@pytest.mark.parametrize(("expr", "line", "column", "words"), FAILURES)
def test_an_evaluation_error_has_the_place_of_what_failed(
    view: Storage, expr: str, line: int, column: int, words: str
) -> None:
    plan = parse(expr)
    answer = instant([plan], view, 399_000)[0]
    assert words in (answer.error or "")
    assert place_of(expr, answer.failed) == (line, column)
    with pytest.raises(PromQLError, match=words) as caught:
        range_query(plan, view, 300_000, 399_000, 33_000)
    error = located(caught.value, expr)
    assert (error.line, error.column) == (line, column)


def test_equal_subexpressions_are_evaluated_once(view: Storage) -> None:
    seen: list[str] = []

    def observer(node: Node, value: Value, grid: Grid) -> None:
        seen.append(node.text)

    expr = "sum(rate(c_total[1m])) / sum(rate(c_total[1m])) + sum by () (rate(c_total[1m]))"
    range_query(parse(expr), view, 100_000, 300_000, 10_000, observer=observer)
    assert seen.count("rate(c_total[1m])") == 1
    assert seen.count("sum(rate(c_total[1m]))") == 1


@pytest.mark.parametrize("op", sorted(OPERATIONS))
def test_what_is_aggregated_as_it_comes_is_what_is_aggregated_as_a_whole(
    view: Storage, op: str
) -> None:
    """Who watches an evaluation gets it node by node; nobody else may get other values."""
    names = [n for n, s in SIGNATURES.items() if s.args == ("matrix",) and not s.experimental]
    assert {"absent_over_time", "rate"} <= set(names)
    for name in names:
        plan = parse(f"{op}({name}(c_total[30s]))")
        watched = range_query(plan, view, 300_000, 500_000, 10_000, observer=lambda *_: None)
        assert repr(range_query(plan, view, 300_000, 500_000, 10_000)) == repr(watched), name


def test_kinds_of_answers(view: Storage) -> None:
    plans = [parse(e) for e in ("c_total", "time()", '"text"', "c_total[3s]", "c_total[20s:10s]")]
    vector, scalar, text, matrix, subquery = instant(plans, view, 399_000)
    assert (vector.kind, len(vector.samples)) == ("vector", 9)
    assert [s.labels for s in vector.samples] == sorted(s.labels for s in vector.samples)
    assert (scalar.kind, scalar.samples[0].value) == ("scalar", 399.0)
    assert (text.kind, text.text) == ("string", "text")
    assert (matrix.kind, matrix.ranges[0].times_ms) == ("matrix", (397_000, 398_000, 399_000))
    assert subquery.ranges[0].times_ms == (380_000, 390_000)


def test_a_ranking_keeps_its_order(view: Storage) -> None:
    top = instant([parse('topk(3, c_total{le="1"})')], view, 399_000)[0]
    assert [s.value for s in top.samples] == [1197.0, 798.0, 399.0]
    up = instant([parse('sort(c_total{le="1"})')], view, 399_000)[0]
    assert [s.value for s in up.samples] == [399.0, 798.0, 1197.0]


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        ("c_total / on () c_total", "found duplicate series for the match group {}"),
        ("c_total * on (i) group_left () c_total", "many-to-many matching not allowed"),
        ('c_total{le="1"} / on () group_left (zone) c_total{le="1"}', "many-to-many"),
        ('label_replace(c_total, "i", "x", "i", ".*")', "the same labelset"),
        ('label_replace(c_total, "i", "$1", "i", "(")', "invalid regular expression"),
        ('label_join(c_total, "", "-", "i")', "invalid destination label name"),
        ("bottomk(1e300, c_total)", "overflows int64"),
        ('count_values("", c_total)', "invalid label name"),
    ],
)
def test_evaluation_errors_are_answers(view: Storage, expr: str, message: str) -> None:
    result = instant([parse(expr)], view, 399_000)[0]
    assert result.error is not None and message in result.error
    with pytest.raises(PromQLError, match="."):
        range_query(parse(expr), view, 100_000, 399_000, 10_000)


def test_group_left_of_one_series_each(view: Storage) -> None:
    expr = 'c_total{le="1"} / on (i) group_left (le) c_total{le="2"}'
    result = instant([parse(expr)], view, 399_000)[0]
    assert [(dict(s.labels), s.value) for s in result.samples] == [
        ({"i": str(i), "le": "2"}, 0.5) for i in range(3)
    ]


@pytest.mark.parametrize(
    ("plan", "start", "end", "step", "kind"),
    [
        ("c_total[5m]", 0, 10_000, 1_000, "type"), ('"x"', 0, 10_000, 1_000, "type"),
        ("c_total", 0, 10_000, 0, "evaluation"), ("c_total", 10_000, 0, 1_000, "evaluation"),
        ("c_total", 0, 10**12, 1, "evaluation"),
        ("sum_over_time(c_total[100y:1ms])", 0, 10_000, 1_000, "evaluation"),
    ],
)
def test_ranges_are_checked(
    view: Storage, plan: str, start: int, end: int, step: int, kind: str
) -> None:
    with pytest.raises(PromQLError) as caught:
        range_query(parse(plan), view, start, end, step)
    assert caught.value.kind == kind


def test_a_result_has_a_bound(view: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector, "CELLS_MAX", 50)
    with pytest.raises(PromQLError, match="9 series at 11 steps are more than 50 values"):
        range_query(parse("c_total"), view, 0, 10_000, 1_000)


def test_look_back_is_an_option(view: Storage) -> None:
    plan = parse("count(c_total)")
    assert len(instant([plan], view, 450_000, 60_000)[0].samples) == 1
    assert len(instant([plan], view, 450_000, 51_000)[0].samples) == 0  # left-open
    assert len(instant([plan], view, 450_000, options=Options(lookback_ms=1_000))[0].samples) == 0


def test_fixed_in_time_gives_the_same_anywhere(view: Storage) -> None:
    plan = parse("sum(rate(c_total[1m] offset 10s)) + sum_over_time(sum(c_total)[1m:10s])")
    fixed = at_time(plan, 200_000)
    assert fixed.text.count("@ 200.000") == 2
    there = instant([plan], view, 200_000)[0].samples
    assert instant([fixed], view, 390_000)[0].samples == there


def test_very_high_plans_do_not_break_the_stack(view: Storage) -> None:
    expr = " or ".join(["c_total"] * 150)
    assert instant([parse(expr)], view, 399_000)[0].error is None


def test_nested_label_functions_cannot_make_endless_values() -> None:
    """Thirty doublings of one value would need 200 GB."""
    store = MemoryStore()
    store.append(0, (labels_of({"__name__": "m", "j": "a" * 200}),), np.ones(1))
    replaced = "label_replace(" * 30 + "m" + ', "j", "$1$1", "j", "(.*)")' * 30
    joined = "label_join(" * 30 + "m" + ', "j", "", "j", "j")' * 30
    for result in instant([parse(replaced), parse(joined)], store.view(), 0):
        assert result.error == "a label value would have more than 65536 characters"


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("vector(-Inf) ^ 0.5", "inf"), ("vector(-0) ^ 0.5", "0.0"), ("vector(4) ^ 0.5", "2.0"),
        ("vector(-4) ^ 0.5", "nan"), ("0.5 ^ vector(-Inf)", "inf"), ("vector(-0) ^ -1", "-inf"),
    ],
)
def test_powers_are_those_of_go(view: Storage, expr: str, expected: str) -> None:
    (result,) = instant([parse(expr)], view, 60_000)
    assert str(result.samples[0].value) == expected


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("clamp_max(vector(-Inf), NaN)", "-inf"), ("clamp_min(vector(+Inf), NaN)", "inf"),
        ("clamp_max(vector(+Inf), NaN)", "nan"), ("clamp_min(vector(-Inf), NaN)", "nan"),
        ("clamp_max(vector(NaN), -Inf)", "-inf"), ("clamp_min(vector(NaN), 1)", "nan"),
        ("clamp_max(vector(0), -0)", "-0.0"), ("clamp_min(vector(-0), 0)", "0.0"),
        ("clamp_max(vector(-0), 0)", "-0.0"), ("clamp(vector(5), 1, 3)", "3.0"),
    ],
)
def test_clamps_are_those_of_go(view: Storage, expr: str, expected: str) -> None:
    (result,) = instant([parse(expr)], view, 60_000)
    assert str(result.samples[0].value) == expected
