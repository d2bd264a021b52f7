"""The JSON Schemas of the documents that layers and processes send each other (contracts.md).

People do not write these; tools that read decisions, recordings and `-o json` do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, get_args

from resilience.model import (
    UDF_OUTCOMES,
    VERSION,
    Json,
    Mode,
    Reason,
    Severity,
    State,
    Truth,
)
from resilience.policy.case_schema import cases_schema
from resilience.policy.contract_terms import TERMS
from resilience.policy.fragments import mapping, record, said
from resilience.policy.schema import titled

ANY: Json = {}
TEXT: Json = {"type": "string"}
COUNT: Json = {"type": "integer", "minimum": 0}
TIME: Json = {"type": "integer", "description": "Epoch milliseconds."}
HEX16: Json = {"type": "string", "pattern": "^[0-9a-f]{16}$"}
STRINGS: Json = {"type": "array", "items": TEXT}
SCOPE: Json = {"type": "object", "additionalProperties": TEXT}
NUMBER: Json = {                            # JSON has no such numbers: Prometheus' own texts
    "anyOf": [{"type": "number"}, {"enum": ["NaN", "+Inf", "-Inf"]}]
}
REVISION: Json = {"type": "string", "pattern": "^(sha256:[0-9a-f]{12})?$"}


def optional(fragment: Json) -> Json:
    """Return a fragment that may also be null."""
    kinds = fragment.get("type")
    if not isinstance(kinds, str):
        return {"anyOf": [fragment, {"type": "null"}]}
    allowed = {**fragment, "type": [kinds, "null"]}
    return {**allowed, "enum": [*fragment["enum"], None]} if "enum" in fragment else allowed


def words(options: Iterable[Any]) -> Json:
    return {"type": "string", "enum": [str(option) for option in options]}


def exactly(properties: dict[str, Json], doc: str) -> Json:
    """Return an object that has all of these properties and no other."""
    return record(explained(properties), tuple(properties), doc)


def explained(properties: dict[str, Json]) -> dict[str, Json]:
    """Return the properties, each with the description of its name unless it has its own."""
    return {name: fragment if "description" in fragment else said(fragment, TERMS[name])
            for name, fragment in properties.items()}


def many(item: Json) -> Json:
    return {"type": "array", "items": item}


def claim() -> Json:
    return exactly(
        {
            "policy": TEXT, "instance": HEX16, "action": TEXT, "knob": TEXT, "scope": SCOPE,
            "value": ANY, "ttl_ms": COUNT, "keep": {"type": "boolean"},
            "priority": {"type": "integer"}, "revision": TEXT, "reason": TEXT,
        },
        "A live claim on a knob, held by one action of one firing instance.",
    )


def impulse() -> Json:
    return exactly(
        {
            "key": HEX16, "policy": TEXT, "instance": HEX16, "firing": COUNT, "action": TEXT,
            "impulse": TEXT, "args": ANY,
        },
        "Something that is done at most once, by its key.",
    )


def decision() -> Json:
    """Return the schema of one line of decisions.jsonl."""
    query = exactly(
        {"query": TEXT, "value": ANY, "sample_ms": optional(TIME)}, "One query as it was used."
    )
    return exactly(
        {
            "id": HEX16, "t_ms": TIME, "revision": REVISION, "policy": TEXT, "spec_hash": TEXT,
            "instance": HEX16, "labels": SCOPE,
            "value": said(optional(NUMBER), "Value of the trigger."),
            "truth": words(Truth), "reason": said(words(Reason), "Why; a closed set."),
            "from": words(State), "to": words(State), "clocks": mapping(optional(TIME), longest=20),
            "claims_before": many(claim()), "claims_after": many(claim()),
            "actions": STRINGS, "impulses": many(impulse()), "inputs": many(query),
            "udf": many({"type": "object"}), "held_from": optional(words(State)),
            "mode": words(get_args(Mode)), "note": optional(TEXT),
        },
        "One change of state or claims, or one impulse, with everything that explains it.",
    )


def execution() -> Json:
    return exactly(
        {
            "decision_id": optional(HEX16), "t_ms": TIME, "epoch": COUNT, "generation": COUNT,
            "attempt": COUNT, "read_back": ANY, "error": optional(TEXT),
            "duration_ms": {"type": "number", "minimum": 0}, "trace_id": optional(TEXT),
        },
        "What the bus did for the decisions of one tick.",
    )


def desired() -> Json:
    wanted = exactly(
        {
            "knob": TEXT, "scope": SCOPE, "value": ANY,
            "ttl_ms": {"type": "integer", "minimum": 1, "maximum": 3_600_000},
            "keep": {"type": "boolean"},
            "policy": TEXT, "reason": TEXT, "priority": {"type": "integer"},
        },
        "A claim as the core receives it.",
    )
    return exactly(
        {
            "version": {"const": VERSION}, "epoch": COUNT, "generation": COUNT,
            "claims": {"type": "array", "items": wanted, "maxItems": 256},
        },
        "The whole list of live claims, engine to core.",
    )


def actual() -> Json:
    effective = exactly(
        {"value": ANY, "policy": optional(TEXT), "remaining_ms": optional(COUNT)},
        "The folded value of one knob in one scope.",
    )
    scopes = {"type": "object", "additionalProperties": effective}
    released = exactly({"t_ms": TIME, "reason": TEXT}, "Since when, and why.")
    always: dict[str, Json] = {
        "epoch": COUNT, "generation": COUNT,
        "effective": {"type": "object", "additionalProperties": scopes},
        "dropped": many(ANY),
    }
    return record(
        {
            **explained(always),
            "released": {
                **released, "description": "Only while an operator has released the core.",
            },
        },
        tuple(always),
        "What the core says is in force; scopes are texts such as `tier=core`, `` is everywhere.",
    )


def capabilities() -> Json:
    number = optional({"type": "number"})
    always = {"grade": TEXT, "baseline": ANY, "capacity": number, "minimum": number}
    knob = record(
        explained({**always, "fits": {"type": "number"}}), tuple(always),
        "What this core can do with one knob.",
    )
    return exactly(
        {
            "version": {"const": VERSION}, "core": TEXT, "core_version": TEXT,
            "knobs": {"type": "object", "additionalProperties": knob}, "impulses": STRINGS,
            "models": STRINGS, "dropped": many(ANY), "epoch": COUNT, "generation": COUNT,
        },
        "What the core reports at start.",
    )


def recording() -> Json:
    return exactly(
        {
            "version": {"const": VERSION}, "source": TEXT, "source_version": TEXT,
            "scrape_interval_ms": COUNT, "lookback_ms": COUNT, "raw": {"type": "boolean"},
            "start_ms": COUNT, "end_ms": COUNT, "revision": optional(TEXT),
        },
        "Key-value metadata `resilience` of a recording's Parquet file.",
    )


def event() -> Json:
    """Return the schema of an event row's body: each type has its own fields and no other."""
    pairs = many({"type": "array", "items": TEXT, "minItems": 2, "maxItems": 2})
    anything = {"type": "object"}
    fields: dict[str, dict[str, Json]] = {
        "tick": {"t_ms": TIME, "interval_ms": COUNT, "seq": COUNT, "missed": COUNT},
        "clock_set_back": {"t_ms": TIME, "seq": COUNT},
        "operator": {
            "kind": words(("pause", "resume")), "policy": optional(TEXT),
            "until_ms": optional(TIME), "reason": TEXT,
        },
        "query": {"t_ms": TIME, "results": many(anything)},
        "udf": {
            "t_ms": TIME, "policy": TEXT, "instance": HEX16, "action": TEXT, "function": TEXT,
            "outcome": words(UDF_OUTCOMES), "result": ANY, "detail": optional(TEXT),
        },
        "capability": {"capabilities": capabilities()},
        "bundle": {"t_ms": TIME, "revision": REVISION, "documents": pairs, "udfs": pairs},
        "state": {"state": anything},
        "decision": {"decision": decision()},
        "import": {"notes": STRINGS, "missing": STRINGS},
    }
    return {
        "type": "object", "required": ["type"], "properties": explained({"type": words(fields)}),
        "description": "One event of a recording.",
        "allOf": [
            {
                "if": {"properties": {"type": {"const": kind}}},
                "then": exactly({"type": {"const": kind}, **own}, f"The event `{kind}`."),
            }
            for kind, own in fields.items()
        ],
    }


def finding() -> Json:
    line = {"type": "integer", "minimum": 1}
    return exactly(
        {
            "file": TEXT, "line": line, "column": line, "severity": words(get_args(Severity)),
            "code": said(TEXT, "Stable; documented one by one."), "message": TEXT,
            "suggestion": optional(TEXT),
        },
        "One remark about a document.",
    )


def check() -> Json:
    return exactly(
        {
            "version": {"const": VERSION}, "files": COUNT,
            "policies": said(COUNT, "Policies without an error of their own."),
            "findings": many(finding()),
        },
        "Output of `resilience check -o json`.",
    )


def policy_test_run() -> Json:
    line = {"type": "integer", "minimum": 1}
    failure = exactly(
        {
            "line": line, "column": line, "at_ms": optional(COUNT), "policy": optional(TEXT),
            "labels": SCOPE, "field": TEXT, "message": TEXT,
            "expected": STRINGS, "got": STRINGS, "history": STRINGS,
        },
        "One expectation that did not hold.",
    )
    result = exactly(
        {"file": TEXT, "line": line, "name": TEXT, "outcome": words(("passed", "failed")),
         "failures": many(failure)},
        "One test.",
    )
    policy = exactly(
        {"policy": TEXT, "file": TEXT, "line": {"type": "integer", "minimum": 0},
         "parts": STRINGS, "missing": STRINGS},
        "The parts of one policy, and those that no test looks at.",
    )
    covered = exactly(
        {"percent": {"type": "number"}, "covered": COUNT, "parts": COUNT, "policies": many(policy)},
        "What the tests look at.",
    )
    return exactly(
        {
            "version": {"const": VERSION}, "files": COUNT, "tests": COUNT, "passed": COUNT,
            "failed": COUNT, "results": many(result), "findings": many(finding()),
            "coverage": covered,
        },
        "Output of `resilience test -o json`.",
    )


def udf_run() -> Json:
    return exactly(
        {
            "version": {"const": VERSION}, "outcome": words(UDF_OUTCOMES), "result": ANY,
            "log": TEXT, "duration_ms": {"type": "number", "minimum": 0},
        },
        "Output of `resilience udf run -o json`.",
    )


def error() -> Json:
    inner = record(
        explained({"code": TEXT, "message": TEXT, "findings": many(finding())}),
        ("code", "message"), "What was refused and why.",
    )
    return exactly({"error": inner}, "Body of every refusal of the control API.")


_SCHEMAS: dict[str, tuple[str, Callable[[], Json]]] = {
    "decision": ("resilience decision", decision),
    "execution": ("resilience execution", execution),
    "claim": ("resilience claim", claim),
    "impulse": ("resilience impulse", impulse),
    "desired": ("resilience desired document", desired),
    "actual": ("resilience actual document", actual),
    "capabilities": ("resilience capabilities", capabilities),
    "recording": ("resilience recording metadata", recording),
    "event": ("resilience recording event", event),
    "finding": ("resilience finding", finding),
    "check": ("resilience check output", check),
    "test-run": ("resilience test output", policy_test_run),
    "udf-run": ("resilience udf run output", udf_run),
    "error": ("resilience control error", error),
}


def contract_schemas() -> dict[str, Json]:
    """Return name -> schema of every document between the layers."""
    return {name: titled(name, title, make()) for name, (title, make) in _SCHEMAS.items()}


def all_schemas(kinds: Any, actions: Any) -> dict[str, Json]:
    """Return name -> schema of everything in schemas/: kinds of document, tests, contracts."""
    written = {kind.name.lower(): kind.schema(actions) for kind in kinds.values()}
    return {**written, "test": cases_schema(), **contract_schemas()}
