"""Documents of other systems: what each is, and what to do with it here."""

from __future__ import annotations

from typing import Any

from resilience.policy import compact, schema
from resilience.policy.document import Map, Problem, Seq
from resilience.policy.judges import OF_SPEC
from resilience.policy.words import did_you_mean, listed, quoted

IMPORT = "`resilience import FILE` makes a shadow policy of each alert"
_KEYS = {
    "scrape_configs": "a Prometheus configuration",
    "receivers": "an Alertmanager configuration",
    "tests": "a file of policy tests",
    "services": "a Compose file",
}
_OTHER_FOLDER = "name the folder that holds the policies"
_TESTS = "name it `NAME.test.yaml`; `resilience test FILE` runs it"
_OURS = ("apiVersion", "kind", "metadata", "spec")
_LIST = "items are not read: write each as a document of its own, separated by `---`"


def recognised(data: Map) -> Problem | None:
    """Return what another system's document is; None for one that is or should be ours."""
    if "apiVersion" not in data:
        return _without_version(data)
    version = data["apiVersion"]
    if not isinstance(version, str) or version == schema.API_VERSION:
        return None
    place = data.values_at["apiVersion"]
    if version.startswith("resilience/"):
        return Problem(place, f"apiVersion {quoted(version)} is not known",
                       f"write `apiVersion: {schema.API_VERSION}`")
    kind = data.get("kind")
    what = f" (kind {quoted(kind)})" if isinstance(kind, str) else ""
    return Problem(place, f"apiVersion {quoted(version)}{what} is not a resilience policy",
                   hint_of_kind(kind) or f"a policy has `apiVersion: {schema.API_VERSION}`")


def _without_version(data: Map) -> Problem | None:
    if "groups" in data:
        return Problem(data.keys_at["groups"],
                       "this is a Prometheus rule file (`groups:`), not a policy", IMPORT)
    if "kind" in data:
        return None
    if is_list_of_rules(data.get("rules")):
        return Problem(data.keys_at["rules"],
                       "this is a group of Prometheus rules (`rules:`), not a policy", IMPORT)
    if is_rule(data):
        key = "alert" if "alert" in data else "record"
        return Problem(data.keys_at[key], f"this is a rule of Prometheus (`{key}:`), not a policy",
                       f"put it into a list, `- {key}: …`: {IMPORT}")
    known = next((key for key in _KEYS if key in data), None)
    if known is not None:
        hint = _TESTS if known == "tests" else _OTHER_FOLDER
        return Problem(data.keys_at[known], f"this is {_KEYS[known]} (`{known}:`), not a policy",
                       hint)
    return _like_nothing(data)


def _like_nothing(data: Map) -> Problem | None:
    """One word about a document that has no field of ours, and none that was meant to be one."""
    ours = {*_OURS, *compact.KEYS, *OF_SPEC}
    if not data or any(key in ours or did_you_mean(key, ours) for key in data):
        return None
    first = next(iter(data))
    return Problem(data.keys_at[first],
                   f"this is no document of resilience: it lacks {listed(_OURS)}",
                   f"begin with `apiVersion: {schema.API_VERSION}`, or leave the file out")


def hint_of_kind(kind: Any) -> str | None:
    """Return what to do with a document of a kind that others use."""
    if kind in ("PrometheusRule", "PrometheusRuleList", "VMRule"):
        return IMPORT
    return _LIST if kind == "List" else None


def is_rule(item: Any) -> bool:
    """Return whether it is a rule of Prometheus, alerting or recording."""
    return isinstance(item, Map) and "expr" in item and ("alert" in item or "record" in item)


def is_list_of_rules(data: Any) -> bool:
    """Return whether it is a list that holds rules of Prometheus."""
    return isinstance(data, Seq) and any(is_rule(item) for item in data)
