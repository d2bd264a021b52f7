"""Recordings out of what people already have: what a path holds, and how it becomes one file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

from resilience.errors import RecordingError
from resilience.samples import Json
from resilience.sources.importers_api import read_api
from resilience.sources.openmetrics import is_openmetrics, read_text
from resilience.sources.recording_format import RecordingMeta
from resilience.sources.recording_write import write_file
from resilience.sources.series import Series, group_series, infer_interval, merge_all
from resilience.sources.tsdb import find_blocks, read_block

SAMPLES_MAX = 200_000_000
SNIFF_BYTES = 65_536

# A JSON object; a series may begin with a brace and a quoted name too, but no colon follows it.
_OBJECT = re.compile(rb'\s*\{\s*("(?:[^"\\]|\\.)*"\s*:|\})')

Kind: TypeAlias = Literal["tsdb", "api", "openmetrics", "text", "auto"]
Wanted: TypeAlias = Callable[[str], bool]
Say: TypeAlias = Callable[[str], None]


@dataclass(slots=True)
class Imported:
    """What was read so far. `sources` name the kinds; `raw` turns False with any resampled part."""

    series: list[Series] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    raw: bool = True

    def add(self, source: str, series: Iterable[Series], notes: Iterable[str] = ()) -> None:
        self.series.extend(series)
        if source not in self.sources:
            self.sources.append(source)
        self.notes.extend(notes)
        if sum(len(one.values) for one in self.series) > SAMPLES_MAX:
            raise RecordingError(
                f"more than {SAMPLES_MAX} samples: name the rules that need them, or fewer files"
            )


@dataclass(frozen=True, slots=True)
class Summary:
    """What a new recording holds. `missing` are the metrics that were asked for in vain."""

    path: Path
    meta: RecordingMeta
    series: int
    samples: int
    missing: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> Json:
        return {
            "path": str(self.path),
            "meta": self.meta.to_json(),
            "series": self.series,
            "samples": self.samples,
            "missing": list(self.missing),
            "notes": list(self.notes),
        }


def import_paths(
    paths: Sequence[Path],
    *,
    kind: Kind = "auto",
    raw: bool | None = None,
    at_ms: int | None = None,
    wanted: Wanted = lambda _: True,
    say: Say = lambda _: None,
) -> Imported:
    """Read all paths; raises RecordingError for the first that cannot be read.

    `raw` overrides the guess whether API answers are raw; `at_ms` is the time of samples without
    one; `say` is told what is being read.
    """
    found = Imported()
    for path in paths:
        chosen = kind_of(path) if kind == "auto" else kind
        if chosen == "tsdb":
            _add_blocks(found, path, wanted, say)
        elif chosen == "api":
            say(f"{path}: answer of Prometheus' API")
            series, is_raw, notes = read_api(path, raw=raw)
            found.add("api", [s for s in series if wanted(s.name)], [f"{path}: {n}" for n in notes])
            found.raw = found.raw and is_raw
        else:
            _add_text(found, path, chosen, at_ms, wanted, say)
    return found


def kind_of(path: Path) -> Kind:
    """Return what `path` looks like from its first bytes; raises RecordingError."""
    if path.is_dir():
        return "tsdb"
    try:
        with path.open("rb") as file:
            head = file.read(SNIFF_BYTES)
    except OSError as error:
        raise RecordingError(f"cannot read `{path}`: {(error.strerror or '').lower()}") from None
    if head.startswith(b"PAR1"):
        raise RecordingError(f"`{path}` is a recording already, or another Parquet file")
    lines = [line for line in head.split(b"\n") if not line.startswith(b"//")]
    return "api" if _OBJECT.match(b"\n".join(lines)) else "text"


def _add_text(
    found: Imported, path: Path, kind: Kind, at_ms: int | None, wanted: Wanted, say: Say
) -> None:
    def progress(read: int) -> None:
        say(f"{path}: {read >> 20} MiB")

    openmetrics = kind == "openmetrics" or is_openmetrics(path)
    series, notes = read_text(
        path, openmetrics=openmetrics, at_ms=at_ms, wanted=wanted, progress=progress
    )
    found.add("openmetrics" if openmetrics else "text", series, [f"{path}: {n}" for n in notes])


def _add_blocks(found: Imported, path: Path, wanted: Wanted, say: Say) -> None:
    blocks, notes = find_blocks(path)
    found.add("tsdb", (), [f"{path}: {n}" for n in notes])
    for number, block in enumerate(blocks, 1):
        say(f"{block.path}: block {number} of {len(blocks)}")
        series, notes = read_block(block, wanted)
        found.add("tsdb", series, [f"{block.path}: {n}" for n in notes])


def save(
    path: Path,
    imported: Imported,
    *,
    needed: frozenset[str] = frozenset(),
    meta: RecordingMeta | None = None,
) -> Summary:
    """Write what was imported as one recording; raises RecordingError if there is nothing.

    `needed` are the metrics that some rules want; those without a sample are reported as missing.
    """
    series = merge_all(imported.series)
    imported.series = []
    if not series:
        raise RecordingError(f"nothing to record: {_nothing(imported, needed)}")
    missing = tuple(sorted(needed - {one.name for one in series}))
    notes = [*imported.notes, *(f"no samples of `{name}`" for name in missing)]
    conflicts = sum(one.conflicts for one in series)
    if conflicts:
        notes.append(
            f"{conflicts} samples have the time of an earlier one of their series and another "
            "value: the earlier one stands"
        )
    unnamed = sum(not one.name for one in series)
    if unnamed:
        notes.append(f"{unnamed} series have no metric name: select them by their labels")
    groups = group_series(series)
    meta = meta or RecordingMeta("+".join(imported.sources))
    meta = replace(
        meta,
        scrape_interval_ms=infer_interval(g.times_ms for g in groups),
        raw=imported.raw,
        start_ms=min(int(g.times_ms[0]) for g in groups),
        end_ms=max(int(g.times_ms[-1]) for g in groups),
    )
    event = {"type": "import", "notes": notes, "missing": list(missing)}
    write_file(path, groups, [event], meta)
    samples = sum(len(one.values) for one in series)
    return Summary(path, meta, len(series), samples, missing, tuple(notes))


def _nothing(imported: Imported, needed: frozenset[str]) -> str:
    if imported.notes:
        return "; ".join(imported.notes[:3])
    if needed:
        return f"none of the {len(needed)} needed metrics, such as `{min(needed)}`, has a sample"
    return "no sample was found"
