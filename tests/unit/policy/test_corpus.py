"""Every malformed file of the corpus gives what its first line says."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from resilience.policy.check import CheckResult

ROOT = Path(__file__).resolve().parents[3]
CORPUS = Path(os.environ.get("RESILIENCE_CORPUS", ROOT.parent / "shared" / "corpus"))
BAD = CORPUS / "bad"
FILES = sorted(p for p in BAD.glob("*.yaml") if p.is_file()) if BAD.is_dir() else []

# Files that offer a choice, or that the contracts overrule: what we chose.
CHOSEN = {
    "117_json_document.yaml": ("required", "unknown-field"),   # docs/decisions/0011
    "024_underscore_int_1_000.yaml": ("yaml-ambiguous",),
    "104_empty_file.yaml": ("no-policy",),
    "114_dup_name_across_a.yaml": (),                          # its twin is another file
    "116_conflicting_actions.yaml": ("conflicting-claims",),   # a warning; the smaller wins
}
Run = Callable[..., CheckResult]


@pytest.mark.skipif(not FILES, reason="no corpus: set RESILIENCE_CORPUS")
def test_the_corpus_is_there() -> None:
    assert len(FILES) > 50


def _expectation(path: Path) -> str:
    raw = path.read_bytes()
    text = raw.decode("utf-16" if raw[:2] == b"\xff\xfe" else "utf-8-sig", "replace")
    return text.split("\n")[0].removeprefix("# EXPECT:").strip()


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_expectation(path: Path, run: Run) -> None:
    expected = _expectation(path)
    result = run({path.name: path.read_bytes()})
    codes = {f.code for f in result.findings}
    if path.name in CHOSEN:
        assert codes == set(CHOSEN[path.name])
        return
    severities = [s for s in ("error", "warning") if s in expected.split(":")[0]]
    if expected.startswith("accepted") and "error" not in expected.split(";")[0]:
        assert not result.errors, result.errors
        count = re.match(r"accepted \((\d) polic", expected)
        assert count is None or len(result.policies) == int(count[1])
        return
    if "accepted" in expected.split(":")[0].split(" (")[0] and not result.errors:
        return
    line = re.search(r"at line (\d+)", expected)
    hits = [f for f in result.findings if f.severity in severities]
    assert hits, f"nothing found: {expected}"
    assert line is None or int(line[1]) in {f.line for f in hits}, result.findings


JSON = ('{"apiVersion": "resilience/v1", "kind": "Policy", "metadata": {"name": "json"}, "spec": '
        '{"trigger": {"expr": "up == 0", "for": "30s"%s}, "actions": [{"type": "throttle", %s}]}}')


def test_json_is_read_and_held_to_the_rules_of_yaml(run: Run) -> None:
    """docs/decisions/0011: the notation is no error, a parameter below `with` is."""
    good = JSON % (', "on_no_data": "hold"', '"max_concurrency": 8')
    assert run(good).findings == () and len(run(good).policies) == 1
    found = run(JSON % ("", '"with": {"max_concurrency": 8}')).errors
    assert [(f.line, f.code) for f in found] == [(1, "required"), (1, "unknown-field")]
    assert "without `with`" in (found[1].suggestion or "")


@pytest.mark.skipif(not FILES, reason="no corpus: set RESILIENCE_CORPUS")
def test_the_json_of_the_corpus_is_accepted_once_it_follows_the_rules(run: Run) -> None:
    text = (BAD / "117_json_document.yaml").read_text(encoding="utf-8")
    text = text.replace('"with": {"max_concurrency": 8}', '"max_concurrency": 8')
    assert not run(text.replace('"for": "30s"', '"for": "30s", "on_no_data": "hold"')).findings
