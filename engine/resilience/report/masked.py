"""What a report may show where the configuration masks labels or fields of decision records.

Different values of a masked label stay different, as `***1` and `***2`: a report that took them
for one would see claims meet that never did.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from resilience.model import MASKED, EngineConfig, Labels
from resilience.report.history import Firing, History, Holding


@dataclass(frozen=True, slots=True)
class Shown:
    """Which labels and fields are masked, and what the values met so far are called instead."""

    labels: Collection[str] = ()
    fields: Collection[str] = ()
    names: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def configured(cls, config: EngineConfig, run: History) -> Shown:
        """Return the masks of `config`, knowing the values that instances of the run have."""
        made = cls(config.mask_labels, config.mask_fields)
        if made.labels or made.fields:
            for history in run.policies.values():
                for track in history.tracks.values():
                    made.of(track.labels)
        return made

    def of(self, labels: Labels) -> Labels:
        """Return labels without the values that nobody may read."""
        if not self.labels and not self.fields:
            return labels
        every = "labels" in self.fields
        return tuple(
            (name, self._name(value)
             if name in self.labels or (every and name != "__name__") else value)
            for name, value in labels
        )

    def _name(self, value: str) -> str:
        return self.names.setdefault(value, f"{MASKED}{len(self.names) + 1}") if value else value

    def text(self, text: str) -> str:
        """Return `text` without the values, where a template copied one into it: in one pass, or
        the value `1` would be found again in the `***1` of another."""
        if not self.names:
            return text
        longest_first = sorted(self.names, key=len, reverse=True)
        return re.sub(
            "|".join(map(re.escape, longest_first)), lambda found: self.names[found[0]], text)

    def firing(self, firing: Firing) -> Firing:
        value = None if "value" in self.fields else firing.value
        return replace(firing, labels=self.of(firing.labels), value=value)

    def holding(self, held: Holding) -> Holding:
        if not self.names:
            return held
        scope = tuple(
            (axis, self.text(value) if value == was else value)
            for (axis, value), (_, was) in zip(self.of(held.scope), held.scope, strict=True)
        )
        return replace(held, scope=scope)

    def notes(self, notes: Mapping[str, int]) -> dict[str, int]:
        """Return notes with their counts; masked ones are one note."""
        if "note" in self.fields:
            return {MASKED: sum(notes.values())} if notes else {}
        found: dict[str, int] = {}
        for text, count in sorted(notes.items()):
            shown = self.text(text)
            found[shown] = found.get(shown, 0) + count
        return found
