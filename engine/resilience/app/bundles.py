"""Makes bundles from rules folders and UDF folders, checks them, and tells how two differ.

Paths inside a bundle are relative to the rules folder, so that the revision does not depend on
where somebody stood. Messages show the path as the user wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from resilience.app.repository import git_commit
from resilience.app.rules_folders import (
    FILES_MAX,
    Refuse,
    Texts,
    read_documents,
    read_file,
    read_udfs,
    readable_name,
    refuse_all,
    shown_name,
    text_of,
    udfs_near,
)
from resilience.errors import ControlError, FindingsError, UsageError
from resilience.model import Action, Bundle, Capabilities, Finding, Json
from resilience.policy.encoding import unreadable
from resilience.shipped import shipped


@dataclass(frozen=True, slots=True)
class Sources:
    """What a bundle is made from. `files` holds (path, bytes) of the documents; `udf_roots` one
    tuple of (path, text) for each UDF folder, in the order of lookup, without the shipped ones.
    `enable_features` were given on the command line and do not travel."""

    files: tuple[tuple[str, bytes], ...]
    udf_roots: tuple[Texts, ...] = ()
    git_commit: str | None = None
    shown: Mapping[str, str] | None = None
    enable_features: tuple[str, ...] = ()

    def display(self, finding: Finding) -> Finding:
        """Return `finding` with the path that the user can open from here."""
        return replace(finding, file=(self.shown or {}).get(finding.file, finding.file))

    def to_json(self) -> Json:
        """Return what travels to a running engine; raises UsageError for bytes that are no text."""
        return {
            "documents": [[path, text_of(path, body)] for path, body in self.files],
            "udfs": [[list(pair) for pair in root] for root in self.udf_roots],
            "git_commit": self.git_commit,
        }

    @classmethod
    def from_json(cls, body: Json) -> Sources:
        """Read a request's body; raises ControlError when it is something else."""
        if not isinstance(body, Mapping) or not {"documents"} <= set(body) <= {
            "documents", "udfs", "git_commit"
        }:
            raise ControlError(
                "a bundle has `documents`, `udfs` and `git_commit`", code="bad_request"
            )
        documents = _pairs(body["documents"], "documents")
        roots = body.get("udfs") or []
        if not isinstance(roots, list):
            raise ControlError("`udfs` is a list of folders", code="bad_request")
        commit = body.get("git_commit")
        return cls(
            tuple((path, text.encode()) for path, text in documents),
            tuple(_pairs(root, "udfs") for root in roots),
            commit if isinstance(commit, str) else None,
        )


def _pairs(value: Json, what: str) -> Texts:
    if not isinstance(value, list) or len(value) > FILES_MAX or not all(
        isinstance(p, list) and len(p) == 2 and all(isinstance(s, str) for s in p) for p in value
    ):
        raise ControlError(f"`{what}` is a list of [path, text]", code="bad_request")
    return tuple((path, text) for path, text in value)


# --- reading folders -----------------------------------------------------------------------------


def read_sources(
    rules: Path, udf_dirs: Sequence[Path] = (), *, config: Path | None = None,
    with_commit: bool = True, unread: list[Finding] | None = None,
) -> Sources:
    """Read a rules folder or file, and its UDFs; raises UsageError for what cannot be read.

    `unread`: what cannot be read inside a folder is added to it, and the rest is read.

    Without `udf_dirs` the UDFs are those in `udfs/` inside or beside the rules folder.
    `with_commit`: ask git at which commit the folder is.
    """
    refuse: Refuse = refuse_all if unread is None else partial(_collect, unread)
    already = len(unread or ())
    files, shown = read_documents(readable_name(rules), refuse)
    if not shown and len(unread or ()) == already:
        raise UsageError(f"no policy files (`*.yaml`, `*.yml`) in `{rules}`")
    if config is not None:
        name = f"config/{config.name}"
        files.append((name, read_file(config)))
        shown[name] = str(config)
    roots = list(udf_dirs) or udfs_near(rules)
    texts: list[Texts] = []
    for index, root in enumerate(roots):
        texts.append(read_udfs(root, "udfs" if index == 0 else f"udfs.{index}", shown, refuse))
    commit = git_commit(rules) if with_commit else None
    return Sources(tuple(files), tuple(texts), commit, shown)


def _collect(unread: list[Finding], path: Path, error: UsageError) -> None:
    unread.append(unreadable(shown_name(path), str(error)))


def shipped_udfs() -> Texts:
    """Return the UDFs that come with the product, as the last root of the lookup."""
    return tuple(
        (f"shipped/{item.name}", item.read_text(encoding="utf-8"))
        for item in sorted(shipped("udfs").iterdir(), key=lambda i: i.name)
        if item.name.endswith(".py")
    )


def split_roots(udfs: Iterable[tuple[str, str]]) -> tuple[Texts, ...]:
    """Return the UDF files of a bundle by their roots again, in the order of lookup: a helper of
    one root may have the name of a function of another."""
    roots: dict[str, list[tuple[str, str]]] = {}
    for path, text in udfs:
        roots.setdefault(path.partition("/")[0], []).append((path, text))
    order = sorted(roots, key=lambda root: (root == "shipped", len(root), root))
    return tuple(tuple(roots[root]) for root in order)


# --- checking ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Checked:
    """A bundle that may run, and what is worth saying about it."""

    bundle: Bundle
    findings: tuple[Finding, ...]


def check_sources(
    sources: Sources,
    *,
    metric_names: frozenset[str] | None = None,
    capabilities: Capabilities | None = None,
    require_metrics: bool = False,
    scrape_interval_ms: int | None = None,
    remote: bool = False,
) -> Checked:
    """Check the documents with everything that is known; raises FindingsError on any error.

    `require_metrics`: a metric that the target does not export is an error, not a warning.
    `remote`: a Prometheus keeps the samples, also where the Engine document names none.
    """
    from resilience.app.udfs import unreadable
    from resilience.policy.check import check
    from resilience.registry import catalogue

    roots = [dict(root) for root in (*sources.udf_roots, shipped_udfs())]
    result = check(
        sources.files,
        roots,
        catalogue("actions"),
        metric_names=metric_names,
        capabilities=capabilities,
        require_metrics=require_metrics,
        scrape_interval_ms=scrape_interval_ms,
        remote=remote,
        git_commit=sources.git_commit,
        today=datetime.now(UTC).date(),
        enable_features=sources.enable_features,
    )
    found = (*result.findings, *unreadable(result.findings, roots))
    findings = tuple(sources.display(f) for f in found)
    if result.bundle is None or any(f.severity == "error" for f in findings):
        raise FindingsError(findings)
    return Checked(result.bundle, findings)


def differences(old: Bundle | None, new: Bundle) -> Json:
    """Return which policies `new` adds, changes and removes, by what decides."""
    before: dict[str, str] = {p.name: p.spec_hash for p in old.policies} if old else {}
    after = {p.name: p.spec_hash for p in new.policies}
    return {
        "from": old.revision if old else None,
        "to": new.revision,
        "added": sorted(after.keys() - before.keys()),
        "removed": sorted(before.keys() - after.keys()),
        "changed": sorted(n for n in after.keys() & before.keys() if after[n] != before[n]),
        "unchanged": sorted(n for n in after.keys() & before.keys() if after[n] == before[n]),
        "config_changed": old is not None and old.config != new.config,
    }


def intervals(bundle: Bundle) -> list[int]:
    """Return the intervals at which policies that are not off want their ticks."""
    return sorted({p.interval_ms for p in bundle.policies if p.mode != "off"})


def propose(result: Json, action: Action) -> tuple[Action, ...]:
    """Return the actions in a UDF's result after the same checks as YAML's; raises ValueError."""
    from resilience.policy.check import proposed_actions
    from resilience.registry import catalogue

    return proposed_actions(result, action, catalogue("actions"))
