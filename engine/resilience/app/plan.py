"""A plan: what applying these rules would change, in documents and in predicted decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from resilience.app import dryrun
from resilience.app.dryrun import OnProgress
from resilience.app.reporting import missing_metrics
from resilience.model import Bundle, Json
from resilience.policy.conflicts import Conflict, conflicts
from resilience.report.differ import (
    DecisionChanges,
    DocumentChange,
    Ledger,
    decision_changes,
    document_changes,
)
from resilience.report.figures import Figures, figures
from resilience.report.history import History, PolicyHistory

DECISIONS_SHOWN = 1_000


@dataclass(frozen=True, slots=True)
class Prediction:
    """Both bundles over one recording. Figures by policy; None where a side lacks the policy."""

    recording: str
    span_ms: int
    warnings: tuple[str, ...]
    missing: Mapping[str, list[str]]
    figures: Mapping[str, tuple[Figures | None, Figures | None]]
    decisions: DecisionChanges

    def to_json(self) -> Json:
        return {
            "recording": self.recording, "span_ms": self.span_ms, "warnings": list(self.warnings),
            "missing_metrics": dict(self.missing),
            "policies": {
                name: {"before": before.to_json() if before else None,
                       "after": after.to_json() if after else None}
                for name, (before, after) in self.figures.items()
            },
            "decisions": self.decisions.to_json(DECISIONS_SHOWN),
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole difference. `before` and `after` are revisions, `against` says what before is."""

    against: str
    before: str | None
    after: str
    changes: tuple[DocumentChange, ...]
    conflicts: tuple[Conflict, ...]
    new_conflicts: tuple[Conflict, ...]
    prediction: Prediction | None

    @property
    def differs(self) -> bool:
        decided = self.prediction is not None and self.prediction.decisions.differ > 0
        return bool(self.changes) or decided

    def to_json(self) -> Json:
        return {
            "against": self.against, "from": self.before, "to": self.after,
            "differs": self.differs, "changes": [c.to_json() for c in self.changes],
            "conflicts": [c.to_json() for c in self.conflicts],
            "new_conflicts": [c.to_json() for c in self.new_conflicts],
            "prediction": self.prediction.to_json() if self.prediction else None,
        }


def plan(
    before: Bundle | None,
    after: Bundle,
    against: str,
    recording: Path | None = None,
    on_progress: OnProgress = lambda done, total: None,
) -> Plan:
    """Compare two bundles; with `recording` also what they would have decided over it.

    Raises RecordingError.
    """
    known = {str(c) for c in conflicts(before)} if before is not None else set[str]()
    now = conflicts(after)
    return Plan(
        against, before.revision if before is not None else None, after.revision,
        tuple(document_changes(before, after)), now,
        tuple(c for c in now if str(c) not in known),
        _predict(before, after, recording, on_progress) if recording is not None else None,
    )


def _predict(
    before: Bundle | None, after: Bundle, path: Path, on_progress: OnProgress
) -> Prediction:
    """Run both from a fresh state, so that they stand on the same footing."""
    policies = (*(before.policies if before is not None else ()), *after.policies)
    recording = dryrun.open_recording(path, Bundle("", policies))
    sides: list[tuple[dict[str, Figures], Ledger, History]] = []
    for bundle in (before, after):
        ledger, history = Ledger(), History()
        if bundle is not None and bundle.policies:
            dryrun.run(
                bundle, recording, on_decision=ledger.add, on_progress=on_progress,
                watcher=history, replay=False,
            )
        history.close()
        found = {
            p.name: figures(history.policies.get(p.name) or PolicyHistory(), history)
            for p in (bundle.policies if bundle is not None else ())
        }
        sides.append((found, ledger, history))
    old, new = sides
    span_ms = max(h.end_ms - (h.start_ms or 0) for _, _, h in sides)
    return Prediction(
        str(path), span_ms, recording.warnings, missing_metrics(after.policies, recording),
        {n: (old[0].get(n), new[0].get(n)) for n in sorted(old[0].keys() | new[0].keys())},
        decision_changes(old[1], new[1]),
    )
