"""Warnings that somebody has looked at: `# resilience: ignore CODE[, CODE] until DATE: REASON`.

The comment stands on the line of the finding or alone on the line above. It silences warnings and
remarks, never errors; it needs a reason and an end. After the end the warning is back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date

from resilience.model import Finding
from resilience.policy.codes import CODES
from resilience.policy.words import did_you_mean, quoted

_COMMENT = re.compile(r"#[ \t]*resilience:[ \t]*ignore\b([^\r\n]*)")
_FORM = re.compile(r" +([a-z0-9-]+(?:, ?[a-z0-9-]+)*) +until +([0-9]{4}-[0-9]{2}-[0-9]{2}) ?: *\S")
BODY_MAX = 500
_HOW = "write `# resilience: ignore CODE until 2030-12-31: REASON`"


@dataclass(frozen=True, slots=True)
class Ignore:
    """One comment: the codes it silences at `line` and, if it stands alone, at the next one."""

    line: int
    column: int
    codes: tuple[str, ...]
    until: date
    alone: bool

    def covers(self, finding: Finding) -> bool:
        lines = (self.line, self.line + 1) if self.alone else (self.line,)
        return finding.severity != "error" and finding.line in lines and finding.code in self.codes


def apply(
    findings: Iterable[Finding], texts: Mapping[str, str], today: date | None
) -> list[Finding]:
    """Return what is left of `findings`, and what is wrong with the comments in `texts`.

    `texts` maps file -> text. `today` None: no comment has expired.
    """
    left = dict.fromkeys(findings)
    at: dict[tuple[str, int], list[Finding]] = {}
    for finding in left:
        at.setdefault((finding.file, finding.line), []).append(finding)
    for file, text in texts.items():
        ignores, remarks = _read(file, text) if "resilience:" in text else ([], [])
        for ignore in ignores:
            near = [*at.get((file, ignore.line), ()), *at.get((file, ignore.line + 1), ())]
            covered = [f for f in near if ignore.covers(f)]
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


def _remark(file: str, at: Ignore, code: str, message: str, suggestion: str) -> Finding:
    return Finding(file, at.line, at.column, "warning", code, message, suggestion)


def _read(file: str, text: str) -> tuple[list[Ignore], list[Finding]]:
    ignores: list[Ignore] = []
    remarks: list[Finding] = []
    for number, line in enumerate(re.split("\r\n|\r|\n", text), 1):
        comment = _COMMENT.search(line)
        if comment is None:
            continue
        column = comment.start() + 1
        made = _parse(comment.group(1), number, column, line[: comment.start()].strip() == "")
        if isinstance(made, Ignore):
            ignores.append(made)
        else:
            message, suggestion = made
            remarks.append(
                Finding(file, number, column, "warning", "ignore-malformed", message, suggestion)
            )
    return ignores, remarks


def _parse(body: str, line: int, column: int, alone: bool) -> Ignore | tuple[str, str]:
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
    return Ignore(line, column, codes, until, alone)
