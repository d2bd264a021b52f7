"""PromQL inside documents: parsed, typed, and its findings placed in the YAML file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from resilience.errors import PromQLError
from resilience.policy import comments, lint
from resilience.policy.context import Context
from resilience.policy.document import Document, Place
from resilience.policy.lint_view import Role
from resilience.policy.places import offset_of, value_place
from resilience.promql.constants import impossible
from resilience.promql.parser import parse
from resilience.promql.plan import Plan

# Invisible or deceptive: direction marks, zero-width characters, typographic blanks.
_DECEPTIVE = re.compile(
    "[\u00a0\u00ad\u061c\u180e\u2000-\u200f\u2028-\u202f\u205f-\u2069\u3000\ufeff]"
)
_TEMPLATE = re.compile(r"\{\{\s*\$")
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_CODES = {
    "parse": "promql-syntax", "type": "promql-type", "unsupported": "promql-unsupported",
    "limit": "promql-limit", "evaluation": "promql-type",
}


@dataclass(frozen=True, slots=True)
class Expression:
    """One expression of a document: its name in messages, where it stands, what it is for."""

    document: Document
    place: Place
    path: str
    text: str
    role: Role
    on_missing_metric: str = "error"


def check_expression(expression: Expression, context: Context) -> Plan | None:
    """Return the plan, or None after an error; warnings leave the plan."""
    if (expression.place.line, expression.place.column) in expression.document.spoiled:
        return None
    if _TEMPLATE.search(expression.text):
        context.add(
            expression.document, expression.place, "error", "template",
            f"{expression.path}: expressions hold no templates",
            "aggregate by the label, and look at `ctx[\"labels\"]` in the function",
        )
        return None
    deceptive = _DECEPTIVE.search(expression.text)
    if deceptive is not None:
        _report_character(expression, deceptive, context)
        return None
    swallowed = comments.swallowed_lines(
        expression.document, expression.place, expression.path, expression.text, context)
    try:
        plan = parse(expression.text, experimental=context.experimental_functions)
    except PromQLError as error:
        _report(expression, error, context)
        return None
    if not _has_right_type(expression, plan, context):
        return None
    if not _can_be_evaluated(expression, plan, context):
        return None
    if not swallowed and not comments.cut(expression, plan, context):
        lint.run(expression, plan, context)
    return plan


def _report_character(
    expression: Expression, match: re.Match[str], context: Context
) -> None:
    code = ord(match.group())
    kind = "bidirectional control character" if match.group() in _BIDI else "unexpected character"
    place = value_place(expression.document, expression.place, expression.text, match.start())
    context.add(
        expression.document, place, "error", "promql-character",
        f"{expression.path}: {kind} U+{code:04X}", "remove it, or write a plain blank",
    )


def _report(expression: Expression, error: PromQLError, context: Context) -> None:
    offset = offset_of(expression.text, error.line, error.column)
    place = value_place(expression.document, expression.place, expression.text, offset)
    context.add(
        expression.document, place, "error", _CODES.get(error.kind, "promql-syntax"),
        f"{expression.path}: PromQL: {error.message}", error.suggestion,
    )


def _can_be_evaluated(expression: Expression, plan: Plan, context: Context) -> bool:
    found = list(impossible(plan))
    for node, message in found:
        place = value_place(expression.document, expression.place, expression.text, node.pos)
        context.add(
            expression.document, place, "error", "promql-constant",
            f"{expression.path}: PromQL: {message}",
        )
    return not found


def _has_right_type(expression: Expression, plan: Plan, context: Context) -> bool:
    if plan.type in ("vector", "scalar") or (
        plan.type == "matrix" and expression.role == "metric"
    ):
        return True
    what = {"matrix": "a range vector", "string": "a string"}.get(plan.type, plan.type)
    hint = "wrap it, as in `rate(…)` or `max_over_time(…)`" if plan.type == "matrix" else None
    context.add(
        expression.document, expression.place, "error", "promql-type",
        f"{expression.path} is {what}; a trigger needs an instant vector or a scalar", hint,
    )
    return False
