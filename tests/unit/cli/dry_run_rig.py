"""The recordings that dry runs are tried over."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from resilience.model import labels_of
from resilience.sources.recording import RecordingMeta, write
from resilience.sources.store import Group, MemoryStore

QUEUE = [0, 0, 20, 20, 20, 0, 0, 0, 0, 30, 30, 0]


def write_recording(path: Path, series: dict[str, list[int]], *, raw: bool = True) -> Path:
    columns = len(next(iter(series.values())))
    times = 1_700_000_000_000 + np.arange(columns, dtype=np.int64) * 1_000
    labels = tuple(labels_of({"__name__": name, "job": "vllm"}) for name in series)
    values = np.array(list(series.values()), dtype=float)
    seqs = np.arange(1, columns + 1, dtype=np.int64)
    store = MemoryStore.from_groups([Group(times, seqs, labels, values)])
    write(path, store, [], RecordingMeta("test", scrape_interval_ms=1_000, raw=raw))
    return path
