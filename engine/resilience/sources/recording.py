"""Recordings as the rest of the product uses them: read one, write one, ask one.

    recording = read(path, names={"up"})        # a file, or the folder of parts of a killed engine
    source = RecordingSource(recording)         # implements model.Source
    write(path, store, events, meta)            # everything a store holds, at once
    writer = RecordingWriter(folder, meta)      # batch by batch, from a live engine

A source over a recording sees at a tick's `seq` exactly the batches that the live tick saw.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from resilience.errors import RecordingError
from resilience.promql.storage import ABSENT, is_absent
from resilience.samples import Json, QueryResult, RangeSample, Sample, labels_of
from resilience.sources.embedded import EmbeddedSource
from resilience.sources.recording_format import Contents, Group, RecordingMeta, name_of
from resilience.sources.recording_read import read_file, read_meta
from resilience.sources.series import infer_interval
from resilience.sources.store import Group as StoreGroup
from resilience.sources.store import MemoryStore

if TYPE_CHECKING:
    from resilience.sources.recording_writer import RecordingWriter

__all__ = [
    "Outline",
    "Recording",
    "RecordingMeta",
    "RecordingSource",
    "RecordingWriter",
    "outline",
    "read",
    "read_meta",
    "write",
]

PARTS_SUFFIX = ".parts"
SET_BACK = "clock_set_back"


def __getattr__(name: str) -> Any:
    """Import the writer, and Arrow with it, when somebody asks for it: most only read."""
    if name == "RecordingWriter":
        from resilience.sources.recording_writer import RecordingWriter

        return RecordingWriter
    raise AttributeError(f"module `{__name__}` has no `{name}`")


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording in memory. `events` are JSON objects in the order in which they happened."""

    store: MemoryStore
    events: tuple[Json, ...]
    meta: RecordingMeta

    @property
    def ticks(self) -> tuple[Json, ...]:
        """The recorded ticks; none means that the recording is evaluated on the grid."""
        return tuple(e for e in self.events if e["type"] == "tick")

    @property
    def warnings(self) -> tuple[str, ...]:
        """What every report over this recording must say."""
        notes = [str(n) for e in self.events if e["type"] == "import" for n in e.get("notes", ())]
        if not self.meta.raw:
            notes.insert(
                0, "this recording is resampled: rates over it may be far off; record raw samples"
            )
        return tuple(notes)


def read(
    path: Path, names: Collection[str] | Callable[[str], bool] | None = None
) -> Recording:
    """Return a recording, with `names` (or a test of names, `promql.names.name_test`) only the
    series of these metrics; raises RecordingError.

    `path` is a file, a folder of parts, or a file that a killed engine did not get to join.
    """
    wanted = names if names is None or callable(names) else frozenset(names)
    parts = path.with_name(path.name + PARTS_SUFFIX)
    if path.is_dir() or (not path.exists() and parts.is_dir()):
        from resilience.sources.recording_parts import read_parts

        contents = read_parts(path if path.is_dir() else parts, wanted)
    else:
        if path.exists() and not path.is_file():      # a pipe would be waited for, for ever
            raise RecordingError(f"`{path}` is not a recording: no regular file")
        contents = read_file(path, wanted)
    return Recording(_store(contents), contents.bodies, contents.meta)


@dataclass(frozen=True, slots=True)
class Outline:
    """What is known of a recording without its samples. `names` of all metrics; None: it holds
    what a Prometheus answered, so nothing can be said of names."""

    names: frozenset[str] | None
    meta: RecordingMeta


def outline(path: Path) -> Outline:
    """Look into the recording at `path`; raises RecordingError."""
    found: set[str] = set()

    def note(name: str) -> bool:
        found.add(name)
        return False

    recording = read(path, note)
    answers = any(e["type"] == "query" for e in recording.events)
    return Outline(None if answers else frozenset(found), recording.meta)


def write(path: Path, store: MemoryStore, events: Sequence[Json], meta: RecordingMeta) -> None:
    """Write everything that `store` holds, and `events`, as one file; raises RecordingError."""
    from resilience.sources.recording_write import write_file

    groups = [Group(list(g.labels), g.times, g.seqs, g.values) for g in store.groups()]
    starts = [int(g.times_ms[0]) for g in groups]
    ends = [int(g.times_ms[-1]) for g in groups]
    if groups and not meta.end_ms:
        meta = replace(meta, start_ms=min(starts), end_ms=max(ends))
    write_file(path, groups, events, meta)


def _store(contents: Contents) -> MemoryStore:
    seams = [int(e["seq"]) for e in contents.bodies if e["type"] == SET_BACK]
    return MemoryStore.from_groups([
        _visible(part, until_seq)
        for group in contents.groups if group.labels
        for part, until_seq in _between(group, seams) if len(part.times_ms)
    ])


def _between(group: Group, seams: Sequence[int]) -> Iterator[tuple[Group, int | None]]:
    """Cut a group where the clock was set back, as the store began anew there."""
    if not seams:
        yield group, None
        return
    places = [0, *np.searchsorted(group.seqs, seams, "left").tolist(), len(group.seqs)]
    for (a, b), until_seq in zip(pairwise(places), (*seams, None), strict=True):
        yield replace(group, times_ms=group.times_ms[a:b], seqs=group.seqs[a:b],
                      values=group.values[:, a:b], gaps=None), until_seq


def _visible(group: Group, until_seq: int | None) -> StoreGroup:
    """Apply the store's own rules to batches that came late or twice, as it did when they came."""
    times, seqs, values, gaps = group.times_ms, group.seqs, group.values, group.gaps
    late = times < np.maximum.accumulate(times)
    if late.any():
        times, seqs, values = times[~late], seqs[~late], values[:, ~late]
        gaps = None
    for column in np.flatnonzero(times[1:] == times[:-1]) + 1:
        first = int(np.searchsorted(times, times[column], "left"))
        before = ~is_absent(np.ascontiguousarray(values[:, first:column])).all(axis=1)
        values[before, column] = ABSENT
        gaps = None
    return StoreGroup(times, seqs, tuple(group.labels), values, gaps, until_seq)


class RecordingSource:
    """Implements `model.Source` over a recording; make a new one for each dry run.

    Answers that were recorded (a run with `--prometheus`) are given again, in their order;
    everything else is evaluated over the recorded samples. Without recorded ticks, whose `seq` says
    what there was, samples of after the query's time are hidden.
    """

    def __init__(self, recording: Recording) -> None:
        meta = recording.meta
        self.store = recording.store
        interval_ms = meta.scrape_interval_ms or infer_interval(
            g.times for g in recording.store.groups()
        )
        ticked = any(event["type"] == "tick" for event in recording.events)
        self._embedded = EmbeddedSource(
            recording.store, interval_ms, meta.lookback_ms, later_hidden=not ticked
        )
        self._answers = _answers(recording.events)

    @property
    def scrape_interval_ms(self) -> int:
        return self._embedded.scrape_interval_ms

    def seq(self) -> int:
        return self.store.seq

    def query(
        self, exprs: Sequence[str], t_ms: int, *, seq: int, deadline_ms: int
    ) -> Mapping[str, QueryResult]:
        """Evaluate over the batches up to `seq`, or give the recorded answers."""
        if not self._answers:
            return self._embedded.query(exprs, t_ms, seq=seq, deadline_ms=deadline_ms)
        return {expr: self._recorded(expr, t_ms) for expr in exprs}

    def _recorded(self, expr: str, t_ms: int) -> QueryResult:
        """Return the next recorded answer; the last one stays for those who ask again."""
        found = self._answers.get((t_ms, expr))
        if not found:
            return QueryResult(expr, error=f"the recording holds no answer to `{expr}` at {t_ms}")
        return found.pop(0) if len(found) > 1 else found[0]

    def metric_names(self, *, deadline_ms: int) -> frozenset[str]:
        return self._embedded.metric_names(deadline_ms=deadline_ms)


def _answers(events: Iterable[Json]) -> dict[tuple[int, str], list[QueryResult]]:
    found: dict[tuple[int, str], list[QueryResult]] = {}
    for event in events:
        if event["type"] == "query":
            try:
                for body in event["results"]:
                    result = _result(body)
                    found.setdefault((event["t_ms"], result.expr), []).append(result)
            except (KeyError, TypeError, ValueError):
                raise RecordingError("an event `query` of the recording is malformed") from None
    return found


def _result(body: dict[str, Any]) -> QueryResult:
    """Return a recorded answer; NaN and infinities travel as the API's texts."""
    samples = tuple(Sample(labels_of(labels), float(value)) for labels, value in body["samples"])
    ranges = tuple(
        RangeSample(labels_of(labels), tuple(times), tuple(float(v) for v in values))
        for labels, times, values in body["ranges"]
    )
    return QueryResult(
        body["expr"],
        body["kind"],
        samples,
        ranges,
        body["text"],
        body["error"],
        tuple(body["warnings"]),
    )


def metrics_of(store: MemoryStore) -> dict[str, int]:
    """Return metric -> number of series, by name."""
    counts: dict[str, int] = {}
    for group in store.groups():
        for labels in group.labels:
            counts[name_of(labels)] = counts.get(name_of(labels), 0) + 1
    return dict(sorted(counts.items()))
