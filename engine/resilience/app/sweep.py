"""Parameter sweeps: the same rules over the same recording, with other values in some places."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.app import dryrun
from resilience.app.bundles import Sources
from resilience.app.reporting import LOAD_METRICS, loads_of
from resilience.app.sweep_settings import Chosen, bundles, parse_setting, policies
from resilience.model import Bundle, Json
from resilience.report.figures import Figures, figures
from resilience.report.history import History, PolicyHistory
from resilience.report.masked import Shown
from resilience.report.shed import Load, Shed, estimates, may_refuse, total

if TYPE_CHECKING:
    from resilience.sources.recording import Recording

AS_WRITTEN = "as written"


@dataclass(frozen=True, slots=True)
class Tried:
    """One policy in one row: its figures, what its own limits would have refused, and its calls of
    functions (`NAME: OUTCOME` -> decisions)."""

    figures: Figures
    shed: tuple[Shed, ...] = ()
    udf: Mapping[str, int] = field(default_factory=dict[str, int])

    def to_json(self) -> Json:
        return {
            **self.figures.to_json(), "refused_max": total(self.shed),
            "would_have_shed": [s.to_json() for s in self.shed], "udf": dict(self.udf),
        }


@dataclass(frozen=True, slots=True)
class Combination:
    """One row of the table: what was set (empty: rules as they are, which `label` names), and what
    came of it."""

    chosen: Chosen
    policies: Mapping[str, Tried]
    label: str = AS_WRITTEN

    def to_json(self) -> Json:
        return {
            "set": dict(self.chosen), "label": None if self.chosen else self.label,
            "policies": {name: found.to_json() for name, found in self.policies.items()},
        }


@dataclass(frozen=True, slots=True)
class Sweep:
    """A whole table. `span_ms` is the time that each row covers."""

    start_ms: int
    span_ms: int
    warnings: tuple[str, ...]
    rows: tuple[Combination, ...]

    @property
    def caveats(self) -> tuple[str, ...]:
        """What limits the numbers of refused requests, each once."""
        every = (s for row in self.rows for tried in row.policies.values() for s in tried.shed)
        return tuple(dict.fromkeys(c for shed in every for c in shed.caveats))

    @property
    def failures(self) -> tuple[str, ...]:
        """Which functions failed in which share of the rows: these lack what it would propose."""
        rows = dict[str, list[set[str]]]()
        for row in self.rows:
            failed = dict[str, set[str]]()
            for call in (c for tried in row.policies.values() for c in tried.udf):
                name, _, outcome = call.partition(": ")
                if outcome != "ok":
                    failed.setdefault(name, set()).add(outcome)
            for name, outcomes in failed.items():
                rows.setdefault(name, []).append(outcomes)
        return tuple(
            f"function `{name}` failed ({', '.join(sorted(set().union(*found)))}) in {len(found)} "
            f"of {len(self.rows)} rows: what it would have proposed there is not in the figures"
            for name, found in sorted(rows.items()))

    def to_json(self) -> Json:
        return {
            "start_ms": self.start_ms, "span_ms": self.span_ms, "warnings": list(self.warnings),
            "combinations": [row.to_json() for row in self.rows],
        }


def sweep(
    sources: Sources,
    path: Path,
    sets: Sequence[str],
    *,
    before: tuple[str, Bundle] | None = None,
    on_row: Callable[[int, int], None] = lambda done, total: None,
    warnings: Sequence[str] = (),
) -> Sweep:
    """Run every combination of `sets` over the recording at `path`, after `before` (other rules
    and what they are called). `warnings` join those of the recording.

    Only the policies that are named run, with those that share a group with them. Raises
    UsageError for a place or value that cannot be, before anything runs.
    """
    documents = policies(sources)
    settings = [parse_setting(text, list(documents)) for text in sets]
    names = {name for setting in settings for name in setting.policies}
    rows = [(chosen, AS_WRITTEN, _only(bundle, names))
            for chosen, bundle in bundles(sources, settings, documents)]
    if before is not None:
        rows.insert(0, ((), before[0], _only(before[1], names)))
    needed = replace(rows[0][2], policies=tuple(p for *_, b in rows for p in b.policies))
    runner = _Runner(dryrun.open_recording(path, needed, LOAD_METRICS), sorted(names))
    made: list[Combination] = []
    for done, (chosen, label, bundle) in enumerate(rows):
        on_row(done, len(rows))
        made.append(Combination(chosen, runner.run(bundle), label))
    return Sweep(runner.start_ms, runner.span_ms, (*runner.recording.warnings, *warnings),
                 tuple(made))


@dataclass(slots=True)
class _Runner:
    """The recording, and what all rows share of it."""

    recording: Recording
    names: Sequence[str]
    start_ms: int = 0
    span_ms: int = 0
    _loads: dict[tuple[int | None, int], tuple[list[Load], list[str]]] = field(
        default_factory=dict[tuple[int | None, int], tuple[list[Load], list[str]]])

    def run(self, bundle: Bundle) -> dict[str, Tried]:
        """Return what came of each policy that `bundle` has."""
        history = History()
        if dryrun.evaluated(bundle):
            dryrun.run(bundle, self.recording, watcher=history, replay=False)
            history.close()
            self.start_ms = history.start_ms or 0
            self.span_ms = max(self.span_ms, history.end_ms - self.start_ms)
        there = {p.name for p in bundle.policies}
        shown = Shown.configured(bundle.config, history)
        return {
            name: self._tried(history.policies.get(name) or PolicyHistory(), history, shown)
            for name in self.names if name in there
        }

    def _tried(self, policy: PolicyHistory, history: History, shown: Shown) -> Tried:
        held = [shown.holding(h) for h in policy.holdings]
        loads, missing = self._loads_of(history) if may_refuse(held) else ([], [])
        return Tried(figures(policy, history), tuple(estimates(held, loads, missing)),
                     dict(sorted(policy.udf.items())))

    def _loads_of(self, history: History) -> tuple[list[Load], list[str]]:
        """Return what came in while `history` lasted: rows with other intervals last otherwise."""
        span = history.start_ms, history.end_ms
        if span not in self._loads:
            self._loads[span] = loads_of(self.recording, history)
        return self._loads[span]


def _only(bundle: Bundle, names: set[str]) -> Bundle:
    groups = {p.group for p in bundle.policies if p.name in names and p.group is not None}
    kept = tuple(p for p in bundle.policies if p.name in names or p.group in groups)
    return replace(bundle, policies=kept)
