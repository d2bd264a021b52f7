"""The table of codes is complete, and nothing in it is dead."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import resilience.policy
from resilience.policy.catalogue import target_of
from resilience.policy.check import CheckResult
from resilience.policy.codes import CODES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "codes.md"
FOLDER = Path(next(iter(resilience.policy.__path__)))
MAKERS = {"Finding", "Remark", "Refused", "add", "say", "_error", "_stop", "_finding", "finding"}
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
UDF_CODES = {c for c in CODES if c.startswith("udf-")} - {"udf-missing", "udf-twice", "udf-hides"}
Run = Callable[..., CheckResult]
Policy = Callable[..., str]
WORDS = {"error", "warning", "info"}


def used() -> set[str]:
    """Return every code that a call in resilience.policy names."""
    found: set[str] = set()
    for path in FOLDER.glob("*.py"):
        if path.name in ("codes.py", "state.py", "decide.py", "claims.py", "machine.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _name(node.func) in MAKERS:
                found |= {t for a in node.args for t in _texts(a) if CODE.fullmatch(t)}
    return found - WORDS


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _texts(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    return [t for n in (node.body, node.orelse) for t in _texts(n)] \
        if isinstance(node, ast.IfExp) else []


def test_every_code_is_documented() -> None:
    assert used() - set(CODES) <= {"remove it", "quote it"}


def test_every_documented_code_is_used() -> None:
    sources = "".join(p.read_text(encoding="utf-8") for p in FOLDER.glob("*.py")
                      if p.name != "codes.py")
    assert [code for code in CODES if f'"{code}"' not in sources and code not in UDF_CODES] == []


def test_the_codes_of_udfs_are_those_of_the_sandbox() -> None:
    """`check` and `udf check` put `udf-` before what the language layer says."""
    found = {"udf-arguments"}
    for path in (FOLDER.parent / "sandbox").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _name(node.func) in ("deny", "_refuse", "Denial"):
                first = next((t for a in node.args[1:3] for t in _texts(a)
                              if CODE.fullmatch(t)), None)
                found |= {f"udf-{first}"} if first else set()
    assert found == UDF_CODES


def promql_examples() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return code -> (expression that earns it, what `check` is told of the target)."""
    names, found = list(CODES), {}
    for code in names[names.index("promql-syntax"):names.index("udf-syntax")]:
        example, _, target = CODES[code].example.partition(" with --target ")
        options: dict[str, Any] = {"target": target_of(target)} if target else {}
        if code == "metric-missing":
            options = {"metric_names": {"up"}}
        if not any(mark in example for mark in ("…", "expr:", "no-break")):
            found[code] = example, options
    return found


PROMQL = promql_examples()


@pytest.mark.parametrize("code", PROMQL)
def test_examples_in_promql_earn_their_code(run: Run, policy: Policy, code: str) -> None:
    example, options = PROMQL[code]
    assert code in {f.code for f in run(policy(example), **options).findings}


@pytest.mark.parametrize("code", [c for c in PROMQL if CODES[c].severity != "error"])
def test_the_comment_of_the_page_silences_until_its_end(
    run: Run, policy: Policy, code: str
) -> None:
    (shown,) = re.findall(rf"`(# resilience: ignore {code} until .*)`", PAGE.read_text("utf-8"))
    example, options = PROMQL[code]
    text = policy(example, spec="").replace("  trigger:", f"  {shown}\n  trigger:")
    in_time = run(text, today=date(2030, 12, 31), **options).findings
    assert not {code, "ignore-unused", "ignore-malformed"} & {f.code for f in in_time}
    late = {f.code for f in run(text, today=date(2031, 1, 1), **options).findings}
    assert {code, "ignore-expired"} <= late


def test_the_page_has_every_code_with_an_example_and_how_to_silence_it() -> None:
    chapters = dict(re.findall(r"^### `([a-z0-9-]+)`\n\n(.*?)(?=^##|\Z)",
                               PAGE.read_text("utf-8"), re.M | re.S))
    assert list(chapters) == list(CODES)
    for name, chapter in chapters.items():
        severity = CODES[name].severity
        assert chapter.startswith(f"{severity.capitalize()}. {CODES[name].meaning}\n"), name
        assert re.search(r"^```\n\S", chapter, re.M), name
        silence = f"Silence: `# resilience: ignore {name} until 2030-12-31: REASON`"
        assert (silence in chapter) is (severity != "error"), name


def test_the_words() -> None:
    for name, code in CODES.items():
        assert CODE.fullmatch(name)
        assert code.meaning.endswith(".") and code.meaning[0].isupper()
