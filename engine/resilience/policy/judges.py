"""What each error of jsonschema means to the person who wrote the document."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from resilience.model import Json
from resilience.policy import choices
from resilience.policy.compact import KEYS
from resilience.policy.document import Map, Place
from resilience.policy.durations import duration_advice
from resilience.policy.fragments import LABEL_PATTERN
from resilience.policy.kinds import COMMON, Actions
from resilience.policy.words import did_you_mean, has_odd_blank, listed, nearest, quoted

_TYPES = {
    "object": "a mapping", "array": "a list", "string": "a string", "integer": "an integer",
    "number": "a number", "boolean": "true or false", "null": "null",
}
# Fields of a policy that people write one level too deep, into its trigger.
OF_SPEC = frozenset({
    "actions", "escalation", "group", "guard", "interval", "limits", "mode", "on_missing_metric",
    "priority", "probe", "recovery", "trigger", "verify",
})
# Below what people put the parameters of an action who know another system.
_GATHERED = frozenset({"with", "params", "parameters", "args", "arguments", "config", "spec"})
_OF_KUBERNETES = frozenset({
    "creationTimestamp", "finalizers", "generateName", "generation", "managedFields", "namespace",
    "ownerReferences", "resourceVersion", "selfLink", "status", "uid",
})
_MEANT = {
    "on": "trigger", "when": "trigger", "if": "trigger", "triggers": "trigger", "alert": "trigger",
    "then": "actions", "do": "actions", "query": "expr", "expression": "expr", "promql": "expr",
    "severity": "priority", "keepFiringFor": "keep_firing_for", "model": "to",
    "eval_time": "at", "alertname": "policy", "rule_files": "policy_files",
    "exp_alerts": "expect", "alert_rule_test": "expect", "promql_expr_test": "expect",
    "evaluation_interval": "interval",
    "enabled": "mode", "duration": "for", "no_data": "on_no_data", "trigger_if": "expr",
    "api_key": "key_sha256", "key": "key_sha256",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One error of jsonschema: the value's name and place, the place of the key that owns it, and
    `add(place, code, message, suggestion)` for the verdict."""

    error: Any
    path: str
    owner: Place
    place: Place
    actions: Actions
    add: Callable[..., None]

    @property
    def kind(self) -> str | None:
        """Return the `x-type` of the schema that refused the value."""
        found: str | None = self.error.schema.get("x-type")
        return found

    @property
    def action(self) -> str | None:
        """Return the type of action whose schema refused the value."""
        found: str | None = self.error.schema.get("properties", {}).get("type", {}).get("const")
        return found

    def say(self, code: str, message: str, suggestion: str | None = None) -> None:
        self.add(self.place, code, message, suggestion)


def judge(case: Case) -> None:
    """Say what this error means."""
    _JUDGES.get(case.error.validator, _other)(case)


def _unknown_keys(case: Case) -> None:
    node = case.error.instance
    known = list(case.error.schema.get("properties", {}))
    for key in node:
        if key in known:
            continue
        place = node.keys_at.get(key, case.place) if isinstance(node, Map) else case.place
        message, suggestion = _unknown_key(case, key, [k for k in known if k not in node])
        case.add(place, "unknown-field", message, suggestion)


def _unknown_key(case: Case, key: str, free: list[str]) -> tuple[str, str | None]:
    kind = case.action
    if kind:
        message = f"unknown parameter {quoted(key)} of action `{kind}`"
    else:
        message = f"unknown field {quoted(key)}" + (f" in {case.path}" if case.path else "")
    if key in _GATHERED and kind:
        return message, f"write the parameters beside `type`, without `{key}`"
    if has_odd_blank(key):
        return message, "a blank that is none: write plain blanks"
    meant = _MEANT.get(key)
    if meant in free:
        return message, f"did you mean `{meant}`?"
    if _is_compact(case):
        return message, did_you_mean(key, free) or \
            f"the short form has {listed(KEYS)} alone; a whole policy begins with `apiVersion:`"
    if key in _OF_KUBERNETES:
        return message, "a field that Kubernetes fills in: leave it out"
    guess = did_you_mean(key, free)
    return message, guess or _slipped(case, key)


def _is_compact(case: Case) -> bool:
    return not case.path and KEYS[0] in case.error.schema.get("properties", {})


def _slipped(case: Case, key: str) -> str | None:
    """Suggest the indentation for a key that would be right one level below."""
    own = case.actions.get(case.action or "")
    if own is not None and not own.holds and key in COMMON:
        return f"`{own.name}` happens once and holds nothing: leave `{key}` out"
    near = _slipped_in(case, key)
    if near is None and own is None:
        near = _slipped_below(case, key)
    if near is not None:
        return near
    for name, kind in case.actions.items():
        if key in kind.schema()["properties"] and key not in ("type", "name"):
            slip = "" if own is not None else ": did the indentation slip?"
            return f"it is a parameter of action `{name}`{slip}"
    return _slipped_below(case, key)


def _slipped_below(case: Case, key: str) -> str | None:
    for field, below in case.error.schema.get("properties", {}).items():
        if key in below.get("properties", {}):
            return f"it belongs into `{field}`: did the indentation slip?"
    return None


def _slipped_in(case: Case, key: str) -> str | None:
    """Suggest the indentation for a key that would be right further up."""
    if not case.path:
        return None
    if key in ("apiVersion", "kind", "metadata", "spec"):
        return "it stands at the top of the document: did the indentation slip?"
    above = "spec" if case.path == "metadata" else case.path.rpartition(".")[0].split("[")[0]
    return f"it belongs into `{above}`: did the indentation slip?" \
        if above == "spec" and key in OF_SPEC else None


def _required(case: Case) -> None:
    missing = [k for k in case.error.validator_value if k not in case.error.instance]
    for key in missing:
        name = f"{case.path}.{key}" if case.path else key
        message = f"{name} is required"
        if case.action and key != "type":
            message = f"action `{case.action}` needs `{key}`"
        case.add(_typo_of(case, key) or case.owner, "required", message,
                 _by_name(case, key) or _how(case.error.schema, key))


def _by_name(case: Case, missing: str) -> str | None:
    """Suggest `type: NAME` where the name of an action stands as a key."""
    named = next((key for key in case.error.instance if key in case.actions), None)
    if missing != "type" or named is None:
        return None
    return f"write the type as a value: `type: {named}`, and its parameters beside it"


def _typo_of(case: Case, missing: str) -> Place | None:
    """Return the place of an unknown key that was probably meant to be the missing one."""
    node = case.error.instance
    known = case.error.schema.get("properties", {})
    for key, place in (node.keys_at if isinstance(node, Map) else {}).items():
        if key not in known and (_MEANT.get(key) == missing or nearest(key, [missing])):
            found: Place = place
            return found
    return None


def _how(parent: Json, key: str) -> str:
    fragment = parent.get("properties", {}).get(key, {})
    if "enum" in fragment:
        return f"write `{key}:` with one of {listed(fragment['enum'])}"
    if "const" in fragment:
        return f"write `{key}: {fragment['const']}`"
    return f"write `{key}:`"


def _type(case: Case) -> None:
    value, wanted = case.error.instance, case.error.validator_value
    if value is None:
        message = f"{case.path or 'document'} is null"
        case.say("null", message, "write a value, or leave the key out")
        return
    if case.kind == "duration":
        case.say("duration", f"{case.path} must be a duration, got {shown(value)}",
                 duration_advice(value))
        return
    kinds = [wanted] if isinstance(wanted, str) else list(wanted)
    names = " or ".join(_TYPES[k] for k in kinds)
    message = f"{case.path or 'document'} must be {names}, got {shown(value)}"
    options: list[str] = case.error.schema.get("enum", [])
    advice = _of_options(value, options) if options else _type_advice(value, kinds)
    case.say("type", message, advice)


def _of_options(value: Any, options: list[str]) -> str:
    """Say which words may stand here, and which one a boolean means among them."""
    guess = choices.meant(str(value).lower(), options) if isinstance(value, bool) else None
    shown_guess = "\"off\"" if guess == "off" else guess          # plain, YAML 1.1 reads a boolean
    return f"write `{shown_guess}`" if guess else f"write one of {listed(options)}"


def _type_advice(value: Any, kinds: list[str]) -> str | None:
    if "string" in kinds and isinstance(value, bool | int | float):
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return f'quote it: `"{text}"`'
    if "integer" in kinds and isinstance(value, str):
        return _number_in(value)
    if "array" in kinds:
        return "write a list: `- …` on its own line, or `[…]`"
    if "object" in kinds and isinstance(value, str) and "\n" in value:
        return "remove the `|` or `>` that makes it text"
    return None


def _number_in(text: str) -> str | None:
    """Say how to write the whole number that a text holds, with signs that YAML does not take."""
    if re.fullmatch(r"-?[0-9]+", text.strip()):
        return "remove the quotes"
    if re.fullmatch(r"[0-9]{1,3}(?:[ ,._'][0-9]{3})+", text):
        return f"write `{re.sub('[^0-9]', '', text)}`"
    return f"write `{int(text)}`" if text.isdecimal() else None


def shown(value: Any) -> str:
    """Return a value and its type as people call it."""
    if isinstance(value, bool):
        return f"boolean {str(value).lower()}"
    if isinstance(value, int):
        return f"integer {value}"
    if isinstance(value, float):
        return f"number {value:g}"
    if isinstance(value, str):
        return f"string {quoted(value)}"
    if value is None:
        return "null"
    return "a list" if isinstance(value, list) else "a mapping"


def _choice(case: Case) -> None:
    value, options = case.error.instance, list(case.error.validator_value)
    if not isinstance(value, str):
        return
    case.say("choice", f"{case.path} is {quoted(value)}, not one of {listed(options)}",
             choices.advice(value, options))


def _const(case: Case) -> None:
    wanted = case.error.validator_value
    case.say("choice", f"{case.path} must be `{wanted}`, got {shown(case.error.instance)}")


def _pattern(case: Case) -> None:
    value = case.error.instance
    if case.kind == "duration":
        case.say("duration", f"{case.path}: bad duration {quoted(value)}", duration_advice(value))
    elif case.kind == "share":
        large = re.fullmatch(r"[0-9]+(?:\.[0-9]+)?%", value) is not None
        case.say("share", f"{case.path}: {quoted(value)} is not a share",
                 "the whole is `100%`; nothing is more" if large
                 else "write a percentage such as `25%` or a number such as 0.25")
    elif case.kind == "name" and not value:
        return                                    # said already: it is empty
    elif case.kind == "name":
        case.say("name", f"{case.path}: {quoted(value)} is not a valid name",
                 "use a-z, 0-9, `.`, `_`, `-`; at most 63, a letter or digit at both ends")
    else:
        what = case.kind or ("key" if "propertyNames" in case.error.schema_path else "value")
        free = "; annotations take other names too" if case.path == "metadata.labels" else ""
        of_label = what != "key" or case.error.validator_value == LABEL_PATTERN
        form = _FORMS.get(what) if of_label else None
        shown_as = "this" if what == "URL" else quoted(value)   # it may hold a password
        if what == "URL" and "/" in case.error.validator_value.rpartition("//")[2]:
            path = re.match(r"https?://[^\s/@]+/", value)
            form = "leave out the path: write `http://HOST:PORT` alone" if path else form
        case.say("format", f"{case.path}: {shown_as} is not a valid {what}",
                 form and form + free)


_FORMS = {
    "URL": "begin with `http://` or `https://`, and put no user name into it",
    "metric name": "use letters, digits, `_` and `:`, and no digit first",
    "label name": "use letters, digits and `_`, and no digit first",
    "function": "use letters, digits and `_`, and no digit first",
    "key": "use letters, digits and `_`, and no digit first",
}


def _bound(case: Case) -> None:
    value, limit = case.error.instance, case.error.validator_value
    if case.kind == "duration":
        if isinstance(value, float) and not value.is_integer():   # said already: no duration at all
            return
        case.say("duration", f"{case.path} is the bare number {value}", duration_advice(value))
        return
    if case.error.schema.get("type") == "integer" and isinstance(value, float) \
            and not value.is_integer():
        return                                    # said already: it is no integer
    sign = {"minimum": ">=", "maximum": "<=", "exclusiveMinimum": ">"}[case.error.validator]
    case.say("range", f"{case.path} must be {sign} {limit} (got {value})")


def _empty(case: Case) -> None:
    what = "is empty" if case.error.validator == "minLength" else "must not be empty"
    case.say("empty", f"{case.path} {what}")


def _too_many(case: Case) -> None:
    value, limit = case.error.instance, case.error.validator_value
    noun = "characters" if isinstance(value, str) else "entries"
    case.say("too-large", f"{case.path} has {len(value)} {noun}, the limit is {limit}")


def _other(case: Case) -> None:
    where = case.path or "document"
    case.say("schema", f"{where} does not fit the schema ({case.error.validator})")


_JUDGES: dict[str, Callable[[Case], None]] = {
    "additionalProperties": _unknown_keys, "required": _required, "type": _type, "enum": _choice,
    "const": _const, "pattern": _pattern, "minimum": _bound, "maximum": _bound,
    "exclusiveMinimum": _bound, "minLength": _empty, "minItems": _empty, "maxItems": _too_many,
    "maxLength": _too_many, "maxProperties": _too_many,
}
