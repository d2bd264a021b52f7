"""The dry run: the live engine's own tick over a recording, with nothing to drive.

What a tick saw is taken from the recording: the samples up to its sequence number, what UDFs and
queries returned, what operators and the core said. The decisions that the live engine wrote into
the recording are never an input; they are only compared with at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from resilience.app.bundles import Sources, check_sources, intervals, propose, split_roots
from resilience.app.columns import Columns, Grid
from resilience.app.engine import Engine
from resilience.app.prefetch import MAX_AGE_SCRAPES
from resilience.app.recorded import RecordedSource, RecordedUdfs
from resilience.app.steps import Step, Tick, steps
from resilience.errors import FindingsError, RecordingError, ResilienceError, UsageError
from resilience.model import (
    Bundle,
    Capabilities,
    Decision,
    Json,
    OperatorEvent,
    Policy,
    State,
    TriggerObservation,
    UdfOutcome,
    canonical_json,
)
from resilience.policy.failures import in_file
from resilience.policy.state import EngineState

if TYPE_CHECKING:
    from resilience.promql.names import NameTest
    from resilience.sources.recording import Recording

DIFFERENCES_SHOWN = 20

OnDecision = Callable[[Decision], None]
OnProgress = Callable[[int, int], None]
# A return from `held`, and a relapse in recovery, go on with a firing that has been counted.
_AT_REST = (State.INACTIVE, State.PENDING)


class Watcher(Protocol):
    """Is told what a dry run sees and decides: what a report is made from."""

    def began(self, state: EngineState) -> None:
        """The recording begins with the state of a running engine."""
        ...

    def decided(self, decision: Decision) -> None: ...

    def saw(self, policy: str, t_ms: int, observation: TriggerObservation) -> None:
        """The trigger of `policy` says this from `t_ms` until the next call (values apart)."""
        ...

    def ticked(self, t_ms: int, interval_ms: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Comparison:
    """The live decisions beside ours. `shown` names the first differing ones by id and side."""

    live: int
    differ: int
    shown: tuple[Json, ...] = ()

    def to_json(self) -> Json:
        return {"live": self.live, "differ": self.differ, "differences": list(self.shown)}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a dry run found. `comparison` None: the recording holds no decisions of these rules."""

    revision: str
    ticks: int
    decisions: int
    start_ms: int | None
    end_ms: int | None
    policies: Mapping[str, Mapping[str, int]]
    failures: Mapping[str, str]
    comparison: Comparison | None

    def to_json(self) -> Json:
        compared = self.comparison.to_json() if self.comparison else None
        return {
            "revision": self.revision, "ticks": self.ticks, "decisions": self.decisions,
            "start_ms": self.start_ms, "end_ms": self.end_ms,
            "policies": {name: dict(counts) for name, counts in sorted(self.policies.items())},
            "failures": dict(self.failures),
            "differ": self.comparison.differ if self.comparison else None,
            "comparison": compared,
        }


def run(
    bundle: Bundle,
    recording: Recording,
    *,
    on_decision: OnDecision = lambda decision: None,
    on_progress: OnProgress = lambda done, total: None,
    watcher: Watcher | None = None,
    replay: bool = True,
) -> Outcome:
    """Evaluate `bundle` over `recording`; raises RecordingError when there is nothing to evaluate
    in it, UsageError when there is no policy.

    A recording of these very rules is replayed with the state that it begins with and the bundles
    that it names, in their order, unless `replay` is False; any other with `bundle` from its
    beginning.
    """
    if not evaluated(bundle):
        raise UsageError(
            "every policy is `mode: off`: none is evaluated" if bundle.policies
            else "the rules hold no policy to evaluate: name a folder with one"
        )
    with _Replay(bundle, recording, watcher, replay) as replaying:
        todo = list(steps(recording, intervals(bundle)))
        total = sum(isinstance(s, Tick) for s in todo)
        if not total:
            raise RecordingError("the recording holds neither ticks nor samples to evaluate")
        done = 0
        for step in todo:
            for decision in replaying.do(step):
                on_decision(decision)
            if isinstance(step, Tick):
                done += 1
                on_progress(done, total)
        return replaying.outcome(total)


def evaluated(bundle: Bundle) -> bool:
    """Say whether `bundle` has a policy that ticks look at."""
    return any(p.mode != "off" for p in bundle.policies)


class _Replay:
    """One engine over one recording."""

    def __init__(
        self, bundle: Bundle, recording: Recording, watcher: Watcher | None, replay: bool
    ) -> None:
        from resilience.sources.recording import RecordingSource

        self._bundle = bundle
        self._recording = recording
        self._replayed = replay and bundle.revision in _revisions(recording.events)
        self._watcher = watcher
        self._source = RecordedSource(RecordingSource(recording))
        self._columns = _columns(bundle, recording, self._source.scrape_interval_ms)
        first = self._first_bundle()
        self._udfs = RecordedUdfs(first)
        self._ours: Counter[str] = Counter()
        self._counts: dict[str, Counter[str]] = {}
        self._failures: dict[str, str] = {}
        self._span: list[int] = []
        self._engine = Engine(
            first, source=self._source, journal=None, propose=propose, udfs=self._udfs
        )

    def __enter__(self) -> _Replay:
        return self

    def __exit__(self, *_: object) -> None:
        self._udfs.close()

    def _first_bundle(self) -> Bundle:
        """Return what the recording began with, if it is a recording of these rules."""
        if self._replayed:
            for event in self._recording.events:
                if event.get("type") == "bundle":
                    return self._rebuilt(event) or self._bundle
        return self._bundle

    def _rebuilt(self, event: Json) -> Bundle | None:
        if event["revision"] == self._bundle.revision:
            return self._bundle
        sources = Sources(
            tuple((path, text.encode()) for path, text in event["documents"]),
            split_roots((path, text) for path, text in event["udfs"]),
        )
        try:
            return check_sources(sources).bundle
        except FindingsError:
            return None

    def do(self, step: Step) -> Sequence[Decision]:
        """Do one step and return the decisions that came of it."""
        if isinstance(step, Tick):
            return self._tick(step)
        kind = step.get("type")
        if kind == "state" and self._replayed:
            state = EngineState.from_json(step["state"])
            self._engine.set_state(state)
            if self._watcher is not None:
                self._watcher.began(state)
        elif kind == "capability":
            capabilities = Capabilities.from_json(step["capabilities"])
            self._engine.observe_capabilities(capabilities)
        elif kind == "operator":
            self._engine.operator(
                OperatorEvent(step["kind"], step["policy"], step["until_ms"], step["reason"])
            )
        elif kind == "bundle" and self._replayed and step["t_ms"]:
            return self._swap(step)
        return ()

    def _swap(self, event: Json) -> Sequence[Decision]:
        bundle = self._rebuilt(event)
        if bundle is None or bundle.revision == self._engine.bundle.revision:
            return ()
        decisions = self._engine.swap(bundle, event["t_ms"])
        self._udfs.use(bundle)
        return self._count(decisions)

    def _tick(self, tick: Tick) -> Sequence[Decision]:
        self._source.at_seq = tick.seq
        columns = self._source.columns = self._columns.get(tick.interval_ms)
        outcomes = [_udf_outcome(o) for o in tick.outcomes]
        self._udfs.known = {o.key: o for o in outcomes}
        report = self._engine.tick(
            tick.t_ms, tick.interval_ms, missed=tick.missed,
            ahead=columns.ahead(tick.t_ms) if columns is not None else None,
        )
        self._note_failures(tick, columns, report.failures or {})
        self._span.append(tick.t_ms)
        del self._span[1:-1]
        self._watch(tick, columns)
        return self._count(report.decisions)

    def _note_failures(
        self, tick: Tick, columns: Columns | None, failures: Mapping[str, str]
    ) -> None:
        """Keep the last reason of each policy why it had no answer; where triggers are evaluated
        ahead, ticks that nobody had to look at count too."""
        runs = columns.runs(tick.t_ms) if columns is not None else {}
        self._failures.update({n: why for n, why in failures.items() if n not in runs})
        if columns is not None and columns.begins(tick.t_ms):
            self._failures.update({
                name: run.detail for name, found in runs.items() for run in found
                if run.detail is not None
            })

    def _watch(self, tick: Tick, columns: Columns | None) -> None:
        """Tell what the triggers said: of a whole block at its beginning, else tick by tick."""
        if self._watcher is None:
            return
        self._watcher.ticked(tick.t_ms, tick.interval_ms)
        runs = columns.runs(tick.t_ms) if columns is not None else {}
        if columns is not None and columns.begins(tick.t_ms):
            for name, found in runs.items():
                for run in found:
                    t_ms = tick.t_ms + run.first * tick.interval_ms
                    self._watcher.saw(name, t_ms, run.observation)
        for policy in self._engine.bundle.policies:
            if policy.interval_ms == tick.interval_ms and policy.name not in runs:
                seen = self._engine.observation(policy.name)
                if seen is not None and policy.mode != "off":
                    self._watcher.saw(policy.name, tick.t_ms, seen)

    def _count(self, decisions: Sequence[Decision]) -> Sequence[Decision]:
        for decision in decisions:
            if self._watcher is not None:
                self._watcher.decided(decision)
            if self._replayed:
                self._ours[canonical_json(decision.to_json())] += 1
            counts = self._counts.setdefault(decision.policy, Counter())
            counts["decisions"] += 1
            if decision.to_state is State.FIRING and decision.from_state in _AT_REST:
                counts["firings"] += 1
        return decisions

    # --- the end --------------------------------------------------------------------------------

    def outcome(self, ticks: int) -> Outcome:
        policies = {
            p.name: {"decisions": 0, "firings": 0, **self._counts.get(p.name, {})}
            for p in self._bundle.policies
        }
        return Outcome(
            self._bundle.revision, ticks, sum(c["decisions"] for c in self._counts.values()),
            self._span[0] if self._span else None, self._span[-1] if self._span else None,
            policies, self._placed_failures(), self._compare(),
        )

    def _placed_failures(self) -> dict[str, str]:
        return {
            p.name: in_file(self._failures[p.name], p, self._bundle)
            for p in self._bundle.policies if p.name in self._failures
        }

    def _compare(self) -> Comparison | None:
        if not self._replayed:
            return None
        live = Counter(
            canonical_json(e["decision"])
            for e in self._recording.events if e.get("type") == "decision"
        )
        only_live, only_ours = live - self._ours, self._ours - live
        differ = max(sum(only_live.values()), sum(only_ours.values()))
        shown = [*_sided("live", only_live), *_sided("dry_run", only_ours)]
        return Comparison(sum(live.values()), differ, tuple(shown[:DIFFERENCES_SHOWN]))


def _columns(
    bundle: Bundle, recording: Recording, scrape_interval_ms: int
) -> dict[int, Columns]:
    """Return, by interval, what can be evaluated ahead: all, if the recording is samples alone."""
    if any(e["type"] not in ("import", "capability") for e in recording.events):
        return {}
    found: dict[int, Columns] = {}
    meta = recording.meta
    for interval_ms in intervals(bundle):
        start_ms = -(-meta.start_ms // interval_ms) * interval_ms
        policies = [
            p for p in bundle.policies if p.interval_ms == interval_ms and p.mode != "off"
        ]
        default_ms = MAX_AGE_SCRAPES * scrape_interval_ms
        ages = {p.name: p.trigger.max_age_ms or default_ms for p in policies}
        found[interval_ms] = Columns(
            policies, Grid(start_ms, meta.end_ms, interval_ms), recording.store.view(),
            lookback_ms=meta.lookback_ms, max_age_ms=ages,
        )
    return found


def _sided(side: str, texts: Counter[str]) -> Iterator[Json]:
    import json

    for text in texts:
        yield {"only_in": side, "decision": json.loads(text)}


def _revisions(events: Sequence[Json]) -> set[str]:
    return {e["revision"] for e in events if e.get("type") == "bundle"}


def _udf_outcome(event: Json) -> UdfOutcome:
    return UdfOutcome(
        event["policy"], event["instance"], event["action"], event["function"], event["outcome"],
        event["result"], event["detail"],
    )


# --- what a bundle needs of a recording ----------------------------------------------------------


def needed_metrics(bundle: Bundle) -> frozenset[str] | NameTest:
    """Return the metric names that the bundle's expressions can select, or a test of names."""
    from resilience.promql.names import name_test
    from resilience.promql.parser import parse_checked

    return name_test(parse_checked(expr) for expr in expressions(bundle.policies))


def expressions(policies: Iterable[Policy]) -> Iterator[str]:
    """Yield every expression that the policies ask for."""
    for policy in policies:
        yield from policy.expressions()


def open_recording(
    path: Path, bundle: Bundle, also: frozenset[str] = frozenset()
) -> Recording:
    """Read what `bundle` needs of the recording at `path`, and the metrics `also`; raises
    RecordingError."""
    from resilience.arrays import keep_freed_memory
    from resilience.sources.recording import read

    keep_freed_memory()
    needed = needed_metrics(bundle)
    names = (
        needed | also if isinstance(needed, frozenset)
        else lambda name: name in also or needed(name)
    )
    try:
        return read(path, names=names)
    except ResilienceError:
        raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RecordingError(f"the recording `{path}` cannot be read: {reason}") from error
