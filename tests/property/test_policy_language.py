"""No text crashes the checker, findings point into the text, and both schemas agree."""

from __future__ import annotations

import string
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from resilience import registry
from resilience.policy.check import check, proposed_actions
from resilience.policy.document import parse_documents
from resilience.policy.schema import policy_schema

ACTIONS = registry.catalogue("actions")
SCHEMA = Draft202012Validator(policy_schema(ACTIONS))
UDFS = {"a.py": "def fallback_to_cache(ctx):\n    return {}\n"}
GOOD: dict[str, Any] = {
    "apiVersion": "resilience/v1",
    "kind": "Policy",
    "metadata": {"name": "p", "annotations": {"summary": "s"}},
    "spec": {
        "mode": "shadow",
        "interval": "5s",
        "trigger": {"expr": "up == 0", "for": "30s", "on_no_data": "hold",
                    "resolve": {"expr": "up == 1", "for": "1m"}},
        "actions": [
            {"type": "throttle", "tier": "core", "max_concurrency": 8, "lease": "30s"},
            {"type": "udf_call", "function": "fallback_to_cache", "metrics": {"a": "up"}},
        ],
        "escalation": [{"after": "1m", "actions": [{"type": "reset_prefix_cache"}]}],
        "recovery": {"steps": ["50%", 1], "every": "1m"},
        "limits": {"cooldown": "3m", "rate": [{"max": 6, "per": "1h"}]},
        "priority": 50,
    },
}
CALLER = check([("f.yaml", yaml.safe_dump(GOOD))], UDFS, ACTIONS).policies[0].actions[1]
YAML_PIECES = st.sampled_from(
    ["a", ": ", "\n", "- ", "  ", "{", "}", "[", "]", "&x ", "*x", "!!str ", "'", '"', "|\n",
     ">-\n", "# c", "<<: ", "no", "1:30", "0x1", ".nan", "---\n", "...\n", "\t", "?", "{{ x }}",
     "%YAML 1.1\n", "apiVersion: resilience/v1\n", "kind: Policy\n", "spec:\n", "\r", "\u2028",
     "\x00", "é", "# resilience: ignore no-comparison until 2030-01-01: x\n"]
)
SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10**6), st.floats(allow_nan=False, width=32),
    st.text(string.ascii_letters + "{}$ %-", max_size=8),
    st.sampled_from(["30s", "1h", "5min", "8"]), st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text("ab", max_size=2), st.integers()),
)


@given(st.lists(YAML_PIECES, max_size=40).map("".join))
@settings(max_examples=200)
def test_any_text_gives_findings_inside_it(text: str) -> None:
    result = check([("f.yaml", text)], UDFS, ACTIONS)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").count("\n") + 1
    for finding in result.findings:
        assert 1 <= finding.line <= lines + 1
        assert finding.column >= 1
        assert finding.message.isprintable()
    assert (result.bundle is None) == bool(result.errors)


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    documents, findings = parse_documents([("f.yaml", content)])
    assert documents or findings


def _mutated(draw: st.DrawFn) -> dict[str, Any]:
    """Return the good policy with one value replaced, removed, or added."""
    document: dict[str, Any] = yaml.safe_load(yaml.safe_dump(GOOD))
    node: Any = document
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = draw(st.sampled_from(keys)) if keys else None
        if key is None:
            return document
        child = node[key]
        if isinstance(child, dict | list) and child and draw(st.integers(0, 3)):
            node = child
            continue
        match draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace":
                node[key] = draw(SCALARS)
            case "remove":
                del node[key]
            case _ if isinstance(node, dict):
                node["extra"] = draw(SCALARS)
            case _:
                node.append(draw(SCALARS))
        return document


SCHEMA_CODES = {
    "unknown-field", "required", "null", "type", "choice", "duration", "share", "name", "format",
    "range", "empty", "too-large", "schema", "unknown-action", "unknown-kind", "not-a-policy",
}
BEYOND = {"duration"}                       # bounds of durations are x-type, no schema has them


@given(st.composite(_mutated)())
@settings(max_examples=250)
def test_the_editors_schema_and_the_checker_agree(document: dict[str, Any]) -> None:
    result = check([("f.yaml", yaml.safe_dump(document))], UDFS, ACTIONS)
    spoiled = {"yaml-ambiguous", "number-too-large", "number-not-finite", "control-character"}
    codes = {f.code for f in result.errors}
    if codes & spoiled:
        return
    fits = SCHEMA.is_valid(document)
    if not fits:
        assert codes & SCHEMA_CODES, SCHEMA.iter_errors(document)
    else:
        assert not codes & (SCHEMA_CODES - BEYOND), result.errors


@given(st.recursive(SCALARS, lambda inner: st.one_of(
    st.lists(inner, max_size=3),
    st.dictionaries(st.sampled_from(["actions", "type", "max_concurrency", "tier", "lease", "to"]),
                    inner, max_size=4),
)))
@settings(max_examples=300)
def test_any_result_of_a_udf_is_checked(result: Any) -> None:
    for body in (result, {"actions": result}, {"actions": [result]}):
        try:
            made = proposed_actions(body, CALLER, ACTIONS)
        except ValueError as error:
            assert str(error).isprintable()
        else:
            assert all(a.key.startswith("1.") for a in made)
