"""What still has to be told to one receiver: an alert's life, level-triggered, without any I/O.

The wanted alerts are handed over as a whole, again and again. What is new is told as firing, what
is gone as resolved, each once; where the receiver wants it (Alertmanager) a firing alert is told
again before it would end there. A try that fails is made again with back-off, and given up after
`TRIES_MAX`. What was told is in the journal, so a restart tells nothing twice and forgets nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal, TypeAlias

from resilience.model import Json, Labels, labels_of

QUEUE_MAX = 500
BATCH_MAX = 64
TRIES_MAX = 8
BACKOFF_FIRST_MS = 1_000
BACKOFF_MAX_MS = 60_000
TELLS_PER_LEASE = 3

Status: TypeAlias = Literal["firing", "resolved"]


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert of one receiver, from one action of one firing instance. `ends_ms` None: firing."""

    key: str
    labels: Labels
    annotations: Labels
    starts_ms: int
    lease_ms: int
    keep: bool = False
    ends_ms: int | None = None

    @property
    def status(self) -> Status:
        return "firing" if self.ends_ms is None else "resolved"

    def to_json(self) -> Json:
        return {
            **asdict(self), "labels": dict(self.labels), "annotations": dict(self.annotations),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Json]) -> Alert:
        fields: dict[str, Json] = {
            **body, "labels": labels_of(body["labels"]),
            "annotations": labels_of(body["annotations"]),
        }
        return cls(**fields)


class Outbox:
    """The queue of one receiver; its owner orders the calls.

    `told` are the alerts that the receiver knows as firing. `repeats`: it forgets them unless they
    are told again within their lease. `jitter` returns 0..1 and spreads the tries.
    """

    def __init__(
        self, told: Iterable[Alert], *, repeats: bool, resolves: bool,
        jitter: Callable[[], float],
    ) -> None:
        self._told = {alert.key: alert for alert in told}
        self._told_ms: dict[str, int] = {}
        self._queued: dict[str, Status] = {}
        self._given_up: dict[str, None] = {}
        self._queue: deque[Alert] = deque()
        self._repeats, self._resolves, self._jitter = repeats, resolves, jitter
        self._tries = 0
        self._now_ms = 0
        self.not_before_ms = 0
        self.error: str | None = None

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def told(self) -> Mapping[str, Alert]:
        """Return what the receiver was told to be firing."""
        return self._told

    def want(self, alerts: Iterable[Alert], now_ms: int) -> None:
        """Queue what differs between the wanted alerts and what the receiver knows."""
        self._mind_the_clock(now_ms)
        wanted = {alert.key: alert for alert in alerts}
        self._given_up = {k: None for k in self._given_up if k in wanted}
        self._cancel(wanted)
        for alert in wanted.values():
            if self._is_due(alert, now_ms):
                self._put(alert)
        for key in [k for k in self._told if k not in wanted and k not in self._queued]:
            self._put(replace(self._told[key], ends_ms=now_ms))

    def _cancel(self, wanted: Mapping[str, Alert]) -> None:
        """Forget what is queued as firing and was over before the first try."""
        if self._tries:
            return
        stale = {a.key for a in self._queue if a.ends_ms is None and a.key not in wanted}
        back = {a.key for a in self._queue if a.ends_ms is not None and a.key in wanted}
        if stale or back:
            gone = stale | back
            self._queue = deque(a for a in self._queue if a.key not in gone)
            for key in gone:
                self._queued.pop(key, None)

    def _is_due(self, alert: Alert, now_ms: int) -> bool:
        if alert.key in self._queued or alert.key in self._given_up:
            return False
        known = self._told.get(alert.key)
        if known is None or known.starts_ms != alert.starts_ms:
            return True
        again_ms = alert.lease_ms // TELLS_PER_LEASE
        return self._repeats and now_ms - self._told_ms.get(alert.key, 0) >= again_ms

    def _put(self, alert: Alert) -> None:
        """Queue one; when there is no room it is still wanted, and queued at a later tick."""
        if alert.ends_ms is not None and not self._resolves:
            self._told.pop(alert.key, None)
            return
        if len(self._queue) < QUEUE_MAX:
            self._queue.append(alert)
            self._queued[alert.key] = alert.status

    def batch(self, now_ms: int) -> tuple[Alert, ...]:
        """Return what is to be told now, in order; nothing while a failure is waited out."""
        self._mind_the_clock(now_ms)
        if now_ms < self.not_before_ms:
            return ()
        return tuple(list(self._queue)[:BATCH_MAX])

    def done(self, batch: Iterable[Alert], now_ms: int) -> None:
        """The receiver took `batch`."""
        for alert in batch:
            self._leave(alert)
            if alert.ends_ms is None:
                self._told[alert.key], self._told_ms[alert.key] = alert, now_ms
            else:
                self._told.pop(alert.key, None)
                self._told_ms.pop(alert.key, None)
        self._tries, self.not_before_ms, self.error = 0, 0, None

    def failed(self, batch: Iterable[Alert], why: str, now_ms: int, *, final: bool) -> int:
        """A try failed; returns how many alerts are given up. `final`: trying again is no use."""
        self.error = why
        self._tries += 1
        if not final and self._tries < TRIES_MAX:
            wait = min(BACKOFF_MAX_MS, BACKOFF_FIRST_MS * 2 ** (self._tries - 1))
            self.not_before_ms = now_ms + round(wait * (0.5 + self._jitter() / 2))
            return 0
        lost = list(batch)
        for alert in lost:
            self._leave(alert)
            if alert.ends_ms is not None:
                self._told.pop(alert.key, None)
            elif alert.key not in self._told:
                self._given_up[alert.key] = None
            else:
                self._told_ms[alert.key] = now_ms
        self._tries, self.not_before_ms = 0, 0
        return len(lost)

    def _mind_the_clock(self, now_ms: int) -> None:
        """After the clock was set back nothing waits for it to catch up: tell again, try again."""
        if now_ms < self._now_ms:
            self._told_ms, self.not_before_ms = {}, 0
        self._now_ms = now_ms

    def _leave(self, alert: Alert) -> None:
        if alert in self._queue:
            self._queue.remove(alert)
        self._queued.pop(alert.key, None)
