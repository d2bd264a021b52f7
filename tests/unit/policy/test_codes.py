"""The table of codes is complete, and nothing in it is dead."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import resilience.policy
from resilience.policy.catalogue import target_of
from resilience.policy.check import CheckResult
from resilience.policy.codes import CODES

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


def test_examples_in_promql_earn_their_code(run: Run, policy: Policy) -> None:
    names = list(CODES)
    chapter = names[names.index("promql-syntax"):names.index("udf-syntax")]
    for code in chapter:
        example, _, target = CODES[code].example.partition(" with --target ")
        if not any(mark in example for mark in ("…", "expr:", "no-break")):
            options: dict[str, Any] = {"target": target_of(target)} if target else {}
            if code == "metric-missing":
                options = {"metric_names": {"up"}}
            assert code in {f.code for f in run(policy(example), **options).findings}, code


def test_the_words() -> None:
    for name, code in CODES.items():
        assert CODE.fullmatch(name)
        assert code.meaning.endswith(".") and code.meaning[0].isupper()
