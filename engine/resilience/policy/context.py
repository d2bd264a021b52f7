"""What the checks of one call know of their surroundings, and where they put their findings."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from resilience.model import (
    EXPERIMENTAL_FUNCTIONS,
    LOG_RECEIVER,
    Capabilities,
    EngineConfig,
    Finding,
    Severity,
)
from resilience.policy.catalogue import Target
from resilience.policy.document import Document, Place
from resilience.policy.kinds import Actions

GUESSES_MAX = 200
# What nobody can say as long as the document of `kind: Engine` has errors of its own.
_BY_ENGINE = frozenset({
    "no-ladder", "unknown-tier", "unknown-tenant", "unknown-receiver", "model-missing",
    "beyond-retention", "slo-retention", "short-window", "short-max-age", "slo-window",
    "safety-clip",
})
Udfs: TypeAlias = Mapping[str, str] | Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Functions:
    """Where module-level functions stand: one table per root, the first root that has one wins."""

    roots: tuple[dict[str, tuple[str, ...]], ...]

    def files(self, name: str) -> tuple[str, ...]:
        """Return the files of the first root that define `name`."""
        return next((root[name] for root in self.roots if name in root), ())

    def hidden(self, name: str) -> tuple[str, ...]:
        """Return the files of later roots whose `name` is not used."""
        found = [root[name] for root in self.roots if name in root]
        return tuple(file for files in found[1:] for file in files)

    @property
    def names(self) -> list[str]:
        return [name for root in self.roots for name in root]


def index_functions(udfs: Udfs) -> Functions:
    """Index UDF sources, one mapping (file -> text) or one for each root in order of lookup."""
    roots = [udfs] if isinstance(udfs, Mapping) else list(udfs)
    indexed: list[dict[str, tuple[str, ...]]] = []
    known: set[str] = set()
    for root in roots:                       # a copy of a file hides nothing
        indexed.append(_index({f: text for f, text in root.items() if text not in known}))
        known.update(root.values())
    return Functions(tuple(indexed))


def _index(root: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for file in sorted(root):
        for name in _functions(root[file]):
            found[name] = (*found.get(name, ()), file)
    return found


def _functions(text: str) -> list[str]:
    """Return the functions of a source in its order; one that cannot be parsed has none."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


@dataclass(slots=True)
class Context:
    """Surroundings of the documents of one check. `metric_names` and `metric_labels` (name -> the
    labels that some of its series has) are the target's; None: no target can be asked. `remote`:
    a Prometheus keeps the samples, whatever the configuration says."""

    actions: Actions
    functions: Functions = Functions(())
    config: EngineConfig = EngineConfig()
    metric_names: frozenset[str] | None = None
    metric_labels: Mapping[str, frozenset[str]] | None = None
    target: Target | None = None
    capabilities: Capabilities | None = None
    require_metrics: bool = False
    scrape_interval_ms: int | None = None
    remote: bool = False
    enable_features: frozenset[str] = frozenset()
    findings: list[Finding] = field(default_factory=list[Finding])
    errors: int = 0
    guesses: int = 0
    engine_unknown: bool = False
    # What lint.py has said of an expression: its text, role, `on_missing_metric`, derived or not.
    remarks: dict[tuple[str, str, str, bool], tuple[Any, ...]] = field(
        default_factory=dict[tuple[str, str, str, bool], tuple[Any, ...]])

    def may_guess(self) -> bool:
        """Return whether another name may be looked for among all: it takes a while, and a folder
        may hold ten thousand that nobody knows."""
        self.guesses += 1
        return self.guesses <= GUESSES_MAX

    @property
    def experimental_functions(self) -> bool:
        """Return whether expressions may use Prometheus' experimental functions, as far as that is
        known: an Engine document with errors may allow it."""
        return self.engine_unknown or EXPERIMENTAL_FUNCTIONS in {
            *self.enable_features, *self.config.enable_features}

    @property
    def interval_ms(self) -> int:
        """Return the scrape interval of the source that the expressions will meet."""
        if self.scrape_interval_ms is not None:
            return self.scrape_interval_ms
        access = self.config.prometheus
        return access.scrape_interval_ms if access else self.config.scrape_interval_ms

    @property
    def retention_ms(self) -> int | None:
        """Return how long the engine's own store keeps samples; None: a Prometheus keeps them."""
        own = self.config.prometheus is None and not self.remote
        return self.config.retention_ms if own else None

    @property
    def tiers(self) -> list[str]:
        return [tier.name for tier in self.config.tiers]

    @property
    def receivers(self) -> list[str]:
        return [LOG_RECEIVER, *(r.name for r in self.config.receivers)]

    def add(
        self, document: Document, place: Place, severity: Severity, code: str, message: str,
        suggestion: str | None = None,
    ) -> None:
        """Add a finding, unless the loader has refused the value at `place`, or it would follow
        from an Engine document that could not be read."""
        if (place.line, place.column) in document.spoiled:
            return
        if self.engine_unknown and code in _BY_ENGINE:
            return
        self.errors += severity == "error"
        self.findings.append(document.finding(place, severity, code, message, suggestion))
