"""What a dry run does, in order: recorded events and ticks, and ticks that a recording lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from resilience.errors import RecordingError
from resilience.model import Json

if TYPE_CHECKING:
    from resilience.sources.recording import Recording

TICKS_MAX = 5_000_000


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick to replay. `outcomes` are what the live tick's UDFs came to."""

    t_ms: int
    interval_ms: int
    seq: int
    missed: int = 0
    outcomes: tuple[Json, ...] = ()


Step = Tick | dict[str, Any]


def steps(recording: Recording, intervals_ms: Sequence[int]) -> Iterator[Step]:
    """Yield what to do, in order: recorded events, and ticks that the recording lacks."""
    recorded = list(_recorded_steps(recording.events))
    ticked = {s.interval_ms for s in recorded if isinstance(s, Tick)}
    missing = [i for i in intervals_ms if i not in ticked]
    grid = _grid(recording, missing)
    upcoming = next(grid, None)
    seq = 0
    for step in recorded:
        if isinstance(step, Tick):
            while upcoming is not None and upcoming[0] < step.t_ms:
                yield Tick(*upcoming, seq)
                upcoming = next(grid, None)
            seq = step.seq
        yield step
    # Without recorded ticks all samples are visible; a query never looks past its
    # time, and what one that would finds there is hidden from it.
    rest = seq if ticked else recording.store.seq
    while upcoming is not None:
        yield Tick(*upcoming, rest)
        upcoming = next(grid, None)


def _grid(
    recording: Recording, intervals_ms: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield (t_ms, interval_ms) on the grids of `intervals_ms` over the recording's span."""
    meta = recording.meta
    if not intervals_ms:
        return
    count = sum((meta.end_ms - meta.start_ms) // i for i in intervals_ms)
    if count > TICKS_MAX:
        raise RecordingError(f"the recording asks for {count} ticks, more than {TICKS_MAX}")
    following = {i: -(-meta.start_ms // i) * i for i in intervals_ms}
    while True:
        interval_ms, t_ms = min(following.items(), key=lambda item: (item[1], item[0]))
        if t_ms > meta.end_ms:
            return
        yield t_ms, interval_ms
        following[interval_ms] = t_ms + interval_ms


def _recorded_steps(events: Sequence[Json]) -> Iterator[Step]:
    """Yield events, with each tick given the outcomes that its live run wrote after it began."""
    tick: Json | None = None
    outcomes: list[Json] = []
    for event in events:
        kind = event.get("type")
        if kind in ("decision", "query"):
            continue
        if kind == "udf":
            outcomes.append(event)
            continue
        if tick is not None:
            yield _with(tick, outcomes)
        tick, outcomes = (event, []) if kind == "tick" else (None, [])
        if kind != "tick":
            yield event
    if tick is not None:
        yield _with(tick, outcomes)


def _with(tick: Json, outcomes: Sequence[Json]) -> Tick:
    return Tick(tick["t_ms"], tick["interval_ms"], tick["seq"], tick["missed"], tuple(outcomes))
