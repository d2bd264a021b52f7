"""Curves: the sides of a comparison, and thinning that keeps extremes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.promql.parser import parse
from resilience.report.lines import SERIES_MAX, Thinner, comparisons, extremes, label_text


@pytest.mark.parametrize(("expr", "sides"), [
    ("a > 5", [("a", ">", "5")]),
    ("5 < a", [("a", ">", "5")]),
    ("rate(a[1m]) / rate(b[1m]) >= 0.5 and c > 1",
     [("rate(a[1m]) / rate(b[1m])", ">=", "0.5"), ("c", ">", "1")]),
    ("a > b", [("a", ">", "b")]),
    ("absent(a)", [("absent(a)", None, None)]),
])
def test_sides_of_a_trigger(
    expr: str, sides: list[tuple[str, str | None, str | None]]
) -> None:
    found = comparisons(parse(expr))
    assert [(c.value.text, c.op, c.threshold.text if c.threshold else None) for c in found] == sides


@given(st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(float("nan"))), min_size=1, max_size=80),
       st.integers(1, 20))
def test_extremes_keep_every_peak(values: list[float], per: int) -> None:
    row = np.array(values)
    low, high = extremes(row, per)
    for bucket in range(len(low)):
        part = row[bucket * per : (bucket + 1) * per]
        part = part[~np.isnan(part)]
        if len(part):
            assert (low[bucket], high[bucket]) == (part.min(), part.max())
        else:
            assert np.isnan(low[bucket])
            assert np.isnan(high[bucket])


def test_blocks_join_and_too_many_series_are_counted() -> None:
    thin = Thinner(per=2, buckets=4)
    labels = [(("n", str(i)),) for i in range(SERIES_MAX + 3)]
    values = np.array([[0.0, 1.0, 2.0, 3.0]] * len(labels))
    thin.add(0, labels, values, None)
    thin.add(4, labels, np.array([[4.0, 5.0, 6.0, 7.0]] * len(labels)), None)
    lines = thin.lines(lambda labels: labels)
    assert len(lines) == SERIES_MAX
    assert len(thin.others) == 3
    assert lines[0].low.tolist() == [0, 2, 4, 6]
    assert lines[0].high.tolist() == [1, 3, 5, 7]


def test_a_threshold_that_moves_is_no_constant() -> None:
    thin = Thinner(per=1, buckets=2)
    thin.add(0, [()], np.array([[1.0, 2.0]]), None)
    assert thin.constant() is None
    still = Thinner(per=1, buckets=2)
    still.add(0, [()], np.array([[3.0, 3.0]]), None)
    assert still.constant() == 3.0


def test_labels_are_written_as_promql_does() -> None:
    assert label_text((("__name__", "up"), ("a", 'x"y'))) == 'up{a="x\\"y"}'
    assert label_text(()) == "value"
