"""An answer that is taken again because nothing changed is the one that would be found anew, and
the newest samples are those that a range query ends with."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.promql.evaluate import range_query
from resilience.promql.parser import parse
from resilience.promql.storage import ABSENT, STALE
from resilience.samples import canonical_json, labels_of
from resilience.sources.embedded import EmbeddedSource
from resilience.sources.store import MemoryStore

START_MS = 1_800_000_000_000
LOOKBACK_MS = 10_000
SERIES = tuple(labels_of({"__name__": name, "engine": engine})
               for name in ("load", "usage") for engine in "ab")
QUERIES = (
    "load", "load > 1", "sum(load)", "max by (engine) (load or usage)", "load / usage",
    "load > on (engine) usage", "load unless on (engine) usage > 1", "absent(load)", "-usage",
    "count(load) + time()", "timestamp(load)", "load offset 2s", "sum_over_time(load[5s])",
    "load @ 1800000000", "scalar(sum(usage)) > bool 1", "topk(1, usage)", "1 + 1",
)
cells = st.sampled_from([0.0, 0.0, 0.0, 2.0, -0.0, float("nan"), float(STALE), float(ABSENT)])
scrapes = st.lists(cells, min_size=len(SERIES), max_size=len(SERIES))
steps = st.tuples(st.sampled_from(["scrape", "scrape", "again", "nothing"]), scrapes,
                  st.sampled_from([0, 1_000, 1_000, 2_000, 9_000]))


def shown(source: EmbeddedSource, t_ms: int) -> dict[str, str]:
    answers = source.query(QUERIES, t_ms, seq=source.seq(), deadline_ms=1_000)
    return {
        expr: canonical_json([a.error, a.kind, [[s.labels, s.value] for s in a.samples]])
        for expr, a in answers.items()
    }


@settings(max_examples=80)
@given(st.lists(steps, min_size=1, max_size=10))
def test_what_stands_is_what_would_be_found_anew(script: list[Any]) -> None:
    store = MemoryStore(retention_ms=60_000)
    source, t_ms, last = EmbeddedSource(store, 1_000, LOOKBACK_MS), START_MS, [0.0] * len(SERIES)
    for kind, row, later_ms in script:
        t_ms += later_ms
        last = row if kind == "scrape" else last
        if kind != "nothing":
            there = [n for n, cell in enumerate(last) if not _is_absent(cell)]
            store.append(t_ms, tuple(SERIES[n] for n in there), np.array([last[n] for n in there]))
        assert shown(source, t_ms) == shown(EmbeddedSource(store, 1_000, LOOKBACK_MS), t_ms)
        _ends_a_range(store, t_ms)


def _is_absent(cell: float) -> bool:
    return np.float64(cell).tobytes() == np.float64(ABSENT).tobytes()


def _ends_a_range(store: MemoryStore, t_ms: int) -> None:
    """The newest samples at one time are the last step of a range that ends there."""
    for expr in ("load", "timestamp(usage)"):
        found = EmbeddedSource(store, 1_000).query(
            [expr], t_ms, seq=store.seq, deadline_ms=1_000)[expr]
        ranged = range_query(parse(expr), store.view(), t_ms - 1_000, t_ms, 1_000)
        last = [
            [labels, float(values[-1])]
            for n, (labels, values) in enumerate(zip(ranged.labels, ranged.values, strict=True))
            if ranged.present is None or ranged.present[n][-1]
        ]
        assert canonical_json([[s.labels, s.value] for s in found.samples]) == canonical_json(last)
