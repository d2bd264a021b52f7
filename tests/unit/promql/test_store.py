"""The memory store: what odd samples do, what a view sees, and that it stays bounded."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from resilience.model import Labels, labels_of
from resilience.promql.evaluate import instant
from resilience.promql.parser import parse
from resilience.promql.storage import STALE, Storage
from resilience.sources.ring import Ring
from resilience.sources.store import Group, MemoryStore


def names(*words: str) -> tuple[Labels, ...]:
    return tuple(labels_of({"__name__": w}) for w in words)


def values(view: Storage, expr: str, t_ms: int) -> dict[Labels, float]:
    result = instant([parse(expr)], view, t_ms)[0]
    assert result.error is None
    return {s.labels: s.value for s in result.samples}


def samples(store: MemoryStore, name: str, t_ms: int = 100_000) -> list[tuple[int, float]]:
    result = instant([parse(f"{name}[1h]")], store.view(), t_ms)[0]
    return [p for r in result.ranges for p in zip(r.times_ms, r.values, strict=True)]


def test_late_repeated_and_backward_samples_are_dropped_and_counted() -> None:
    store = MemoryStore()
    a = names("a")
    store.append(10_000, a, np.array([1.0]))
    store.append(20_000, a, np.array([2.0]))
    store.append(20_000, a, np.array([9.0]))  # the first sample of a timestamp stands
    store.append(15_000, a, np.array([9.0]))  # back in time
    store.append(30_000, a, np.array([3.0]))
    assert samples(store, "a") == [(10_000, 1.0), (20_000, 2.0), (30_000, 3.0)]
    assert store.dropped_samples == 2
    assert store.seq == 5


def test_two_batches_at_one_time_complete_each_other() -> None:
    store = MemoryStore()
    store.append(1_000, names("a", "b"), np.array([1.0, 2.0]))
    store.append(2_000, names("a"), np.array([3.0]))
    store.append(2_000, names("b", "a"), np.array([4.0, 9.0]))
    assert samples(store, "a") == [(1_000, 1.0), (2_000, 3.0)]
    assert samples(store, "b") == [(1_000, 2.0), (2_000, 4.0)]


def test_a_series_that_comes_later_has_no_earlier_samples() -> None:
    store = MemoryStore()
    store.append(1_000, names("a"), np.array([1.0]))
    store.append(2_000, names("a", "b"), np.array([2.0, 5.0]))
    store.append(3_000, names("b"), np.array([6.0]))
    assert samples(store, "a") == [(1_000, 1.0), (2_000, 2.0)]
    assert samples(store, "b") == [(2_000, 5.0), (3_000, 6.0)]
    assert values(store.view(), "count_over_time(b[10s])", 3_000) == {(): 2.0}


def test_a_view_sees_the_batches_up_to_its_seq_and_never_changes() -> None:
    store = MemoryStore()
    a = names("a")
    for i in range(5):
        store.append(i * 1_000, a, np.array([float(i)]))
    early, now = store.view(2), store.view()
    for i in range(5, 500):
        store.append(i * 1_000, a, np.array([float(i)]))
    assert values(early, "a", 1_500) == {a[0]: 1.0}
    assert values(early, "sum_over_time(a[1h])", 900_000) == {(): 1.0}
    assert values(now, "a", 4_000) == {a[0]: 4.0}
    assert values(store.view(5), "a", 4_000) == {a[0]: 4.0}
    assert values(store.view(), "a", 499_000) == {a[0]: 499.0}


def test_a_stale_marker_ends_a_series_until_it_comes_back() -> None:
    store = MemoryStore()
    a = names("a")
    for t, value in ((1_000, 1.0), (2_000, STALE), (4_000, 7.0)):
        store.append(t, a, np.array([value]))
    assert values(store.view(), "a", 1_500) == {a[0]: 1.0}
    assert values(store.view(), "a", 3_000) == {}
    assert values(store.view(), "a", 4_000) == {a[0]: 7.0}
    assert samples(store, "a") == [(1_000, 1.0), (4_000, 7.0)]


def test_a_nan_sample_is_a_sample() -> None:
    store = MemoryStore()
    a = names("a")
    store.append(1_000, a, np.array([math.nan]))
    assert math.isnan(values(store.view(), "a", 1_000)[a[0]])


def test_memory_is_bounded_by_retention() -> None:
    store = MemoryStore(retention_ms=60_000)
    batch = names(*(f"m{i}" for i in range(20)))
    for i in range(5_000):
        store.append(i * 1_000, batch, np.full(20, float(i)))
    group = store.groups()[0]
    assert len(group.times) == 61
    assert group.values.base is not None and group.values.base.shape[1] < 300
    assert samples(store, "m3", 4_999_000)[0] == (4_939_000, 4_939.0)


def test_series_beyond_the_bound_are_refused_until_old_ones_leave() -> None:
    store = MemoryStore(retention_ms=10_000, max_series=2)
    store.append(1_000, names("a", "b", "c"), np.array([1.0, 2.0, 3.0]))
    assert (store.series_count, store.dropped_series) == (2, 1)
    view = store.view()
    store.append(20_000, names("a"), np.array([4.0]))
    store.append(21_000, names("a", "d"), np.array([5.0, 6.0]))
    assert store.series_count == 2
    assert values(store.view(), "d", 21_000) == {names("d")[0]: 6.0}
    assert values(view, "b", 1_000) == {names("b")[0]: 2.0}


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_page_that_did_not_fit_has_its_place_when_others_have_left(kind: Any) -> None:
    """The scraper passes the same tuple again and again; a list is never known again."""
    store = MemoryStore(retention_ms=10_000, max_series=2)
    store.append(1_000, names("a", "b"), np.zeros(2))
    page = kind(names("c", "d"))
    for t_ms, dropped in (2_000, 2), (3_000, 4):
        store.append(t_ms, page, np.ones(2))
        assert store.dropped_series == dropped
    store.append(20_000, names("a"), np.zeros(1))
    store.append(21_000, page, np.full(2, 7.0))
    assert values(store.view(), "c", 21_000) == {names("c")[0]: 7.0}
    assert store.dropped_series == 5


def test_a_count_that_an_append_overtakes_changes_no_series(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = MemoryStore()
    written.append(1_000, names("a"), np.zeros(1))
    written.append(1_000, names("b"), np.zeros(1))
    store = MemoryStore.from_groups(written.groups())
    store.max_series = 10
    overtaken: list[Ring] = []

    def labels(ring: Ring) -> tuple[Labels, ...]:
        if ring.number == 1 and not overtaken:
            overtaken.append(ring)
            store.append(2_000, names("a", "new"), np.zeros(2))
        return ring.index.labels

    monkeypatch.setattr(Ring, "labels", property(labels))
    assert store.series_count in (2, 3) and overtaken
    store.append(3_000, names("a", "new"), np.zeros(2))
    held = [one for group in store.groups() for one in group.labels]
    assert sorted(held) == sorted(names("a", "b", "new"))
    assert store.series_count == 3


def test_the_same_labels_twice_in_one_batch_keep_the_first() -> None:
    store = MemoryStore()
    store.append(1_000, names("a", "a"), np.array([1.0, 2.0]))
    assert samples(store, "a") == [(1_000, 1.0)]


def test_a_batch_needs_a_value_for_each_series() -> None:
    with pytest.raises(ValueError, match="2 label sets need as many values"):
        MemoryStore().append(0, names("a", "b"), np.array([1.0]))


def test_groups_can_be_loaded_again() -> None:
    store = MemoryStore()
    store.append(1_000, names("a", "b"), np.array([1.0, 2.0]))
    store.append(2_000, names("a"), np.array([3.0]))
    store.append(3_000, names("b", "a"), np.array([STALE, 5.0]))
    again = MemoryStore.from_groups(store.groups())
    for expr in ("a[1h]", "b[1h]"):
        plan = parse(expr)
        assert instant([plan], again.view(), 9_000) == instant([plan], store.view(), 9_000)
    assert again.seq == store.seq
    assert values(again.view(1), "a", 9_000) == {names("a")[0]: 1.0}


def test_matchers_select_by_re2_fully_anchored() -> None:
    store = MemoryStore()
    batch = tuple(labels_of({"__name__": "m", "pod": p}) for p in ("a-1", "a-2", "b", "ü"))
    store.append(1_000, batch, np.array([0.0, 1.0, 2.0, 3.0]))
    view = store.view()
    assert len(values(view, 'm{pod=~"a"}', 1_000)) == 0
    assert len(values(view, 'm{pod=~"a.*"}', 1_000)) == 2
    assert len(values(view, 'm{pod=~"\\\\pL"}', 1_000)) == 2
    assert len(values(view, 'm{pod=~"[[:alpha:]]"}', 1_000)) == 1
    assert len(values(view, 'm{pod!~"a.*|b"}', 1_000)) == 1
    assert len(values(view, 'm{zone=""}', 1_000)) == 4
    assert len(values(view, '{__name__=~"m|n", pod!=""}', 1_000)) == 4
    assert len(values(view, 'm{pod=~"(a+)+$x"}', 1_000)) == 0


def test_groups_with_the_same_times_share_a_clock_until_one_goes_on() -> None:
    times, seqs = np.array([1_000, 2_000]), np.array([1, 2])
    store = MemoryStore.from_groups([
        Group(times, seqs, names("a"), np.array([[1.0, 2.0]])),
        Group(times, seqs, names("b"), np.array([[3.0, 4.0]])),
    ])
    a, b = (store.view().select(parse(n).matchers)[0] for n in "ab")  # type: ignore[attr-defined]
    assert a.clock == b.clock
    store.append(3_000, names("a"), np.array([5.0]))
    store.append(4_000, names("b"), np.array([6.0]))
    a, b = (store.view().select(parse(n).matchers)[0] for n in "ab")  # type: ignore[attr-defined]
    assert a.clock != b.clock
    assert samples(store, "a")[-1] == (3_000, 5.0)
