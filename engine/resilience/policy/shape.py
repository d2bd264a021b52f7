"""Does a document have the right shape? jsonschema's errors, said to a person, at their place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from resilience.model import Finding, Json, parse_duration
from resilience.policy import schema
from resilience.policy.accept import acceptor
from resilience.policy.document import Document, Map, Place, Seq
from resilience.policy.judges import Case, judge
from resilience.policy.kinds import ActionKind, Actions, bounds_text

FINDINGS_MAX = 20


class Shaper:
    """Validates one document and collects what is wrong, each thing once."""

    def __init__(self, document: Document, actions: Actions) -> None:
        self.document = document
        self.actions = actions
        self.findings: list[Finding] = []
        self.seen: set[tuple[int, int, str]] = set()

    def check(self, form: Form, value: Any, at: tuple[str | int, ...], name: str) -> bool:
        """Validate `value`, which stands at path `at` and is called `name` in messages.

        Returns whether it fits the schema; a duration out of bounds is reported and still fits.
        """
        if form.accepts(value):
            return True
        fine = True
        for error in form.validator.iter_errors(value):
            fine = False
            if len(self.findings) >= FINDINGS_MAX:
                break
            self._report(error, value, at, name)
        if fine:
            _check_durations(self, value, form.schema, at, name)
        return fine

    def add(self, place: Place, code: str, message: str, suggestion: str | None = None) -> None:
        """Add an error at `place`, once, unless the loader has refused the value there."""
        where = (place.line, place.column)
        if where in self.document.spoiled or (*where, message) in self.seen:
            return
        self.seen.add((*where, message))
        self.findings.append(self.document.finding(place, "error", code, message, suggestion))

    def _report(self, error: Any, value: Any, at: tuple[str | int, ...], name: str) -> None:
        inner = tuple(error.absolute_path)
        owner, place = locate(self.document, (*at, *inner))
        if "propertyNames" in error.absolute_schema_path:
            place = _key_place(self.document, (*at, *inner), error.instance) or place
        judge(Case(error, field_name(name, inner), owner, place, self.actions, self.add))


def field_name(name: str, path: Iterable[str | int]) -> str:
    """Return `spec.actions[0].type` for a path below `name`."""
    text = name
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def locate(document: Document, path: Sequence[str | int]) -> tuple[Place, Place]:
    """Return (place of the key that owns the value, place of the value)."""
    node: Any = document.data
    owner = place = document.place
    for step in path:
        if isinstance(node, Map) and isinstance(step, str) and step in node.values_at:
            owner, place = node.keys_at[step], node.values_at[step]
        elif isinstance(node, Seq) and isinstance(step, int) and step < len(node.items_at):
            owner = place = node.items_at[step]
        else:
            return owner, place
        below: Any = node
        node = below[step]
    return owner, place


def _key_place(document: Document, path: Sequence[str | int], key: Any) -> Place | None:
    """Return the place of `key` itself in the mapping at `path`."""
    node: Any = document.data
    for step in path:
        node = node[step]
    return node.keys_at.get(key) if isinstance(node, Map) else None


# --- forms, made once --------------------------------------------------------------------------


class Form:
    """A schema ready to judge documents: quick for those that fit, exact for those that do not."""

    __slots__ = ("_validator", "accepts", "schema")

    def __init__(self, made_of: Json) -> None:
        self.schema = made_of
        self.accepts = acceptor(made_of)
        self._validator: Any = None

    @property
    def validator(self) -> Any:
        """Return jsonschema's validator; importing it takes longer than checking 100 policies."""
        if self._validator is None:
            from jsonschema import Draft202012Validator

            self._validator = Draft202012Validator(self.schema)
        return self._validator


@cache
def envelope_form(kind: str) -> Form:
    return Form(schema.envelope_of(kind))


@cache
def compact_form() -> Form:
    return Form(schema.compact_envelope())


_BY_KIND: dict[int, tuple[ActionKind[Any], Form]] = {}


def action_form(kind: ActionKind[Any]) -> Form:
    """Return the form of one kind of action."""
    known = _BY_KIND.get(id(kind))
    if known is None or known[0] is not kind:
        known = _BY_KIND[id(kind)] = (kind, Form(kind.schema()))
    return known[1]


def _check_durations(
    shaper: Shaper, value: Any, fragment: Json, at: tuple[str | int, ...], name: str
) -> None:
    """Check the bounds of every duration below `value`, which the schema has accepted."""
    if fragment.get("x-type") == "duration":
        reason = _out_of_bounds(value, fragment)
        if reason is not None:
            shaper.add(locate(shaper.document, at)[1], "duration", f"{name} {reason}")
        return
    for step, item, below in _children(value, fragment):
        _check_durations(shaper, item, below, (*at, step), field_name(name, (step,)))


def _children(value: Any, fragment: Json) -> Iterator[tuple[str | int, Any, Json]]:
    if isinstance(value, dict):
        for key, below in fragment.get("properties", {}).items():
            if key in value:
                yield key, value[key], below
        further = fragment.get("additionalProperties")
        if isinstance(further, dict):
            for key in value.keys() - fragment.get("properties", {}).keys():
                yield key, value[key], further
    elif isinstance(value, list) and "items" in fragment:
        for index, item in enumerate(value):
            yield index, item, fragment["items"]


def _out_of_bounds(value: Any, fragment: Json) -> str | None:
    low, high = fragment.get("x-minimum-ms", 0), fragment.get("x-maximum-ms")
    try:
        ms = parse_duration(str(value))
    except ValueError as error:
        return f"is out of range: {error}"
    if ms < low or (high is not None and ms > high):
        return bounds_text(value, low, high)
    return None
