"""What the two pages about authoring show is what the product does."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import yaml
from click.testing import Result

from resilience import registry
from resilience.cli import resilience
from resilience.policy.check import check

Run = Callable[..., Result]
ROOT = Path(__file__).resolve().parents[3]
TESTING = ROOT / "docs" / "testing-policies.md"
IMPORTING = ROOT / "docs" / "from-alert-rule-to-policy.md"
pytestmark = pytest.mark.skipif(not TESTING.is_file(), reason="only a checkout has docs/")


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)


def test_the_test_that_is_shown_passes(tmp_path: Path, run: Run) -> None:
    for name in ("kv-pressure.yaml", "engine.yaml"):
        shutil.copy(ROOT / "rules" / name, tmp_path / name)
    (tmp_path / "kv-pressure.test.yaml").write_text(blocks(TESTING)[0], encoding="utf-8")
    result = run("test", tmp_path)
    assert result.return_value == 0, result.stdout


def test_every_block_is_yaml() -> None:
    for page in (TESTING, IMPORTING):
        for block in blocks(page):
            assert yaml.safe_load(block)


def test_the_policy_that_is_shown_is_what_import_writes(tmp_path: Path, run: Run) -> None:
    shown = blocks(IMPORTING)[0]
    assert check([("p.yaml", shown)], {}, registry.catalogue("actions")).findings == ()
    rules = tmp_path / "prometheus-rules.yaml"
    rules.write_text(
        "groups:\n- name: serving\n  rules:\n" + "\n" * 4 +
        "  - alert: QueueTooLong\n    expr: vllm:num_requests_waiting > 10\n    for: 2m\n"
        "    labels: {severity: critical}\n"
        "    annotations: {summary: '{{ $value }} requests wait'}\n"
    )
    made = run("import", rules).stdout
    kept = [line for line in made.splitlines()
            if "runbook_url" not in line and "prometheus_group" not in line]
    assert kept == shown.splitlines()


def test_every_command_that_is_shown_exists() -> None:
    with click.Context(resilience) as context:
        known = resilience.list_commands(context)
    for page in (TESTING, IMPORTING):
        named = re.findall(r"^ {4,}(?:.*\| )?resilience (\w+)", page.read_text(), re.M)
        assert named and set(named) <= set(known)
