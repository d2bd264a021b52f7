"""Lanes, unions, folds and thinning of time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from resilience.report.spans import Lane, Span, folded, only, thinned, union_ms

RANK = ("firing", "held", "pending", "inactive")


def _lane(*changes: tuple[int, str], end_ms: int) -> list[Span]:
    lane = Lane(0, "inactive")
    for t_ms, what in changes:
        lane.put(t_ms, what)
    return lane.spans(end_ms)


def test_a_lane_keeps_changes_only() -> None:
    assert _lane((5, "inactive"), (10, "firing"), (10, "held"), (30, "inactive"), end_ms=40) == [
        Span(0, 10, "inactive"), Span(10, 30, "held"), Span(30, 40, "inactive"),
    ]


def test_a_lane_that_ends_at_its_last_change_has_nothing_after_it() -> None:
    assert _lane((10, "firing"), end_ms=10) == [Span(0, 10, "inactive")]


def test_time_that_two_cover_counts_once() -> None:
    spans = [Span(0, 10, "a"), Span(5, 15, "a"), Span(20, 30, "a"), Span(22, 24, "a")]
    assert union_ms(spans) == 25
    assert union_ms([]) == 0


def test_the_strongest_of_all_lanes_shows() -> None:
    one = _lane((10, "pending"), (20, "firing"), (30, "inactive"), end_ms=50)
    two = _lane((25, "held"), (40, "inactive"), end_ms=50)
    assert folded([one, two], RANK, "inactive") == [
        Span(0, 10, "inactive"), Span(10, 20, "pending"), Span(20, 30, "firing"),
        Span(30, 40, "held"), Span(40, 50, "inactive"),
    ]


changes = st.lists(st.tuples(st.integers(1, 500), st.sampled_from(RANK)), max_size=60)


@given(changes, st.integers(1, 20))
def test_thinned_spans_are_few_and_lose_no_strongest_word(
    found: list[tuple[int, str]], most: int
) -> None:
    spans = _lane(*sorted(found, key=lambda c: c[0]), end_ms=600)
    thin = thinned(spans, most, RANK)
    assert thin == spans if len(spans) <= most else len(thin) <= most
    assert (thin[0].start_ms, thin[-1].end_ms) == (0, 600)
    strongest = min(RANK.index(s.what) for s in spans)
    assert any(RANK.index(s.what) == strongest for s in thin)
    assert union_ms(only(thin, "firing")) >= union_ms(only(spans, "firing"))


@given(changes, changes)
def test_a_fold_covers_the_whole_time_without_gaps(
    one: list[tuple[int, str]], two: list[tuple[int, str]]
) -> None:
    lanes = [_lane(*sorted(c, key=lambda x: x[0]), end_ms=600) for c in (one, two)]
    fold = folded(lanes, RANK, "inactive")
    assert fold[0].start_ms == 0
    assert fold[-1].end_ms == 600
    assert all(a.end_ms == b.start_ms for a, b in zip(fold, fold[1:], strict=False))
    firing = [s for lane in lanes for s in only(lane, "firing")]
    assert union_ms(only(fold, "firing")) == union_ms(firing)
