"""What one expression may cost: a count of samples that does not depend on who asked before."""

from __future__ import annotations

import numpy as np
import pytest

from resilience.errors import PromQLError
from resilience.promql import budget
from resilience.promql.evaluate import instant, range_queries, range_query
from resilience.promql.evaluation import Evaluation, Options
from resilience.promql.parser import parse
from resilience.promql.vector import Grid
from resilience.samples import labels_of
from resilience.sources.store import Group, MemoryStore

SERIES, SAMPLES = 12, 600
END_MS = SAMPLES * 1_000
HEAVY = "quantile_over_time(0.9, quantile_over_time(0.9, m[10m])[10m:1s])"


def store(apart: bool = False) -> MemoryStore:
    """12 series, one sample a second: in one group, or each in its own."""
    times = np.arange(1, SAMPLES + 1, dtype=np.int64) * 1_000
    labels = tuple(labels_of({"__name__": "m", "i": str(i)}) for i in range(SERIES))
    values = np.arange(SERIES * SAMPLES, dtype=np.float64).reshape(SERIES, SAMPLES)
    whole = Group(times, times, labels, values)
    if not apart:
        return MemoryStore.from_groups([whole])
    return MemoryStore.from_groups(
        [Group(times, times, labels[i : i + 1], values[i : i + 1]) for i in range(SERIES)]
    )


def cost(expr: str, apart: bool = False) -> int:
    evaluation = Evaluation(store(apart).view(), Grid(END_MS, END_MS, 0), Options())
    evaluation.value(parse(expr, experimental=True), evaluation.grid)
    return evaluation.budget.spent


def test_samples_of_all_windows_are_counted() -> None:
    of_series = SERIES * budget.SERIES_COST
    assert cost("m") == of_series + SERIES
    assert cost("sum_over_time(m[5m])") == 2 * of_series + SERIES * (300 + 1)
    assert cost("sum_over_time(m[5m]) + m") > cost("sum_over_time(m[5m])") + cost("m")
    assert cost("m + m") == 2 * cost("m") + of_series + SERIES


MANY = 4_000


@pytest.mark.parametrize(
    "expr",
    [
        'label_replace(m, "to", "' + "$1" * MANY + '", "i", "(.*)")',
        'label_replace(m, "to", "' + "$$" * MANY + '", "i", "(.*)")',
        'label_replace(m, "to", "' + "${i" * MANY + '", "i", "(.*)")',
        'label_join(m, "to", ""' + ', "i"' * MANY + ")",
        "sort_by_label(m" + ', "i"' * MANY + ")",
    ],
    ids=["groups", "dollars", "unclosed", "join", "sort"],
)
def test_pieces_of_labels_are_counted(expr: str) -> None:
    assert cost(expr) > SERIES * MANY * budget.SERIES_COST


def test_signs_do_not_multiply_what_an_expression_costs() -> None:
    assert cost("-" * 20 + "m") < 30 * cost("m")


@pytest.mark.parametrize("expr", [HEAVY, "sum(rate(m[5m]))", "sum_over_time(sum(m)[5m:10s])"])
def test_the_layout_makes_no_difference(expr: str) -> None:
    assert cost(expr) == cost(expr, apart=True)


def test_beyond_the_budget_an_expression_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "INSTANT_MAX", 1_000_000)
    view = store().view()
    results = instant([parse(e) for e in (HEAVY, "sum(m)", HEAVY)], view, END_MS)
    assert [bool(r.error) for r in results] == [True, False, True]
    assert results[0].error == results[2].error
    assert "more than 1000000 samples" in str(results[0].error)


def test_a_range_has_a_budget_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "RANGE_MAX", 1_000_000)
    view, plans = store().view(), [parse("sum(m)"), parse("stddev_over_time(m[10m])")]
    found = range_queries(plans, view, 0, END_MS, 1_000)
    assert not isinstance(found[0], PromQLError)
    assert isinstance(found[1], PromQLError)
    with pytest.raises(PromQLError, match="shorter ranges"):
        range_query(plans[1], view, 0, END_MS, 1_000)


def test_who_evaluated_it_first_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared part is paid for by each expression, however it was computed."""
    inner, outer = "rate(m[5m])", "max_over_time(sum(rate(m[5m]))[5m:1s])"
    grid = Grid(END_MS, END_MS, 0)
    alone = Evaluation(store().view(), grid, Options())
    alone.value(parse(outer), grid)
    after = Evaluation(store().view(), grid, Options())
    after.value(parse(f"max_over_time({inner}[5m:1s])"), grid)
    after.begin()
    after.value(parse(outer), grid)
    assert after.budget.spent == alone.budget.spent
