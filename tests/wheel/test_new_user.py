"""The way of a newcomer, in an empty folder, with the built wheel and nothing of the checkout.

init, edit, check, test, dry run on the recording that `init` wrote, the report in a browser.
The edit is the page docs/first-policy.md.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Protocol

import pytest

from tools.browser import VARIABLE, find

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "first-policy.md"


class Installed(Protocol):
    """The fixture of conftest.py."""

    bin: Path
    elsewhere: Path

    def run(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture(scope="module")
def folder(installed: Installed) -> Path:
    """What `init` wrote, with the first policy of the documentation beside it."""
    begun = installed.run("resilience", "init", "mine")
    assert begun.returncode == 0, begun.stderr
    mine = installed.elsewhere / "mine"
    policy, test = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    (mine / "rules" / "first.yaml").write_text(policy)
    (mine / "rules" / "first.test.yaml").write_text(test)
    return mine


def test_check_test_and_dry_run(installed: Installed, folder: Path) -> None:
    checked = installed.run("resilience", "check", "rules/", "--strict", cwd=folder)
    assert (checked.returncode, checked.stdout) == (0, "")
    tested = installed.run("resilience", "test", "rules/", "--coverage", cwd=folder)
    assert tested.returncode == 0, tested.stdout
    assert "3 passed, 0 failed" in tested.stderr
    dry = installed.run(*_dry_run(), cwd=folder)
    assert dry.returncode == 0, dry.stderr
    firings = dict(re.findall(r"^([\w-]+) +(\d+) +\d", dry.stdout, re.M))
    assert firings == {"first": "1", "queue-limit": "1"}
    assert (folder / "report.html").stat().st_size < 1_000_000


def test_a_mistake_is_told_with_its_place(installed: Installed, folder: Path) -> None:
    path = folder / "rules" / "first.yaml"
    right = path.read_text()
    path.write_text(right.replace("on_no_data: hold", "on_no_dota: hold"))
    try:
        told = installed.run("resilience", "check", "rules/", cwd=folder)
    finally:
        path.write_text(right)
    assert told.returncode == 3
    assert "rules/first.yaml:14:5: error" in told.stdout
    assert "did you mean `on_no_data`?" in told.stdout


def _dry_run() -> tuple[str, ...]:
    return ("resilience", "apply", "rules/", "--dry-run", "--recording",
            "recordings/queue.parquet", "--html", "report.html")


def test_the_report_in_a_browser(installed: Installed, folder: Path) -> None:
    where = find()
    if where is None:
        pytest.skip(f"no Chromium: install one (python -m tools.browser) or name it in {VARIABLE}")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    assert installed.run(*_dry_run(), cwd=folder).returncode == 0
    arguments = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    said: list[str] = []
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(where), args=arguments)
        page = browser.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto((folder / "report.html").as_uri())
        plots = [plot.get_attribute("aria-label") for plot in page.get_by_role("img").all()]
        browser.close()
    assert said == []
    assert [plot.partition(", active")[0] for plot in plots] == [
        "Plot of first over time: 1 firings", "Plot of queue-limit over time: 1 firings",
    ]
