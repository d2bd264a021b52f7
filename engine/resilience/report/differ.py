"""What a change of rules changes: the fields of documents, and the decisions over a recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from resilience.model import Bundle, Decision, Json, canonical_json, digest16
from resilience.policy import compact
from resilience.policy.document import Map, parse_documents

Kind = Literal["added", "removed", "changed"]
ABSENT = object()
DECISIONS_MAX = 1_000_000
# What differs between two revisions by itself: it says nothing about what was decided.
REVISION_FIELDS = ("id", "revision", "spec_hash")


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One value at `path`, such as `spec.trigger.for`; `before` or `after` may be ABSENT."""

    path: str
    before: Any
    after: Any

    @property
    def kind(self) -> Kind:
        if self.before is ABSENT:
            return "added"
        return "removed" if self.after is ABSENT else "changed"

    def to_json(self) -> Json:
        body: dict[str, Json] = {"path": self.path, "kind": self.kind}
        if self.before is not ABSENT:
            body["before"] = self.before
        if self.after is not ABSENT:
            body["after"] = self.after
        return body


@dataclass(frozen=True, slots=True)
class DocumentChange:
    """One document that differs. `fields` are empty for one that is only on one side."""

    document: str
    name: str
    kind: Kind
    fields: tuple[FieldChange, ...] = ()

    def to_json(self) -> Json:
        return {"document": self.document, "name": self.name, "kind": self.kind,
                "fields": [f.to_json() for f in self.fields]}


def document_changes(before: Bundle | None, after: Bundle) -> list[DocumentChange]:
    """Return what differs between the documents and UDFs of two bundles, in order of name."""
    old, new = _documents(before), _documents(after)
    found = list(_pairs(old, new))
    old_udfs = dict(before.udfs) if before is not None else {}
    for path in sorted(old_udfs.keys() | dict(after.udfs).keys()):
        kind = _kind(old_udfs.get(path), dict(after.udfs).get(path))
        if kind is not None:
            found.append(DocumentChange("UDF", path, kind))
    return found


def _pairs(
    old: Mapping[tuple[str, str], Json], new: Mapping[tuple[str, str], Json]
) -> Iterator[DocumentChange]:
    for key in sorted(old.keys() | new.keys()):
        kind = _kind(old.get(key), new.get(key))
        if kind == "changed":
            yield DocumentChange(*key, kind, tuple(field_changes(old[key], new[key])))
        elif kind is not None:
            yield DocumentChange(*key, kind)


def _kind(before: Json, after: Json) -> Kind | None:
    if before == after:
        return None
    if before is None:
        return "added"
    return "removed" if after is None else "changed"


def _documents(bundle: Bundle | None) -> dict[tuple[str, str], Json]:
    if bundle is None:
        return {}
    found: dict[tuple[str, str], Json] = {}
    for document in parse_documents(bundle.documents)[0]:
        full = compact.expand(document) if compact.is_compact(document.data) else document
        data: Any = full.data
        metadata = data.get("metadata") if isinstance(data, Map) else None
        name = metadata.get("name", "") if isinstance(metadata, dict) else ""
        body = {k: v for k, v in data.items() if k not in ("apiVersion", "kind")}
        found[str(data.get("kind", "")), str(name)] = body
    return found


def field_changes(before: Json, after: Json) -> list[FieldChange]:
    """Return every value that differs, by its path; a list or map that is new is one change."""
    return list(_walk("", before, after))


def _walk(path: str, before: Any, after: Any) -> Iterator[FieldChange]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            yield from _walk(
                f"{path}.{key}" if path else str(key), before.get(key, ABSENT),
                after.get(key, ABSENT),
            )
    elif isinstance(before, list) and isinstance(after, list):
        for place in range(max(len(before), len(after))):
            yield from _walk(
                f"{path}[{place}]", _item(before, place), _item(after, place)
            )
    elif before is ABSENT or after is ABSENT or before != after:
        yield FieldChange(path, before, after)


def _item(items: Sequence[Any], place: int) -> Any:
    return items[place] if place < len(items) else ABSENT


# --- decisions -----------------------------------------------------------------------------------

DecisionKey = tuple[int, str, str, str]


def _as_it_is(record: Json) -> Json:
    return record


@dataclass(slots=True)
class Ledger:
    """The decisions of one run, by when, which policy, which instance, and to which state.

    Beyond `DECISIONS_MAX` they are counted and not kept. `show` masks what people read of one.
    """

    show: Callable[[Json], Json] = _as_it_is
    decisions: dict[DecisionKey, tuple[str, Json]] = field(
        default_factory=dict[DecisionKey, tuple[str, Json]]
    )
    dropped: int = 0

    def add(self, decision: Decision) -> None:
        if len(self.decisions) >= DECISIONS_MAX:
            self.dropped += 1
            return
        key = (decision.t_ms, decision.policy, decision.instance, decision.to_state.value)
        self.decisions[key] = (_content(decision), self.show(_brief(decision)))


def _content(decision: Decision) -> str:
    """Return a digest of what was decided and why, whatever the revision."""
    body = {k: v for k, v in decision.to_json().items() if k not in REVISION_FIELDS}
    for claims in ("claims_before", "claims_after"):
        body[claims] = [{k: v for k, v in c.items() if k != "revision"} for c in body[claims]]
    body["impulses"] = [[i["impulse"], i["args"], i["action"]] for i in body["impulses"]]
    return digest16(body)


def _brief(decision: Decision) -> Json:
    """Return what one line about a decision says."""
    body = decision.to_json()
    return {
        **{k: body[k] for k in ("t_ms", "policy", "instance", "labels", "value", "reason", "from",
                                "to", "mode")},
        **{k: [{"knob": c["knob"], "scope": c["scope"], "value": c["value"]} for c in body[k]]
           for k in ("claims_before", "claims_after")},
        "impulses": [{"impulse": i["impulse"], "args": i["args"]} for i in body["impulses"]],
    }


@dataclass(frozen=True, slots=True)
class DecisionChanges:
    """What two runs over one recording decided differently, in order of time."""

    before: int
    after: int
    same: int
    only_before: tuple[Json, ...] = ()
    only_after: tuple[Json, ...] = ()
    changed: tuple[tuple[Json, Json], ...] = ()
    dropped: int = 0

    @property
    def differ(self) -> int:
        return len(self.only_before) + len(self.only_after) + len(self.changed)

    def counted(self, after: str) -> str:
        """Return the counts as a sentence, in which the second run is called `after`."""
        text = (f"{self.before} before, {self.after} {after}: {self.same} the same, "
                f"{len(self.only_before)} only before, {len(self.only_after)} only {after}, "
                f"{len(self.changed)} changed")
        return text + (f"; {self.dropped} not compared" if self.dropped else "")

    def to_json(self, most: int) -> Json:
        """Return counts, and at most `most` decisions of each kind."""
        return {
            "before": self.before, "after": self.after, "same": self.same, "differ": self.differ,
            "only_before_count": len(self.only_before), "only_after_count": len(self.only_after),
            "changed_count": len(self.changed), "not_compared": self.dropped,
            "only_before": list(self.only_before[:most]),
            "only_after": list(self.only_after[:most]),
            "changed": [{"before": b, "after": a} for b, a in self.changed[:most]],
        }


def decision_changes(before: Ledger, after: Ledger) -> DecisionChanges:
    """Compare two runs decision by decision."""
    old, new = before.decisions, after.decisions
    both = old.keys() & new.keys()
    changed = sorted(key for key in both if old[key][0] != new[key][0])
    return DecisionChanges(
        len(old), len(new), len(both) - len(changed),
        _briefs(old, old.keys() - new.keys()), _briefs(new, new.keys() - old.keys()),
        tuple((old[key][1], new[key][1]) for key in changed),
        before.dropped + after.dropped,
    )


def _briefs(
    ledger: Mapping[DecisionKey, tuple[str, Json]], keys: Iterable[DecisionKey]
) -> tuple[Json, ...]:
    return tuple(ledger[key][1] for key in sorted(keys))


def value_line(value: Json) -> str:
    """Return a value of a document on one line, as YAML's flow style would have it."""
    if isinstance(value, str):
        return " ".join(value.split()) if "\n" in value else value
    return canonical_json(value)
