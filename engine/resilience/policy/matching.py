"""Which series of an expression speaks for an instance of a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from resilience.model import Labels, SeriesTruth, TriggerObservation


class Lookup:
    """The series of one observation by their labels, for many instances."""

    __slots__ = ("_by_labels", "_names", "exact")

    def __init__(self, observed: TriggerObservation) -> None:
        self._by_labels: Mapping[Labels, SeriesTruth] = {s.labels: s for s in observed.series}
        self._names: tuple[frozenset[str], ...] | None = None
        # The dictionary's own method: it is called for each instance of each tick.
        self.exact: Callable[[Labels], SeriesTruth | None] = self._by_labels.get

    def nearest(self, labels: Labels) -> SeriesTruth | None:
        """Return the series with these labels, else the only one whose labels are a part of them
        (a sum speaks for each of its parts), else None."""
        exact = self._by_labels.get(labels)
        if exact is not None:
            return exact
        if self._names is None:
            shapes = {frozenset(name for name, _ in known) for known in self._by_labels}
            self._names = tuple(shapes)
        parts = (tuple(p for p in labels if p[0] in names) for names in self._names)
        found = [self._by_labels[p] for p in dict.fromkeys(parts) if p in self._by_labels]
        return found[0] if len(found) == 1 else None


def nearest(observed: TriggerObservation, labels: Labels) -> SeriesTruth | None:
    """Return what `Lookup.nearest` returns, for one instance."""
    return Lookup(observed).nearest(labels)
