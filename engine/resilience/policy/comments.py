"""Comments that end an expression before its author did: ` #` of YAML, `#` of PromQL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from resilience.policy.context import Context
from resilience.policy.document import Document, Place
from resilience.policy.encoding import BREAK
from resilience.policy.lint_view import decides
from resilience.policy.places import value_place
from resilience.promql.plan import Plan

if TYPE_CHECKING:
    from resilience.policy.expressions import Expression

TEXT_OR_COMMENT = re.compile(
    r'"(?:\\.|[^"\\\n])*"|' r"'(?:\\.|[^'\\\n])*'|`[^`]*`|\#[^\r\n]*"
)
KEEP_LINES = "write the expression after `|`, which keeps its lines, or take the comment out"


def swallowing(document: Document, place: Place, text: str) -> Place | None:
    """Return where the `#` stands that makes a comment of lines after its own: folded (`>`), in
    quotes or plain, the lines of a text are one, and a comment goes on to its end."""
    if place.style in (None, "|") or "#" not in text or not document.text:
        return None
    lines = BREAK.split(document.text[place.start : place.end])
    for found in TEXT_OR_COMMENT.finditer(text):
        comment = found.group().rstrip()
        if not comment.startswith("#"):
            continue
        first = value_place(document, place, text, found.start())
        last = value_place(document, place, text, found.start() + len(comment) - 1)
        swallowed = lines[first.line - place.line + 1 : last.line - place.line + 1]
        if any(not line.lstrip().startswith("#") for line in swallowed if line.strip()):
            return first
    return None


def swallowed_lines(
    document: Document, place: Place, name: str, text: str, context: Context
) -> bool:
    """Warn of lines of the text called `name` that a comment of PromQL has swallowed; return
    whether it has."""
    begins = swallowing(document, place, text)
    if begins is not None:
        context.add(
            document, begins, "warning", "expr-cut",
            f"{name}: `#` begins a comment that swallows the lines after it, because "
            "this text is folded into one line", KEEP_LINES,
        )
    return begins is not None


def cut(expression: Expression, plan: Plan, context: Context) -> bool:
    """Warn when ` #` ended an unquoted expression that has no comparison yet."""
    place = expression.place
    if place.style != "" or not expression.document.text or decides(plan):
        return False
    rest = re.match(r"[ \t]+#[^\r\n]*", expression.document.text[place.end : place.end + 500])
    if rest is None or "resilience:" in rest.group():
        return False
    context.add(
        expression.document, place, "warning", "expr-cut",
        f"{expression.path} ends before ` #`: the rest of the line is a YAML comment, and what is "
        "left has no comparison", "quote the expression",
    )
    return True
