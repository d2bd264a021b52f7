"""From a position in a scalar's value to the line and column in the file that holds it.

Between the two lie quotes, escapes, indentation, folded lines and block headers. What all styles
keep is the order of the visible characters, so the n-th visible character of the value is the n-th
visible one of the source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from resilience.policy.document import Document, Place
from resilience.policy.encoding import position

_PROPERTY = re.compile(r"(?:[&!]\S*\s+)+")
_HEADER = re.compile(r"[|>][0-9+-]*[ \t]*(?:#[^\r\n]*)?(?:\r\n|\r|\n)?")
_ESCAPE_LENGTH = {"x": 4, "u": 6, "U": 10}
_BLANK_ESCAPES = frozenset("ntr \t_NLPe0abfv\n\r")


def value_place(document: Document, place: Place, value: str, offset: int) -> Place:
    """Return where the character `offset` of `value`, whose scalar stands at `place`, is."""
    if place.style is None or not document.text:
        return place
    visible = sum(1 for c in value[:offset] if not c.isspace())
    raw = document.text[place.start : place.end]
    lead, style = _lead(raw, place.style)
    index = lead
    for number, at in enumerate(_visible(raw, lead, style)):
        index = at
        if number == visible:
            break
    else:
        index = index + 1 if visible else lead
    line, column = position(raw[:index])
    return Place(place.line + line - 1, column + (place.column - 1 if line == 1 else 0))


def offset_of(value: str, line: int, column: int) -> int:
    """Return the offset of (line, column), both from 1, in `value`."""
    lines = value.split("\n")
    before = sum(len(text) + 1 for text in lines[: line - 1])
    return min(before + column - 1, len(value))


def _lead(raw: str, style: str) -> tuple[int, str]:
    """Return where the content begins, after anchors, quotes and block headers."""
    properties = _PROPERTY.match(raw)
    start = properties.end() if properties else 0
    if style in ("'", '"'):
        return start + 1, style
    if style in ("|", ">"):
        header = _HEADER.match(raw, start)
        return (header.end() if header else start), style
    return start, style


def _visible(raw: str, index: int, style: str) -> Iterator[int]:
    """Yield the index of each character of `raw` that makes a visible one of the value."""
    end = len(raw) - 1 if style in ("'", '"') else len(raw)
    while index < end:
        character = raw[index]
        if style == "'" and raw.startswith("''", index):
            yield index
            index += 2
        elif style == '"' and character == "\\":
            escaped = raw[index + 1 : index + 2]
            if escaped not in _BLANK_ESCAPES:
                yield index
            index += _ESCAPE_LENGTH.get(escaped, 2)
        else:
            if not character.isspace():
                yield index
            index += 1
