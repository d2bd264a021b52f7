"""The YAML text of an imported policy: what a person would write, with its notes as comments."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING

from resilience.policy.scalars import plain

if TYPE_CHECKING:
    from resilience.app.importing import Draft

WIDTH = 98
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_BLOCK = re.compile(r"[^\s#].*", re.DOTALL)


def policy_text(draft: Draft) -> str:
    """Return one document, without a leading `---`."""
    return "\n".join([*_comments(draft), *_head(draft), *_spec(draft)]) + "\n"


def _comments(draft: Draft) -> Iterator[str]:
    where = f", group {_one_line(draft.group)}" if draft.group else ""
    place = f"{PurePath(draft.file).name}:{draft.place.line}"
    yield from _wrapped(
        f"From alert {_one_line(draft.alert)}{where} ({place}). "
        "In shadow mode it decides and records, and claims nothing.", "# ", "# ")
    yield "# Before `mode: enforce`, decide:"
    for note in draft.notes:
        yield from _wrapped(note, "# - ", "#   ")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest,
                         break_long_words=False, break_on_hyphens=False)


def _head(draft: Draft) -> Iterator[str]:
    yield "apiVersion: resilience/v1"
    yield "kind: Policy"
    yield "metadata:"
    yield f"  name: {draft.name if plain(draft.name) == draft.name else scalar(draft.name, 4)}"
    yield from _mapping("labels", draft.labels)
    yield from _mapping("annotations", draft.annotations)


def _mapping(key: str, pairs: Mapping[str, str]) -> Iterator[str]:
    if pairs:
        yield f"  {key}:"
    for name, value in pairs.items():
        simple = _PLAIN.fullmatch(name) and plain(name) == name
        shown = name if simple else json.dumps(name, ensure_ascii=False)
        yield f"    {shown}: {scalar(value, 6)}"


def _spec(draft: Draft) -> Iterator[str]:
    yield "spec:"
    yield "  mode: shadow"
    if draft.interval:
        yield f"  interval: {draft.interval}"
    yield "  trigger:"
    yield f"    expr: {scalar(draft.expr, 6)}"
    if draft.wait:
        yield f"    for: {draft.wait}"
    if draft.keep:
        yield f"    keep_firing_for: {draft.keep}"
    yield "    on_no_data: hold"
    yield "  actions:"
    gauge = "alert_" + re.sub(r"[^a-z0-9]+", "_", draft.name)
    yield f"    - {{type: metric_emit, name: {gauge}, value: 1}}"


def scalar(text: str, indent: int) -> str:
    """Return `text` as a YAML value; lines of a block are indented by `indent`."""
    lines = text.split("\n")
    if len(lines) > 1 and _BLOCK.match(text) and all(_printable(line) for line in lines):
        return _block(lines, indent)
    if _printable(text) and len(lines) == 1:
        return "'" + text.replace("'", "''") + "'"
    return json.dumps(text, ensure_ascii=False)


def _printable(line: str) -> bool:
    return line.replace("\t", " ").isprintable() and not line.startswith("\t")


def _block(lines: list[str], indent: int) -> str:
    """Return a literal block; trailing blanks of a line mean nothing in PromQL or a sentence."""
    text = "\n".join(line.rstrip() for line in lines)
    ending = "-" if not text.endswith("\n") else "+" if text.endswith("\n\n") else ""
    body = "\n".join(" " * indent + line if line else "" for line in text.rstrip("\n").split("\n"))
    return f"|{ending}\n{body}"
