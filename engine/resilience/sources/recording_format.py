"""The Parquet format of a recording: rows of kind `event`, `group` and `series`.

A group is a set of series that were sampled together: its row holds the times and the sequence
numbers of its batches, a series' row holds one value for each of them (null: no sample). Values
are stored without a dictionary: that would melt stale markers and other NaNs into one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

import numpy as np
from numpy.typing import NDArray

from resilience.errors import RecordingError
from resilience.samples import VERSION, Json, Labels

META_KEY = b"resilience"


@dataclass(frozen=True, slots=True)
class RecordingMeta:
    """What a recording says about itself. `raw` False: resampled, so rates are approximate."""

    source: str
    source_version: str = ""
    scrape_interval_ms: int = 15_000
    lookback_ms: int = 300_000
    raw: bool = True
    start_ms: int = 0
    end_ms: int = 0
    revision: str | None = None
    version: int = VERSION

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, body: Json) -> RecordingMeta:
        """Raises RecordingError for another version, a missing, unknown or mistyped field."""
        names = {f.name for f in fields(cls)}
        if not isinstance(body, dict) or body.get("version") != VERSION:
            found = body.get("version") if isinstance(body, dict) else body
            raise RecordingError(f"recording version `{found}` is not known, only {VERSION} is")
        if unknown := body.keys() - names:
            raise RecordingError(f"the recording's metadata has unknown `{min(unknown)}`")
        try:
            meta = cls(**body)
        except TypeError:
            raise RecordingError("the recording's metadata lacks `source`") from None
        counts = (meta.scrape_interval_ms, meta.lookback_ms, meta.start_ms, meta.end_ms)
        if not all(type(c) is int for c in counts) or type(meta.raw) is not bool:
            raise RecordingError("the recording's metadata holds a value of the wrong type")
        if meta.scrape_interval_ms < 0 or meta.lookback_ms <= 0:
            raise RecordingError("the recording's metadata holds a duration that is not positive")
        return meta


@dataclass(slots=True, eq=False)
class Group:
    """Series that were sampled together, in the order in which their batches became visible.

    `times_ms` and `seqs` int64[T], `values` float64[S, T] with ABSENT where there is no sample.
    `gaps` int64[S], if it is known: the column of each row's last stale marker or missing sample.
    """

    labels: list[Labels]
    times_ms: NDArray[np.int64]
    seqs: NDArray[np.int64]
    values: NDArray[np.float64]
    number: int = 0
    gaps: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """All that a recording file holds; `events` as (ordinal, body), in their order."""

    meta: RecordingMeta
    groups: tuple[Group, ...]
    events: tuple[tuple[int, Json], ...]

    @property
    def bodies(self) -> tuple[Json, ...]:
        """The events in the order in which they happened."""
        return tuple(body for _, body in self.events)


def name_of(labels: Labels) -> str:
    """Return the metric name, empty if there is none."""
    if labels and labels[0][0] == "__name__":                # sorted: where most have it
        return labels[0][1]
    return next((value for key, value in labels if key == "__name__"), "")
