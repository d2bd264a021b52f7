"""A dry run with its report: what the recording adds to the run, and the curves for the page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.app import dryrun
from resilience.app.curves import curves
from resilience.app.dryrun import OnDecision, OnProgress, Outcome, expressions
from resilience.arrays import np
from resilience.model import Bundle, Finding, Policy
from resilience.policy.words import nearest
from resilience.promql.evaluate import RangeResult, range_query
from resilience.promql.evaluation import Options
from resilience.promql.parser import parse_checked
from resilience.promql.plan import selectors
from resilience.report.history import History
from resilience.report.shed import PROMPT_TOKENS, Floats, Load, may_refuse
from resilience.report.summary import Background, Report, report

if TYPE_CHECKING:
    from resilience.sources.recording import Recording

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
FINISHED = "vllm:request_success_total"
TIER_IN_FLIGHT = "resilience_gate_inflight"
TIER_REQUESTS = "resilience_gate_requests_total"
LOAD_METRICS = frozenset({
    RUNNING, WAITING, FINISHED, TIER_IN_FLIGHT, TIER_REQUESTS, PROMPT_TOKENS,
})
RATE_SCRAPES = 4
RATE_MIN_MS = 60_000
LOAD_STEPS = 20_000
GUESSES_MAX = 100
# What `check` finds of expressions that a recording answers in full, and the live engine would not.
UNLIKE_LIVE = frozenset({"beyond-retention", "slo-retention"})


@dataclass(frozen=True, slots=True)
class Reported:
    """A dry run's outcome and its report."""

    outcome: Outcome
    report: Report


def unlike_live(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return what makes a run over a recording unlike the live engine, as warnings of a report."""
    return tuple(
        f"not so live: {f.file}:{f.line}:{f.column}: {f.message}"
        + (f"; {f.suggestion}" if f.suggestion else "")
        for f in findings if f.code in UNLIKE_LIVE
    )


def run(
    bundle: Bundle,
    path: Path,
    *,
    warnings: Sequence[str] = (),
    plots: bool = False,
    on_decision: OnDecision = lambda decision: None,
    on_progress: OnProgress = lambda done, total: None,
) -> Reported:
    """Run `bundle` over the recording at `path`; raises RecordingError. `warnings` join those of
    the recording."""
    recording = dryrun.open_recording(path, bundle, LOAD_METRICS)
    return run_over(
        bundle, recording, str(path), warnings=warnings, plots=plots, on_decision=on_decision,
        on_progress=on_progress, names=lambda: names_of(path),
    )


def run_over(
    bundle: Bundle,
    recording: Recording,
    name: str,
    *,
    warnings: Sequence[str] = (),
    plots: bool = False,
    replay: bool = True,
    on_decision: OnDecision = lambda decision: None,
    on_progress: OnProgress = lambda done, total: None,
    names: Callable[[], Iterable[str]] = tuple,
) -> Reported:
    """Run `bundle` over a recording that is open; `name` is what the report calls it.

    `replay` False: from a fresh state, also where the recording is of these very rules. `names`
    gives the names of all metrics that were recorded; it is asked where one is missing.
    """
    history = History()
    outcome = dryrun.run(
        bundle, recording, on_decision=on_decision, on_progress=on_progress, watcher=history,
        replay=replay,
    )
    history.close()
    background = _background(bundle, recording, name, history, names)
    background = replace(background, warnings=(*background.warnings, *warnings))
    made = report(bundle, history, outcome.failures, background)
    if plots:
        made = replace(made, plots=curves(bundle, recording, history))
    return Reported(outcome, made)


def names_of(path: Path) -> frozenset[str]:
    """Return the names of all metrics in the recording at `path`; raises RecordingError."""
    from resilience.sources.recording import outline

    return outline(path).names or frozenset()


def _background(
    bundle: Bundle, recording: Recording, name: str, history: History,
    names: Callable[[], Iterable[str]],
) -> Background:
    limited = any(may_refuse(one.holdings) for one in history.policies.values())
    loads, no_load = loads_of(recording, history) if limited else ([], [])
    missing = missing_metrics(bundle.policies, recording)
    return Background(
        recording=name,
        resampled=not recording.meta.raw,
        warnings=recording.warnings,
        missing=missing,
        near=_near({metric for found in missing.values() for metric in found}, names),
        loads=loads,
        no_load=no_load,
    )


def missing_metrics(policies: Sequence[Policy], recording: Recording) -> dict[str, list[str]]:
    """Return by policy the metrics that its expressions name and the recording has no series of.

    A recording of answers alone (from a Prometheus) holds no samples, so nothing can be said.
    """
    from resilience.sources.recording import metrics_of

    if any(e["type"] == "query" for e in recording.events):
        return {}
    there = metrics_of(recording.store)
    found: dict[str, list[str]] = {}
    for policy in policies:
        names = {
            s.metric_name for expr in expressions([policy]) for s in selectors(parse_checked(expr))
            if s.metric_name and s.metric_name not in there
        }
        if names:
            found[policy.name] = sorted(names)
    return found


def _near(missing: Collection[str], names: Callable[[], Iterable[str]]) -> dict[str, str]:
    """Return for each missing metric the recorded one that it is most like, if one is near."""
    known = sorted(names()) if missing else []
    pairs = ((metric, nearest(metric, known)) for metric in sorted(missing)[:GUESSES_MAX])
    return {metric: guess for metric, guess in pairs if guess is not None}


# --- requests -----------------------------------------------------------------------------------


def loads_of(recording: Recording, history: History) -> tuple[list[Load], list[str]]:
    """Return what came in, of the whole server and of tiers, and which metrics are missing."""
    from resilience.sources.recording import RecordingSource, metrics_of

    there = metrics_of(recording.store)
    scrape_ms = RecordingSource(recording).scrape_interval_ms
    span_ms = max(1, history.end_ms - (history.start_ms or 0))
    step_ms = max(scrape_ms, span_ms // LOAD_STEPS // 1_000 * 1_000, 1_000)
    window_ms = max(RATE_MIN_MS, RATE_SCRAPES * scrape_ms)
    meter = _Meter(recording, history.start_ms or 0, history.end_ms, step_ms, window_ms)
    found: list[Load] = []
    if TIER_IN_FLIGHT in there and TIER_REQUESTS in there:
        found += meter.tiers()
    missing = [name for name in (RUNNING, WAITING, FINISHED) if name not in there]
    if not missing:
        found.append(meter.server(PROMPT_TOKENS in there))
    return found, missing


@dataclass(frozen=True, slots=True)
class _Meter:
    recording: Recording
    start_ms: int
    end_ms: int
    step_ms: int
    window_ms: int

    def server(self, with_tokens: bool) -> Load:
        flight = self._query(f"sum({RUNNING}) + sum({WAITING})")
        finished = self._query(f"sum(rate({FINISHED}[{self.window_ms}ms]))")
        servers = self._query(f"count({RUNNING})")
        in_flight, ended = _row(flight, 0), _row(finished, 0)
        counts = _row(servers, 0)
        known = counts[np.isfinite(counts)]
        tokens = None
        if with_tokens:
            tokens = _row(self._query(f"sum(rate({PROMPT_TOKENS}[{self.window_ms}ms]))"), 0)
        # Who came in either ended or is still in flight.
        grown = np.concatenate([[0.0], np.diff(in_flight)])
        arrived = np.maximum(0, ended * self.step_ms / 1_000 + np.nan_to_num(grown))
        return Load(
            flight.times_ms, in_flight, arrived, self.step_ms,
            servers=int(known.max()) if len(known) else 1, prompt_tokens=tokens,
        )

    def tiers(self) -> list[Load]:
        flight = self._query(f"sum by (tier) ({TIER_IN_FLIGHT})")
        came = self._query(f"sum by (tier) (rate({TIER_REQUESTS}[{self.window_ms}ms]))")
        found: list[Load] = []
        for row, labels in enumerate(flight.labels):
            if labels in came.labels:
                arrived = _row(came, came.labels.index(labels)) * self.step_ms / 1_000
                found.append(Load(
                    flight.times_ms, _row(flight, row), arrived, self.step_ms,
                    dict(labels).get("tier"),
                ))
        return found

    def _query(self, expr: str) -> RangeResult:
        return range_query(
            parse_checked(expr), self.recording.store.view(), self.start_ms, self.end_ms,
            self.step_ms, options=Options(self.recording.meta.lookback_ms),
        )


def _row(answer: RangeResult, row: int) -> Floats:
    if row >= len(answer.labels):
        return np.full(len(answer.times_ms), np.nan)
    values: Floats = answer.values[row]
    if answer.present is None:
        return values
    return np.where(answer.present[row], values, np.nan)
