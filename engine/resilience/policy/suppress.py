"""Warnings that somebody has looked at: `# resilience: ignore CODE[, CODE] until DATE: REASON`.

The comment stands on the line of the finding or alone above it, where other comments may stand
between; where the finding is inside a text of several lines, also on the line where that text or
its key begins, or above it. It silences warnings and remarks, never errors; it needs a reason and
an end. After the end the warning is back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import chain
from typing import Any

from resilience.model import Finding
from resilience.policy.codes import CODES
from resilience.policy.document import Document, Map, Place, Seq
from resilience.policy.encoding import BREAK
from resilience.policy.scalar_texts import ScalarTexts
from resilience.policy.words import did_you_mean, quoted

_COMMENT = re.compile(r"#[ \t]*resilience:[ \t]*ignore\b([^\r\n]*)")
_FORM = re.compile(r" +([a-z0-9-]+(?:, ?[a-z0-9-]+)*) +until +([0-9]{4}-[0-9]{2}-[0-9]{2}) ?: *\S")
BODY_MAX = 500
_HOW = "write `# resilience: ignore CODE until 2030-12-31: REASON`"


@dataclass(frozen=True, slots=True)
class Ignore:
    """One comment: the codes it silences at `line` and, if it stands alone, at the next one and at
    `below`, the first line that is no comment."""

    line: int
    column: int
    codes: tuple[str, ...]
    until: date
    alone: bool
    below: int

    def silences(self, finding: Finding) -> bool:
        return finding.severity != "error" and finding.code in self.codes

    @property
    def lines(self) -> tuple[int, ...]:
        lines = (self.line, self.line + 1, self.below) if self.alone else (self.line,)
        return tuple(dict.fromkeys(lines))


def apply(
    findings: Iterable[Finding], documents: Sequence[Document], today: date | None
) -> list[Finding]:
    """Return what is left of `findings`, and what is wrong with the comments in the files of
    `documents`. `today` None: no comment has expired."""
    left = dict.fromkeys(findings)
    at: dict[tuple[str, int], list[Finding]] = {}
    for finding in left:
        at.setdefault((finding.file, finding.line), []).append(finding)
    for file, mine in _commented(documents).items():
        for line, begins in chain.from_iterable(map(_inner_lines, mine)):
            for begin in begins:
                at.setdefault((file, begin), []).extend(f for f in at.get((file, line), ()))
        ignores, remarks = _read(file, mine[0].text, ScalarTexts(mine))
        for ignore in ignores:
            near = [f for line in ignore.lines for f in at.get((file, line), ())]
            covered = [f for f in near if ignore.silences(f)]
            if today is not None and ignore.until < today:
                remarks.append(_remark(file, ignore, "ignore-expired",
                                       f"this comment ended on {ignore.until}", "repair, or renew"))
            elif not covered:
                remarks.append(_remark(file, ignore, "ignore-unused",
                                       "this comment silences nothing", "remove it"))
            else:
                for finding in covered:
                    left.pop(finding, None)
        left.update(dict.fromkeys(remarks))
    return list(left)


def _commented(documents: Iterable[Document]) -> dict[str, list[Document]]:
    """Return the documents of each file that may hold a comment of ours."""
    found: dict[str, list[Document]] = {}
    for document in documents:
        found.setdefault(document.file, []).append(document)
    # `text` is the whole file's, of which there is one document or thousands.
    return {file: mine for file, mine in found.items() if "resilience:" in mine[0].text}


def _inner_lines(document: Document) -> Iterator[tuple[int, set[int]]]:
    """Yield each line inside a text of several lines, and the lines where it or its key begins."""
    waiting: list[Any] = [document.data]
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if not isinstance(node, Map | Seq) or id(node) in seen:
            continue
        seen.add(id(node))
        waiting += node.values() if isinstance(node, Map) else node
        for key, place in _texts(node):
            last = place.line + len(BREAK.findall(
                document.text[place.start : place.end].rstrip()))
            begins = {key.line, place.line} if key.line <= place.line else {place.line}
            yield from ((line, begins - {line}) for line in range(place.line, last + 1))


def _texts(node: Map | Seq) -> Iterator[tuple[Place, Place]]:
    """Yield (the place of its key, its own place) of each scalar of `node`."""
    places = ((node.keys_at[key], place) for key, place in node.values_at.items()) \
        if isinstance(node, Map) else zip(node.items_at, node.items_at, strict=True)
    return ((key, place) for key, place in places if place.style is not None)


def _remark(file: str, at: Ignore, code: str, message: str, suggestion: str) -> Finding:
    return Finding(file, at.line, at.column, "warning", code, message, suggestion)


def _read(file: str, text: str, scalars: ScalarTexts) -> tuple[list[Ignore], list[Finding]]:
    ignores: list[Ignore] = []
    remarks: list[Finding] = []
    lines = BREAK.split(text)
    below = _below(lines)
    for number, comment in _comments(text, lines, scalars):
        column = comment.start() + 1
        alone = lines[number - 1][: comment.start()].strip() == ""
        made = _parse(comment.group(1), number, column, alone, below[number - 1])
        if isinstance(made, Ignore):
            ignores.append(made)
        else:
            message, suggestion = made
            remarks.append(
                Finding(file, number, column, "warning", "ignore-malformed", message, suggestion)
            )
    return ignores, remarks


def _below(lines: Sequence[str]) -> list[int]:
    """Return for each line the number of the first one after it that is no comment."""
    below = [len(lines) + 1] * len(lines)
    for index in range(len(lines) - 2, -1, -1):
        comment = lines[index + 1].lstrip().startswith("#")
        below[index] = below[index + 1] if comment else index + 2
    return below


def _comments(
    text: str, lines: Sequence[str], scalars: ScalarTexts
) -> Iterator[tuple[int, re.Match[str]]]:
    """Yield (number of the line, comment in it); what stands in somebody's text is none."""
    breaks = (found.end() for found in BREAK.finditer(text))
    for number, (line, start) in enumerate(zip(lines, chain((0,), breaks), strict=True), 1):
        comment = _COMMENT.search(line)
        while comment is not None and not scalars.is_comment(text, start + comment.start()):
            comment = _COMMENT.search(line, comment.start() + 1)
        if comment is not None:
            yield number, comment


def _parse(
    body: str, line: int, column: int, alone: bool, below: int
) -> Ignore | tuple[str, str]:
    form = _FORM.match(body[:BODY_MAX])
    if form is None:
        return "this comment lacks a code, an end or a reason", _HOW
    codes = tuple(code.strip() for code in form.group(1).split(","))
    for code in codes:
        if code not in CODES:
            return f"code {quoted(code)} is not known", did_you_mean(code, CODES) or _HOW
    try:
        until = date.fromisoformat(form.group(2))
    except ValueError:
        return f"{quoted(form.group(2))} is not a date", _HOW
    return Ignore(line, column, codes, until, alone, below)
