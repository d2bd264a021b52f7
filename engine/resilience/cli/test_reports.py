"""Results of policy tests for other programs: JSON and JUnit XML."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from resilience.model import VERSION, Finding, Json

if TYPE_CHECKING:
    from resilience.app.policy_tests import CaseResult, Report
    from resilience.app.policy_tests_compare import Failure

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_IN_ATTRIBUTE = {'"': "&quot;", "\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}


def as_json(report: Report) -> str:
    """Return one object, as schemas/test-run.json describes it."""
    body = {
        "version": VERSION, "files": len(report.files), "tests": len(report.results),
        "passed": len(report.results) - report.failed, "failed": report.failed,
        "results": [_result(r) for r in report.results],
        "findings": [dataclasses.asdict(f) for f in report.findings],
        "coverage": {
            "percent": report.coverage.percent, "covered": report.coverage.covered,
            "parts": report.coverage.parts,
            "policies": [
                {"policy": p.policy, "file": p.file, "line": p.line, "parts": list(p.parts),
                 "missing": list(p.missing)}
                for p in report.coverage.policies
            ],
        },
    }
    return json.dumps(body, indent=2, ensure_ascii=False)


def _result(result: CaseResult) -> Json:
    return {
        "file": result.file, "line": result.line, "name": result.name,
        "outcome": "failed" if result.failures else "passed",
        "failures": [_failure(f) for f in result.failures],
    }


def _failure(failure: Failure) -> Json:
    return {
        "line": failure.place.line, "column": failure.place.column, "at_ms": failure.at_ms,
        "policy": failure.policy or None, "labels": dict(failure.labels), "field": failure.about,
        "message": failure.summary, "expected": list(failure.expected), "got": list(failure.got),
        "history": list(failure.history),
    }


def as_junit(report: Report) -> str:
    """Return one suite a file; a file that could not be run is a suite with an error."""
    wrong = [f for f in report.findings if f.severity == "error"]
    suites = "\n".join(
        _suite(
            file, [r for r in report.results if r.file == file],
            [f for f in wrong if f.file == file],
        )
        for file in report.files
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuites tests="{len(report.results)}" failures="{report.failed}" '
        f'errors="{len(wrong)}">\n{suites}\n</testsuites>'
    )


def _suite(file: str, results: Sequence[CaseResult], findings: Sequence[Finding]) -> str:
    cases = [_case(r) for r in results]
    cases += [
        f'<testcase classname={_attribute(file)} name={_attribute(f.code)}>'
        f"<error message={_attribute(f.message)}>{_text(str(f))}</error></testcase>"
        for f in findings
    ]
    failed = sum(bool(r.failures) for r in results)
    body = "\n".join(cases)
    return (
        f'<testsuite name={_attribute(file)} tests="{len(cases)}" failures="{failed}" '
        f'errors="{len(findings)}">\n{body}\n</testsuite>'
    )


def _case(result: CaseResult) -> str:
    failures = ""
    if result.failures:
        text = "\n".join(line for f in result.failures for line in _lines(result, f))
        failures = (
            f"<failure message={_attribute(result.failures[0].summary)}>"
            f"{_text(text)}</failure>"
        )
    return (
        f"<testcase classname={_attribute(result.file)} name={_attribute(result.name)} "
        f'file={_attribute(result.file)} line="{result.line}" '
        f'time="{result.seconds:.3f}">{failures}</testcase>'
    )


def _lines(result: CaseResult, failure: Failure) -> list[str]:
    return [
        f"{result.file}:{failure.place.line}:{failure.place.column}: {failure.summary}",
        *(f"    - {line}" for line in failure.expected),
        *(f"    + {line}" for line in failure.got),
    ]


def _text(text: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", text))


def _attribute(text: str) -> str:
    return f'"{escape(_NOT_XML.sub(chr(0xFFFD), text), _IN_ATTRIBUTE)}"'
