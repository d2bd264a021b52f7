"""`resilience test` for programs: JSON and JUnit XML."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from click.testing import Result
from jsonschema import Draft202012Validator

from resilience.errors import FindingsError, UsageError
from resilience.policy.contract_schemas import contract_schemas

Suite = Callable[..., Result]


def test_json_fits_its_schema(suite: Suite) -> None:
    two = "- {at: 30s, state: held}\n- {at: 40s, state: firing}"
    result = suite(two, "-o", "json", sandbox=False)
    body = json.loads(result.stdout)
    Draft202012Validator(contract_schemas()["test-run"]).validate(body)
    assert (body["tests"], body["failed"]) == (1, 1)
    (failure,) = body["results"][0]["failures"]
    assert (failure["at_ms"], failure["field"], failure["expected"]) == (30_000, "state", ["held"])
    broken = json.loads(suite("- {at: 30s}", "-o", "json").stdout)
    Draft202012Validator(contract_schemas()["test-run"]).validate(broken)
    assert broken["findings"][0]["code"] == "test-case"


def test_junit(suite: Suite, tmp_path: Path) -> None:
    file = tmp_path / "report.xml"
    suite("- {at: 30s, state: held}", "--junit", str(file), sandbox=False)
    root = ElementTree.parse(file).getroot()
    assert root.attrib == {"tests": "1", "failures": "1", "errors": "0"}
    (case,) = root.iter("testcase")
    assert case.attrib["name"] == "all of it" and case.attrib["line"] == "3"
    (failure,) = root.iter("failure")
    assert failure.attrib["message"] == "at 30s: queue: state differs"
    assert "- held" in (failure.text or "")
    suite("- {at: 30s}", "--junit", str(file))
    assert [e.attrib["message"] for e in ElementTree.parse(file).getroot().iter("error")] == [
        "nothing is expected here"
    ]
    missing = suite("- {at: 30s, state: held}", "--junit", str(tmp_path / "no" / "r.xml"))
    assert isinstance(missing.exception, UsageError)


def test_a_policy_with_an_error_is_in_the_reports_too(
    folder: Path, suite: Suite, tmp_path: Path
) -> None:
    (folder / "rules" / "bad.yaml").write_text("kind: Policy\n")
    file = tmp_path / "report.xml"
    result = suite("- {at: 5s, state: inactive}", "--junit", str(file))
    assert isinstance(result.exception, FindingsError)
    root = ElementTree.parse(file).getroot()
    assert int(root.attrib["errors"]) == len(list(root.iter("error"))) > 0
    shown = suite("- {at: 5s, state: inactive}", "-o", "json")
    assert shown.return_value == 3
    body = json.loads(shown.stdout)
    Draft202012Validator(contract_schemas()["test-run"]).validate(body)
    assert body["findings"][0]["file"].endswith("bad.yaml")
