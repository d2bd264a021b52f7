"""One rule of a rule file: is each of its fields what Prometheus takes, and what it says there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from resilience.errors import PromQLError
from resilience.model import Json, parse_duration
from resilience.policy.comments import KEEP_LINES, swallowing
from resilience.policy.document import Document, Map, Place, Problem, Seq
from resilience.policy.durations import duration_advice
from resilience.policy.judges import shown
from resilience.policy.places import offset_of, value_place
from resilience.policy.words import quoted
from resilience.promql.parser import parse_checked

_DURATIONS = ("for", "keep_firing_for")
_TEXT = "write text, in quotes if it looks like something else"


def text_at(document: Document, owner: Map, key: str) -> str | None:
    """Return a scalar as it stands in the file: `1.10` is no number to Prometheus, and 007 no 7.

    None where there is nothing. The value is no list and no mapping.
    """
    value, place = owner.get(key), owner.values_at.get(key)
    if isinstance(value, str) or place is None:
        return value
    written = document.text[place.start : place.end].split()
    if value is None and (not written or written[-1] in ("~", "null", "Null", "NULL")):
        return None
    return written[-1]


def texts_at(document: Document, owner: Map, key: str) -> dict[str, str]:
    """Return a mapping of texts, without what is empty or was refused as no text."""
    pairs = owner.get(key)
    if not isinstance(pairs, Map):
        return {}
    found = ((name, text_at(document, pairs, name)) for name, value in pairs.items()
             if not isinstance(value, Map | Seq))
    return {name: text for name, text in found if text}


def problem_of_rule(document: Document, raw: Any, place: Place) -> Problem | None:
    """Return the first reason why a rule cannot become a policy."""
    if not isinstance(raw, Map):
        return Problem(place, f"a rule is a mapping, not {shown(raw)}",
                       "write `alert:` and `expr:`")
    if "alert" not in raw and "record" not in raw and "condition" in raw and "data" in raw:
        return Problem(place, "a rule of Grafana's own alerting holds queries, and no `expr`",
                       "write its query in PromQL: `alert: …` and `expr: …`")
    if "alert" not in raw and "record" not in raw:
        return Problem(place, "a rule has neither `alert` nor `record`", "name it with `alert:`")
    kind = kind_of_rule(document, raw)
    if kind is None:
        return Problem(raw.keys_at["record"], "a rule has both `alert` and `record`",
                       "make two rules of it")
    return next(problems_of_texts(raw, (kind,), ""), None) or (
        _of_alert(document, raw, place) if kind == "alert" else None)


def kind_of_rule(document: Document, raw: Map) -> str | None:
    """Return which of `alert` and `record` a rule is; None if both. One of them may stand there
    with nothing in it, as templates write it."""
    there = [key for key in ("alert", "record") if key in raw]
    full = [key for key in there
            if isinstance(raw[key], Map | Seq) or text_at(document, raw, key)]
    return None if len(full) > 1 else [*full, *there][0]


def _of_alert(document: Document, raw: Map, place: Place) -> Problem | None:
    alert = text_at(document, raw, "alert")
    if not alert:
        return Problem(raw.values_at["alert"], "an alert has no name", "name it with `alert:`")
    name = f"alert {quoted(alert)}"
    wrong = next(problems_of_texts(raw, ("expr", *_DURATIONS), f"{name}: "), None) \
        or next(problems_of_pairs(raw, ("labels", "annotations"), f"{name}: "), None)
    return wrong or _of_durations(document, raw, name) or _of_expression(document, raw, place, name)


def problems_of_texts(owner: Map, keys: tuple[str, ...], name: str) -> Iterator[Problem]:
    """Yield the lists and mappings that stand where Prometheus takes text."""
    for key in keys:
        if isinstance(owner.get(key), Map | Seq):
            yield Problem(owner.values_at[key],
                          f"{name}`{key}` must be text, got {shown(owner[key])}", _TEXT)


def problems_of_pairs(owner: Map, keys: tuple[str, ...], name: str) -> Iterator[Problem]:
    """Yield what is wrong with labels and annotations, which map names to texts."""
    for key in keys:
        pairs = owner.get(key)
        if isinstance(pairs, Map):
            yield from problems_of_texts(pairs, tuple(pairs), f"{name}{key}: ")
        elif pairs is not None:
            yield Problem(owner.values_at[key],
                          f"{name}`{key}` must be a mapping, got {shown(pairs)}",
                          f"write `{key}: {{name: text}}`")


def _of_durations(document: Document, raw: Map, name: str) -> Problem | None:
    for key in _DURATIONS:
        text = text_at(document, raw, key)
        try:
            parse_duration("0" if text is None else text)
        except ValueError as error:
            why = str(error).partition(": write ")[0]
            return Problem(raw.values_at[key], f"{name}: {key}: {why}", duration_advice(text))
    return None


def _of_expression(document: Document, raw: Map, place: Place, name: str) -> Problem | None:
    text = text_at(document, raw, "expr")
    if not text:
        return Problem(raw.values_at.get("expr", place), f"{name} has no `expr`",
                       "write its expression")
    at = raw.values_at["expr"]
    try:
        plan = parse_checked(text)
    except PromQLError as error:
        where = value_place(document, at, text, offset_of(text, error.line, error.column))
        hint = KEEP_LINES if swallowing(document, at, text) else error.suggestion or "repair `expr`"
        return Problem(where, f"{name}: PromQL: {error.message}", hint)
    if plan.type not in ("vector", "scalar"):
        return Problem(at, f"{name}: `expr` is a {plan.type}, not an instant vector",
                       "repair `expr`")
    return None


def cut_expression(document: Document, raw: Map) -> Place | None:
    """Return where a comment begins that swallows lines of `expr`, in Prometheus as well."""
    value: Json = raw.get("expr")
    return swallowing(document, raw.values_at["expr"], value) if isinstance(value, str) else None
