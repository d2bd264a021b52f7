"""What a running engine is made of: `serve` puts it together, tests put other things in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from resilience.app.breaker_events import BreakerEvents
from resilience.app.bundle_store import BundleStore
from resilience.app.bus import Bus
from resilience.app.engine import Engine
from resilience.app.files import LineFiles
from resilience.app.journal import SqliteJournal
from resilience.app.notifier import Notifier
from resilience.app.recorder import Recorder
from resilience.app.udfs import Udfs
from resilience.model import Clock, Decision, EngineConfig, Json, Source


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
    breakers: BreakerEvents | None = None


@dataclass
class Scrape:
    """How the newest scrape went."""

    at_ms: int | None = None
    error: str | None = None
    failures: int = 0
