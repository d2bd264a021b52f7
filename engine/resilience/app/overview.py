"""What the control API, the probes and the metrics show of a running engine."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from resilience import __version__
from resilience.app import views
from resilience.app.bundles import intervals
from resilience.app.canary import Canary
from resilience.app.engine import Snapshot
from resilience.app.metrics import Picture
from resilience.app.parts import Parts, Scrape
from resilience.app.records import Records
from resilience.app.tick_times import TickTimes
from resilience.app.troubles import Troubles
from resilience.app.udfs import called
from resilience.model import Json

SNAPSHOT_TRIES = 5


@dataclass(frozen=True, slots=True)
class Overview:
    """Pictures of one engine, from any thread."""

    parts: Parts
    times: TickTimes
    scrape: Scrape
    troubles: Troubles
    records: Records
    canary: Callable[[], Canary | None]
    started_ms: int

    def snapshot(self) -> Snapshot:
        """Return the engine's picture; a tick that runs meanwhile makes it try again."""
        for _ in range(SNAPSHOT_TRIES):
            try:
                return self.parts.engine.snapshot()
            except RuntimeError:  # a deque was extended while it was copied
                continue
        with self.times.lock:
            return self.parts.engine.snapshot()

    def policies(self) -> list[Json]:
        now_ms = self.parts.clock.now_ms()
        return views.policies(
            self.parts.engine.bundle, self.snapshot(), self.times.last_ms, now_ms)

    def belts(self) -> Json:
        return views.belts(
            self.parts.engine.bundle, self.snapshot(), self.parts.clock.now_ms())

    def claims(self) -> list[Json]:
        return views.claims(self.snapshot(), self.parts.bus.view())

    def status(self) -> Json:
        snapshot, bus = self.snapshot(), self.parts.bus.view()
        bundle, healthy, ready = self.parts.engine.bundle, self.healthy(), self.ready()
        capabilities = self.parts.bus.capabilities
        return {
            "engine_version": __version__, "pid": os.getpid(), "started_ms": self.started_ms,
            "now_ms": self.parts.clock.now_ms(),
            "revision": bundle.revision, "git_commit": bundle.git_commit,
            "healthy": healthy is None, "ready": ready is None, "why": healthy or ready,
            "policies": len(bundle.policies), "claims": len(snapshot.claims),
            "paused": dict(snapshot.state.paused),
            "core": {
                "url": self.parts.url, "name": capabilities.core if capabilities else None,
                "version": capabilities.core_version if capabilities else None,
            },
            "bus": views.bus_json(bus),
            "ticks": self.times.view(),
            "scrape": {
                "last_ms": self.scrape.at_ms, "error": self.scrape.error,
                "failures": self.scrape.failures, "series": self.parts.series(),
            },
            "canary": self.canary_brief(), "notifications": self._notifications(),
            "errors": self.troubles.view(), "lines_dropped": self.parts.files.dropped,
            "history_dropped": self._history_dropped(),
            "inputs_dropped": self.parts.engine.inputs_dropped,
        }

    def _history_dropped(self) -> int:
        return self.records.dropped + self.parts.engine.owed_dropped

    def healthy(self) -> str | None:
        """Return why the engine is not alive, or None: every interval must have ticked lately."""
        return self.times.standstill(intervals(self.parts.engine.bundle))

    def ready(self) -> str | None:
        """Return why the engine does not act, or None."""
        bus = self.parts.bus.view()
        if bus.fenced:
            return "another engine took over the core"
        if not bus.attached:
            return "not attached to a core"
        if bus.released is not None:
            return "an operator released the core; `resilience resume --attach URL` ends that"
        if intervals(self.parts.engine.bundle) and not self.times.last_ms:
            return "no tick yet"
        if self.parts.journal.error is not None:
            return f"{self.parts.journal.error}; until then nothing begins, what ends may end"
        if bus.silent is not None:
            return bus.silent
        return self.healthy()

    def canary_brief(self) -> Json:
        """Return which candidate runs and how it fares; None without one."""
        canary = self.canary()
        if canary is None:
            return None
        return {
            "revision": canary.bundle.revision, "since_ms": canary.started.since_ms,
            "ticks": canary.ticks, "ticks_dropped": canary.dropped, "behind": canary.behind,
            "upto_ms": canary.upto_ms,
        }

    def _notifications(self) -> list[Json]:
        return self.parts.notifier.view() if self.parts.notifier is not None else []

    def picture(self) -> Picture:
        snapshot, bundle = self.snapshot(), self.parts.engine.bundle
        return Picture(
            __version__, bundle.revision, views.state_counts(bundle, snapshot), snapshot.claims,
            self.parts.bus.view(), self.parts.series(), self.parts.files.dropped,
            {layer.name: layer.engaged for layer in self.parts.udfs.layers()},
            self.parts.udfs.counts(), self.parts.udfs.quarantined(), called(bundle.policies),
            self._notifications(), self.canary_brief(), self.parts.engine.inputs_dropped,
            snapshot.state.ledger.left_out, self._history_dropped(),
            self.parts.journal.error is not None,
        )
