"""The house rules that no linter knows: sizes, places, names, and documents that stay true."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import resilience
from tools.run_stages import STAGES, unplaced

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "engine" / "resilience"
OURS = (PACKAGE, ROOT / "tools", ROOT / "demo")
FUNCTION_LINES_MAX = 40
FUNCTION_LINES_TYPICAL = 9
FILE_LINES_MAX = 480
LONG_FILES = {"engine/resilience/model.py": "the shared values are read together"}
CODE_IN_INIT = {
    "engine/resilience/__init__.py", "engine/resilience/cli/__init__.py",
    "engine/resilience/promql/__init__.py", "engine/resilience/sources/__init__.py",  # one import
}
VAGUE = {"helpers", "helper", "utils", "util", "common", "misc"}
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
TABLE_HEAD = re.compile(r"\|.*\n\|[ :|-]+\n")
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")


def _modules() -> Iterator[Path]:
    for folder in OURS:
        yield from sorted(folder.rglob("*.py"))


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a body, without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def _functions() -> Iterator[tuple[str, int]]:
    for path in _modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{_name(path)}:{node.lineno} {node.name}", _body_lines(node)


def test_functions_are_small() -> None:
    sizes = dict(_functions())
    assert [name for name, lines in sizes.items() if lines > FUNCTION_LINES_MAX] == []
    assert statistics.median(sizes.values()) <= FUNCTION_LINES_TYPICAL


def test_files_are_small_or_say_why() -> None:
    long = {_name(p) for p in _modules() if len(p.read_text().splitlines()) > FILE_LINES_MAX}
    assert long == set(LONG_FILES)


def test_no_module_is_named_after_nothing() -> None:
    assert [_name(p) for p in _modules() if p.stem in VAGUE] == []


def test_package_files_are_empty_but_these() -> None:
    full = {_name(p) for p in _modules() if p.name == "__init__.py" and p.read_text().strip()}
    assert full == CODE_IN_INIT


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        _name(p) for p in _modules()
        if p.read_text().strip() and ast.get_docstring(ast.parse(p.read_text())) is None
    ]
    assert silent == []


def test_public_names_are_exactly_those_listed() -> None:
    for name in resilience.__all__:
        assert getattr(resilience, name) is not None
    assert sorted(resilience.__all__) == sorted(set(resilience.__all__))
    with pytest.raises(AttributeError, match="no attribute `missing`"):
        _ = resilience.missing


def test_every_test_folder_belongs_to_one_stage() -> None:
    folders = [folder for stage in STAGES for folder in stage.folders]
    assert len(folders) == len(set(folders))
    assert unplaced() == []


def test_stages_fit_into_an_hour() -> None:
    assert sum(stage.budget_min for stage in STAGES) < 60


def test_no_link_to_a_place_of_one_machine_is_in_git() -> None:
    """A link in place of an ignored folder slips past a pattern that ends with `/`."""
    if not (ROOT / ".git").exists():
        return  # an unpacked archive
    listed = subprocess.run(
        ["git", "ls-files", "--stage"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [line for line in listed.stdout.splitlines() if line.startswith("120000")] == []


def test_changelog_has_this_version() -> None:
    assert f"## {resilience.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def _pages() -> list[Path]:
    return [*(ROOT / name for name in DOCUMENTS), *sorted((ROOT / "docs").rglob("*.md"))]


def test_every_table_has_its_head() -> None:
    """A blank line inside a table makes plain text of all that follows."""
    headless = [
        f"{_name(page)}: {table[:60]}"
        for page in _pages() for table in TABLE.findall(page.read_text())
        if not TABLE_HEAD.match(table)
    ]
    assert headless == []


def test_links_in_documents_lead_somewhere() -> None:
    broken = [
        f"{_name(page)}: {target}"
        for page in _pages() for target in LINK.findall(page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []


def test_readme_lists_every_command_and_no_other() -> None:
    from resilience.cli import COMMANDS

    commands = {d.partition(":")[0].rpartition(".")[2].rstrip("_") for d in COMMANDS}
    told = set(re.findall(r"^\| `resilience (\w+)[^|]*\|", (ROOT / "README.md").read_text(), re.M))
    assert told == commands


def test_policy_in_the_readme_passes_the_strict_check() -> None:
    from resilience.policy.check import check
    from resilience.registry import catalogue

    text = re.search(r"^```yaml\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert text is not None
    result = check([("README.md", text[1])], {}, catalogue("actions"))
    assert [str(finding) for finding in result.findings] == []


def test_readme_names_the_two_commands_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    readme = (ROOT / "README.md").read_text()
    assert set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", readme, re.M)) <= targets
    assert {"demo", "test", "setup", "check"} <= targets
    assert "make test" in (ROOT / ".ci" / "run").read_text()
