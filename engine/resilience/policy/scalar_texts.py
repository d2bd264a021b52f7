"""Where a `#` is a comment, and where it is a character of somebody's text.

In a text it is none, except where that text is an expression of several lines with comments of
PromQL, or the line on which the text is only announced (`expr: |  # …`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from resilience.policy.comments import TEXT_OR_COMMENT
from resilience.policy.document import Document, Map, Place, Seq

_BLOCK = ("|", ">")
# Fields whose texts are PromQL; so are those below `metrics`.
_EXPRESSIONS = frozenset({"expr", "trigger_if", "good", "bad", "total"})
_QUERIES = "metrics"


class _Text(NamedTuple):
    start: int
    end: int
    block: bool
    promql: bool


class ScalarTexts:
    """The texts of all `documents` of one file, in order."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._texts = sorted({one for d in documents for one in _texts(d.data)})
        self._starts = [text.start for text in self._texts]
        self._comments: dict[int, frozenset[int]] = {}

    def is_comment(self, file: str, offset: int) -> bool:
        """Return whether the `#` at `offset` of the file's text begins a comment."""
        index = bisect_right(self._starts, offset) - 1
        if index < 0 or offset >= self._texts[index].end:
            return True
        text = self._texts[index]
        if not text.block:
            return False
        if not any(sign in file[text.start : offset] for sign in "\r\n"):
            return True
        if not text.promql:
            return False
        if index not in self._comments:
            self._comments[index] = frozenset(_comments(file, text))
        return offset in self._comments[index]


def _comments(file: str, text: _Text) -> Iterator[int]:
    """Yield where comments of PromQL begin; they are no part of a string literal."""
    for found in TEXT_OR_COMMENT.finditer(file, text.start, text.end):
        if found.group().startswith("#"):
            yield found.start()


def _texts(data: Any) -> Iterator[_Text]:
    """Yield the keys and scalars of a document."""
    waiting: list[tuple[Any, bool]] = [(data, False)]
    seen: set[int] = set()
    while waiting:
        node, queries = waiting.pop()
        if not isinstance(node, Map | Seq) or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Map):
            yield from (_text(place, False) for place in node.keys_at.values())
            for key, place in node.values_at.items():
                if place.style is not None:
                    yield _text(place, queries or key in _EXPRESSIONS)
            waiting += [(value, key == _QUERIES) for key, value in node.items()]
        else:
            yield from (_text(place, False) for place in node.items_at if place.style is not None)
            waiting += [(value, False) for value in node]


def _text(place: Place, promql: bool) -> _Text:
    return _Text(place.start, place.end, place.style in _BLOCK, promql)
