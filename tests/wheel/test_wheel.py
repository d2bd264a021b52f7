"""What a user gets who installs the wheel: the command, the shipped data, types, and no vLLM."""

from __future__ import annotations

import json
import zipfile
from typing import Protocol

import pytest


class Answer(Protocol):
    """A finished program."""

    returncode: int
    stdout: str
    stderr: str


class Installed(Protocol):
    """The fixture of conftest.py."""

    @property
    def wheel(self) -> str: ...

    def run(self, *words: str) -> Answer: ...


WHERE = "from resilience.shipped import shipped; print(shipped('rules'))"
NAMES = (
    "from resilience.cli import COMMANDS; "
    "print(*(c.partition(':')[0].rpartition('.')[2].rstrip('_') for c in COMMANDS))"
)
BAD_POLICY = "apiVersion: resilience/v1\nkind: Policy\nmetadata: {name: x}\nspec: {}\n"


def test_wheel_holds_one_package_its_types_and_its_data(installed: Installed) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"resilience"}
    assert "resilience/py.typed" in names
    assert "resilience/_shipped/schemas/policy.json" in names
    assert {"resilience/report/page.css", "resilience/report/page.js"} <= set(names)
    assert any(n.startswith("resilience/_shipped/rules/") for n in names)
    assert any(n.startswith("resilience/_shipped/udfs/") and n.endswith(".py") for n in names)
    assert not [n for n in names if "__pycache__" in n or n.endswith(".pyc")]
    assert any(n.endswith(".dist-info/licenses/LICENSE") for n in names)


def test_command_runs_from_another_folder(installed: Installed) -> None:
    answer = installed.run("resilience", "--version")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith("resilience ")


def test_every_command_shows_its_help(installed: Installed) -> None:
    names = installed.run("python", "-c", NAMES).stdout.split()
    assert {"check", "serve", "apply", "record", "get", "explain"} <= set(names)
    for name in names:
        answer = installed.run("resilience", name, "--help")
        assert answer.returncode == 0, answer.stderr
        assert answer.stdout.startswith("Usage: resilience ")


def test_shipped_rules_pass_the_check_where_they_are_installed(installed: Installed) -> None:
    where = installed.run("python", "-c", WHERE).stdout.strip()
    assert "site-packages" in where
    answer = installed.run("resilience", "check", where, "-o", "json")
    body = json.loads(answer.stdout)
    assert answer.returncode == 0, answer.stdout
    assert body["files"] >= 4
    assert not [f for f in body["findings"] if f["severity"] == "error"]


def test_a_bad_policy_is_refused_with_its_place(installed: Installed) -> None:
    installed.run("python", "-c", f"open('bad.yaml', 'w').write({BAD_POLICY!r})")
    answer = installed.run("resilience", "check", "bad.yaml")
    assert answer.returncode == 3
    assert "bad.yaml:4:" in answer.stdout + answer.stderr


@pytest.mark.parametrize("absent", ["torch", "vllm", "transformers"])
def test_engine_alone_needs_no_server_library(installed: Installed, absent: str) -> None:
    answer = installed.run("python", "-c", f"import {absent}")
    assert f"No module named '{absent}'" in answer.stderr


def test_serve_says_what_to_install_when_vllm_is_absent(installed: Installed) -> None:
    where = installed.run("python", "-c", WHERE).stdout.strip()
    answer = installed.run("resilience", "serve", where, "--state", "state", "--", "some/model")
    assert answer.returncode != 0
    assert "resilience-engine[vllm" in answer.stderr
    assert len(answer.stderr.strip().splitlines()[-1:]) == 1
