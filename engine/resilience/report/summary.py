"""The report of a dry run, complete: what the text, the JSON and the page are written from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from resilience.model import Bundle, Json, Policy
from resilience.policy.conflicts import Conflict, conflicts
from resilience.report.contention import Meeting, meetings
from resilience.report.differ import DecisionChanges, DocumentChange
from resilience.report.figures import Figures, Taken, figures, states, taken, truths
from resilience.report.history import Firing, History, Holding, PolicyHistory, holdings_of
from resilience.report.lines import Plot
from resilience.report.masked import Shown
from resilience.report.shed import Load, Shed, estimates
from resilience.report.spans import Span

FIRINGS_SHOWN = 1_000


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """One policy over the run. `missing` are metrics of its trigger that the recording lacks,
    `near` the recorded names that such a one is most like."""

    policy: Policy
    figures: Figures
    states: tuple[Span, ...] = ()
    truths: tuple[Span, ...] = ()
    firings: tuple[Firing, ...] = ()
    holdings: tuple[Holding, ...] = ()
    taken: tuple[Taken, ...] = ()
    impulses: Mapping[str, int] = field(default_factory=dict[str, int])
    udf: Mapping[str, int] = field(default_factory=dict[str, int])
    notes: Mapping[str, int] = field(default_factory=dict[str, int])
    missing: tuple[str, ...] = ()
    near: Mapping[str, str] = field(default_factory=dict[str, str])
    failure: str | None = None

    @property
    def name(self) -> str:
        return self.policy.name

    def to_json(self) -> Json:
        return {
            "mode": self.policy.mode, **self.figures.to_json(),
            "firing_list": [firing_json(f) for f in self.firings[:FIRINGS_SHOWN]],
            "claims": [t.to_json() for t in self.taken],
            "impulses": dict(self.impulses), "udf": dict(self.udf), "notes": dict(self.notes),
            "missing_metrics": list(self.missing), "nearest_metrics": dict(self.near),
            "failure": self.failure,
        }


def firing_json(firing: Firing) -> Json:
    return {
        "instance": firing.instance, "labels": dict(firing.labels), "value": firing.value,
        "start_ms": firing.start_ms, "end_ms": firing.end_ms,
    }


@dataclass(frozen=True, slots=True)
class Compared:
    """The other side of a plan: other rules over the same recording, and how they differ. `before`
    None: there were none."""

    against: str
    changes: tuple[DocumentChange, ...]
    decisions: DecisionChanges = DecisionChanges(0, 0, 0)
    before: Report | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """A whole run. `warnings` say what makes it weaker than it looks. `compared` is set for a
    plan: then the report is of the new rules."""

    recording: str
    revision: str
    start_ms: int
    end_ms: int
    ticks: int
    decisions: int
    policies: tuple[PolicyReport, ...]
    conflicts: tuple[Conflict, ...]
    meetings: tuple[Meeting, ...]
    shed: tuple[Shed, ...]
    resampled: bool = False
    warnings: tuple[str, ...] = ()
    plots: Mapping[str, Sequence[Plot]] = field(default_factory=dict[str, Sequence[Plot]])
    compared: Compared | None = None

    @property
    def span_ms(self) -> int:
        return self.end_ms - self.start_ms

    @property
    def before(self) -> Report | None:
        """What the other side of a plan did; None where there is no other side."""
        return self.compared.before if self.compared is not None else None

    @property
    def policies_before(self) -> Mapping[str, PolicyReport]:
        """The policies of the other side by name."""
        return {p.name: p for p in self.before.policies} if self.before is not None else {}

    def to_json(self) -> Json:
        return {
            "resampled": self.resampled, "warnings": list(self.warnings),
            "policies": {p.name: p.to_json() for p in self.policies},
            "conflicts": [c.to_json() for c in self.conflicts],
            "met": [m.to_json() for m in self.meetings],
            "would_have_shed": [s.to_json() for s in self.shed],
        }


@dataclass(frozen=True, slots=True)
class Background:
    """What is known of the recording apart from the run."""

    recording: str
    resampled: bool = False
    warnings: tuple[str, ...] = ()
    missing: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    near: Mapping[str, str] = field(default_factory=dict[str, str])
    loads: Sequence[Load] = ()
    no_load: Sequence[str] = ()


def report(
    bundle: Bundle, run: History, failures: Mapping[str, str], background: Background
) -> Report:
    """Return the report of a closed run."""
    shown = Shown.configured(bundle.config, run)
    held = [shown.holding(h) for h in holdings_of(run.policies)]
    by_policy: dict[str, list[Holding]] = {}
    for holding in held:
        by_policy.setdefault(holding.policy, []).append(holding)
    groups = {p.name: p.group for p in bundle.policies if p.group is not None}
    return Report(
        recording=background.recording,
        revision=bundle.revision,
        start_ms=run.start_ms or 0,
        end_ms=run.end_ms,
        ticks=run.ticks,
        decisions=sum(h.decisions for h in run.policies.values()),
        policies=tuple(
            _policy(policy, shown, by_policy.get(policy.name, ()), run, failures, background)
            for policy in sorted(bundle.policies, key=lambda p: p.name)
        ),
        conflicts=conflicts(bundle),
        meetings=tuple(meetings(held, groups)),
        shed=tuple(estimates(held, background.loads, background.no_load)),
        resampled=background.resampled,
        warnings=background.warnings,
    )


def _policy(
    policy: Policy, shown: Shown, held: Sequence[Holding], run: History,
    failures: Mapping[str, str], background: Background,
) -> PolicyReport:
    history = run.policies.get(policy.name) or PolicyHistory()
    missing = tuple(background.missing.get(policy.name, ()))
    firings = [f for track in history.tracks.values() for f in track.firings]
    return PolicyReport(
        policy=policy,
        figures=figures(history, run),
        states=tuple(states(history, run)),
        truths=tuple(truths(history, run)),
        firings=tuple(map(shown.firing, sorted(firings, key=lambda f: (f.start_ms, f.instance)))),
        holdings=tuple(held),
        taken=tuple(taken(held)),
        impulses=dict(sorted(history.impulses.items())),
        udf=dict(sorted(history.udf.items())),
        notes=shown.notes(history.notes),
        missing=missing,
        near={m: background.near[m] for m in missing if m in background.near},
        failure=failures.get(policy.name),
    )
