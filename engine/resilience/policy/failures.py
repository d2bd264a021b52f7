"""Where in the policy's file an expression failed while it was evaluated."""

from __future__ import annotations

import re
from functools import lru_cache

from resilience.model import Bundle, Policy
from resilience.policy import compact
from resilience.policy.document import Document, Map, parse_documents
from resilience.policy.places import offset_of, value_place

_PLACED = re.compile(r"(\d+):(\d+): (.+)", re.DOTALL)


def in_file(detail: str, policy: Policy, bundle: Bundle) -> str:
    """Return why a trigger has no answer. An evaluation error, which begins with its line and
    column in the expression, begins with file, line and column instead, where somebody wrote it."""
    match = _PLACED.fullmatch(detail)
    text = dict(bundle.documents).get(policy.file)
    if match is None or text is None:
        return detail
    offset = offset_of(policy.trigger.expr, int(match[1]), int(match[2]))
    place = _place(policy.file, text, policy.name, policy.trigger.expr, offset)
    return detail if place is None else f"{policy.file}:{place[0]}:{place[1]}: {match[3]}"


@lru_cache(maxsize=256)
def _place(
    file: str, text: str, name: str, expr: str, offset: int
) -> tuple[int, int] | None:
    document, trigger = _triggers(file, text).get(name, (None, None))
    if document is None or trigger is None or trigger.get("expr") != expr:
        return None
    found = value_place(document, trigger.values_at["expr"], expr, offset)
    return found.line, found.column


@lru_cache(maxsize=1)       # a file may hold thousands that fail together, and takes 50 MB a MB
def _triggers(file: str, text: str) -> dict[str, tuple[Document, Map]]:
    """Return for each policy of a file its document, in full, and the trigger in it."""
    found: dict[str, tuple[Document, Map]] = {}
    for document in parse_documents([(file, text)])[0]:
        full = compact.expand(document) if compact.is_compact(document.data) else document
        data = full.data
        if not isinstance(data, Map):
            continue
        trigger = data.get("spec", {}).get("trigger")
        if isinstance(trigger, Map):
            found.setdefault(data.get("metadata", {}).get("name", ""), (full, trigger))
    return found
