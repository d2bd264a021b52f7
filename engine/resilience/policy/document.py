"""YAML text -> documents that remember where everything stands. Reads text, never a file.

What is refused becomes a finding, and the rest of the file is still read where that is possible.

Limits: 10 MiB a file, 20,000 documents a file, 64 levels, 20,000 values a document after aliases
are expanded, 64 KiB a text, 50 findings of this kind a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from resilience.model import Finding
from resilience.policy import syntax
from resilience.policy.encoding import read_text

SUFFIXES = (".yaml", ".yml")

Node: TypeAlias = Any


def is_policy_file(name: str) -> bool:
    """Return whether a file of a folder is read: `.yaml` or `.yml` in any case.

    Hidden names (`.x.yaml`, Kubernetes' `..data`) and `NAME.test.yaml` are not; editors' back-ups
    end otherwise (`x.yaml~`, `#x.yaml#`).
    """
    lower = name.lower()
    if lower.startswith(".") or lower.endswith((".test.yaml", ".test.yml")):
        return False
    return lower.endswith(SUFFIXES)


class Place(NamedTuple):
    """Where a value stands: line and column from 1, and where its text begins and ends.

    `style` is YAML's: "" plain, `'`, `"`, `|`, `>`; None for a map or a list. A tuple, because
    there is one for every key and value of every document.
    """

    line: int
    column: int
    start: int = 0
    end: int = 0
    style: str | None = None


class Map(dict[str, Node]):
    """A mapping that knows where it, its keys and its values stand."""

    __slots__ = ("keys_at", "place", "values_at")

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        self.keys_at: dict[str, Place] = {}
        self.values_at: dict[str, Place] = {}


class Seq(list[Node]):
    """A list that knows where it and its items stand."""

    __slots__ = ("items_at", "place")

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        self.items_at: list[Place] = []


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a part of a document, where that shows, and what to do."""

    place: Place
    message: str
    suggestion: str


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file. `text` is the whole file's; `spoiled` are the places that have a
    finding already, so that nobody reports them twice. `expression`: what the trigger's expressions
    were made of, where nobody wrote them."""

    file: str
    index: int
    place: Place
    data: Node
    text: str = field(repr=False)
    spoiled: frozenset[tuple[int, int]] = frozenset()
    expression: str = ""

    def finding(
        self, place: Place, severity: Any, code: str, message: str, suggestion: str | None = None
    ) -> Finding:
        """Return a finding at `place` of this document."""
        return Finding(self.file, place.line, place.column, severity, code, message, suggestion)


def parse_documents(
    files: Sequence[tuple[str, str | bytes]],
) -> tuple[tuple[Document, ...], tuple[Finding, ...]]:
    """Return the documents of `files` ((path, content) pairs) and what is wrong with their YAML.

    Empty documents are left out. A document that cannot be composed is not returned.
    """
    from resilience.policy.composer import Composer

    documents: list[Document] = []
    findings: list[Finding] = []
    for file, content in files:
        text, refusal = read_text(file, content)
        if refusal is None:
            refusal = syntax.before_parsing(file, text)
        if refusal is not None:
            findings.append(refusal)
            continue
        found, remarks = Composer(file, text).run()
        documents += found
        findings += remarks
    return tuple(documents), tuple(findings)
