"""What `serve` checks and takes before there is a server, so that nothing starts in vain."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from resilience.app.bundle_store import BundleStore
from resilience.app.bundles import Checked, Sources, check_sources, read_sources
from resilience.app.files import (
    StateFolder,
    StateLock,
    default_socket_path,
    default_state_path,
)
from resilience.app.http import HttpServer, listen_tcp, listen_unix
from resilience.app.journal import SqliteJournal
from resilience.app.recorder import check_free
from resilience.app.udfs import Udfs
from resilience.app.watch import Stamp, stamp
from resilience.errors import ControlError, FindingsError, UsageError
from resilience.model import Bundle, EngineConfig, Json, PrometheusAccess


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says. `server` is MODEL ARGS… of a core of kind `core`; `attach` is the
    URL of a running server, whatever its kind."""

    rules: Path | None = None
    udf_dirs: tuple[Path, ...] = ()
    config: Path | None = None
    state: Path | None = None
    socket: Path | None = None
    listen: str | None = None
    prometheus: str | None = None
    record: Path | None = None
    attach: str | None = None
    token_file: Path | None = None
    server: tuple[str, ...] = ()
    keep_server: bool = False
    wait_ms: int | None = None
    allow_missing_metrics: bool = False
    watch: bool = False
    core: str = "vllm"


@dataclass(frozen=True, slots=True)
class Report:
    """Where `serve` tells what happens: `say` lines for people, `event` objects for programs."""

    say: Callable[[str], None] = lambda text: None
    event: Callable[[Json], None] = lambda body: None

    def for_ever(self) -> Report:
        """Return the same, but for a reader that is gone: who only listens ends no tick and no
        thread that tells something."""

        def say(text: str) -> None:
            with suppress(OSError, ValueError):  # a closed stream is a ValueError
                self.say(text)

        def event(body: Json) -> None:
            with suppress(OSError, ValueError):
                self.event(body)

        return Report(say, event)


@dataclass
class Prepared:
    """All that is known and held before the server is there. `read_at`: how the rules folder
    looked when it was read."""

    folder: StateFolder
    journal: SqliteJournal
    bundles: BundleStore
    sources: Sources
    checked: Checked
    before: Bundle | None
    control: HttpServer
    public: HttpServer | None
    udfs: Udfs
    read_at: Stamp | None


def prepare(settings: Settings, stack: ExitStack, say: Callable[[str], None]) -> Prepared:
    """Check the rules, start their sandbox, take the state folder and the addresses.

    Raises ResilienceError.
    """
    given, read_at = None, None
    if settings.rules is not None:
        read_at = stamp(settings.rules, settings.udf_dirs, settings.config)
        given = read_sources(settings.rules, settings.udf_dirs, config=settings.config)
        check_sources(given)
    folder = StateFolder.create(settings.state or default_state_path())
    stack.callback(StateLock(folder).release)
    journal = SqliteJournal(folder.journal)
    stack.callback(journal.close)
    bundles = BundleStore(folder.bundles)
    last = _last_applied(journal, bundles)
    sources = given or last
    if sources is None:
        raise UsageError(_why_no_bundle(journal, bundles))
    control = listen_unix(settings.socket or default_socket_path(folder.path))
    stack.callback(control.stop)
    public = listen_tcp(settings.listen) if settings.listen else None
    if public is not None:
        stack.callback(public.stop)
    checked = check_sources(sources)
    _check_data(settings, checked.bundle.config)
    return Prepared(
        folder, journal, bundles, sources, checked, _still_valid(last), control, public,
        _open_udfs(checked.bundle, sources, stack, say), read_at,
    )


def configured(config: EngineConfig, prometheus: str | None) -> EngineConfig:
    """Return `config` with the Prometheus of the command line, which goes before its own."""
    if prometheus is None:
        return config
    access = config.prometheus or PrometheusAccess(prometheus)
    return replace(config, prometheus=replace(access, url=prometheus))


def _check_data(settings: Settings, config: EngineConfig) -> None:
    """Refuse where the data shall come from or go to, if that cannot be."""
    access = configured(config, settings.prometheus).prometheus
    if access is not None:
        from resilience.sources.prometheus import PrometheusSource

        PrometheusSource(access).close()
    if settings.record is not None:
        check_free(settings.record)


def _open_udfs(
    bundle: Bundle, sources: Sources, stack: ExitStack, say: Callable[[str], None]
) -> Udfs:
    udfs = Udfs(say)
    stack.callback(udfs.close)
    try:
        udfs.adopt(bundle)
    except FindingsError as error:
        raise FindingsError([sources.display(f) for f in error.findings]) from None
    udfs.layers()  # probed here if no policy needs them, and not at somebody's first scrape
    return udfs


def _last_applied(journal: SqliteJournal, bundles: BundleStore) -> Sources | None:
    rows = journal.recent("bundle", limit=1)
    if not rows:
        return None
    with suppress(ControlError):
        return bundles.load(str(rows[0]["revision"]))
    return None


def _why_no_bundle(journal: SqliteJournal, bundles: BundleStore) -> str:
    rows = journal.recent("bundle", limit=1)
    if not rows:
        return "no RULES given, and no bundle was applied to this state folder before"
    try:
        bundles.load(str(rows[0]["revision"]))
    except ControlError as error:
        return f"no RULES given, and of the last ones applied: {error}"
    return "no RULES given"


def _still_valid(sources: Sources | None) -> Bundle | None:
    """Return the bundle that the saved state belongs to, if this engine still accepts it."""
    if sources is None:
        return None
    with suppress(FindingsError):
        return check_sources(sources).bundle
    return None
