"""The JSON Schemas of the documents that people write, put together from the registries.

`policy_schema` is complete, for editors and other tools. The engine itself checks the envelope and
each action by its own type (shape.py): the same pieces, but messages that know what was meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from resilience.model import Json
from resilience.policy import fragments as f
from resilience.policy.check_fields import guard_schema, probe_schema, verify_schema
from resilience.policy.fragments import said
from resilience.policy.kinds import Actions
from resilience.registry import catalogue

DRAFT = "https://json-schema.org/draft/2020-12/schema"
API_VERSION = "resilience/v1"
BASE_ID = "urn:resilience:schemas:v1:"
ACTIONS_MAX = 50
DAY_MS = 86_400_000


def titled(name: str, title: str, body: Json) -> Json:
    """Return `body` as a schema file of its own."""
    return {"$schema": DRAFT, "$id": f"{BASE_ID}{name}", "title": title, **body}


def metadata_schema() -> Json:
    texts = f.mapping(f.string(longest=f.TEXT_MAX), longest=50)
    labels = f.mapping(f.string(longest=200), f.LABEL_PATTERN, 50)
    name = f.string(f.NAME_PATTERN, "name", 200)
    return f.record(
        {
            "name": said(name, "Name: a-z, 0-9, `.`, `_`, `-`; at most 63 characters."),
            "labels": said(labels, "For selecting and grouping; never part of a decision."),
            "annotations": said(
                texts, "`summary`, `description`, `runbook_url` and others; may use "
                "`{{ $labels.NAME }}` and `{{ $value }}`.",
            ),
        },
        ("name",), "Who this is.",
    )


def envelope(kind: str, spec: Json, doc: str) -> Json:
    """Return the Kubernetes-like wrapping of one kind of document."""
    return f.record(
        {
            "apiVersion": {"const": API_VERSION, "description": "Version of this format."},
            "kind": {"const": kind, "description": doc},
            "metadata": metadata_schema(),
            "spec": spec,
        },
        ("apiVersion", "kind", "metadata", "spec"), doc,
    )


def trigger_schema() -> Json:
    resolve = f.record(
        {
            "expr": said(f.expression(), "True for `for`: the firing ends; nothing else ends it."),
            "for": said(f.duration(), "How long it must be true without a gap.", "0s"),
        },
        ("expr",),
    )
    return f.record(
        {
            "expr": said(f.expression(), "PromQL; one instance of the policy per series."),
            "for": said(f.duration(), "How long it must be true before it fires.", "0s"),
            "keep_firing_for": said(
                f.duration(), "How long it must be false before the firing ends; has no effect "
                "beside `resolve`.", "0s",
            ),
            "resolve": said(resolve, "Positive evidence that ends the firing."),
            "on_no_data": said(
                f.choice("hold", "resolve", "fire"),
                "What to do when the trigger is unknown: stay as it is, end the firing, or fire.",
            ),
            "max_age": said(
                f.duration(1_000), "A sample older than this makes the trigger unknown. Default: "
                "three scrape intervals of the source.",
            ),
            "warm_up": said(
                f.integer(1, 1_000),
                "Good samples after blindness until the trigger is believed again.", 1,
            ),
        },
        ("expr", "on_no_data"), "When the policy fires.",
    )


def policy_spec(action: Json) -> Json:
    """Return `spec` of a policy, with the schema that each action follows."""
    actions = f.listing(action, 1, ACTIONS_MAX)
    stage = f.record(
        {
            "after": said(f.duration(1), "Time of firing, as far as it was seen."),
            "actions": said(actions, "What is done in addition."),
        },
        ("after", "actions"),
    )
    return f.record(
        {
            "mode": said(
                f.choice("enforce", "shadow", "off"),
                "`shadow` decides and records, and claims nothing.", "enforce",
            ),
            "interval": said(f.duration(100, 3_600_000), "How often it is evaluated.", "15s"),
            "trigger": trigger_schema(),
            "actions": said(actions, "What is claimed while the policy fires, in this order."),
            "escalation": said(
                f.listing(stage, 1, 10), "More actions when the firing goes on, by growing `after`."
            ),
            "recovery": said(_recovery(), "How claims are let go; default: at once."),
            **_checks(),
            "limits": said(_limits(), "How often the policy may fire."),
            "group": said(
                f.string(f.NAME_PATTERN, "name", 200),
                "Policies of one group never act together: the highest priority that fires holds.",
            ),
            "priority": said(
                f.integer(0, 1000), "Which claim wins where the knob takes the highest.", 50
            ),
            "on_missing_metric": said(
                f.choice("error", "warn"),
                "Whether `apply` to a server that lacks a metric of it is refused.", "error",
            ),
        },
        ("trigger", "actions"), "When the policy fires, and what it claims then.",
    )


def _checks() -> dict[str, Json]:
    return {
        "probe": said(
            probe_schema(), "Half-open: ease the claims now and then, and look behind them."
        ),
        "verify": said(
            verify_schema(), "What must come true while it fires, or all of it is taken back."
        ),
        "guard": said(
            guard_schema(), "What must not be: true ends the firing at once, without a ramp."
        ),
    }


def _recovery() -> Json:
    return f.record(
        {
            "steps": said(
                f.listing(f.share(), 1, 20),
                "Shares of the way from claim to capacity; growing, the last is 100%.",
            ),
            "every": said(f.duration(100, DAY_MS), "Time between two steps."),
        },
        ("steps", "every"),
    )


def _limits() -> Json:
    rate = f.record(
        {
            "max": said(f.integer(1, 1_000), "Firings of one instance."),
            "per": said(f.duration(1_000, 7 * DAY_MS), "In this time."),
        },
        ("max", "per"),
    )
    return f.record(
        {
            "cooldown": said(f.duration(0, 7 * DAY_MS), "Pause after a firing.", "0s"),
            "rate": said(
                f.listing(rate, 1, 5), "Most firings in a sliding window; all windows count."
            ),
            "min_samples": said(
                f.integer(1, 1_000), "Samples that must show the breach, beside `for`.", 1
            ),
            "max_active": said(
                f.integer(1, 1_000), "Instances that may fire at the same time. Default: all."
            ),
        }
    )


def policy_schema(actions: Actions) -> Json:
    """Return the complete schema of `kind: Policy` and of the compact form."""
    full = envelope(
        "Policy", policy_spec({"$ref": "#/$defs/action"}),
        "A policy: trigger, actions, recovery.",
    )
    definitions = {f"action_{name}": kind.schema() for name, kind in sorted(actions.items())}
    return titled(
        "policy", "resilience policy",
        {
            "if": {"required": ["on_alert"]},
            "then": {"$ref": "#/$defs/compact"},
            "else": {"$ref": "#/$defs/policy"},
            "$defs": {
                "policy": full, "compact": compact_schema(actions),
                "action": _any_action(definitions, ""),
                "compact_action": _any_action(definitions, "compact_"),
                **definitions,
                "compact_action_udf_call": _compact_udf(definitions["action_udf_call"]),
            },
        },
    )


def _any_action(definitions: Mapping[str, Json], prefix: str) -> Json:
    names = [name.removeprefix("action_") for name in definitions]
    return {
        "type": "object", "required": ["type"],
        "properties": {"type": {"enum": names, "description": "What to do."}},
        "allOf": [
            {
                "if": {"properties": {"type": {"const": name}}, "required": ["type"]},
                "then": {"$ref": f"#/$defs/{_definition(prefix, name)}"},
            }
            for name in names
        ],
    }


def _definition(prefix: str, name: str) -> str:
    return f"{prefix}action_{name}" if name == "udf_call" else f"action_{name}"


def compact_schema(actions: Actions) -> Json:
    """Return the short form: an alert's name, its expression, the actions."""
    return f.record(
        {
            "on_alert": said(f.string(f.NAME_PATTERN, "name", 200), "Name of the policy."),
            "trigger_if": said(f.expression(), "PromQL; becomes `trigger.expr`."),
            "actions": said(
                f.listing({"$ref": "#/$defs/compact_action"}, 1, ACTIONS_MAX),
                "As in a policy; `timeout` may be a bare number of milliseconds.",
            ),
        },
        ("on_alert", "trigger_if", "actions"),
        "The compact form. Expands to mode enforce, interval 15s, for 0s, on_no_data hold, lease "
        "30s, on_missing_metric warn.",
    )


def _compact_udf(full: Json) -> Json:
    timeout = {
        "description": "Milliseconds as a bare number, or a duration.",
        "anyOf": [{"type": "integer", "minimum": 10, "maximum": 30_000},
                  full["properties"]["timeout"]],
    }
    return {**full, "properties": {**full["properties"], "timeout": timeout}}


@cache
def envelope_of(kind: str) -> Json:
    """Return what a document of `kind` is validated with before its actions are."""
    action = {"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}}}
    if kind == "SLO":
        from resilience.policy.slo_schema import slo_spec

        return envelope("SLO", slo_spec(action), "")
    if kind == "Policy":
        return envelope("Policy", policy_spec(action), "")
    return catalogue("kinds")[kind].schema({})


@cache
def compact_envelope() -> Json:
    """Return the compact form's schema with its actions left open."""
    schema: dict[str, Any] = dict(compact_schema({}))
    action = {"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}}}
    listing = f.listing(action, 1, ACTIONS_MAX)
    schema["properties"] = {**schema["properties"], "actions": listing}
    return schema
