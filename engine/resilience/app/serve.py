"""`serve`: put the live engine together, beside a server that it starts or takes over.

Everything that can be refused is refused before the server starts: rules, state folder, sockets.
What the running server lacks is found right after, and then nothing of the bundle is applied.
"""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from resilience import __version__
from resilience.app.breaker_events import BreakerEvents
from resilience.app.bundles import Sources, intervals, propose, read_sources
from resilience.app.bus import Bus
from resilience.app.candidates import Candidates
from resilience.app.clock import SystemClock
from resilience.app.control import public_routes, routes
from resilience.app.engine import Engine
from resilience.app.files import LineFiles
from resilience.app.mask import Mask
from resilience.app.notifier import Notifier
from resilience.app.operations import Operations
from resilience.app.parts import Parts, Scrapes
from resilience.app.prepare import Prepared, Report, Settings, configured, prepare
from resilience.app.reached import ASK_AGAIN_S, Server, connect, reach
from resilience.app.recorder import Recorder
from resilience.app.runtime import Runtime
from resilience.app.schedule import Scheduler
from resilience.app.watch import POLL_MS, Watch, stamp
from resilience.errors import CoreError, UsageError
from resilience.model import Decision, EngineConfig, Source

if TYPE_CHECKING:
    from resilience.sources.store import MemoryStore

WATCH_S = 0.25
RENEW_MS = 500
BREAKERS_MS = 1_000
TIDY_MS = 60_000
PATIENCE_TICKS = 3
PATIENCE_SLACK_MS = 5_000
SCRAPE_AHEAD_MAX_MS = 250
FIRST_SCRAPE_MS = 15_000


class Stopped(Exception):
    """A signal asked for an ordered end."""


def serve(settings: Settings, report: Report) -> int:
    """Run until a signal or the server's end; returns the exit code, raises ResilienceError."""
    if settings.watch and settings.rules is None:
        raise UsageError("`--watch` follows a folder: name RULES")
    if (settings.attach is None) == (not settings.server):
        raise UsageError("say what to serve: `-- MODEL ARGS…` after the options, or `--attach URL`")
    report = report.for_ever()
    with _signals() as ending, ExitStack() as stack:
        try:
            ready = prepare(settings, stack, report.say)
            server = reach(settings, ready, stack, report)
            runtime = _start(settings, ready, server, stack, report)
            return _watch(server, runtime, report)
        except Stopped:
            report.say("stopping")
            return 0
        finally:
            ending()


# --- the engine ----------------------------------------------------------------------------------


def _start(
    settings: Settings, ready: Prepared, server: Server, stack: ExitStack, report: Report
) -> Runtime:
    """Build the engine, apply the bundle against the running server, and let it tick."""
    clock = SystemClock()
    bundle = ready.checked.bundle
    config = configured(bundle.config, settings.prometheus)
    store = _store(config)
    recorder = Recorder(store, report.say)
    source = _source(config, store)
    bus = Bus(server.core, ready.journal, clock, patience_ms=_patience_ms(intervals(bundle)),
              correct_drift=config.on_drift == "correct")
    connect(bus, server, settings.wait_ms, clock)
    files = LineFiles(
        ready.folder.path, rotate_bytes=config.record_max_bytes, kept=config.record_files
    )
    engine = Engine(
        ready.before or bundle, source=source, journal=ready.journal, propose=propose, bus=bus,
        udfs=ready.udfs, files=files, events=recorder.event,
        record_results=config.prometheus is not None, keep_inputs=True,
    )
    engine.restore()
    if bus.capabilities is not None:
        engine.observe_capabilities(bus.capabilities)
    runtime = Runtime(Parts(
        engine, bus, clock, ready.journal, files, source, ready.udfs, ready.bundles, server.url,
        recorder=recorder, say=report.say, series=lambda: _series(store),
        allow_missing_metrics=settings.allow_missing_metrics,
        on_decisions=lambda decisions: _tell(decisions, engine.bundle.config, report),
        notifier=Notifier(config, ready.journal, clock, files, report.say),
    ))
    _reach_gate(runtime.parts, server)
    if config.prometheus is None:
        runtime.parts.scraper = _scraper(server.url, config, recorder)
        runtime.first_scrape(FIRST_SCRAPE_MS, lambda: time.sleep(ASK_AGAIN_S))
    _first_bundle(runtime, ready, settings)
    if server.process is None:  # whoever started it may have known other tiers
        runtime.tell_gate()
    if settings.record is not None:
        Operations(runtime).record("start", str(settings.record))
        stack.callback(_end_recording, recorder, report)
    _run(runtime, ready, server, settings, stack)
    _announce(ready, server, runtime, settings, report)
    return runtime


def _reach_gate(parts: Parts, server: Server) -> None:
    """Let the engine configure the server's gate, and ask what its breakers do."""
    parts.configure = lambda new: server.core.configure_gate(new, deadline_ms=2_000)
    parts.gate = lambda: server.core.gate(deadline_ms=2_000)
    parts.breakers = BreakerEvents(
        lambda: server.core.breakers(deadline_ms=2_000), parts.journal, parts.files, parts.clock)


def _store(config: EngineConfig) -> MemoryStore:
    from resilience.sources.store import MemoryStore

    return MemoryStore(retention_ms=config.retention_ms, max_series=config.max_series)


def _series(store: MemoryStore) -> int:
    return int(getattr(store, "series_count", 0))


def _source(config: EngineConfig, store: MemoryStore) -> Source:
    if config.prometheus is not None:
        from resilience.sources.prometheus import PrometheusSource

        return PrometheusSource(config.prometheus)
    from resilience.sources.embedded import EmbeddedSource

    return EmbeddedSource(store, config.scrape_interval_ms)


def _scraper(url: str, config: EngineConfig, recorder: Recorder) -> Scrapes:
    from resilience.sources.scrape import Scraper

    instance = url.partition("://")[2]
    return Scraper(f"{url}/metrics", config.job, instance, recorder, config.scrape_interval_ms)


def _first_bundle(runtime: Runtime, ready: Prepared, settings: Settings) -> None:
    """Apply the bundle with all that the running server says; raises FindingsError."""
    operations = Operations(runtime)
    checked = operations.check(ready.sources, allow_missing=settings.rules is None)
    for finding in checked.findings:
        if finding.severity == "warning":
            runtime.parts.say(str(finding))
    if runtime.parts.engine.bundle.revision == checked.bundle.revision:
        ready.bundles.save(checked.bundle.revision, ready.sources)
        operations.remember(checked.bundle, "start")
    else:
        operations.adopt(checked.bundle, ready.sources, "start")


def _patience_ms(intervals_ms: Iterable[int]) -> int:
    return PATIENCE_TICKS * min(intervals_ms, default=15_000) + PATIENCE_SLACK_MS


def _run(
    runtime: Runtime, ready: Prepared, server: Server, settings: Settings, stack: ExitStack
) -> None:
    """Let the schedule call the engine; the stack undoes it in order: ticks end, claims go."""
    stack.callback(runtime.shut_down)
    scheduler = Scheduler(
        runtime.parts.clock, runtime.tick, runtime.troubles.failed, runtime.troubles.well)
    stack.callback(scheduler.stop)

    def new_intervals(intervals_ms: Iterable[int]) -> None:
        # A candidate's ticks drive nothing: only the active ones bound how long leases last.
        runtime.parts.bus.patience_ms = _patience_ms(intervals(runtime.parts.engine.bundle))
        scheduler.set_intervals(intervals_ms)

    runtime.parts.on_intervals = new_intervals
    new_intervals(runtime.intervals())
    Candidates(runtime).restore()
    if runtime.parts.scraper is not None:
        # A little ahead of the grid, so that a tick finds the samples of its own second.
        every_ms = ready.checked.bundle.config.scrape_interval_ms
        ahead_ms = min(SCRAPE_AHEAD_MAX_MS, every_ms // 4)
        scheduler.every("scrape", every_ms, runtime.scrape, offset_ms=-ahead_ms)
    scheduler.every("renew", RENEW_MS, runtime.renew)
    scheduler.every("breakers", BREAKERS_MS, runtime.look_at_breakers)
    scheduler.every("tidy", TIDY_MS, lambda: _tidy(runtime, server))
    if settings.watch and settings.rules is not None:
        scheduler.every("watch", POLL_MS, _watching(runtime, ready, settings, settings.rules))
    on_fault = partial(runtime.troubles.fault, "control")
    ready.control.start(routes(runtime), on_fault)
    if ready.public is not None:
        ready.public.start(public_routes(runtime), on_fault)
    # What is there now stays; looking through it again and again is what made single ticks late.
    gc.collect()
    gc.freeze()
    scheduler.start()


def _watching(
    runtime: Runtime, ready: Prepared, settings: Settings, rules: Path
) -> Callable[[], None]:
    """Return the job that looks at the rules folder."""
    operations, udf_dirs, config = Operations(runtime), settings.udf_dirs, settings.config

    def use(sources: Sources) -> None:
        body = operations.apply(sources, action="watch")
        if body["from"] != body["to"]:
            runtime.parts.say(f"the rules changed: applied {body['to']}, was {body['from']}")

    watch = Watch(
        lambda: stamp(rules, udf_dirs, config),
        lambda: read_sources(rules, udf_dirs, config=config), use, runtime.parts.say,
        applied=ready.read_at,
    )

    def look() -> None:
        watch.poll(runtime.parts.clock.monotonic_ms())

    return look


def _tidy(runtime: Runtime, server: Server) -> None:
    runtime.tidy()
    if server.process is not None:
        server.process.trim_log()


def _end_recording(recorder: Recorder, report: Report) -> None:
    path = recorder.stop()
    if path is not None:
        report.say(f"the recording lies in {path}")


def _tell(decisions: Iterable[Decision], config: EngineConfig, report: Report) -> None:
    mask = Mask.configured(config)
    for decision in decisions:
        report.event({"event": "decision", "decision": mask.of(decision.to_json())})


def _announce(
    ready: Prepared, server: Server, runtime: Runtime, settings: Settings, report: Report
) -> None:
    bundle = runtime.parts.engine.bundle
    public = f"{ready.public.address[0]}:{ready.public.address[1]}" if ready.public else None
    report.event({
        "event": "ready", "engine_version": __version__, "url": server.url,
        "revision": bundle.revision, "git_commit": bundle.git_commit,
        "policies": len(bundle.policies), "socket": str(ready.control.address), "listen": public,
        "state": str(ready.folder.path), "token_file": str(server.token_file),
        "server_pid": server.process.pid if server.process else None,
        "recording": str(settings.record) if settings.record else None,
    })


def _watch(server: Server, runtime: Runtime, report: Report) -> int:
    """Wait for a signal, or for the end of the server that we started."""
    while True:
        time.sleep(WATCH_S)
        code = server.process.exit_code if server.process is not None else None
        if code is not None:
            from resilience.cores.process import ending, last_words

            assert server.process is not None
            why = ending(code)      # who was killed had no last words
            said = "" if why.startswith("signal") else f": {last_words(server.process.log)}"
            raise CoreError(f"the server ended with {why}{said}; its log is `{server.process.log}`")


@contextmanager
def _signals() -> Generator[Callable[[], None]]:
    """Turn the first SIGTERM or SIGINT into `Stopped`; it must not disturb the order itself.

    Yields what to call when the ordered end begins: from then on nothing is raised any more.
    """
    asked: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if asked:  # the third one ends the process at once
            signal.signal(number, signal.SIG_DFL)
            return
        asked.append(number)
        raise Stopped

    before = {n: signal.signal(n, handle) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: asked.append(0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
