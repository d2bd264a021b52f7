"""The compact form: `on_alert`, `trigger_if`, `actions`, and nothing else.

It expands to a full policy with stated defaults: mode enforce, interval 15s, for 0s, on_no_data
hold, lease 30s, on_missing_metric warn. `timeout` may be a bare number of milliseconds.
"""

from __future__ import annotations

from typing import Any

from resilience.policy.document import Document, Map, Seq
from resilience.policy.schema import API_VERSION

KEYS = ("on_alert", "trigger_if", "actions")
DEFAULTS = {"mode": "enforce", "interval": "15s", "on_missing_metric": "warn"}


def is_compact(data: Any) -> bool:
    """Return whether a document is in the compact form."""
    return isinstance(data, Map) and "apiVersion" not in data and (
        "on_alert" in data or "trigger_if" in data
    )


def expand(document: Document) -> Document:
    """Return the full policy that a compact document, which fits its schema, stands for.

    Every value keeps its place, so findings still point into the file as it was written.
    """
    source: Map = document.data
    metadata = _map(source, {"name": "on_alert"})
    trigger = _map(source, {"expr": "trigger_if"})
    _put(trigger, "for", "0s", source)
    _put(trigger, "on_no_data", "hold", source)
    spec = Map(source.place)
    for key, value in DEFAULTS.items():
        _put(spec, key, value, source)
    _put(spec, "trigger", trigger, source)
    spec["actions"] = _actions(source["actions"])
    spec.keys_at["actions"] = source.keys_at["actions"]
    spec.values_at["actions"] = source.values_at["actions"]
    full = Map(source.place)
    parts: dict[str, Any] = {
        "apiVersion": API_VERSION, "kind": "Policy", "metadata": metadata, "spec": spec,
    }
    for key, part in parts.items():
        _put(full, key, part, source)
    return Document(document.file, document.index, document.place, full, document.text,
                    document.spoiled)


def _actions(actions: Seq) -> Seq:
    expanded = Seq(actions.place)
    expanded.items_at = actions.items_at
    expanded.extend(_action(action) for action in actions)
    return expanded


def _action(action: Map) -> Map:
    made = Map(action.place)
    made.update(action)
    made.keys_at, made.values_at = action.keys_at, action.values_at
    timeout = action.get("timeout")
    if isinstance(timeout, int) and not isinstance(timeout, bool) and timeout > 0:
        made["timeout"] = f"{timeout}ms"
    return made


def _map(source: Map, names: dict[str, str]) -> Map:
    made = Map(source.place)
    for new, old in names.items():
        made[new] = source[old]
        made.keys_at[new] = source.keys_at[old]
        made.values_at[new] = source.values_at[old]
    return made


def _put(target: Map, key: str, value: Any, source: Map) -> None:
    target[key] = value
    target.keys_at[key] = source.place
    target.values_at[key] = source.place
