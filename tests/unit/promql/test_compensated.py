"""Sums over one window are those of Prometheus to the last bit, however many samples it has."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from resilience.arrays import np
from resilience.promql.compensated import columns_total, mean_of, total_of

SHAPES: dict[str, Callable[[random.Random], float]] = {
    "a constant": lambda _: 0.175,
    "a gauge": lambda r: r.uniform(0.0, 1.0),
    "a counter": lambda r: float(r.randrange(10**9)),
    "what cancels": lambda r: r.choice((-1.0, 1.0)) * 10.0 ** r.randrange(-5, 17),
    "zeros of both signs": lambda r: r.choice((0.0, -0.0)),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("series", [1, 3])
def test_a_sum_along_the_columns_is_the_sum_in_order(shape: str, series: int) -> None:
    draw = random.Random(shape)
    for samples in range(1, 131):
        rows = [[SHAPES[shape](draw) for _ in range(samples)] for _ in range(series)]
        total, lost = columns_total(np.array(rows))
        means = total / samples + lost / samples
        assert _bits(total + lost) == _bits([total_of(row) for row in rows]), samples
        assert _bits(means) == _bits([mean_of(row) for row in rows]), samples


def test_a_late_term_of_an_odd_number_keeps_its_error() -> None:
    total, lost = columns_total(np.array([[-1e16, 0.0, 0.0, 0.0, 1e16, 1.0]]))
    assert total + lost == [1.0]


def _bits(values: object) -> bytes:
    return np.array(values, dtype=np.float64).tobytes()
