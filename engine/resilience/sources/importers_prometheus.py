"""Raw samples from a Prometheus server: `query=selector[range]`, piece by piece.

Each piece (one selector, at most two hours) becomes a part on disk before the next is asked for,
so an interrupted recording goes on where it stopped. The API leaves stale markers out: a series
that vanished seems to live on for the look-back of five minutes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from resilience.errors import RecordingError, SourceError, UsageError
from resilience.promql.parser import parse_checked
from resilience.promql.plan import Selector, selectors
from resilience.promql.reach import Span, spans
from resilience.promql.storage import is_absent
from resilience.samples import (
    Json,
    Labels,
    RangeSample,
    canonical_json,
    digest16,
    format_duration,
)
from resilience.sources.api_json import ApiError, query_result
from resilience.sources.importers import Imported, Summary, save
from resilience.sources.prometheus import PrometheusSource
from resilience.sources.recording_format import Group, RecordingMeta
from resilience.sources.recording_read import read_file
from resilience.sources.recording_write import write_file
from resilience.sources.series import Series, group_series

CHUNK_MS = 2 * 3_600_000
CHUNK_MIN_MS = 60_000
LOOKBACK_MS = 300_000
DEADLINE_MS = 120_000
PIECES_MAX = 100_000
STATE = "state.json"
NOTE = "stale markers are not in the API: a vanished series lives on for its look-back of 5m"

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Need:
    """What some expressions read: selectors, how far they look back, and the metrics by name."""

    selectors: tuple[str, ...]
    reach_ms: int
    metrics: frozenset[str]


def needs_of(exprs: Iterable[str]) -> Need:
    """Return what `exprs` need; raises PromQLError for one that cannot be read."""
    found: dict[str, Selector] = {}
    reach_ms = 0
    for expr in exprs:
        plan = parse_checked(expr)
        for selector in selectors(plan):
            bare = Selector(selector.metric_name, selector.matchers)
            found[bare.text] = bare
        reach_ms = max((reach_ms, *map(_far_ms, spans(plan))))
    names = frozenset(s.metric_name for s in found.values() if s.metric_name)
    whole = {s.metric_name for s in found.values() if len(s.matchers) == 1 and s.metric_name}
    kept = [t for t, s in found.items() if len(s.matchers) == 1 or s.metric_name not in whole]
    return Need(tuple(sorted(kept)), reach_ms, names)


def _far_ms(span: Span) -> int:
    """Return how far before the evaluation time a sample may stand that is read."""
    return span.far_ms + (0 if span.selector.range_ms else LOOKBACK_MS)


def record(
    source: PrometheusSource,
    need: Need,
    start_ms: int,
    end_ms: int,
    out: Path,
    *,
    asked: Sequence[str] = (),
    chunk_ms: int = CHUNK_MS,
    progress: Progress = lambda done, total, text: None,
) -> Summary:
    """Record what `need` says over [start, end], and its look-back before; return a summary.

    Goes on with the pieces of an interrupted call with the same arguments. `asked` are the times as
    they were written: where they are relative ("-1d"), the span of the first call stays. Raises
    SourceError when the server fails (call again), UsageError when `out` or its parts belong to
    something else.
    """
    if end_ms <= start_ms:
        raise UsageError("the recording must end after it starts")
    if out.exists():
        raise UsageError(f"`{out}` exists already: name a new file")
    cuts = (end_ms - 1) // chunk_ms - (start_ms - need.reach_ms) // chunk_ms + 1
    if cuts * len(need.selectors) > PIECES_MAX:
        raise UsageError(f"that takes more than {PIECES_MAX} requests: record a shorter time")
    times: list[Json] = list(asked) or [start_ms, end_ms]
    wanted: Json = [source.url, *times, list(need.selectors), need.reach_ms, chunk_ms]
    folder, (start_ms, end_ms) = _folder(out, digest16(wanted), (start_ms, end_ms))
    pieces = list(_pieces(need.selectors, start_ms - need.reach_ms, end_ms, chunk_ms))
    meta = RecordingMeta("prometheus", source.version(deadline_ms=DEADLINE_MS))
    for done, (selector, low, high) in enumerate(pieces):
        progress(done, len(pieces), selector)
        part = folder / f"{digest16([selector, low, high])}.parquet"
        if not part.exists():
            write_file(part, _fetch(source, selector, low, high), [], meta)
    progress(len(pieces), len(pieces), "joining")
    summary = save(out, _joined(folder), needed=need.metrics, meta=meta)
    shutil.rmtree(folder)
    return summary


def _pieces(
    wanted: Sequence[str], from_ms: int, end_ms: int, chunk_ms: int
) -> Iterator[tuple[str, int, int]]:
    """Yield (selector, low, high], oldest first, cut at multiples of the chunk."""
    low = from_ms
    while low < end_ms:
        high = min(end_ms, (low // chunk_ms + 1) * chunk_ms)
        for selector in wanted:
            yield selector, low, high
        low = high


def _folder(out: Path, wanted: str, span_ms: tuple[int, int]) -> tuple[Path, tuple[int, int]]:
    """Return the folder of parts, and the span that they are of: `span_ms`, or that of the call
    which began them. Raises UsageError if they are of a call that `wanted` something else."""
    folder = out.with_name(out.name + ".parts")
    file = folder / STATE
    try:
        if file.exists():
            state = json.loads(file.read_text("utf-8"))
            if state["wanted"] != wanted:
                raise UsageError(
                    f"`{folder}` belongs to another recording: remove it, or use the same "
                    "arguments to go on with it"
                )
            return folder, (int(state["start_ms"]), int(state["end_ms"]))
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"`{folder}` is not empty and no recording can go on in it: remove it")
        start_ms, end_ms = span_ms
        state = {"wanted": wanted, "start_ms": start_ms, "end_ms": end_ms}
        file.write_text(canonical_json(state), "utf-8")
    except (OSError, ValueError, KeyError, TypeError):
        raise RecordingError(f"cannot use `{folder}` for the parts of the recording") from None
    return folder, span_ms


def _fetch(source: PrometheusSource, selector: str, low: int, high: int) -> list[Group]:
    """Return the raw samples in (low, high], each series once, however often was asked."""
    pieces: dict[Labels, list[RangeSample]] = {}
    for one in _answers(source, selector, low, high):
        pieces.setdefault(one.labels, []).append(one)
    return group_series([
        Series(
            labels,
            np.array([t for one in found for t in one.times_ms], np.int64),
            np.array([v for one in found for v in one.values], np.float64),
        )
        for labels, found in pieces.items()
    ])


def _answers(
    source: PrometheusSource, selector: str, low: int, high: int
) -> Iterator[RangeSample]:
    """Yield what (low, high] holds, oldest first, asking for less at a time if it is too much."""
    query = f"{selector}[{format_duration(high - low)}]"
    try:
        data, warnings = source.instant(query, high, deadline_ms=DEADLINE_MS)
        if warnings:
            raise SourceError(f"the answer to `{selector}` may be partial: {warnings[0]}")
        yield from query_result(query, _success(data)).ranges
    except ApiError as error:
        raise SourceError(str(error)) from None
    except SourceError as error:
        if not _is_too_much(str(error)) or high - low <= CHUNK_MIN_MS:
            raise
        middle = (low + high) // 2
        yield from _answers(source, selector, low, middle)
        yield from _answers(source, selector, middle, high)


def _success(data: Json) -> dict[str, Json]:
    return {"status": "success", "data": data}


def _is_too_much(message: str) -> bool:
    """Return whether a server refused because of size: their limits have their own words."""
    return any(word in message for word in ("too many samples", "too many points", "larger than"))


def _joined(folder: Path) -> Imported:
    found = Imported()
    for part in sorted(folder.glob("*.parquet")):
        contents = read_file(part)
        found.add("prometheus", (one for g in contents.groups for one in _unpacked(g)))
    found.notes.append(NOTE)
    return found


def _unpacked(group: Group) -> Iterator[Series]:
    for labels, row in zip(group.labels, group.values, strict=True):
        there = ~is_absent(row)
        yield Series(labels, group.times_ms[there], row[there])
