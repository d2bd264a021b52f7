"""The live engine: one `Engine`, its bus and its helpers, and what may be done to them.

The scheduler calls `tick`, `scrape`, `renew` and `tidy`; the control API calls the rest from its
own threads. Ticks and swaps take one lock; everything else reads immutable pictures.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from resilience import __version__
from resilience.app import views
from resilience.app.bundle_store import BundleStore
from resilience.app.bundles import intervals
from resilience.app.bus import Bus
from resilience.app.canary import Canary
from resilience.app.engine import Engine, Snapshot
from resilience.app.files import LineFiles
from resilience.app.journal import SqliteJournal
from resilience.app.mask import Mask
from resilience.app.metrics import EngineMetrics, Picture
from resilience.app.notifier import Notifier
from resilience.app.recorder import Recorder
from resilience.app.udfs import Udfs, called
from resilience.errors import JournalError, SourceError
from resilience.model import (
    Bundle,
    Clock,
    Decision,
    EngineConfig,
    Execution,
    JournalEntry,
    Json,
    Source,
    canonical_json,
    format_duration,
)

NAMES_DEADLINE_MS = 5_000
BUS_DEADLINE_MS = 2_000
GATE_DEADLINE_MS = 5_000
FRESH_TICKS = 3
FRESH_SLACK_MS = 10_000
PAUSE_MAX_MS = 30 * 24 * 3_600_000
SNAPSHOT_TRIES = 5


class Scrapes(Protocol):
    def scrape(self, now_ms: int, deadline_ms: int) -> object: ...


@dataclass
class Parts:
    """What `serve` puts together. `configure` tells the core's gate about other tiers, `gate` asks
    it what it does; it raises CoreError."""

    engine: Engine
    bus: Bus
    clock: Clock
    journal: SqliteJournal
    files: LineFiles
    source: Source
    udfs: Udfs
    bundles: BundleStore
    url: str | None = None
    scraper: Scrapes | None = None
    configure: Callable[[EngineConfig], None] | None = None
    gate: Callable[[], Json] | None = None
    series: Callable[[], int] = lambda: 0
    say: Callable[[str], None] = lambda text: None
    on_intervals: Callable[[Iterable[int]], None] = lambda intervals_ms: None
    on_decisions: Callable[[Sequence[Decision]], None] = lambda decisions: None
    allow_missing_metrics: bool = False
    recorder: Recorder | None = None
    notifier: Notifier | None = None


@dataclass
class Scrape:
    """How the newest scrape went."""

    at_ms: int | None = None
    error: str | None = None
    failures: int = 0


@dataclass
class Runtime:
    parts: Parts
    started_ms: int = 0
    metrics: EngineMetrics = field(init=False)
    lock: threading.Lock = field(default_factory=threading.Lock)
    canary: Canary | None = None
    _last: dict[int, int] = field(default_factory=dict)
    _ticked_at: dict[int, int] = field(default_factory=dict)
    _began_at: int = 0
    _missed: dict[int, int] = field(default_factory=dict)
    _lag: dict[int, int] = field(default_factory=dict)
    _scrape: Scrape = field(default_factory=Scrape)
    _errors: dict[str, str] = field(default_factory=dict)
    _fenced_said: bool = False
    _released_said: bool = False

    def __post_init__(self) -> None:
        self.started_ms = self.parts.clock.now_ms()
        self._began_at = self.parts.clock.monotonic_ms()
        self.metrics = EngineMetrics(self._picture)

    # --- what the schedule calls ---------------------------------------------------------------

    def tick(self, t_ms: int, interval_ms: int, missed: int) -> None:
        """Run one tick of one interval group, of the active rules and then of a candidate."""
        self._mind_the_clock(self.parts.clock.now_ms())
        seq = self.parts.source.seq()
        if interval_ms in intervals(self.parts.engine.bundle):
            seq = self._active_tick(t_ms, interval_ms, missed)
        canary = self.canary
        if canary is not None:
            canary.tick(t_ms, interval_ms, seq, missed)

    def _active_tick(self, t_ms: int, interval_ms: int, missed: int) -> int:
        """Keep the reports of the tick and return what samples it saw."""
        clock = self.parts.clock
        began = clock.monotonic_ms()
        lag_ms = max(0, clock.now_ms() - t_ms)
        self.metrics.lag_seconds.labels(str(interval_ms)).observe(lag_ms / 1000)
        self._lag[interval_ms] = lag_ms
        with self.lock:
            policies = [
                p for p in self.parts.engine.bundle.policies
                if p.interval_ms == interval_ms and p.mode != "off"
            ]
            report = self.parts.engine.tick(t_ms, interval_ms, missed=missed)
        self._last[interval_ms], self._ticked_at[interval_ms] = t_ms, clock.monotonic_ms()
        self._missed[interval_ms] = self._missed.get(interval_ms, 0) + missed
        self.metrics.missed.labels(str(interval_ms)).inc(missed)
        self.metrics.evaluated(policies, report.failures or {}, t_ms)
        for decision in report.decisions:
            self.metrics.decisions.labels(decision.policy, decision.to_state.value).inc()
        self.parts.on_decisions(report.decisions)
        self.metrics.reaction.decided(report.decisions, clock.now_ms())
        self.notify()
        self.note("journal", report.error)
        self.note("instances", views.left_out(self.parts.engine.bundle, self.parts.engine.state))
        self.keep(report.executions)
        took_ms = clock.monotonic_ms() - began
        self.metrics.tick_seconds.labels(str(interval_ms)).observe(took_ms / 1000)
        return report.seq

    def intervals(self) -> list[int]:
        """Return the intervals that need ticks, of the active rules and of a candidate."""
        wanted = set(intervals(self.parts.engine.bundle))
        return sorted(wanted | (self.canary.intervals if self.canary is not None else set()))

    def scrape(self) -> None:
        """Take one scrape of the server into the store."""
        scraper = self.parts.scraper
        if scraper is None:
            return
        now_ms = self.parts.clock.now_ms()
        self._mind_the_clock(now_ms)
        budget_ms = max(100, self.parts.engine.bundle.config.scrape_interval_ms - 50)
        self._scrape.at_ms = now_ms
        try:
            error = getattr(scraper.scrape(now_ms, budget_ms), "error", None)
        except SourceError as failed:
            error = str(failed)
        if self.parts.recorder is not None:
            self.parts.recorder.scraped(now_ms)
        self._scrape.error = error
        self._scrape.failures += 1 if error else 0
        self.metrics.scrapes.labels("error" if error else "ok").inc()

    def _mind_the_clock(self, now_ms: int) -> None:
        """Let go of samples that are later than now: the clock was set back."""
        parts = self.parts
        if parts.scraper is None or parts.recorder is None:
            return
        interval_ms = parts.engine.bundle.config.scrape_interval_ms
        by_ms = parts.recorder.mind_the_clock(now_ms, interval_ms)
        if by_ms is not None:
            parts.say(f"the clock was set back by {format_duration(by_ms)}: samples from before "
                      "it count no more, the clocks of the policies go on")

    def renew(self) -> None:
        """Renew leases and retry what the core has not yet taken."""
        self.keep(self.parts.bus.maintain(self.parts.clock.now_ms(), BUS_DEADLINE_MS))

    def tidy(self) -> None:
        """Bound the journal."""
        self.parts.journal.compact(now_ms=self.parts.clock.now_ms())

    def failed(self, part: str, error: Exception) -> None:
        """Remember an error that a job did not expect; the job is called again."""
        self.metrics.errors.labels(part.partition("-")[0]).inc()
        text = f"{type(error).__name__}: {error}"
        if self._errors.get(part) != text:
            self._errors[part] = text
            self.parts.say(f"{part} failed: {text}")

    def note(self, part: str, error: str | None) -> None:
        """Remember the error of a part, or that it is over; say it once."""
        if error is None:
            self._errors.pop(part, None)
        elif self._errors.get(part) != error:
            self._errors[part] = error
            self.metrics.errors.labels(part).inc()
            self.parts.say(error)

    def keep(self, executions: Iterable[Execution]) -> None:
        """Count executions and write them down; a full disk must not stop the ticks."""
        told = list(executions)
        self._say_fenced()
        self._say_released()
        if not told:
            return
        self.metrics.executed(told, self.parts.clock.now_ms())
        rows = [
            JournalEntry(
                "execution", f"{e.decision_id or '-'}/{e.t_ms}/{e.attempt}/{n}", e.to_json()
            )
            for n, e in enumerate(told)
        ]
        try:
            self.parts.journal.append(rows)
        except JournalError as error:
            self.note("journal", str(error))
        mask = self.mask()
        for execution in told:
            line = canonical_json(mask.of(execution.to_json()))
            self.parts.files.append_line("executions.jsonl", line)

    def mask(self) -> Mask:
        """Return what records must not show."""
        return Mask.configured(self.parts.engine.bundle.config)

    def notify(self) -> None:
        """Hand the live `notify.*` claims over; a fenced engine leaves that to the other one."""
        bus, engine = self.parts.bus.view(), self.parts.engine
        if self.parts.notifier is not None and not bus.fenced:
            self.parts.notifier.update(bus.notices, engine.bundle, engine.state)

    def say_fenced_again(self) -> None:
        """The core was taken back: losing it once more is news."""
        self._fenced_said = False

    def forget(self, bundle: Bundle) -> None:
        """Let go of what belonged to policies and intervals that `bundle` lacks."""
        self.metrics.forget(p.name for p in bundle.policies)
        self._last = {i: t for i, t in self._last.items() if i in intervals(bundle)}
        self._ticked_at = {i: t for i, t in self._ticked_at.items() if i in self._last}

    def _say_fenced(self) -> None:
        if self.parts.bus.fenced and not self._fenced_said:
            self._fenced_said = True
            self.parts.say(str(self.parts.bus.view().error))

    def _say_released(self) -> None:
        """Say once that an operator released the core, and once that it takes claims again."""
        released = self.parts.bus.view().released
        if (released is not None) == self._released_said:
            return
        self._released_said = released is not None
        if released is None:
            self.parts.say("the core was resumed: it takes claims again")
            return
        why = f" (`{released['reason']}`)" if released["reason"] else ""
        self.parts.say(f"an operator released the core{why}: it takes no claims until "
                       "`resilience resume --attach URL`")

    # --- what the control API shows --------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the engine's picture; a tick that runs meanwhile makes it try again."""
        for _ in range(SNAPSHOT_TRIES):
            try:
                return self.parts.engine.snapshot()
            except RuntimeError:  # a deque was extended while it was copied
                continue
        with self.lock:
            return self.parts.engine.snapshot()

    def policies(self) -> list[Json]:
        return views.policies(
            self.parts.engine.bundle, self.snapshot(), self._last, self.parts.clock.now_ms())

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
            "ticks": [
                {"interval_ms": i, "last_ms": t, "missed": self._missed.get(i, 0),
                 "lag_ms": self._lag.get(i, 0)}
                for i, t in sorted(self._last.items())
            ],
            "scrape": {
                "last_ms": self._scrape.at_ms, "error": self._scrape.error,
                "failures": self._scrape.failures, "series": self.parts.series(),
            },
            "canary": self.canary_brief(), "notifications": self._notifications(),
            "errors": dict(self._errors), "lines_dropped": self.parts.files.dropped,
            "inputs_dropped": self.parts.engine.inputs_dropped,
        }

    def healthy(self) -> str | None:
        """Return why the engine is not alive, or None: every interval must have ticked lately."""
        now = self.parts.clock.monotonic_ms()
        for interval_ms in intervals(self.parts.engine.bundle):
            gone_ms = now - self._ticked_at.get(interval_ms, self._began_at)
            if gone_ms > FRESH_TICKS * interval_ms + FRESH_SLACK_MS:
                return f"no tick of interval {interval_ms} ms for {gone_ms} ms"
        return None

    def ready(self) -> str | None:
        """Return why the engine does not act, or None."""
        bus = self.parts.bus.view()
        if bus.fenced:
            return "another engine took over the core"
        if not bus.attached:
            return "not attached to a core"
        if bus.released is not None:
            return "an operator released the core; `resilience resume --attach URL` ends that"
        if intervals(self.parts.engine.bundle) and not self._last:
            return "no tick yet"
        return self.healthy()

    def canary_brief(self) -> Json:
        """Return which candidate runs and how it fares; None without one."""
        canary = self.canary
        if canary is None:
            return None
        return {
            "revision": canary.bundle.revision, "since_ms": canary.started.since_ms,
            "ticks": canary.ticks, "ticks_dropped": canary.dropped, "behind": canary.behind,
            "upto_ms": canary.upto_ms,
        }

    def _notifications(self) -> list[Json]:
        return self.parts.notifier.view() if self.parts.notifier is not None else []

    def _picture(self) -> Picture:
        snapshot, bundle = self.snapshot(), self.parts.engine.bundle
        return Picture(
            __version__, bundle.revision, views.state_counts(bundle, snapshot), snapshot.claims,
            self.parts.bus.view(), self.parts.series(), self.parts.files.dropped,
            {layer.name: layer.engaged for layer in self.parts.udfs.layers()},
            self.parts.udfs.counts(), self.parts.udfs.quarantined(), called(bundle.policies),
            self._notifications(), self.canary_brief(), self.parts.engine.inputs_dropped,
            snapshot.state.ledger.left_out,
        )

    # --- the end ---------------------------------------------------------------------------------

    def shut_down(self) -> None:
        """Drop the claims that policies do not keep and close what is open."""
        parts = self.parts
        if self.canary is not None:
            self.canary.close()
        with self.lock:
            self.keep(parts.bus.release(parts.clock.now_ms(), BUS_DEADLINE_MS))
        if parts.notifier is not None:
            parts.notifier.close()
        parts.udfs.close()
        parts.files.close()
        parts.journal.close()

