"""The quick yes of accept.py against jsonschema: the same verdict for right and wrong values."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from resilience.model import parse_duration
from resilience.policy import schema
from resilience.policy.accept import acceptor
from resilience.policy.case_schema import cases_schema
from resilience.registry import catalogue

ACTIONS = catalogue("actions")
POLICY: dict[str, Any] = {
    "apiVersion": "resilience/v1", "kind": "Policy",
    "metadata": {"name": "a", "labels": {"team": "x"}, "annotations": {"summary": "s"}},
    "spec": {
        "mode": "enforce", "interval": "5s", "priority": 10, "on_missing_metric": "warn",
        "trigger": {"expr": "up == 0", "for": 0, "on_no_data": "hold", "max_age": "15s",
                    "resolve": {"expr": "up == 1", "for": "1m"}},
        "actions": [{"type": "throttle"}],
        "escalation": [{"after": "1m", "actions": [{"type": "throttle"}]}],
        "recovery": {"steps": ["50%", 1], "every": "30s"},
        "limits": {"cooldown": "3m", "rate": [{"max": 6, "per": "1h"}]},
    },
}
ENGINE: dict[str, Any] = {
    "apiVersion": "resilience/v1", "kind": "Engine", "metadata": {"name": "e"},
    "spec": {
        "tiers": [{"name": "core", "success": "95%", "p99": "2s", "max_concurrency": 4}],
        "prometheus": {"url": "http://p:9090", "headers": {"X-Scope-OrgID": "a"}},
        "sandbox": {"require": ["seccomp"], "allow_weak": False},
        "limits": {"series": 1000},
    },
}
COMPACT = {"on_alert": "a", "trigger_if": "up == 0", "actions": [{"type": "throttle"}]}
CASES = {"tests": [{"name": "t", "input_series": [{"series": "up", "values": "1x3"}],
                    "expect": [{"at": "1m", "state": "firing"}]}]}
ACTION = {"type": "throttle", "tier": "core", "max_concurrency": 3, "lease": "30s"}
FORMS: list[tuple[Any, Any]] = [
    (schema.envelope_of("Policy"), POLICY), (schema.envelope_of("Engine"), ENGINE),
    (schema.compact_envelope(), COMPACT), (cases_schema(), CASES),
    (ACTIONS["throttle"].schema(), ACTION),
]
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 200), st.floats(allow_nan=True), st.text(max_size=8),
    st.sampled_from(["30s", "1m30s", "0", "99y", "1h1h", "50%", "hold", "a" * 5000, "core", ""]),
    st.lists(st.text(max_size=3), max_size=3),
    st.dictionaries(st.sampled_from(["type", "name", "for", "x"]), st.text(max_size=3), max_size=2),
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    below = value.items() if isinstance(value, dict) else enumerate(value) \
        if isinstance(value, list) else ()
    for key, item in below:
        yield from paths(item, (*at, key))


def changed(value: Any, at: tuple[Any, ...], new: Any, *, drop: bool) -> Any:
    made = copy.deepcopy(value)
    if not at:
        return new
    node = made
    for key in at[:-1]:
        node = node[key]
    if drop:
        del node[at[-1]]
    else:
        node[at[-1]] = new
    return made


def in_bounds(value: Any, fragment: Any) -> bool:
    if fragment.get("x-type") == "duration":
        try:
            ms = parse_duration(str(value))
        except ValueError:
            return False
        low, high = fragment.get("x-minimum-ms", 0), fragment.get("x-maximum-ms", 2**63)
        return bool(low <= ms <= high)
    if isinstance(value, dict):
        known = fragment.get("properties", {})
        return all(in_bounds(item, known.get(key, {})) for key, item in value.items())
    if isinstance(value, list):
        return all(in_bounds(item, fragment.get("items", {})) for item in value)
    return True


@pytest.mark.parametrize("form", range(len(FORMS)))
def test_what_is_right_is_accepted_at_once(form: int) -> None:
    made_of, example = FORMS[form]
    assert not list(Draft202012Validator(made_of).iter_errors(example))
    assert acceptor(made_of)(example)


@given(st.data())
def test_accepts_exactly_what_jsonschema_accepts(data: st.DataObject) -> None:
    made_of, example = data.draw(st.sampled_from(FORMS))
    at = data.draw(st.sampled_from(list(paths(example))))
    value = changed(example, at, data.draw(ODD), drop=bool(at) and data.draw(st.booleans()))
    valid = Draft202012Validator(made_of).is_valid(value) and in_bounds(value, made_of)
    assert acceptor(made_of)(value) is valid


@pytest.mark.parametrize("kind", sorted(ACTIONS))
def test_every_action_of_ours_is_quick(kind: str) -> None:
    assert acceptor(ACTIONS[kind].schema())({"type": "nobody"}) is False
    from resilience.policy import accept

    assert acceptor(ACTIONS[kind].schema()) is not accept._nothing


@pytest.mark.parametrize("odd", [
    {"anyOf": [{"type": "string"}]}, {"type": "string", "format": "uri"}, True, {"type": "null"},
    {"type": "array", "items": {"multipleOf": 3, "type": "integer"}}, {"const": 3},
])
def test_a_keyword_that_is_not_known_here_is_left_to_jsonschema(odd: Any) -> None:
    assert acceptor(odd)("x") is False
    assert acceptor(odd)([3]) is False
