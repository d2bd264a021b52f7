"""A folder of parts: written piece by piece by a live engine, joined when it stops."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from resilience.errors import RecordingError
from resilience.promql.storage import ABSENT
from resilience.samples import Labels
from resilience.sources.recording_format import Contents, Group, RecordingMeta, name_of
from resilience.sources.recording_read import read_file, read_series
from resilience.sources.recording_rows import Names
from resilience.sources.recording_tail import read_tail

PART = "part-*.parquet"
TAIL = "part-*.tail"
JOIN_SAMPLES = 4_000_000


def part_path(folder: Path, number: int) -> Path:
    return folder / f"part-{number:06d}.parquet"


def tail_path(folder: Path, number: int) -> Path:
    return folder / f"part-{number:06d}.tail"


def read_parts(folder: Path, names: Names = None) -> Contents:
    """Return what the parts in `folder` hold together; raises RecordingError if there are none."""
    contents = list(_contents(folder, names))
    if not contents:
        tsdb = any(folder.glob("meta.json")) or any(folder.glob("*/meta.json"))
        hint = f"; `resilience record import {shlex.quote(str(folder))}` reads TSDB blocks"
        raise RecordingError(
            f"`{folder}` is not a recording: it holds no parts{hint if tsdb else ''}"
        )
    return _join(contents)


def _files(folder: Path) -> list[Path]:
    """Return part after part; a tail whose part is complete was only not removed in time."""
    files = {p.stem: p for p in folder.glob(TAIL)}
    files |= {p.stem: p for p in folder.glob(PART)}
    return [files[stem] for stem in sorted(files)]


def _contents(folder: Path, names: Names) -> Iterator[Contents]:
    for path in _files(folder):
        if path.suffix == ".parquet":
            yield read_file(path, names)
        elif (tail := read_tail(path)) is not None:
            yield _only(tail, names)


def _only(contents: Contents, names: Names) -> Contents:
    if names is None:
        return contents
    wanted = names.__contains__ if isinstance(names, frozenset) else names
    groups: list[Group] = []
    for group in contents.groups:
        rows = [i for i, labels in enumerate(group.labels) if wanted(name_of(labels))]
        labels = [group.labels[i] for i in rows]
        groups.append(Group(labels, group.times_ms, group.seqs, group.values[rows], group.number))
    return replace(contents, groups=tuple(groups))


def _join(contents: Sequence[Contents]) -> Contents:
    """Put the same groups of consecutive parts one behind the other."""
    numbers: dict[int, list[Group]] = {}
    for part in contents:
        for group in part.groups:
            numbers.setdefault(group.number, []).append(group)
    events = sorted((e for part in contents for e in part.events), key=lambda e: e[0])
    return Contents(
        _span([c.meta for c in contents]),
        tuple(_chain(parts) for _, parts in sorted(numbers.items())),
        tuple(events),
    )


def _span(metas: Sequence[RecordingMeta]) -> RecordingMeta:
    starts = [m.start_ms for m in metas if m.end_ms]
    return replace(
        metas[-1], start_ms=min(starts, default=0), end_ms=max(m.end_ms for m in metas)
    )


def _chain(parts: Sequence[Group]) -> Group:
    if len(parts) == 1:
        return parts[0]
    rows: dict[Labels, int] = {}
    for part in parts:
        for labels in part.labels:
            rows.setdefault(labels, len(rows))
    values = np.full((len(rows), sum(len(p.times_ms) for p in parts)), ABSENT)
    start = 0
    for part in parts:
        end = start + len(part.times_ms)
        values[[rows[labels] for labels in part.labels], start:end] = part.values
        start = end
    return Group(
        list(rows),
        np.concatenate([p.times_ms for p in parts]),
        np.concatenate([p.seqs for p in parts]),
        values,
        parts[0].number,
    )


def merge_parts(folder: Path, path: Path) -> None:
    """Write the parts of `folder` as one file `path` and remove the folder.

    Holds a few metrics of all parts in memory at a time, never the whole recording.
    """
    from resilience.sources.recording_write import FileWriter

    index = read_parts(folder, frozenset())
    with FileWriter(path, index.meta) as writer:
        writer.events(index.events)
        writer.groups((g.number, g.times_ms, g.seqs) for g in index.groups)
        length = {g.number: len(g.times_ms) for g in index.groups}
        for names in _bundles(_names(folder, length)):
            rows = [
                (name_of(labels), labels, group.number, values)
                for group in read_parts(folder, names).groups
                for labels, values in zip(group.labels, group.values, strict=True)
            ]
            rows.sort(key=lambda row: row[:3])
            writer.series(row[1:] for row in rows)
    shutil.rmtree(folder, ignore_errors=True)


def _names(folder: Path, length: dict[int, int]) -> dict[str, int]:
    """Return metric -> samples of the joined recording, in order of name."""
    found: dict[str, set[tuple[Labels, int]]] = {}
    for series in _indexes(folder):
        for labels, number in series:
            found.setdefault(name_of(labels), set()).add((labels, number))
    return {
        name: sum(length[number] for _, number in series)
        for name, series in sorted(found.items())
    }


def _bundles(names: dict[str, int]) -> Iterator[frozenset[str]]:
    bundle: set[str] = set()
    size = 0
    for name, samples in names.items():
        bundle.add(name)
        size += samples
        if size >= JOIN_SAMPLES:
            yield frozenset(bundle)
            bundle, size = set(), 0
    if bundle:
        yield frozenset(bundle)


def _indexes(folder: Path) -> Iterator[list[tuple[Labels, int]]]:
    """Yield the (labels, group) of the series of each part."""
    for path in _files(folder):
        if path.suffix == ".parquet":
            yield read_series(path)
        elif (tail := read_tail(path)) is not None:
            yield [(labels, g.number) for g in tail.groups for labels in g.labels]
