"""Every registered kind of source: it says what it is, and its example is a valid document."""

from __future__ import annotations

import jsonschema
import pytest
import yaml

from resilience.policy.engine_schema import engine_schema
from resilience.registry import catalogue
from resilience.sources.kind import SourceKind

KINDS: dict[str, SourceKind] = catalogue("sources")


def test_the_kinds_are_those_that_the_documents_name() -> None:
    assert set(KINDS) == {"embedded", "prometheus"}


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_kind_explains_itself_and_its_example_is_valid(name: str) -> None:
    kind = KINDS[name]
    assert kind.name == name
    assert kind.doc.endswith(".")
    document = {
        "apiVersion": "resilience/v1",
        "kind": "Engine",
        "metadata": {"name": "engine"},
        "spec": yaml.safe_load(kind.example),
    }
    jsonschema.Draft202012Validator(engine_schema()).validate(document)
    for method in ("query", "seq", "metric_names", "scrape_interval_ms"):
        assert hasattr(kind.open, method)
