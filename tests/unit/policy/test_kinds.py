"""Kinds of document are a registry: one of a third party is checked by its own schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from resilience import registry
from resilience.policy import fragments
from resilience.policy.check import CheckResult
from resilience.policy.kinds import DocumentKind
from resilience.policy.schema import envelope, envelope_of
from resilience.policy.shape import envelope_form

Run = Callable[..., CheckResult]
ROTA = "apiVersion: resilience/v1\nkind: Rota\nmetadata: {name: r}\nspec: {pager: ops}\n"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Register a kind `Rota`, and return the documents that it was asked to build."""
    documents: list[Any] = []
    spec = fragments.record({"pager": fragments.string()}, ("pager",))
    rota = DocumentKind(
        "Rota", "Who is called.", lambda actions: envelope("Rota", spec, "Who is called."),
        lambda document, context: documents.append(document),
    )
    kinds = {**registry.catalogue("kinds"), "Rota": rota}
    groups = {group: registry.catalogue(group) for group in registry.BUILT_INS}
    monkeypatch.setattr("resilience.registry.catalogue", {**groups, "kinds": kinds}.get)
    monkeypatch.setattr("resilience.policy.schema.catalogue", {**groups, "kinds": kinds}.get)
    yield documents
    envelope_form.cache_clear()
    envelope_of.cache_clear()


def test_it_is_built_when_it_fits(
    run: Run, policy: Callable[..., str], built: list[Any]
) -> None:
    result = run(policy() + "---\n" + ROTA)
    assert result.findings == () and len(result.policies) == 1
    assert [document.data["spec"]["pager"] for document in built] == ["ops"]


def test_its_own_schema_refuses_what_does_not(run: Run, built: list[Any]) -> None:
    errors = run(ROTA.replace("pager", "pagr")).errors
    assert {(f.code, f.line) for f in errors} == {("unknown-field", 4), ("required", 4)}
    assert built == []
