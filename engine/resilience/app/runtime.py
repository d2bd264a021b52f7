"""The live engine: one `Engine`, its bus and its helpers, and what may be done to them.

The scheduler calls `tick`, `scrape`, `renew` and `tidy`; the control API calls the rest from its
own threads. Ticks and swaps take one lock; everything else reads immutable pictures. Who changes
the rules takes `changes` around all of it, so that what was checked and compared is what is
replaced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from resilience.app import views
from resilience.app.bundles import intervals
from resilience.app.canary import Canary
from resilience.app.mask import Mask
from resilience.app.metrics import EngineMetrics
from resilience.app.overview import Overview
from resilience.app.parts import Parts, Scrape
from resilience.app.records import Records
from resilience.app.tick_times import TickTimes
from resilience.app.troubles import Troubles
from resilience.errors import CoreError, JournalError, SourceError
from resilience.model import (
    Bundle,
    Capabilities,
    Execution,
    JournalEntry,
    canonical_json,
    format_duration,
)

BUS_DEADLINE_MS = 2_000
GATE_RETRY_MS = 5_000


@dataclass
class Runtime:
    parts: Parts
    metrics: EngineMetrics = field(init=False)
    troubles: Troubles = field(init=False)
    records: Records = field(init=False)
    times: TickTimes = field(init=False)
    overview: Overview = field(init=False)
    lock: threading.Lock = field(default_factory=threading.Lock)
    changes: threading.RLock = field(default_factory=threading.RLock)
    ended: bool = False
    canary: Canary | None = None
    _scrape: Scrape = field(default_factory=Scrape)
    _fenced_said: bool = False
    _released_said: bool = False
    _telling: threading.Lock = field(default_factory=threading.Lock)
    _untold: bool = False
    _tell_at: int = 0
    _absences: int = 0

    def __post_init__(self) -> None:
        clock = self.parts.clock
        self.times = TickTimes(clock, self.lock)
        self.metrics = EngineMetrics(lambda: self.overview.picture())
        errors = self.metrics.errors
        self.troubles = Troubles(self.parts.say, lambda part: errors.labels(part).inc())
        self.records = Records(self.parts.journal, clock, self.troubles.note)
        self.overview = Overview(
            self.parts, self.times, self._scrape, self.troubles, self.records,
            lambda: self.canary, clock.now_ms())

    # --- what the schedule calls ---------------------------------------------------------------

    def tick(self, t_ms: int, interval_ms: int, missed: int) -> None:
        """Run one tick of one interval group, of the active rules and then of a candidate."""
        self._mind_the_clock(self.parts.clock.now_ms())
        seq = self._active_tick(t_ms, interval_ms, missed)
        canary = self.canary
        if canary is not None:
            canary.tick(t_ms, interval_ms, seq, missed)

    def _active_tick(self, t_ms: int, interval_ms: int, missed: int) -> int:
        """Keep the reports of the tick and return what samples it saw, or those that are there
        when no active policy has the interval."""
        clock = self.parts.clock
        began = clock.monotonic_ms()
        lag_ms = max(0, clock.now_ms() - t_ms)
        with self.lock:
            policies = [
                p for p in self.parts.engine.bundle.policies
                if p.interval_ms == interval_ms and p.mode != "off"
            ]
            if not policies:
                return self.parts.source.seq()
            report = self.parts.engine.tick(t_ms, interval_ms, missed=missed)
            self.times.ticked(interval_ms, t_ms, missed, lag_ms)
        self.metrics.lag_seconds.labels(str(interval_ms)).observe(lag_ms / 1000)
        self.metrics.missed.labels(str(interval_ms)).inc(missed)
        self.metrics.evaluated(policies, report.failures or {}, t_ms)
        for decision in report.decisions:
            self.metrics.decisions.labels(decision.policy, decision.to_state.value).inc()
        self.parts.on_decisions(report.decisions)
        self.metrics.reaction.decided(report.decisions, clock.now_ms())
        self.notify()
        self.records.heard(report.error)
        left_out = views.left_out(self.parts.engine.bundle, self.parts.engine.state)
        self.troubles.note("instances", left_out)
        self.keep(report.executions)
        took_ms = clock.monotonic_ms() - began
        self.metrics.tick_seconds.labels(str(interval_ms)).observe(took_ms / 1000)
        return report.seq

    def intervals(self) -> list[int]:
        """Return the intervals that need ticks, of the active rules and of a candidate."""
        wanted = set(intervals(self.parts.engine.bundle))
        return sorted(wanted | (self.canary.intervals if self.canary is not None else set()))

    def set_intervals(self) -> None:
        """Let the schedule tick at these intervals, and forget the errors of ticks at others."""
        wanted = self.intervals()
        self.parts.on_intervals(wanted)
        self.troubles.ticking(wanted)

    def first_scrape(self, within_ms: int, pause: Callable[[], None]) -> None:
        """Scrape until one comes through, or for `within_ms`: for a server that is slow for a
        moment every metric would count as missing."""
        ends_ms = self.parts.clock.monotonic_ms() + within_ms
        self.scrape()
        while self._scrape.error and self.parts.clock.monotonic_ms() < ends_ms:
            pause()
            self.scrape()

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
        self.records.retry()
        absences = self.parts.bus.absences
        if absences != self._absences and self.parts.bus.view().in_sync:
            with suppress(CoreError):  # the next round asks again
                self._meet_the_core()
                self._absences = absences
        if self._untold and self.parts.clock.monotonic_ms() >= self._tell_at:
            self.tell_gate()

    def _meet_the_core(self) -> None:
        """A core that is back may have restarted, or have been driven by another engine: it is told
        of tiers and ladder again, and ramps and belts go by what it can do now. Raises CoreError
        when it does not say what that is."""
        capabilities, engine = self.parts.bus.meet_again(BUS_DEADLINE_MS), self.parts.engine
        with self.lock:
            if capabilities is not None and not _alike(capabilities, engine.capabilities):
                engine.observe_capabilities(capabilities)
        self.tell_gate()

    def tell_gate(self) -> None:
        """Give the gate the configuration that is active now; `renew` tries again."""
        if self.parts.configure is None:
            return
        with self._telling:
            self._untold = True
            try:
                self.parts.configure(self.parts.engine.bundle.config)
            except (CoreError, ValueError) as error:
                self._tell_at = self.parts.clock.monotonic_ms() + GATE_RETRY_MS
                self.troubles.note("gate", f"the gate did not take the new tiers: {error}")
                return
            self._untold = False
            self.troubles.note("gate", None)

    def look_at_breakers(self) -> None:
        """Keep what the breakers in the core did since the last look."""
        if self.parts.breakers is None:
            return
        try:
            self.parts.breakers.look(self.parts.bus.view().claims, self.mask())
        except JournalError as error:
            self.records.heard(str(error))

    def tidy(self) -> None:
        """Bound the journal."""
        self.parts.journal.compact(now_ms=self.parts.clock.now_ms())

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
        self.records.write(rows)
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

    def say_taken_back(self) -> None:
        """The core was taken back, and losing it once more is news."""
        self._fenced_said = False
        self.parts.say("an operator gave the core back to this engine: it acts again")

    def follow(self, bundle: Bundle) -> None:
        """Let go of what belonged to policies and intervals that `bundle` lacks."""
        self.metrics.forget(p.name for p in bundle.policies)
        self.times.follow(intervals(bundle))

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

    # --- the end ---------------------------------------------------------------------------------

    def shut_down(self) -> None:
        """Drop the claims that policies do not keep and close what is open."""
        parts = self.parts
        if self.canary is not None:
            self.canary.close()
        with self.lock:
            self.ended = True  # nobody claims anything after this
            self.keep(parts.bus.release(parts.clock.now_ms(), BUS_DEADLINE_MS))
        if parts.notifier is not None:
            parts.notifier.close()
        parts.udfs.close()
        parts.files.close()
        parts.journal.close()


def _alike(one: Capabilities, other: Capabilities | None) -> bool:
    """Whether both say the same of a core, whoever drives it."""
    return other is not None and replace(one, epoch=0, generation=0) == replace(
        other, epoch=0, generation=0)
