"""A plan: what applying these rules would change, in documents and in predicted decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.app import dryrun, reporting
from resilience.app.dryrun import OnProgress
from resilience.app.mask import Mask
from resilience.model import Bundle, Json
from resilience.policy.conflicts import Conflict, conflicts
from resilience.report.differ import (
    DocumentChange,
    Ledger,
    decision_changes,
    document_changes,
)
from resilience.report.history import History
from resilience.report.summary import Background, Compared, Report
from resilience.report.summary import report as made_of

if TYPE_CHECKING:
    from resilience.sources.recording import Recording

DECISIONS_SHOWN = 1_000


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole difference. `before` and `after` are revisions, `against` says what before is.
    `report` is of the new rules over a recording, compared with the old ones; None without one."""

    against: str
    before: str | None
    after: str
    changes: tuple[DocumentChange, ...]
    conflicts: tuple[Conflict, ...]
    new_conflicts: tuple[Conflict, ...]
    report: Report | None

    @property
    def differs(self) -> bool:
        compared = self.report.compared if self.report is not None else None
        return bool(self.changes) or (compared is not None and compared.decisions.differ > 0)

    def to_json(self) -> Json:
        return {
            "against": self.against, "from": self.before, "to": self.after,
            "differs": self.differs, "changes": [c.to_json() for c in self.changes],
            "conflicts": [c.to_json() for c in self.conflicts],
            "new_conflicts": [c.to_json() for c in self.new_conflicts],
            "prediction": _prediction(self.report) if self.report is not None else None,
        }


def _prediction(report: Report) -> Json:
    """Return both sides by policy (null where one lacks it), and the report of the new one."""
    old = {name: p.figures.to_json() for name, p in report.policies_before.items()}
    new = {p.name: p.figures.to_json() for p in report.policies}
    shed = report.before.shed if report.before is not None else ()
    compared = report.compared
    return {
        "recording": report.recording, "span_ms": report.span_ms,
        "warnings": list(report.warnings),
        "missing_metrics": {p.name: list(p.missing) for p in report.policies if p.missing},
        "policies": {
            name: {"before": old.get(name), "after": new.get(name)}
            for name in sorted(old.keys() | new.keys())
        },
        "decisions": compared.decisions.to_json(DECISIONS_SHOWN) if compared is not None else None,
        "would_have_shed_before": [s.to_json() for s in shed],
        "report": report.to_json(),
    }


def plan(
    before: Bundle | None,
    after: Bundle,
    against: str,
    recording: Path | None = None,
    on_progress: OnProgress = lambda done, total: None,
    *,
    plots: bool = False,
    warnings: Sequence[str] = (),
) -> Plan:
    """Compare two bundles; with `recording` also what they would have decided over it.

    `warnings` are those of the new side. Raises RecordingError.
    """
    known = {str(c) for c in conflicts(before)} if before is not None else set[str]()
    now = conflicts(after)
    changes = tuple(document_changes(before, after))
    report = None
    if recording is not None:
        over = _Over.open(recording, before, after, on_progress)
        report = _predict(over, before, after, Compared(against, changes), plots)
        report = replace(report, warnings=(*report.warnings, *warnings))
    return Plan(
        against, before.revision if before is not None else None, after.revision,
        changes, now, tuple(c for c in now if str(c) not in known), report,
    )


@dataclass(frozen=True, slots=True)
class _Over:
    """The recording that both sides are run over."""

    recording: Recording
    path: Path
    on_progress: OnProgress
    names: Callable[[], frozenset[str]]  # of all metrics in it, read once for both sides

    @classmethod
    def open(
        cls, path: Path, before: Bundle | None, after: Bundle, on_progress: OnProgress
    ) -> _Over:
        policies = (*(before.policies if before is not None else ()), *after.policies)
        recording = dryrun.open_recording(path, Bundle("", policies), reporting.LOAD_METRICS)
        return cls(recording, path, on_progress, cache(partial(reporting.names_of, path)))

    def run(self, bundle: Bundle, plots: bool = False) -> tuple[Report, Ledger]:
        """Run one side from a fresh state, so that both stand on the same footing."""
        ledger = Ledger(show=Mask.configured(bundle.config).of)
        if not dryrun.evaluated(bundle):
            background = Background(str(self.path), warnings=self.recording.warnings)
            return made_of(bundle, History(), {}, background), ledger
        found = reporting.run_over(
            bundle, self.recording, str(self.path), plots=plots, replay=False,
            on_decision=ledger.add, on_progress=self.on_progress,
            names=self.names,
        )
        return found.report, ledger


def _predict(
    over: _Over, before: Bundle | None, after: Bundle, compared: Compared, plots: bool
) -> Report:
    """Return the report of the new rules, with the old ones beside it, both over the same time."""
    old, ledger_before = over.run(before) if before is not None else (None, Ledger())
    new, ledger_after = over.run(after, plots)
    runs = [r for r in (old, new) if r is not None and r.ticks] or [new]
    start_ms, end_ms = min(r.start_ms for r in runs), max(r.end_ms for r in runs)
    if old is not None:
        old = replace(old, start_ms=start_ms, end_ms=end_ms)
    changes = decision_changes(ledger_before, ledger_after)
    return replace(
        new, start_ms=start_ms, end_ms=end_ms,
        compared=replace(compared, decisions=changes, before=old),
    )
