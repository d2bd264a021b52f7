"""Findings for other programs: JSON, GitHub annotations, SARIF 2.1.0, JUnit XML."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from resilience import __version__
from resilience.app.repository import top_of
from resilience.model import VERSION, Finding, Json
from resilience.policy.codes import CODES

# Files, number of policies, findings, and the severities that fail the check.
Report = Callable[[Sequence[str], int, Sequence[Finding], Collection[str]], str]
_SARIF_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_GITHUB_LEVELS = {"error": "error", "warning": "warning", "info": "notice"}
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_json(
    files: Sequence[str], policies: int, findings: Sequence[Finding], failing: Collection[str]
) -> str:
    """Return one object, as schemas/check.json describes it."""
    return _pretty({
        "version": VERSION, "files": len(files), "policies": policies,
        "findings": [dataclasses.asdict(finding) for finding in findings],
    })


def _pretty(body: Json) -> str:
    return json.dumps(body, indent=2, ensure_ascii=False)


def as_github(
    files: Sequence[str], policies: int, findings: Sequence[Finding], failing: Collection[str]
) -> str:
    """Return workflow commands that GitHub shows beside the lines of a pull request."""
    places = _in_repository(findings)
    return "\n".join(
        f"::{_GITHUB_LEVELS[f.severity]} file={_property(places[f.file])},line={f.line},"
        f"col={f.column},title={_property(f.code)}::{_data(_sentence(f))}"
        for f in findings
    )


def _in_repository(findings: Iterable[Finding]) -> Mapping[str, str]:
    """Return file -> its path from the top of the git repository that it lies in, where GitHub
    looks for it; without a repository from $GITHUB_WORKSPACE, else as it was given."""
    return {file: _from_top(file) for file in {f.file for f in findings}}


def _from_top(file: str) -> str:
    path = Path(os.path.abspath(file))
    if not path.parent.is_dir():                # a text that came with the program
        return file
    top = top_of(path.parent)
    if top is None and os.environ.get("GITHUB_WORKSPACE"):
        top = Path(os.environ["GITHUB_WORKSPACE"])
    if top is None or not path.is_relative_to(top):
        return file
    return path.relative_to(top).as_posix()


def _sentence(finding: Finding) -> str:
    return finding.message + (f"; {finding.suggestion}" if finding.suggestion else "")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def as_sarif(
    files: Sequence[str], policies: int, findings: Sequence[Finding], failing: Collection[str]
) -> str:
    """Return one SARIF run."""
    rules = [_rule(code) for code in sorted({f.code for f in findings})]
    places = _in_repository(findings)
    driver = {"name": "resilience", "version": __version__, "rules": rules}
    return _pretty({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints",
                  "results": [_result(f, places[f.file]) for f in findings]}],
    })


def _rule(code: str) -> Json:
    known = CODES.get(code)
    if known is None:
        return {"id": code}
    return {"id": code, "shortDescription": {"text": known.meaning},
            "defaultConfiguration": {"level": _SARIF_LEVELS[known.severity]}}


def _result(finding: Finding, path: str) -> Json:
    region = {"startLine": finding.line, "startColumn": finding.column}
    location = {"artifactLocation": {"uri": quote(path, safe="/")}, "region": region}
    return {
        "ruleId": finding.code, "level": _SARIF_LEVELS[finding.severity],
        "message": {"text": _sentence(finding)}, "locations": [{"physicalLocation": location}],
    }


def as_junit(
    files: Sequence[str], policies: int, findings: Sequence[Finding], failing: Collection[str]
) -> str:
    """Return one test case a file; what fails the check is its failure, the rest its output."""
    by_file: dict[str, list[Finding]] = {file: [] for file in files}
    for finding in findings:
        by_file.setdefault(finding.file, []).append(finding)
    failures = sum(1 for fs in by_file.values() if any(f.severity in failing for f in fs))
    cases = "\n".join(_case(file, found, failing) for file, found in by_file.items())
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuites>\n<testsuite name="resilience check" tests="{len(by_file)}" '
        f'failures="{failures}" errors="0">\n{cases}\n</testsuite>\n</testsuites>'
    )


def _case(file: str, findings: Sequence[Finding], failing: Collection[str]) -> str:
    errors = [f for f in findings if f.severity in failing]
    others = [str(f) for f in findings if f.severity not in failing]
    body = ""
    if errors:
        text = "\n".join(str(f) for f in errors)
        body += f"<failure message={_attribute(errors[0].message)}>{_xml(text)}</failure>"
    if others:
        body += f"<system-out>{_xml(chr(10).join(others))}</system-out>"
    return f'<testcase classname="check" name={_attribute(file)}>{body}</testcase>'


def _xml(text: str) -> str:
    clean = _NOT_XML.sub("\ufffd", text)
    return clean.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _attribute(text: str) -> str:
    quoted = _xml(text).replace('"', "&quot;").replace("\n", "&#10;").replace("\t", "&#9;")
    return f'"{quoted}"'


FORMATS: dict[str, Report] = {
    "json": as_json, "github": as_github, "sarif": as_sarif, "junit": as_junit,
}
