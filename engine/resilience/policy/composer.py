"""Parser events of one file -> documents, without recursion.

No tags but `!!str`, no merge keys, no duplicate keys; aliases count in their expanded size; scalars
mean the same in YAML 1.1 and 1.2 (scalars.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from resilience.model import Finding
from resilience.policy import scalars, syntax
from resilience.policy.document import Document, Map, Node, Place, Seq
from resilience.policy.encoding import BIDI, forbidden
from resilience.policy.syntax import DEPTH_MAX
from resilience.policy.words import quoted

DOCUMENTS_MAX = 20_000
NODES_MAX = 20_000
SCALAR_MAX = 64 * 1024
FINDINGS_MAX = 50

_LOADER: Any = getattr(yaml, "CLoader", yaml.Loader)
_TEXT_TAGS = ("!", "tag:yaml.org,2002:str")
_ODD_KEYS = frozenset({"", "~", "null", "Null", "NULL", "<<"})
_OWN_TAGS = {Map: "tag:yaml.org,2002:map", Seq: "tag:yaml.org,2002:seq"}


@dataclass(slots=True)
class _Frame:
    """A collection that is being read; `wants_key`: the next node of a mapping is a key; `key` is
    the one that waits for its value."""

    node: Map | Seq
    anchor: str | None
    wants_key: bool
    key: str | None = None
    skip: bool = False
    size: int = 1


class _StopError(Exception):
    """Reading of this file ends; the finding has been written."""


class Composer:
    """Composes the documents of one file from parser events, without recursion."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self.findings: list[Finding] = []
        self.documents: list[Document] = []
        self.stack: list[_Frame] = []
        self.anchors: dict[str, tuple[Node, int, Place]] = {}
        self.open_anchors: set[str] = set()
        self.spoiled: set[tuple[int, int]] = set()
        self.count = 0
        self.root: tuple[Node, Place] | None = None
        self.nodes = 0
        self.broken = False

    def run(self) -> tuple[list[Document], list[Finding]]:
        try:
            self._read()
        except _StopError:
            pass
        except yaml.MarkedYAMLError as error:
            self.findings.append(syntax.explain(self.file, self.text, error, self._opened()))
        except yaml.YAMLError as error:
            self.findings.append(syntax.unplaced(self.file, error))
        if not self.documents and not self.findings:
            self.findings.append(self._empty())
        return self.documents, self.findings

    def _opened(self) -> tuple[int, int, int] | None:
        if not self.stack:
            return None
        place = self.stack[-1].node.place
        return place.start, place.line, place.column

    def _read(self) -> None:
        """Take every event; what yaml.parse does, without its generator around each of them."""
        loader: Any = _LOADER(self.text)
        try:
            while loader.check_event():
                event = loader.get_event()
                taken = _TAKEN.get(type(event))
                if taken is not None:
                    taken(self, event)
        finally:
            loader.dispose()

    def _empty(self) -> Finding:
        return Finding(
            self.file, 1, 1, "warning", "empty-file",
            f"no policy in the file: {self.count} empty documents" if self.count > 1
            else "no policy in the file", "write a document with `apiVersion: resilience/v1`",
        )

    def _begin(self, _: Any) -> None:
        self.count += 1
        if self.count > DOCUMENTS_MAX:
            self.documents.clear()                    # as many findings as documents help nobody
            raise self._stop(Place(1, 1), "too-many-documents",
                             f"more than {DOCUMENTS_MAX} documents in one file")
        self.stack.clear()
        self.anchors.clear()
        self.open_anchors.clear()
        self.spoiled = set()
        self.root = None
        self.nodes = 0
        self.broken = False

    def _finish(self, _: Any) -> None:
        if self.root is None or self.broken:
            return
        node, place = self.root
        if node is None and (place.line, place.column) not in self.spoiled:
            return
        self.documents.append(
            Document(self.file, self.count, place, node, self.text, frozenset(self.spoiled))
        )

    def _open_map(self, event: Any) -> None:
        self._open(event, Map(_place(event)))

    def _open_seq(self, event: Any) -> None:
        self._open(event, Seq(_place(event)))

    # --- nodes -------------------------------------------------------------------------------

    def _scalar(self, event: Any) -> None:
        place = _place(event, event.style or "")
        self._count_node(place)
        if len(event.value) > SCALAR_MAX:
            raise self._stop(place, "too-large",
                             f"text of {len(event.value)} characters, the limit is {SCALAR_MAX}")
        if self.stack and self.stack[-1].wants_key:
            self._key(event, place)
            return
        value = self._value(event, place)
        if event.anchor:
            self.anchors[event.anchor] = (value, 1, place)
        self._attach(value, 1, place)

    def _value(self, event: Any, place: Place) -> Node:
        text: str = event.value
        if event.tag is not None and event.tag not in _TEXT_TAGS:
            self._refuse_tag(event.tag, place)
            return text
        if event.style or event.tag is not None:
            self._refuse_control(text, place)
            return text
        value = scalars.plain(text)
        if isinstance(value, scalars.Refused):
            self._error(place, value.code, self._of_key(value.message), value.suggestion)
            return value.value
        return value

    def _of_key(self, message: str) -> str:
        key = self.stack[-1].key if self.stack else None
        return f"{quoted(key)}: {message}" if key else message

    def _refuse_tag(self, tag: str, place: Place) -> None:
        short = tag.replace("tag:yaml.org,2002:", "!!")
        where = self.stack[-1].key if self.stack else None
        what = f" of {quoted(where)}" if where else ""
        self._error(place, "yaml-tag", f"tag {quoted(short)}{what} is not known; values are plain "
                    "strings, numbers, booleans, lists and maps", "remove the tag")

    def _refuse_control(self, text: str, place: Place) -> None:
        if text.isprintable():
            return
        character = forbidden(text) or ("\r" if "\r" in text else None)
        if character is not None:
            kind = "bidirectional control" if character in BIDI else "control"
            self._error(place, "control-character", self._of_key(
                f"{kind} character U+{ord(character):04X} in {quoted(text)}"), "remove it")

    def _open(self, event: Any, node: Map | Seq) -> None:
        self._count_node(node.place)
        if len(self.stack) >= DEPTH_MAX:
            raise self._stop(node.place, "too-deep", f"more than {DEPTH_MAX} levels of nesting")
        if self.stack and self.stack[-1].wants_key:
            self._bad_key(node)
        elif event.tag not in (None, "!", _OWN_TAGS[type(node)]):
            self._refuse_tag(event.tag, node.place)
        if event.anchor:
            self.open_anchors.add(event.anchor)
        self.stack.append(_Frame(node, event.anchor, type(node) is Map))

    def _close(self, _: Any) -> None:
        frame = self.stack.pop()
        if frame.anchor:
            self.open_anchors.discard(frame.anchor)
            self.anchors[frame.anchor] = (frame.node, frame.size, frame.node.place)
        if self.stack and self.stack[-1].wants_key:  # a collection that stood as a key
            self._skip_pair()
            return
        self._attach(frame.node, frame.size, frame.node.place)

    def _alias(self, event: Any) -> None:
        place = _place(event)
        if event.anchor in self.open_anchors:
            raise self._stop(place, "yaml-alias",
                             f"alias {quoted(event.anchor)} is inside the value that it names",
                             "a value cannot contain itself")
        known = self.anchors.get(event.anchor)
        if known is None:
            raise self._stop(place, "yaml-alias", f"alias {quoted(event.anchor)} has no anchor",
                             f"write `&{event.anchor}` before the value that it repeats")
        value, size, _ = known
        self.nodes += size - 1
        self._count_node(place)
        if self.stack and self.stack[-1].wants_key:
            self._error(place, "yaml-key", "an alias as a key", "write the key out")
            self._skip_pair()
            return
        self._attach(value, size, known[2])

    def _attach(self, value: Node, size: int, place: Place) -> None:
        if not self.stack:
            self.root = (value, place)
            return
        frame = self.stack[-1]
        frame.size += size
        node = frame.node
        if isinstance(node, Seq):
            node.append(value)
            node.items_at.append(place)
            return
        if frame.key is not None and not frame.skip:
            node[frame.key] = value
            node.values_at[frame.key] = place
        frame.key, frame.wants_key, frame.skip = None, True, False

    # --- keys --------------------------------------------------------------------------------

    def _key(self, event: Any, place: Place) -> None:
        frame = self.stack[-1]
        node = frame.node
        assert isinstance(node, Map)
        key: str = event.value
        frame.key, frame.wants_key = key, False
        if event.tag is not None and event.tag not in _TEXT_TAGS:
            self._refuse_tag(event.tag, place)
        if key in _ODD_KEYS and not event.style:
            self._odd_plain_key(key, place)
            frame.skip = True
        if frame.skip or key not in node.keys_at:
            node.keys_at.setdefault(key, place)
            return
        first = node.keys_at[key]
        message = f"duplicate key {quoted(key)}, first at line {first.line}"
        self._error(place, "yaml-duplicate-key", message, "remove one of them")
        frame.skip = True

    def _odd_plain_key(self, key: str, place: Place) -> None:
        """Refuse null and merge keys: the pair is left out."""
        if key == "<<":
            self._error(place, "yaml-merge", "merge keys (`<<`) are not supported",
                        "write the fields out, or repeat single values with an anchor")
        else:
            self._error(place, "yaml-key", "null key in a mapping", "write a key before the `:`")

    def _bad_key(self, node: Map | Seq) -> None:
        what = "list" if isinstance(node, Seq) else "mapping"
        if syntax.looks_like_template(self.text, node.place.start):
            raise self._stop(_first_brace(self.text, node.place), "yaml-template",
                             "unquoted `{{` is a mapping in YAML; this looks like a Helm template",
                             "render the template first, or quote the value")
        self._error(node.place, "yaml-key", f"a {what} as a mapping key; keys are strings",
                    "write a plain key, or quote the value if it starts with `{` or `[`")

    def _skip_pair(self) -> None:
        frame = self.stack[-1]
        frame.key, frame.wants_key, frame.skip = "", False, True

    # --- findings ----------------------------------------------------------------------------

    def _count_node(self, place: Place) -> None:
        self.nodes += 1
        if self.nodes > NODES_MAX:
            raise self._stop(
                place, "too-large",
                f"document has more than {NODES_MAX} values once its aliases are expanded",
                "split it, and write lists out only once",
            )

    def _error(self, place: Place, code: str, message: str, suggestion: str | None) -> None:
        if len(self.findings) >= FINDINGS_MAX:
            raise _StopError
        self.spoiled.add((place.line, place.column))
        self.findings.append(
            Finding(self.file, place.line, place.column, "error", code, message, suggestion)
        )

    def _stop(
        self, place: Place, code: str, message: str, suggestion: str | None = None
    ) -> _StopError:
        self.broken = True
        self._error(place, code, message, suggestion)
        return _StopError()


def _first_brace(text: str, place: Place) -> Place:
    before = text[max(0, place.start - 1) : place.start] == "{"
    return Place(place.line, place.column - before)


def _place(event: Any, style: str | None = None) -> Place:
    start = event.start_mark
    return Place(start.line + 1, start.column + 1, start.index, event.end_mark.index, style)


_TAKEN: dict[type, Callable[[Composer, Any], None]] = {
    yaml.ScalarEvent: Composer._scalar, yaml.AliasEvent: Composer._alias,
    yaml.MappingStartEvent: Composer._open_map, yaml.MappingEndEvent: Composer._close,
    yaml.SequenceStartEvent: Composer._open_seq, yaml.SequenceEndEvent: Composer._close,
    yaml.DocumentStartEvent: Composer._begin, yaml.DocumentEndEvent: Composer._finish,
}
