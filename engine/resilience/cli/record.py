"""`resilience record`: from a running engine, from a Prometheus server, or from files."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from resilience.cli import manual
from resilience.cli.connect import connect, duration_ms, engine_options
from resilience.cli.output import emit_json, note, output_option
from resilience.cli.paths import FilePath
from resilience.cli.timeline import span, stamp
from resilience.cli.when import HELP, time_ms
from resilience.errors import UsageError
from resilience.policy.words import counted

if TYPE_CHECKING:
    from resilience.app.client import EngineClient
    from resilience.model import EngineConfig
    from resilience.sources.importers import Summary
    from resilience.sources.importers_prometheus import Need

DEFAULT = "live"
POLL_S = 0.5


class _Forms(manual.Group):
    """`record …` is `record live …`, unless a form is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        if ctx.resilient_parsing and not args:     # a shell completes the first word
            named = True
        return super().parse_args(ctx, args if named else [DEFAULT, *args])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the forms and what may follow `record live`, or a file, which RULES may be."""
        below = self.commands[DEFAULT]
        inner = click.Context(below, info_name=DEFAULT, parent=ctx, resilient_parsing=True)
        found = [*super().shell_complete(ctx, incomplete), *below.shell_complete(inner, incomplete)]
        named = {item.value: item for item in found}
        return list(named.values()) or [CompletionItem(incomplete, type="file")]


@click.group("record", cls=_Forms)
def command() -> None:
    """Save metrics, so that policies can be tried on them without any server.

    \b
    record [--for 10m] [--out FILE]              from the running engine
    record --prometheus URL RULES [--start -6h]  raw samples that RULES need
    record import PATH... --out FILE             TSDB, OpenMetrics, API JSON
    """


def _default_out() -> Path:
    return Path(time.strftime("recording-%Y%m%dT%H%M%SZ.parquet", time.gmtime()))


# --- from an engine or a Prometheus ------------------------------------------------------------


@command.command(DEFAULT)
@click.argument("rules", required=False, type=FilePath(path_type=Path))
@click.option("--out", type=FilePath(path_type=Path), metavar="FILE",
              help="Where the recording goes; default: recording-TIME.parquet here.")
@click.option("--for", "length", metavar="DURATION",
              help="From an engine: how long; default: until interrupted.")
@click.option("--prometheus", metavar="URL",
              help="Record from this server what RULES need; an interrupted call goes on.")
@click.option("--config", type=FilePath(path_type=Path), metavar="FILE",
              help="A `kind: Engine` document with headers and authentication.")
@click.option("--start", default="-1h", show_default=True, metavar="TIME", help=HELP + ".")
@click.option("--end", default="now", show_default=True, metavar="TIME", help="As --start.")
@output_option
@engine_options
def live(
    rules: Path | None, out: Path | None, length: str | None, prometheus: str | None,
    config: Path | None, start: str, end: str, output: str, socket: Path | None,
    state: Path | None,
) -> None:
    """Record from the running engine, or with RULES from a Prometheus server."""
    out = out or _default_out()
    if out.exists():
        raise UsageError(f"`{out}` exists already: name a new file with `--out`")
    if rules is not None:
        _from_prometheus(rules, out, prometheus, config, (start, end), output)
        return
    if prometheus is not None:
        raise UsageError("`--prometheus` needs RULES: only the series that they need are recorded")
    length_ms = None if length is None else duration_ms(length, "--for")
    if length_ms == 0:
        raise UsageError("`--for` is longer than 0; without it Ctrl-C ends the recording")
    with connect(socket, state) as engine:
        _show_path(_from_engine(engine, out.absolute(), length_ms), output)


def _from_engine(engine: EngineClient, out: Path, length_ms: int | None) -> str:
    """Let the engine record until the time is over or the user interrupts; return the path."""
    with _asked_to_end() as asked:
        started = engine.post("recordings", {"action": "start", "path": str(out)})
        note(f"recording into {started['path']}" + ("" if length_ms else "; Ctrl-C ends it"))
        end = time.monotonic() + (float("inf") if length_ms is None else length_ms / 1000)
        while not asked and (left_s := end - time.monotonic()) > 0:
            time.sleep(min(POLL_S, left_s))
        stopped = engine.post("recordings", {"action": "stop"})
    return str(stopped["path"] or started["path"])


@contextmanager
def _asked_to_end() -> Generator[list[int]]:
    """Collect the signals that ask for an end: Ctrl-C, the end of the terminal or of the process.
    They interrupt no request, so the engine never goes on recording for nobody; only a second
    Ctrl-C does. What is ignored, as under `nohup`, stays so."""
    asked: list[int] = []

    def handle(number: int, frame: object) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)

    before = {
        number: signal.signal(number, handle)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show_path(path: str, output: str) -> None:
    from resilience.sources.recording import read_meta

    meta = read_meta(Path(path))
    if output == "json":
        emit_json({"path": path, "meta": meta.to_json()})
    else:
        click.echo(f"{path}: {span(meta.end_ms - meta.start_ms)} from {stamp(meta.start_ms)}")


def _from_prometheus(
    rules: Path, out: Path, url: str | None, config: Path | None, times: tuple[str, str],
    output: str,
) -> None:
    from resilience.cli.connect_prometheus import access
    from resilience.sources.importers_prometheus import record
    from resilience.sources.prometheus import PrometheusSource

    now_ms = round(time.time() * 1000)
    start_ms = time_ms(times[0], "--start", now_ms)
    end_ms = time_ms(times[1], "--end", now_ms)
    need, engine = _needs(rules, config)
    source = PrometheusSource(access(engine, url))
    try:
        with _Progress() as progress:
            summary = record(
                source, need, start_ms, end_ms, out, asked=times, progress=progress.pieces)
    finally:
        source.close()
    _show(summary, output)


def _needs(rules: Path, config: Path | None) -> tuple[Need, EngineConfig]:
    """Return what the expressions of RULES read, and the configuration beside them."""
    from resilience.app.bundles import check_sources, read_sources
    from resilience.sources.importers_prometheus import needs_of

    bundle = check_sources(read_sources(rules, (), config=config)).bundle
    exprs = [expr for policy in bundle.policies for expr in policy.expressions()]
    return needs_of(exprs), bundle.config


# --- from files --------------------------------------------------------------------------------


@command.command("import")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...",
                type=FilePath(path_type=Path))
@click.option("--out", required=True, type=FilePath(path_type=Path), metavar="FILE",
              help="Where the recording goes.")
@click.option("--rules", type=FilePath(path_type=Path), metavar="RULES",
              help="Keep only the metrics that these policies need; report those that are missing.")
@click.option("--format", "kind", default="auto", show_default=True,
              type=click.Choice(["auto", "tsdb", "openmetrics", "text", "api"]),
              help="What PATH holds.")
@click.option("--raw/--resampled", "raw", default=None,
              help="Whether API answers are raw; default: judged by their times.")
@click.option("--time", "at", metavar="TIME",
              help="When samples without a time were scraped; default: the file's own time.")
@output_option
def import_files(
    paths: tuple[Path, ...], out: Path, rules: Path | None, kind: Any, raw: bool | None,
    at: str | None, output: str,
) -> None:
    """Make one recording of TSDB blocks or snapshots, texts with timestamps, or API answers."""
    from resilience.sources.importers import import_paths, save

    if out.exists():
        raise UsageError(f"`{out}` exists already: name a new file with `--out`")
    at_ms = None if at is None else time_ms(at, "--time", round(time.time() * 1000))
    needed = frozenset[str]() if rules is None else _needs(rules, None)[0].metrics
    wanted: Callable[[str], bool] = needed.__contains__ if needed else lambda _: True
    with _Progress() as progress:
        imported = import_paths(
            paths, kind=kind, raw=raw, at_ms=at_ms, wanted=wanted, say=progress.line
        )
        progress.line(f"{out}: writing")
        summary = save(out, imported, needed=needed)
    _show(summary, output)


def _show(summary: Summary, output: str) -> None:
    if not summary.meta.raw:
        note("warning: resampled: rates over this recording may be far off")
    for text in summary.notes:
        note(f"note: {text}")
    if output == "json":
        emit_json(summary.to_json())
        return
    meta = summary.meta
    click.echo(
        f"{summary.path}: {summary.series} series, {counted(summary.samples, 'sample')}, "
        f"{span(meta.end_ms - meta.start_ms)} from {stamp(meta.start_ms)}, "
        f"scraped each {span(meta.scrape_interval_ms)}"
    )


class _Progress:
    """One line on stderr that is written over; nothing when stderr is not a terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.line("")

    def line(self, text: str) -> None:
        if self._shown:
            click.echo(f"\r\x1b[K{text[:100]}", nl=False, err=True)

    def pieces(self, done: int, total: int, text: str) -> None:
        self.line(f"{done}/{total} {text}")
