"""`resilience query`: one PromQL expression on a recording, a running engine or a Prometheus."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from resilience.cli import timeline
from resilience.cli.connect import connect, engine_options
from resilience.cli.features import features_option
from resilience.cli.output import emit, note, output_option, table
from resilience.cli.paths import FilePath
from resilience.cli.when import HELP, step_ms, time_ms
from resilience.errors import PromQLError, SourceError, UsageError
from resilience.model import EXPERIMENTAL_FUNCTIONS
from resilience.samples import Json

if TYPE_CHECKING:
    from resilience.app.client import EngineClient
    from resilience.promql.plan import Plan
    from resilience.samples import QueryResult
    from resilience.sources.recording import Recording

DEADLINE_MS = 60_000
POINTS_DEFAULT = 250
LIVE_STEPS_MAX = 1_000
COLUMNS_MAX = 4
ROWS_MAX = 200


@dataclass(frozen=True, slots=True)
class When:
    """What the user asked for; `None` where nothing was said."""

    at: str | None
    start: str | None
    end: str | None
    step: str | None

    @property
    def is_range(self) -> bool:
        return self.start is not None or self.end is not None or self.step is not None

    def instant_ms(self, default_ms: int, now_ms: int) -> int:
        return default_ms if self.at is None else time_ms(self.at, "--at", now_ms)

    def range_ms(self, first_ms: int, last_ms: int, now_ms: int) -> tuple[int, int, int]:
        """Return start, end and step; what is not given comes from the span and 250 points."""
        end = last_ms if self.end is None else time_ms(self.end, "--end", now_ms)
        start = first_ms if self.start is None else time_ms(self.start, "--start", now_ms)
        if end < start:
            raise UsageError("--end lies before --start")
        usual = max(1_000, (end - start) // POINTS_DEFAULT // 1_000 * 1_000)
        return start, end, usual if self.step is None else step_ms(self.step)


@click.command("query")
@click.argument("expr")
@click.option("--recording", type=FilePath(path_type=Path), metavar="FILE",
              help="Evaluate over this recording.")
@click.option("--prometheus", metavar="URL", help="Ask this server.")
@click.option("--config", type=FilePath(path_type=Path), metavar="FILE",
              help="A `kind: Engine` document with the server's address, headers and secrets.")
@click.option("--at", metavar="TIME",
              help=f"Evaluate at one time: {HELP}. Over a recording, `now` is its end.")
@click.option("--start", metavar="TIME", help="Evaluate over a range, from here.")
@click.option("--end", metavar="TIME", help="End of the range.")
@click.option("--step", metavar="DURATION", help="Step of the range, such as `30s`.")
@click.option("--explain", is_flag=True,
              help="With --recording: print the plan with series counts and times.")
@features_option
@output_option
@engine_options
def command(
    expr: str, recording: Path | None, prometheus: str | None, config: Path | None,
    at: str | None, start: str | None, end: str | None, step: str | None, explain: bool,
    features: tuple[str, ...], output: str, socket: Path | None, state: Path | None,
) -> None:
    """Evaluate EXPR at one time, or over a range with --start, --end or --step.

    Without --recording or --prometheus the running engine is asked. `-o json` prints exactly the
    data object of Prometheus' HTTP API.
    """
    from resilience.promql.failing import located
    from resilience.promql.parser import parse, parse_checked

    when = When(at, start, end, step)
    if when.is_range and at is not None:
        raise UsageError("`--at` is for one time; `--start`, `--end` and `--step` for a range")
    if recording is not None and (prometheus is not None or config is not None):
        raise UsageError("`--recording` and a Prometheus server cannot both be asked")
    if explain and recording is None:
        raise UsageError("`--explain` evaluates here: it needs `--recording FILE`")
    if features and (prometheus is not None or config is not None):
        raise UsageError("`--enable-feature` is for a recording or a running engine: a Prometheus "
                         "server is started with its own")
    if prometheus is not None or config is not None:
        data = _prometheus(expr, prometheus, config, when)
    elif recording is not None:
        plan = parse(expr, experimental=EXPERIMENTAL_FUNCTIONS in features)
        found = _load(plan, recording)
        try:
            if explain:
                _explain(plan, found, when)
                return
            data = _recorded(plan, found, when)
        except PromQLError as error:
            raise located(error, expr) from None
    else:
        plan = parse_checked(expr)  # the engine knows what else it has switched on
        with connect(socket, state) as engine:
            data = _live(Asked(expr, engine, features), plan, when)
    show(data, output)


# --- a recording -------------------------------------------------------------------------------


def _load(plan: Plan, path: Path) -> Recording:
    """Load just the metrics that are needed, and say what is not there."""
    from resilience.arrays import keep_freed_memory
    from resilience.policy.words import nearest
    from resilience.promql.names import name_test
    from resilience.promql.plan import selectors
    from resilience.sources.recording import metrics_of, outline, read

    keep_freed_memory()
    names = {s.metric_name for s in selectors(plan) if s.metric_name}
    recording = read(path, name_test([plan]))
    for text in recording.warnings:
        note(f"warning: {text}")
    missing = sorted(names - metrics_of(recording.store).keys())
    there = outline(path).names if missing else None
    for name in missing:
        guess = nearest(name, there or ())
        hint = f", did you mean `{guess}`" if guess else ""
        note(f"warning: the recording has no metric `{name}`{hint}")
    return recording


def _recorded(plan: Plan, recording: Recording, when: When) -> Json:
    from resilience.promql.evaluate import instant, range_query
    from resilience.promql.evaluation import Options
    from resilience.sources.api_json import matrix_json, result_data

    meta, storage = recording.meta, recording.store.view()
    if not when.is_range:
        t_ms = when.instant_ms(meta.end_ms, meta.end_ms)
        (result,) = instant([plan], storage, t_ms, meta.lookback_ms)
        if result.error is not None:
            raise PromQLError(result.error, kind="evaluation", part=result.failed)
        return result_data(result, t_ms)
    start, end, step = when.range_ms(meta.start_ms, meta.end_ms, meta.end_ms)
    found = range_query(plan, storage, start, end, step, options=Options(meta.lookback_ms))
    series = ((s.labels, s.times_ms, s.values) for s in found.series())
    return {"resultType": "matrix", "result": matrix_json(series)}


def _explain(plan: Plan, recording: Recording, when: When) -> None:
    from resilience.cli.plan_table import explain

    meta = recording.meta
    if when.is_range:
        grid = when.range_ms(meta.start_ms, meta.end_ms, meta.end_ms)
    else:
        t_ms = when.instant_ms(meta.end_ms, meta.end_ms)
        grid = (t_ms, t_ms, 1)
    click.echo(explain(plan, recording.store.view(), grid, meta.lookback_ms))


# --- a server ----------------------------------------------------------------------------------


def _prometheus(expr: str, url: str | None, config: Path | None, when: When) -> Json:
    """Return the data object just as the server gave it."""
    from resilience.cli.connect_prometheus import access, configured
    from resilience.sources.prometheus import PrometheusSource

    now_ms = round(time.time() * 1000)
    asked = access(None if config is None else configured(config), url)
    if config is None:
        asked = replace(asked, timeout_ms=DEADLINE_MS)
    source = PrometheusSource(asked)
    try:
        if when.is_range:
            start, end, step = when.range_ms(now_ms - 3_600_000, now_ms, now_ms)
            data, warnings = source.range(expr, start, end, step, deadline_ms=asked.timeout_ms)
        else:
            t_ms = when.instant_ms(now_ms, now_ms)
            data, warnings = source.instant(expr, t_ms, deadline_ms=asked.timeout_ms)
    finally:
        source.close()
    for text in warnings:
        note(f"warning: {text}")
    return data


@dataclass(frozen=True, slots=True)
class Asked:
    """What a running engine is asked, and which."""

    expr: str
    engine: EngineClient
    features: tuple[str, ...]

    def body(self, t_ms: int) -> Json:
        body: dict[str, Json] = {"expr": self.expr, "time_ms": t_ms}
        if self.features:
            body["enable_features"] = list(self.features)
        return body


def _live(asked: Asked, plan: Plan, when: When) -> Json:
    """Ask for one time, or for each step of a range by itself."""
    from resilience.promql.evaluate import checked_type
    from resilience.promql.rewrite import within
    from resilience.sources.api_json import result_data

    now_ms = round(time.time() * 1000)
    if not when.is_range:
        t_ms = when.instant_ms(now_ms, now_ms)
        return result_data(_ask(asked, t_ms), t_ms)
    checked_type(plan)
    start, end, step = when.range_ms(now_ms - 300_000, now_ms, now_ms)
    over = within(plan, start, end)
    if over != plan:
        asked = replace(asked, expr=over.text)
    times = range(start, end + 1, step)
    if len(times) > LIVE_STEPS_MAX:
        raise UsageError(f"more than {LIVE_STEPS_MAX} steps: use a longer `--step`, or a recording")
    return {"resultType": "matrix", "result": _steps([_ask(asked, t) for t in times], times)}


def _steps(results: Sequence[QueryResult], times: Sequence[int]) -> list[Json]:
    """Join instant answers to the matrix that a range query gives."""
    from resilience.samples import without_name
    from resilience.sources.api_json import matrix_json

    found: dict[Any, tuple[list[int], list[float]]] = {}
    for t_ms, result in zip(times, results, strict=True):
        for sample in result.samples:
            labels = without_name(sample.labels) if result.kind == "scalar" else sample.labels
            points = found.setdefault(labels, ([], []))
            points[0].append(t_ms)
            points[1].append(sample.value)
    return matrix_json((labels, *found[labels]) for labels in sorted(found))


def _ask(asked: Asked, t_ms: int) -> QueryResult:
    from resilience.samples import QueryResult, RangeSample, Sample, labels_of

    body = asked.engine.post("query", asked.body(t_ms))["result"]
    if body["error"]:
        raise SourceError(body["error"])
    for text in body["warnings"]:
        note(f"warning: {text}")
    samples = tuple(Sample(labels_of(s["labels"]), float(s["value"])) for s in body["samples"])
    ranges = tuple(
        RangeSample(
            labels_of(r["labels"]), tuple(r["times_ms"]), tuple(float(v) for v in r["values"])
        )
        for r in body["ranges"]
    )
    return QueryResult(asked.expr, body["kind"], samples, ranges, body["text"])


# --- what people see ---------------------------------------------------------------------------


def show(data: Json, output: str) -> None:
    """Print a data object: as it is, or as a table."""
    if output == "json":
        emit(json.dumps(data, ensure_ascii=False))
        return
    kind, result = data["resultType"], data["result"]
    if kind in ("scalar", "string"):
        click.echo(result[1])
    elif not result:
        note("no series")
    elif any("histogram" in one or "histograms" in one for one in result):
        raise SourceError(
            "the answer holds native histograms, which a table does not show: use `-o json`")
    elif kind == "vector":
        rows = [[series_text(one["metric"]), one["value"][1]] for one in result]
        click.echo(table(["SERIES", "VALUE"], rows))
    else:
        click.echo(_matrix(result))


def _matrix(result: list[Json]) -> str:
    """Return times down and series across if that fits, else one line for each series."""
    if len(result) <= COLUMNS_MAX and len(result[0]["values"]) <= ROWS_MAX:
        cells: dict[float, list[str]] = {}
        for column, one in enumerate(result):
            for t, value in one["values"]:
                cells.setdefault(t, [""] * len(result))[column] = value
        rows = [[timeline.stamp(round(t * 1000)), *cells[t]] for t in sorted(cells)]
        return table(["TIME", *(series_text(one["metric"]) for one in result)], rows)
    header = ["SERIES", "POINTS", "FIRST", "LAST", "MIN", "MAX"]
    return table(header, [_line(one) for one in result])


def _line(one: Json) -> list[str]:
    values = [v for _, v in one["values"]]
    low, high = min(values, key=float), max(values, key=float)
    return [series_text(one["metric"]), str(len(values)), values[0], values[-1], low, high]


def series_text(metric: dict[str, str]) -> str:
    """Return a series as PromQL writes it."""
    labels = {k: v for k, v in metric.items() if k != "__name__"}
    name = metric.get("__name__", "")
    return name + timeline.labels(labels) if labels or not name else name
