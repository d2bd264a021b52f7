"""What the pages about authoring show is what the product does."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click
import pytest
import yaml
from click.testing import Result

from resilience import registry
from resilience.app.starter import Place, starter_files
from resilience.cli import resilience
from resilience.policy.catalogue import lookup, target_of
from resilience.policy.check import check

Run = Callable[..., Result]
ROOT = Path(__file__).resolve().parents[3]
TESTING = ROOT / "docs" / "testing-policies.md"
IMPORTING = ROOT / "docs" / "from-alert-rule-to-policy.md"
FIRST, UPGRADE = ROOT / "docs" / "first-policy.md", ROOT / "docs" / "upgrade-vllm.md"
REVIEW, INDEX = ROOT / "docs" / "review-in-ci.md", ROOT / "docs" / "README.md"
PAGES = (TESTING, IMPORTING, FIRST, UPGRADE, REVIEW)
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
    for page in PAGES:
        for block in blocks(page):
            assert yaml.safe_load(block) or block.startswith("# resilience: ignore")


def test_the_first_policy_passes_check_and_its_test(tmp_path: Path, run: Run) -> None:
    policy, test = blocks(FIRST)
    assert check([("first.yaml", policy)], {}, registry.catalogue("actions")).findings == ()
    (tmp_path / "first.yaml").write_text(policy, encoding="utf-8")
    (tmp_path / "first.test.yaml").write_text(test, encoding="utf-8")
    result = run("test", tmp_path)
    assert result.return_value == 0, result.stdout


def test_the_trigger_for_two_versions_is_quiet_for_both() -> None:
    expr = yaml.safe_load(blocks(UPGRADE)[0])["trigger"]["expr"]
    policy = (f"on_alert: a\ntrigger_if: {expr}\n"
              "actions: [{type: throttle, max_concurrency: 8}]\n")
    for version in ("0.8", "0.10", "0.33"):
        assert check([("p.yaml", policy)], {}, registry.catalogue("actions"),
                     target=target_of(f"vllm@{version}")).findings == ()


def test_the_renames_that_are_shown_are_those_of_the_catalogue() -> None:
    rows = re.findall(r"^\| `(vllm:\w+)`[^|]*\| ([\d.]+) \| (.*) \|$", UPGRADE.read_text(), re.M)
    assert len(rows) == 5
    for old, last, now in rows:
        known = lookup(old)
        assert known is not None and known.metric.last == tuple(map(int, last.split(".")))
        assert (known.successor() or "nothing") in now


def test_the_workflow_that_is_shown_is_the_one_that_init_writes(tmp_path: Path) -> None:
    shown = yaml.safe_load(blocks(REVIEW)[0])["jobs"]["plan"]
    place = Place.of(tmp_path)
    written = yaml.safe_load(starter_files(place)[place.workflow])["jobs"]["plan"]
    assert shown == written


def test_the_index_names_every_page_and_every_link_leads_somewhere() -> None:
    text = INDEX.read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([^)#]+)\)", text))
    assert {p.name for p in INDEX.parent.glob("*.md")} - {"README.md"} <= linked
    assert {f"reference/{p.name}" for p in (INDEX.parent / "reference").glob("*.md")} <= linked
    for page in (INDEX, *PAGES):
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), (page.name, link)


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


def shown_commands() -> list[tuple[str, str]]:
    """Return (page, command line) of every command that a page of the checkout shows."""
    found: list[tuple[str, str]] = []
    for page in (*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"):
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in text.splitlines():
            shown = re.match(r"(?:- run: |\$ | {4,})*(?:[A-Z_]+=\S+ )*(resilience \S.*)", line)
            if shown and "…" not in line:
                command = re.split(r"\s#|\s\d?[|>;]|\s&& ", shown[1])[0]
                found.append((page.name, command))
    return found


@pytest.mark.parametrize(("page", "line"), shown_commands())
def test_every_command_line_that_is_shown_is_understood(page: str, line: str) -> None:
    del page                                       # for the name of the test
    command: click.Command = resilience
    context, rest = click.Context(resilience, info_name="resilience"), shlex.split(line)[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(context, rest[0])
        if found is None:                          # `record PATH` has a command of its own
            break
        command, rest = found, rest[1:]
    with suppress(click.exceptions.Exit):          # `--help`, `--codes`
        command.make_context(command.name, list(rest), parent=context)


def test_every_command_that_is_shown_exists() -> None:
    with click.Context(resilience) as context:
        known = resilience.list_commands(context)
    for page in PAGES:
        named = re.findall(r"^ {4,}(?:.*\| |- )?resilience (\w+)", page.read_text(), re.M)
        assert named and set(named) <= set(known)
