"""How imported series group, and what stands where two say different things."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.promql.storage import is_absent
from resilience.sources.importers import import_paths, save
from resilience.sources.recording import read
from resilience.sources.recording_format import Group
from resilience.sources.series import group_series, infer_interval, merge_series
from tests.unit.sources.imported import name, points, series, write


def test_missing_metrics_are_reported_and_kept_in_the_recording(tmp_path: Path) -> None:
    path = write(tmp_path, "a 1 1764430000\n# EOF\n")
    summary = save(tmp_path / "r", import_paths([path]), needed=frozenset({"a", "b"}))
    assert summary.missing == ("b",)
    assert read(tmp_path / "r").warnings == ("no samples of `b`",)


def test_series_of_one_target_share_a_group_although_one_came_late() -> None:
    own = {"job": "j", "instance": "i"}
    early = series(name("a", **own), (1, 1.0), (2, 2.0), (3, 3.0))
    late = series(name("b", **own), (2, 5.0), (3, 6.0))
    other = series(name("a", job="j", instance="k"), (1, 9.0))
    groups = group_series([early, late, other])
    assert [[dict(x)["__name__"] for x in g.labels] for g in groups] == [["a", "b"], ["a"]]
    assert is_absent(groups[0].values).tolist() == [[False] * 3, [True, False, False]]
    assert [g.number for g in groups] == [0, 1]


def test_series_with_nothing_in_common_do_not_blow_up_a_group() -> None:
    many = [series(name(f"m{i}"), (i, 1.0)) for i in range(50)]
    assert [g.values.size for g in group_series(many)] == [1] * 50


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 8), st.floats(allow_nan=False)),
        max_size=40,
    )
)
def test_grouping_keeps_every_sample(rows: list[tuple[str, int, float]]) -> None:
    parts: dict[str, dict[int, float]] = {}
    for metric, t, value in rows:
        parts.setdefault(metric, {}).setdefault(t, value)
    given_series = [series(name(m), *sorted(p.items())) for m, p in parts.items()]
    back: dict[str, dict[int, float]] = {}
    for group in group_series(given_series):
        back |= {dict(x)["__name__"]: _row(group, i) for i, x in enumerate(group.labels)}
    assert back == parts


def _row(group: Group, row: int) -> dict[int, float]:
    there = ~is_absent(group.values[row])
    return dict(
        zip(group.times_ms[there].tolist(), group.values[row][there].tolist(), strict=True)
    )


def test_the_first_of_two_samples_at_one_time_stands() -> None:
    parts = [series(name("a"), (2, 2.0), (3, 3.0)), series(name("a"), (1, 1.0), (2, 9.0))]
    merged = merge_series(parts)
    assert points(merged) == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert merged.conflicts == 1
    assert merge_series([merged, merged]).conflicts == 2


@pytest.mark.parametrize(
    ("files", "notes"),
    [
        (["a 1 1764430000\na 2 1764430000\n# EOF\n"], 1),
        (["a 1 1764430000\na 1 1764430000\n# EOF\n"], 0),
        (["a NaN 1764430000\na NaN 1764430000\n# EOF\n"], 0),
        (["a 1 1764430000\n# EOF\n", "a 1 1764430000\n# EOF\n"], 0),
        (["a 1 1764430000\n# EOF\n", "a 2 1764430000\na 3 1764430000\n# EOF\n"], 2),
    ],
)
def test_two_values_at_one_time_are_counted(tmp_path: Path, files: list[str], notes: int) -> None:
    paths = [tmp_path / f"{i}.om" for i in range(len(files))]
    for path, text in zip(paths, files, strict=True):
        path.write_text(text)
    summary = save(tmp_path / "r.parquet", import_paths(paths))
    assert summary.samples == 1
    wanted = (
        f"{notes} samples have the time of an earlier one of their series and another value: the "
        "earlier one stands"
    )
    assert summary.notes == ((wanted,) if notes else ())


@pytest.mark.parametrize(
    ("times", "interval_ms"),
    [
        ([[0, 15_012, 29_990, 45_001, 60_000]], 15_000),
        ([[0, 1_001, 1_999]], 1_000),
        ([[0, 250, 500]], 250),
        ([[0], []], 15_000),
        ([], 15_000),
        ([[0, 10_000, 20_000, 500_000, 510_000]], 10_000),
    ],
)
def test_the_scrape_interval_is_inferred(times: list[list[int]], interval_ms: int) -> None:
    assert infer_interval(np.array(t, np.int64) for t in times) == interval_ms
