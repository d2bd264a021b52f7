"""One target, scraped as Prometheus scrapes it.

The labels `job` and `instance` are added (a target's own become `exported_job`, …), `up` and
`scrape_duration_seconds` are written, every sample gets the time at which the scrape began, and a
stale marker ends a series that has vanished, or all of them when a scrape fails.
"""

from __future__ import annotations

import re
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx
import numpy as np
from numpy.typing import NDArray

from resilience.addresses import IDLE_MAX_S
from resilience.errors import SourceError
from resilience.promql.storage import STALE
from resilience.samples import Labels, labels_of
from resilience.sources.exposition import NO_TIME, ExpositionError, Reader, Samples, decode

OK = 200
ACCEPT = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1"
    ";q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
BODY_MAX = 64 * 1024 * 1024
SERIES_MAX = 20_000
TIMES_MAX = 100
_NUMBER = re.compile(r"^\[Errno -?\d+\] ")      # the system's, before its words
_DURATION = "scrape_duration_seconds"


class Sink(Protocol):
    """Where batches go: the memory store, perhaps by way of a recording."""

    def append(self, t_ms: int, labels: Sequence[Labels], values: NDArray[np.float64]) -> int: ...


@dataclass(frozen=True, slots=True)
class ScrapeReport:
    """How one scrape went. `seq` is that of its main batch; `error` None: `up` is 1."""

    seq: int
    samples: int
    duration_ms: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Page:
    """What a target exposed: plain samples, and those that carry a time of their own."""

    labels: tuple[Labels, ...] = ()
    values: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    timed: tuple[tuple[int, Labels, float], ...] = ()


class Scraper:
    """Scrapes `url` into `store`, which only needs `append`. One scrape at a time."""

    def __init__(
        self,
        url: str,
        job: str,
        instance: str,
        store: Sink,
        timeout_ms: int = 10_000,
        *,
        series_max: int = SERIES_MAX,
        body_max: int = BODY_MAX,
    ) -> None:
        self._url = url
        self._target = {"job": job, "instance": instance}
        self._sink = store
        self._timeout_ms = timeout_ms
        self._limits = (series_max, body_max)
        self._http = httpx.Client(
            trust_env=False, follow_redirects=True,
            limits=httpx.Limits(keepalive_expiry=IDLE_MAX_S))
        report = [labels_of({"__name__": n, **self._target}) for n in ("up", _DURATION)]
        self._report: tuple[Labels, ...] = tuple(report)
        self._readers: dict[bool, _Series] = {}
        self._last: tuple[Labels, ...] = ()
        self._whole: tuple[Labels, ...] = self._report

    def close(self) -> None:
        self._http.close()

    def scrape(self, now_ms: int, deadline_ms: int) -> ScrapeReport:
        """Scrape once; `now_ms` stamps the samples. A failure is in the report, never raised."""
        started = time.perf_counter()
        error: str | None = None
        try:
            page = self._fetch(started + min(deadline_ms, self._timeout_ms) / 1000)
        except SourceError as failed:
            page, error = _Page(), str(failed)
        took_s = time.perf_counter() - started
        seq = self._append(now_ms, page, 0.0 if error else 1.0, took_s)
        for t_ms, labels, value in page.timed:
            self._sink.append(t_ms, (labels,), np.array([value]))
        return ScrapeReport(seq, len(page.values) + len(page.timed), took_s * 1000, error)

    def _append(self, now_ms: int, page: _Page, up: float, took_s: float) -> int:
        """Store one batch: what is there, what has gone, and how it went."""
        gone: Sequence[Labels] = ()
        if page.labels is not self._last:
            there = set(page.labels)
            gone = [labels for labels in self._last if labels not in there]
            self._whole = (*page.labels, *self._report)
        whole = (*page.labels, *gone, *self._report) if gone else self._whole
        values = np.concatenate([page.values, np.full(len(gone), STALE), [up, took_s]])
        self._last = page.labels
        return self._sink.append(now_ms, whole, values)

    # --- fetching ------------------------------------------------------------------------------

    def _fetch(self, end: float) -> _Page:
        try:
            body, kind = self._get(end)
        except httpx.TimeoutException:
            raise SourceError(f"`{self._url}` did not answer in time") from None
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise SourceError(f"cannot scrape `{self._url}`: {_reason(error)}") from None
        openmetrics = kind.startswith("application/openmetrics-text")
        try:
            return self._series(openmetrics).page(decode(body))
        except ExpositionError as error:
            raise SourceError(f"`{self._url}` line {error.line}: {error.message}") from None

    def _get(self, end: float) -> tuple[bytes, str]:
        left_s = end - time.perf_counter()
        if left_s <= 0:
            raise httpx.PoolTimeout("no time left")
        headers = {"accept": ACCEPT, "x-prometheus-scrape-timeout-seconds": f"{left_s:.3f}"}
        with self._http.stream("GET", self._url, headers=headers, timeout=left_s) as answer:
            if answer.status_code != OK:
                raise SourceError(f"`{self._url}` answered HTTP {answer.status_code}")
            parts: list[bytes] = []
            size = 0
            for part in answer.iter_bytes():
                size += len(part)
                if size > self._limits[1]:
                    raise SourceError(f"`{self._url}` exposes more than {self._limits[1]} bytes")
                if time.perf_counter() > end:
                    raise httpx.ReadTimeout("the body came too slowly")
                parts.append(part)
            return b"".join(parts), answer.headers.get("content-type", "")

    def _series(self, openmetrics: bool) -> _Series:
        """Return the memory of this dialect's series, a new one once it has seen too many."""
        found = self._readers.get(openmetrics)
        if found is None or found.crowded:
            found = _Series(openmetrics, self._target, self._limits[0], self._report)
            self._readers[openmetrics] = found
        return found


class _Series:
    """What was learnt of a target's series: their texts and their final labels."""

    def __init__(
        self, openmetrics: bool, target: dict[str, str], series_max: int, own: Sequence[Labels]
    ) -> None:
        self._reader = Reader(openmetrics=openmetrics, series_max=2 * series_max)
        self._target = target
        self._series_max = series_max
        self._own = frozenset(own)
        self._final: list[Labels] = []
        self._key = b""
        self._page: tuple[tuple[Labels, ...], NDArray[np.int64] | None] = ((), None)

    @property
    def crowded(self) -> bool:
        return len(self._reader.labels) > self._series_max

    def page(self, text: str) -> _Page:
        """Return the samples of one text; of two for one series the first counts."""
        samples = self._reader.read(text)
        self._final += [
            _final(labels, self._target) for labels in self._reader.labels[len(self._final) :]
        ]
        plain, timed = _by_time(samples)
        labels, keep = self._known(plain.series)
        if len(labels) + len(timed) > self._series_max:
            raise ExpositionError(
                text.count("\n") + 1, f"more than {self._series_max} series are exposed"
            )
        values = np.frombuffer(plain.values, np.float64)
        return _Page(
            labels,
            values if keep is None else values[keep],
            tuple((t, self._final[index], value) for t, index, value in timed[:TIMES_MAX]),
        )

    def _known(self, series: array[int]) -> tuple[tuple[Labels, ...], NDArray[np.int64] | None]:
        """Return the labels (the same object while they stay the same) and what to keep."""
        key = series.tobytes()
        if key != self._key:
            first: dict[Labels, int] = {}
            for place, index in enumerate(series):
                if self._final[index] not in self._own:
                    first.setdefault(self._final[index], place)
            keep = None if len(first) == len(series) else np.array(list(first.values()), np.int64)
            self._key, self._page = key, (tuple(first), keep)
        return self._page


def _by_time(samples: Samples) -> tuple[Samples, list[tuple[int, int, float]]]:
    """Split off the samples that carry a time: they go in at that time and never turn stale."""
    if samples.times_ms.count(NO_TIME) == len(samples.times_ms):
        return samples, []
    plain = Samples()
    timed: list[tuple[int, int, float]] = []
    for index, value, t_ms in zip(samples.series, samples.values, samples.times_ms, strict=True):
        if t_ms == NO_TIME:
            plain.series.append(index)
            plain.values.append(value)
        else:
            timed.append((t_ms, index, value))
    return plain, timed


def _final(labels: Labels, target: dict[str, str]) -> Labels:
    """Add the target's labels; the exposed ones of that name move out of the way."""
    merged: dict[str, Any] = dict(labels)
    for name in target:
        if name in merged:
            moved = f"exported_{name}"
            while moved in merged:
                moved = f"exported_{moved}"
            merged[moved] = merged[name]
    return labels_of({**merged, **target})


def _reason(error: Exception) -> str:
    text = _NUMBER.sub("", " ".join(str(error).split())).rstrip(".")
    return text[:1].lower() + text[1:] if text else type(error).__name__
