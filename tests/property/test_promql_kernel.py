"""The compiled kernel and NumPy agree to the last bit on ranges, also over awkward samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.promql import kernel
from resilience.promql.aggregate import numbered
from resilience.promql.evaluate import RangeResult, range_query
from resilience.promql.parser import parse
from resilience.samples import Labels, labels_of
from resilience.sources.store import Group, MemoryStore

pytestmark = pytest.mark.skipif(kernel.COMPILED is None, reason="the optional kernel is not built")

SERIES = 3
EXPRESSIONS = (
    "rate(m[{r}])", "increase(m[{r}] offset -30s)", "deriv(m[{r}])", "predict_linear(m[{r}], 90)",
    "quantile_over_time(0.9, m[{r}])", "quantile_over_time(0, m[{r}])", "resets(m[{r}])",
    "sum_over_time(m[{r}])", "avg_over_time(m[{r}])", "stdvar_over_time(m[{r}])",
    "max_over_time(m[{r}])", "sum(rate(m[{r}] @ 600))", "sum(increase(m[{r}]))", "count(m)",
    "sum by (s) (last_over_time(m[{r}]))", "avg without (s) (rate(m[{r}]))",
)
# Tiny ones lose bits, so that a test with some room must leave them to the exact one.
AWKWARD = (0.0, -0.0, 5e-324, 1e-310, 3e-300, -1.0, float("nan"), 1e15 + 1)
steps_ms = st.sampled_from((1, 14_960, 15_000, 15_040, 61_000, 400_000))


@pytest.fixture(autouse=True)
def _both() -> Iterator[None]:
    yield
    kernel.use(True)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    gaps = draw(st.lists(steps_ms, min_size=1, max_size=70))
    times = np.cumsum(np.array(gaps, dtype=np.int64))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = (SERIES, len(times))
    unit = draw(st.sampled_from((1.0, 0.1, 7e-320)))
    values = np.cumsum(rng.integers(0, 9, shape) * unit, axis=1)
    falls = rng.random(shape) < draw(st.sampled_from((0.0, 0.05, 0.5)))
    values = np.where(falls, rng.integers(0, 3, shape) * 1.0, values)
    odd = rng.random(shape) < draw(st.sampled_from((0.0, 0.05, 0.3)))
    values = np.where(odd, rng.choice(AWKWARD, shape), values)
    labels = tuple(labels_of({"__name__": "m", "s": str(i)}) for i in range(SERIES))
    seqs = np.arange(1, len(times) + 1, dtype=np.int64)
    return Group(times, seqs, labels, values)


@settings(max_examples=200)
@given(groups(), st.sampled_from(EXPRESSIONS), st.sampled_from(("20s", "1m", "5m", "1h")),
       st.sampled_from((1_000, 15_000, 60_000)))
def test_ranges(group: Group, expr: str, length: str, step_ms: int) -> None:
    plan = parse(expr.format(r=length))
    found: list[RangeResult] = []
    for compiled in (True, False):
        kernel.use(compiled)
        view = MemoryStore.from_groups([group]).view()
        found.append(range_query(plan, view, 0, 80 * step_ms, step_ms))
    a, b = found
    assert a.labels == b.labels
    there = np.ones(a.values.shape, bool) if a.present is None else a.present
    assert np.array_equal(there, np.ones_like(there) if b.present is None else b.present)
    assert np.array_equal(a.values[there], b.values[there], equal_nan=True), plan.text


NAMES: tuple[str, ...] = ("__name__", "__type__", "a", "b", "ü", "le")
TEXTS: tuple[str, ...] = ("1", "2", "x" * 200)
_names = st.sampled_from(NAMES)
_label_sets = st.lists(
    st.lists(
        st.tuples(_names, st.sampled_from(TEXTS)), max_size=5, unique_by=lambda pair: pair[0]
    ).map(labels_of),
    max_size=9,
)


@given(_label_sets, st.frozensets(_names), st.booleans())
def test_groups(label_sets: list[Labels], names: frozenset[str], without: bool) -> None:
    found = []
    for compiled in (True, False):
        kernel.use(compiled)
        found.append(numbered(label_sets, names, without))
    assert found[0] == found[1]
    groups, numbers = found[0]
    assert sorted(set(numbers)) == list(range(len(groups)))


@pytest.mark.parametrize(
    ("label_sets", "names", "size"),
    [
        ([(("a", "1"),)], frozenset("a"), 2), ([()], ["a"], 1), (7, frozenset(), 0),
        ([None], frozenset(), 1), ([("a",)], frozenset(), 1), ([(("a",),)], frozenset(), 1),
        ([(([], "1"),)], frozenset("a"), 1), ([((["a"], "1"),)], frozenset(), 1),
    ],
)
def test_groups_of_what_is_no_label_set(label_sets: Any, names: Any, size: int) -> None:
    assert kernel.COMPILED is not None
    with pytest.raises((ValueError, TypeError)):
        kernel.COMPILED.grouped(label_sets, names, True, np.empty(size, np.int64))
