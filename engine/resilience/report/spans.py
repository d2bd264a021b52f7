"""Stretches of time and what was so during them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from resilience.model import Json


@dataclass(frozen=True, slots=True)
class Span:
    """`what` was so from `start_ms` up to, not including, `end_ms`."""

    start_ms: int
    end_ms: int
    what: str

    @property
    def ms(self) -> int:
        return self.end_ms - self.start_ms

    def to_json(self) -> Json:
        return [self.start_ms, self.end_ms, self.what]


class Lane:
    """One thing that changes with time: `put` says what it is from then on."""

    def __init__(self, start_ms: int, what: str) -> None:
        self._done: list[Span] = []
        self._start_ms = start_ms
        self._what = what

    @property
    def what(self) -> str:
        return self._what

    def put(self, t_ms: int, what: str) -> None:
        if what == self._what:
            return
        if t_ms > self._start_ms:
            self._done.append(Span(self._start_ms, t_ms, self._what))
        self._start_ms, self._what = t_ms, what

    def spans(self, end_ms: int) -> list[Span]:
        """Return all spans in order, the last one up to `end_ms`."""
        if end_ms <= self._start_ms:
            return list(self._done)
        return [*self._done, Span(self._start_ms, end_ms, self._what)]


def only(spans: Iterable[Span], *words: str) -> list[Span]:
    return [span for span in spans if span.what in words]


def union_ms(spans: Iterable[Span]) -> int:
    """Return the time that at least one of `spans` covers."""
    total, reached = 0, None
    for span in sorted(spans, key=lambda s: s.start_ms):
        start_ms = span.start_ms if reached is None else max(reached, span.start_ms)
        total += max(0, span.end_ms - start_ms)
        reached = span.end_ms if reached is None else max(reached, span.end_ms)
    return total


def folded(lanes: Sequence[Sequence[Span]], rank: Sequence[str], idle: str) -> list[Span]:
    """Return one lane that shows at each time the word of `lanes` that comes first in `rank`.

    A word that `rank` lacks, and no span at all, is `idle`.
    """
    order = {word: place for place, word in enumerate(rank)}
    edges = sorted(
        (t, delta, order[span.what])
        for lane in lanes for span in lane if span.what in order
        for t, delta in ((span.start_ms, 1), (span.end_ms, -1))
    )
    starts = [span.start_ms for lane in lanes for span in lane]
    ends = [span.end_ms for lane in lanes for span in lane]
    if not starts:
        return []
    result, counts = Lane(min(starts), idle), [0] * len(rank)
    at = 0
    while at < len(edges):
        t_ms = edges[at][0]
        while at < len(edges) and edges[at][0] == t_ms:
            counts[edges[at][2]] += edges[at][1]
            at += 1
        result.put(t_ms, next((word for word, n in zip(rank, counts, strict=True) if n), idle))
    return result.spans(max(ends))


def thinned(spans: Sequence[Span], most: int, rank: Sequence[str]) -> list[Span]:
    """Return at most `most` spans: where there are more, equal stretches of time each show the
    word that comes first in `rank` among those within."""
    if len(spans) <= most:
        return list(spans)
    start_ms, end_ms = spans[0].start_ms, spans[-1].end_ms
    width_ms = max(1, -(-(end_ms - start_ms) // most))
    order = {word: place for place, word in enumerate(rank)}
    words: dict[int, str] = {}
    for span in spans:
        first = (span.start_ms - start_ms) // width_ms
        last = (max(span.start_ms, span.end_ms - 1) - start_ms) // width_ms
        for place in range(first, last + 1):
            old = words.get(place)
            if old is None or order.get(span.what, len(rank)) < order.get(old, len(rank)):
                words[place] = span.what
    lane = Lane(start_ms, words.get(0, spans[0].what))
    for place in sorted(words):
        lane.put(start_ms + place * width_ms, words[place])
    return lane.spans(end_ms)
