"""A source over a recording answers as the live source did, tick for tick."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.errors import RecordingError
from resilience.model import Labels, QueryResult, canonical_json, labels_of
from resilience.promql.storage import STALE
from resilience.sources.api_json import result_data
from resilience.sources.embedded import EmbeddedSource
from resilience.sources.recording import (
    Recording,
    RecordingMeta,
    RecordingSource,
    RecordingWriter,
    read,
    write,
)
from resilience.sources.store import MemoryStore

META = RecordingMeta("embedded", scrape_interval_ms=1_000)
SERIES: list[Labels] = [
    labels_of({"__name__": n, "x": x}) for n in ("requests_total", "kv") for x in "ab"
]
EXPRS = (
    "kv",
    "rate(requests_total[10s])",
    "sum by (x) (increase(requests_total[20s]))",
    "max_over_time(kv[5s]) > 1",
    "count_over_time(requests_total[1m])",
    "timestamp(kv)",
    "absent(kv)",
    "requests_total[7s]",
    "1 +",
    "kv + on () kv",
)
T0 = 1_700_000_000_000
FOUR = np.arange(4, dtype=np.float64)


def answers(source: EmbeddedSource | RecordingSource, t_ms: int, seq: int) -> dict[str, str]:
    results = source.query(EXPRS, t_ms, seq=seq, deadline_ms=1_000)
    assert list(results) != []
    return {expr: text(result) for expr, result in results.items()}


def text(result: QueryResult) -> str:
    if result.error is not None:
        return f"error: {result.error}"
    return canonical_json(result_data(result, 0))


STEPS = st.lists(
    st.tuples(
        st.integers(-2_000, 3_000),  # how far the next batch is from the one before
        st.lists(st.sampled_from(SERIES), min_size=1, unique=True),
        st.sampled_from([0.0, 1.0, 2.5, float("nan"), float(STALE)]),
        st.booleans(),  # whether a tick follows
    ),
    min_size=1,
    max_size=15,
)


@settings(max_examples=40)
@given(STEPS, st.sampled_from([5, 1_000]))
def test_a_tick_over_the_recording_sees_what_the_live_tick_saw(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, list[Labels], float, bool]],
    part_samples: int,
) -> None:
    """Late, repeated and stale samples included."""
    store = MemoryStore()
    live = EmbeddedSource(store, 1_000)
    folder = tmp_path_factory.mktemp("recording") / "live"
    writer = RecordingWriter(folder, META, part_samples=part_samples)
    seen: list[tuple[int, int, dict[str, str]]] = []
    t_ms = T0
    for step_ms, labels, value, tick in steps:
        t_ms += step_ms
        values = np.full(len(labels), value)
        seq = store.append(t_ms, tuple(labels), values)
        writer.batch(seq, t_ms, tuple(labels), values)
        if tick:
            seen.append((t_ms, live.seq(), answers(live, t_ms, live.seq())))
    recorded = RecordingSource(read(writer.close()))
    assert [(t, seq, answers(recorded, t, seq)) for t, seq, _ in seen] == seen


def test_a_recording_that_begins_late_looks_back_as_far_as_the_store(tmp_path: Path) -> None:
    store = MemoryStore()
    for second in range(60):
        values = np.array([second * 2.0, 1.0])
        store.append(T0 + second * 1_000, tuple(SERIES[:2]), values)
    writer = RecordingWriter(tmp_path / "live", META)
    writer.history(store)
    live = answers(EmbeddedSource(store, 1_000), T0 + 60_000, store.seq)
    recorded = RecordingSource(read(writer.close()))
    assert answers(recorded, T0 + 60_000, store.seq) == live


def test_a_written_store_comes_back(tmp_path: Path) -> None:
    store = MemoryStore()
    store.append(T0, tuple(SERIES), FOUR)
    store.append(T0 + 1_000, tuple(SERIES), FOUR + 1)
    write(tmp_path / "r.parquet", store, [{"type": "tick", "t_ms": T0, "seq": 1}], META)
    recording = read(tmp_path / "r.parquet")
    assert recording.store.seq == 2
    assert (recording.meta.start_ms, recording.meta.end_ms) == (T0, T0 + 1_000)
    assert [t["seq"] for t in recording.ticks] == [1]
    source = RecordingSource(recording)
    assert source.metric_names(deadline_ms=1) == {"kv", "requests_total"}
    for seq in (0, 1, 2):
        live = answers(EmbeddedSource(store, 1_000), T0 + 1_000, seq)
        assert answers(source, T0 + 1_000, seq) == live


def test_only_named_metrics_answer_alike(tmp_path: Path) -> None:
    store = MemoryStore()
    store.append(T0, tuple(SERIES), FOUR)
    write(tmp_path / "r.parquet", store, [], META)
    some = RecordingSource(read(tmp_path / "r.parquet", ["kv"]))
    results = some.query(["kv", "requests_total"], T0, seq=1, deadline_ms=1)
    assert [len(r.samples) for r in results.values()] == [2, 0]


IN_A_FRESH_PROCESS = """
import sys
from pathlib import Path
from resilience.sources.recording import RecordingSource, read
source = RecordingSource(read(Path(sys.argv[1])))
print(source.query(["sum(kv)"], int(sys.argv[2]), seq=source.seq(), deadline_ms=1))
"""


def test_a_fresh_process_needs_the_file_alone(tmp_path: Path) -> None:
    store = MemoryStore()
    store.append(T0, tuple(SERIES), FOUR)
    write(tmp_path / "r.parquet", store, [], META)
    here = RecordingSource(read(tmp_path / "r.parquet"))
    expected = here.query(["sum(kv)"], T0, seq=1, deadline_ms=1)
    there = subprocess.run(
        [sys.executable, "-c", IN_A_FRESH_PROCESS, str(tmp_path / "r.parquet"), str(T0)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert there.stdout.strip() == str(expected)


# --- recorded answers --------------------------------------------------------------------------


def query_event(t_ms: int, *results: dict[str, object]) -> dict[str, object]:
    empty: dict[str, object] = {"kind": "vector", "samples": [], "ranges": [], "text": None}
    return {
        "type": "query",
        "t_ms": t_ms,
        "results": [{**empty, "error": None, "warnings": [], **result} for result in results],
    }


def recorded_answers(tmp_path: Path, *events: dict[str, object]) -> RecordingSource:
    write(tmp_path / "r.parquet", MemoryStore(), events, META)
    return RecordingSource(read(tmp_path / "r.parquet"))


def test_recorded_answers_are_given_again(tmp_path: Path) -> None:
    source = recorded_answers(
        tmp_path,
        query_event(1_000, {"expr": "up", "samples": [[{"job": "a"}, "NaN"], [{}, 1.5]]}),
        query_event(2_000, {"expr": "up", "error": "late"}, {"expr": "m[1m]", "kind": "matrix",
                    "ranges": [[{}, [1, 2], [1.0, "+Inf"]]], "warnings": ["partial"]}),
    )  # fmt: skip
    first = source.query(["up"], 1_000, seq=0, deadline_ms=1)["up"]
    assert text(first).count("NaN") == 1
    assert first.samples[1].value == 1.5
    second = source.query(["up", "m[1m]"], 2_000, seq=0, deadline_ms=1)
    assert second["up"].error == "late"
    assert second["m[1m]"].ranges[0].values == (1.0, float("inf"))
    assert second["m[1m]"].warnings == ("partial",)


def test_an_answer_that_was_not_recorded_is_an_error_not_an_empty_result(tmp_path: Path) -> None:
    source = recorded_answers(tmp_path, query_event(1_000, {"expr": "up"}))
    for expr, t_ms in (("up", 2_000), ("down", 1_000)):
        assert "no answer" in (source.query([expr], t_ms, seq=0, deadline_ms=1)[expr].error or "")


def test_two_ticks_at_one_time_get_their_own_answers(tmp_path: Path) -> None:
    one = query_event(1_000, {"expr": "up", "samples": [[{}, 1.0]]})
    two = query_event(1_000, {"expr": "up", "samples": [[{}, 2.0]]})
    source = recorded_answers(tmp_path, one, two)
    values = [
        source.query(["up"], 1_000, seq=0, deadline_ms=1)["up"].samples[0].value for _ in range(3)
    ]
    assert values == [1.0, 2.0, 2.0]


def test_a_malformed_event_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="malformed"):
        recorded_answers(tmp_path, {"type": "query", "t_ms": 1, "results": [{}]})


def test_a_resampled_recording_says_so() -> None:
    meta = RecordingMeta("api", raw=False)
    events = ({"type": "import", "notes": ["metric `x` is missing"]},)
    notes = Recording(MemoryStore(), events, meta).warnings
    assert "resampled" in notes[0]
    assert "`x`" in notes[1]


def test_parts_of_a_killed_engine_are_found_by_the_file_s_name(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "r.parquet.parts", META)
    writer.batch(1, T0, tuple(SERIES), FOUR)
    writer.abandon()
    assert read(tmp_path / "r.parquet").store.seq == 1
