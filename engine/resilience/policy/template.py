"""Prometheus' templates, the two that make sense here: `{{ $labels.x }}` and `{{ $value }}`.

Annotations keep any other `{{` as plain text; in a parameter it is an error at `check`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from resilience.model import Json, Labels, format_float

_PLACEHOLDER = re.compile(r"\{\{\s*\$(?:labels\.([a-zA-Z_][a-zA-Z0-9_]*)|(value))\s*\}\}")


def problem(text: str) -> str | None:
    """Return why a parameter's template cannot be rendered, or None."""
    rest = _PLACEHOLDER.sub("", text)
    if "{{" in rest or "}}" in rest:
        return f"`{text}` has a template other than `{{{{ $labels.NAME }}}}` and `{{{{ $value }}}}`"
    return None


def render(text: str, labels: Labels, value: float | None) -> str:
    """Fill in labels (absent ones are empty, as in Prometheus) and the value."""
    known = dict(labels)

    def fill(match: re.Match[str]) -> str:
        if match.group(2):
            return "" if value is None else format_float(value)
        return known.get(match.group(1), "")

    return _PLACEHOLDER.sub(fill, text)


def render_json(body: Json, labels: Labels, value: float | None) -> Json:
    """Fill in every string inside a JSON value; keys stay as they are."""
    if isinstance(body, str):
        return render(body, labels, value)
    if isinstance(body, Mapping):
        return {key: render_json(item, labels, value) for key, item in body.items()}
    if isinstance(body, list | tuple):
        items: list[Any] = [render_json(item, labels, value) for item in body]
        return items
    return body
