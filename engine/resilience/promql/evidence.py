"""Three-valued logic over label sets: from the answers of one leaf, and through and/or/unless."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from resilience.model import (
    Labels,
    QueryResult,
    Reason,
    SeriesTruth,
    Truth,
    labels_of,
    without_name,
)
from resilience.promql.binary import signature
from resilience.promql.plan import Matching

# Enumerations are looked up slowly, and these are asked for each series of each tick.
_TRUE, _FALSE, _UNKNOWN = Truth.TRUE, Truth.FALSE, Truth.UNKNOWN
_BREACH, _CLEAR, _IDLE = Reason.BREACH, Reason.CLEAR, Reason.IDLE


@dataclass(frozen=True, slots=True)
class Verdict:
    """The truth of one label set, its reason and its value."""

    truth: Truth
    reason: Reason
    value: float | None = None

    def series(self, labels: Labels) -> SeriesTruth:
        return SeriesTruth(labels, self.truth, self.reason, self.value)


@dataclass(frozen=True, slots=True)
class Side:
    """What a part of a trigger says: truths by label set (without name), and of any other label
    set `missing`. `seen`: there are series, so a label set that is not there is false for a
    partner, not unknown."""

    truths: Mapping[Labels, Verdict] = field(default_factory=dict)
    seen: bool = False
    missing: Reason = Reason.BLIND_NO_SERIES
    detail: str | None = None
    newest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """The answers to one leaf's queries; `fresh` pairs each selector's newest time (seconds) with
    its offset."""

    fire: QueryResult | None
    domain: QueryResult | None
    fresh: tuple[tuple[QueryResult | None, int], ...]
    t_ms: int
    max_age_ms: int
    zero_is_false: bool
    known_labels: Labels | None
    domain_has_value: bool


def leaf_truth(evidence: Evidence) -> Side:
    """Return what one leaf says."""
    answers = [evidence.fire, evidence.domain, *(a for a, _ in evidence.fresh)]
    for answer in answers:
        if answer is None or answer.error is not None:
            why = "no answer" if answer is None else answer.error
            return Side(missing=Reason.BLIND_SOURCE_ERROR, detail=why)
    newest, stale, gone = _freshness(evidence)
    truths = _truths(evidence)
    warnings = [w for a in answers if a is not None for w in a.warnings]
    if warnings:
        return _blind(truths, Reason.BLIND_PARTIAL, warnings[0], newest)
    if stale or (gone and truths and evidence.known_labels is None):
        age = "no current sample" if newest is None else f"{(evidence.t_ms - newest) / 1000:g} s"
        return _blind(truths, Reason.BLIND_STALE, f"newest sample: {age}", newest)
    if evidence.known_labels is not None and not truths:
        truths[evidence.known_labels] = Verdict(Truth.FALSE, Reason.CLEAR)
    seen = bool(truths) or newest is not None or evidence.known_labels is not None
    return Side(truths, seen, newest_ms=newest)


def _blind(
    truths: Mapping[Labels, Verdict], reason: Reason, detail: str, newest: int | None
) -> Side:
    unknown = {k: Verdict(Truth.UNKNOWN, reason, v.value) for k, v in truths.items()}
    return Side(unknown, False, reason, detail, newest)


def _freshness(evidence: Evidence) -> tuple[int | None, bool, bool]:
    """Return the oldest of the selectors' newest samples (ms), whether it is too old, and whether
    all selectors are without a current sample."""
    times: list[int] = []
    ages: list[int] = []
    for answer, offset_ms in evidence.fresh:
        seconds = [s.value for s in answer.samples if math.isfinite(s.value)] if answer else []
        if seconds:
            newest = round(max(seconds) * 1000)
            times.append(newest)
            ages.append(evidence.t_ms - offset_ms - newest)
    stale = bool(ages) and max(ages) > evidence.max_age_ms
    return min(times, default=None), stale, bool(evidence.fresh) and not times


def _truths(evidence: Evidence) -> dict[Labels, Verdict]:
    assert evidence.fire is not None and evidence.domain is not None
    truths: dict[Labels, Verdict] = {}
    for sample in evidence.domain.samples:
        value = sample.value if evidence.domain_has_value else None
        idle = math.isnan(sample.value)
        verdict = Verdict(_UNKNOWN, _IDLE, value) if idle else Verdict(_FALSE, _CLEAR, value)
        _put(truths, without_name(sample.labels), verdict)
    for sample in evidence.fire.samples:
        labels = without_name(sample.labels)
        _put(truths, labels, _fired(sample.value, evidence.zero_is_false, truths.get(labels)))
    return truths


def _fired(value: float, zero_is_false: bool, known: Verdict | None) -> Verdict:
    if math.isnan(value) or (known is not None and known.reason is _IDLE):
        return Verdict(_UNKNOWN, _IDLE, value)
    if zero_is_false and value == 0:
        return Verdict(_FALSE, _CLEAR, value)
    return Verdict(_TRUE, _BREACH, value)


_RANK = {_FALSE: 0, _UNKNOWN: 1, _TRUE: 2}


def _put(truths: dict[Labels, Verdict], labels: Labels, verdict: Verdict) -> None:
    """Keep the stronger verdict where two series differ by name only."""
    old = truths.get(labels)
    if old is None or old.truth is _FALSE or _RANK[verdict.truth] >= _RANK[old.truth]:
        truths[labels] = verdict


# --- and, or, unless ---


def combined(op: str, left: Side, right: Side, matching: Matching) -> Side:
    """Return Kleene's `left op right`, label set by label set."""
    partners = _Partners(right, matching)
    truths: dict[Labels, Verdict] = {}
    for labels, verdict in left.truths.items():
        truths[labels] = _JOIN[op](verdict, partners.of(labels))
    if op == "or":
        own = _Partners(left, matching)
        for labels, verdict in right.truths.items():
            _add_right(truths, labels, verdict, own, left)
    return Side(
        truths, left.seen or (op == "or" and right.seen), *_why_missing(op, left, right),
        _older(left.newest_ms, right.newest_ms),
    )


def _add_right(
    truths: dict[Labels, Verdict], labels: Labels, verdict: Verdict, own: _Partners, left: Side
) -> None:
    """A series of the right side of `or` counts where the left has no true partner for it."""
    partner = own.of(labels)
    if labels in left.truths or partner.truth is Truth.TRUE:
        return
    truths[labels] = _or(verdict, Verdict(Truth.FALSE, partner.reason)
                         if partner.truth is Truth.FALSE else partner)


def _why_missing(op: str, left: Side, right: Side) -> tuple[Reason, str | None]:
    blind = left if not left.seen or op != "or" else right
    if op == "or" and left.missing is Reason.BLIND_NO_SERIES:
        blind = right
    return blind.missing, blind.detail or left.detail or right.detail


def _older(a: int | None, b: int | None) -> int | None:
    return min((x for x in (a, b) if x is not None), default=None)


class _Partners:
    """The truth of the matching series of one side, folded with `or`."""

    def __init__(self, side: Side, matching: Matching) -> None:
        self._side = side
        self._on = matching.on
        self._names = frozenset(matching.labels)
        self._folded: dict[Labels, Verdict] = {}
        for labels, verdict in side.truths.items():
            key = signature(labels, self._on, self._names)
            old = self._folded.get(key)
            if old is None or _RANK[verdict.truth] > _RANK[old.truth]:
                self._folded[key] = verdict

    def of(self, labels: Labels) -> Verdict:
        found = self._folded.get(signature(labels_of(labels), self._on, self._names))
        if found is not None:
            return found
        if self._side.seen:
            return Verdict(Truth.FALSE, Reason.CLEAR)
        return Verdict(Truth.UNKNOWN, self._side.missing)


def _and(a: Verdict, b: Verdict) -> Verdict:
    if a.truth is Truth.FALSE:
        return a
    if b.truth is Truth.FALSE:
        return Verdict(Truth.FALSE, Reason.CLEAR, a.value)
    if a.truth is Truth.UNKNOWN:
        return a
    return a if b.truth is Truth.TRUE else Verdict(Truth.UNKNOWN, b.reason, a.value)


def _or(a: Verdict, b: Verdict) -> Verdict:
    if a.truth is Truth.TRUE:
        return a
    if b.truth is Truth.TRUE:
        return Verdict(Truth.TRUE, b.reason, b.value)
    if a.truth is Truth.UNKNOWN:
        return a
    return a if b.truth is Truth.FALSE else Verdict(Truth.UNKNOWN, b.reason, a.value)


def _unless(a: Verdict, b: Verdict) -> Verdict:
    opposite = {Truth.TRUE: Truth.FALSE, Truth.FALSE: Truth.TRUE, Truth.UNKNOWN: Truth.UNKNOWN}
    return _and(a, Verdict(opposite[b.truth], b.reason, b.value))


_JOIN = {"and": _and, "or": _or, "unless": _unless}
