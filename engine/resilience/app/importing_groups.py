"""Where the rules of a rule file stand: `groups:`, PrometheusRule objects, lists of either."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from resilience.app.importing_rules import (
    problems_of_pairs,
    problems_of_texts,
    text_at,
    texts_at,
)
from resilience.model import Finding, Json
from resilience.policy.document import Document, Map, Place, Problem, Seq
from resilience.policy.judges import shown
from resilience.policy.words import listed, quoted

LEVELS_MAX = 8                      # a rule has three

# The operators of Prometheus and VictoriaMetrics; what stands in them is the same.
_KINDS = ("PrometheusRule", "VMRule")


@dataclass(frozen=True, slots=True)
class Group:
    """A group of rules; `raw` holds its own fields, as far as they are what they should be."""

    document: Document
    name: str
    raw: Map
    rules: Seq

    @property
    def labels(self) -> dict[str, str]:
        return texts_at(self.document, self.raw, "labels")

    @property
    def interval(self) -> str | None:
        return text_at(self.document, self.raw, "interval")


@dataclass
class Remarks:
    """What has to be said of the files."""

    skipped: list[Finding] = field(default_factory=list[Finding])

    def skip(self, document: Document, place: Place, severity: Any, message: str,
             suggestion: str | None = None) -> None:
        self.skipped.append(
            document.finding(place, severity, "import", message, suggestion)
        )

    def refuse(self, document: Document, why: Problem) -> None:
        self.skip(document, why.place, "error", why.message, why.suggestion)


def groups_of(
    document: Document, data: Any, place: Place, remarks: Remarks
) -> Iterator[Group]:
    """Yield the groups of one document, or say what it is instead."""
    if isinstance(data, Seq) and any(_is_rule(item) for item in data):
        yield Group(document, "", Map(place), data)
        return
    if not isinstance(data, Map):
        remarks.skip(document, place, "error", f"not a Prometheus rule file, but {shown(data)}",
                    "a rule file has `groups:`")
        return
    kind = data.get("kind")
    items = data.get("items")
    if isinstance(kind, str) and kind.endswith("List") and isinstance(items, Seq):
        for index, item in enumerate(items):
            yield from groups_of(document, item, items.items_at[index], remarks)
        return
    spec: Any = data.get("spec") if kind in _KINDS else data
    if isinstance(spec, Map) and "groups" in spec:
        yield from _members(document, spec, remarks)
    elif isinstance(spec, Map) and isinstance(spec.get("rules"), Seq) and "apiVersion" not in data:
        yield Group(document, "", spec, spec["rules"])
    else:
        message, suggestion = _foreign(data)
        remarks.skip(document, place, "error", message, suggestion)


def _members(document: Document, spec: Map, remarks: Remarks) -> Iterator[Group]:
    groups = spec["groups"]
    if not isinstance(groups, Seq):
        if groups is not None:
            remarks.skip(document, spec.values_at["groups"], "error",
                        f"`groups` must be a list, got {shown(groups)}",
                        "write `groups:` with `- name: …` below")
        return
    for index, raw in enumerate(groups):
        place = groups.items_at[index]
        if not isinstance(raw, Map):
            remarks.skip(document, place, "error", f"a group is a mapping, not {shown(raw)}",
                        "write `name:` and `rules:`")
        elif isinstance(raw.get("rules"), Seq):
            yield _group(document, raw, remarks)
        elif raw.get("rules", 0) is not None:
            remarks.skip(document, raw.values_at.get("rules", place), "error",
                        "a group without a list `rules`", "write `rules:` with its rules below")


def _group(document: Document, raw: Map, remarks: Remarks) -> Group:
    """Return a group; what is wrong in its own fields is said, and its rules are read."""
    wrong = [*problems_of_texts(raw, ("name", "interval", "limit", "query_offset"), "group: "),
             *problems_of_pairs(raw, ("labels",), "group: ")]
    for why in wrong:
        remarks.refuse(document, why)
    fine = {k: v for k, v in raw.items() if raw.values_at[k] not in [w.place for w in wrong]}
    kept = Map(raw.place)
    kept.update(fine)
    kept.values_at.update(raw.values_at)
    return Group(document, text_at(document, kept, "name") or "", kept, raw["rules"])


def _is_rule(item: Any) -> bool:
    return isinstance(item, Map) and ("alert" in item or "record" in item)


def _foreign(data: Map) -> tuple[str, str]:
    kind = data.get("kind")
    if kind == "ConfigMap" and isinstance(data.get("data"), Map):
        held = [k for k, v in data["data"].items() if isinstance(v, str) and "groups:" in v]
        if held:
            return (f"a ConfigMap holds rules as text in {listed(held)}",
                    "save that text as a file of its own and import it")
    if isinstance(data.get("tests"), Seq):
        return "unit tests of promtool, not rules", "import the files of its `rule_files`"
    if "scrape_configs" in data or "rule_files" in data:
        return "a configuration of Prometheus, not rules", "import the files of its `rule_files`"
    if "apiVersion" in data:
        version = _named(data["apiVersion"])
        return (f"kind {_named(kind)} of {version} holds no alerting rules",
                "import a rule file (`groups:`) or a PrometheusRule")
    return "not a Prometheus rule file", "a rule file has `groups:`"


def _named(value: Json) -> str:
    return quoted(value) if isinstance(value, str) else shown(value)


def is_broken(
    data: Any, place: Place, broken: frozenset[tuple[int, int]], levels: int = LEVELS_MAX
) -> bool:
    """Whether `data`, so many levels down, holds what has an error already: one is enough."""
    if (place.line, place.column) in broken:
        return True
    if not broken or not levels:
        return False
    below: list[tuple[Any, Place]] = []
    if isinstance(data, Map):
        below = [(None, at) for at in data.keys_at.values()]
        below += [(item, data.values_at.get(key, place)) for key, item in data.items()]
    elif isinstance(data, Seq):
        below = list(zip(data, data.items_at, strict=True))
    return any(is_broken(item, at, broken, levels - 1) for item, at in below)
