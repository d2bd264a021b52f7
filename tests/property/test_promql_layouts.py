"""The same samples give the same answers: as a live ring or as loaded groups, at one time or as a
step of a range, with the compiled kernel or without."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from resilience.errors import PromQLError  # noqa: E402
from resilience.model import Labels, QueryResult  # noqa: E402
from resilience.promql import kernel  # noqa: E402
from resilience.promql.evaluate import instant, range_query  # noqa: E402
from resilience.promql.parser import parse  # noqa: E402
from resilience.promql.storage import ABSENT, Storage, is_absent  # noqa: E402
from resilience.sources.store import MemoryStore  # noqa: E402
from tests.differential import data, generator  # noqa: E402

TIMES = [data.START_MS + s * 1_000 for s in (900, 1_777, 2_345, 3_500)]


def live(loaded: MemoryStore) -> MemoryStore:
    """Replay a loaded store batch by batch; a batch has only the series that have a sample."""
    store = MemoryStore(retention_ms=10**12)
    batches: list[tuple[int, tuple[Labels, ...], np.ndarray]] = []
    for group in loaded.groups():
        for column, t in enumerate(group.times.tolist()):
            values = np.ascontiguousarray(group.values[:, column])
            there = ~is_absent(values)
            labels = tuple(x for x, keep in zip(group.labels, there.tolist(), strict=True) if keep)
            batches.append((t, labels, values[there]))
    for t, labels, values in sorted(batches, key=lambda b: b[0]):
        store.append(t, labels, values)
    return store


@pytest.fixture(scope="module")
def loaded() -> MemoryStore:
    return data.store_of(data.family())


@pytest.fixture(scope="module")
def ring(loaded: MemoryStore) -> MemoryStore:
    return live(loaded)


@pytest.fixture(autouse=True)
def kernel_on() -> Iterator[None]:
    yield
    kernel.use(True)


def points(result: QueryResult) -> dict[Labels, float] | None:
    return None if result.error is not None else {s.labels: s.value for s in result.samples}


def same(a: dict[Labels, float] | None, b: dict[Labels, float] | None) -> bool:
    if a is None or b is None or a.keys() != b.keys():
        return a is None and b is None
    return all(a[k] == b[k] or (math.isnan(a[k]) and math.isnan(b[k])) for k in a)


def stable(expr: str) -> bool:
    """Whether ties, order or rounding cannot decide the answer."""
    return not any(w in expr for w in ("topk", "bottomk", "std", "% ", "^", "tan", "sin", "cos"))


SEEDS = st.integers(0, 2**32)


def drawn(seed: int) -> str:
    return generator.expression(random.Random(seed).choice)


@settings(max_examples=150)
@given(SEEDS)
def test_ring_and_groups_agree(loaded: MemoryStore, ring: MemoryStore, seed: int) -> None:
    expr = drawn(seed)
    plan = parse(expr, experimental=True)
    for t in TIMES:
        a, b = (points(instant([plan], s.view(), t)[0]) for s in (loaded, ring))
        assert not stable(expr) or same(a, b), f"{expr} at {t}"


@settings(max_examples=150)
@given(SEEDS)
def test_an_instant_is_a_step_of_a_range(loaded: MemoryStore, seed: int) -> None:
    expr = drawn(seed)
    plan = parse(expr, experimental=True)
    if "start()" in expr or "end()" in expr or not stable(expr):
        return
    view: Storage = loaded.view()
    step = 77_000
    try:
        found = range_query(plan, view, TIMES[0], TIMES[0] + 9 * step, step)
    except PromQLError:
        return
    for k in (0, 4, 9):
        wanted = points(instant([plan], view, TIMES[0] + k * step)[0])
        got = {
            labels: float(found.values[i, k]) for i, labels in enumerate(found.labels)
            if found.present is None or found.present[i, k]
        }
        assert wanted is not None and same(wanted, got), f"{expr} at step {k}"


@pytest.mark.skipif(kernel.COMPILED is None, reason="the optional kernel is not built")
@settings(max_examples=150)
@given(SEEDS)
def test_the_kernel_changes_nothing(loaded: MemoryStore, seed: int) -> None:
    expr = drawn(seed)
    plan = parse(expr, experimental=True)
    answers: list[list[object]] = []
    for compiled in (True, False):
        kernel.use(compiled)
        results = [instant([plan], loaded.view(), t)[0] for t in TIMES[:2]]
        answers.append([points(r) for r in results])
    for a, b in zip(*answers, strict=True):
        assert not stable(expr) or same(a, b), expr


def test_absent_cells_are_not_samples(loaded: MemoryStore) -> None:
    assert math.isnan(float(ABSENT))
    view = loaded.view()
    found = instant([parse("count_over_time(sparse[1h])")], view, TIMES[-1])[0]
    assert all(0 < s.value < 240 for s in found.samples)
